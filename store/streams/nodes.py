"""The closed nodes of a stream, found and counted down: counts of about a hundred entries each; see `stream.py`.

A flipped bit in a key mostly leaves the row where it was, between the same neighbours.  The checksum of a node is one
over its key, so a walk that meets the row notices it, also where the damaged key ends the walk.  A search that passes
the row by lands on another node, and that one does not hold what was searched for.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.streams import NodeRow, decode_live_counts, decode_stream_prefix, id_in_key, stream_prefix
from riverbed.store.ids import MIN_ID, StreamID, pack_id
from riverbed.store.tables.places import seek, seek_below, seek_last

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.model import Row

# The first chunk is short: most trims remove a node or none.
_FIRST_CHUNK: Final = 8
_CHUNK = 1000


def first_node(nodes: lmdb.Cursor[bytes], prefix: bytes, floor_id: StreamID, first_id: StreamID) -> NodeRow:
    """The first node, which there must be, of a stream whose first entry is `first_id`.  Raises DamagedRowError."""
    if not seek(nodes, prefix + pack_id(floor_id)):
        raise _damaged(prefix)
    key, row = nodes.item()
    node = _unpack(prefix, key, row)
    if not key.startswith(prefix) or id_in_key(key) > first_id:
        raise _damaged(prefix)
    return node


def nodes_from(nodes: lmdb.Cursor[bytes], prefix: bytes, start: StreamID) -> Iterator[tuple[StreamID, NodeRow]]:
    """(first ID, node) of the nodes that begin at `start` or later, oldest first.  Raises DamagedRowError."""
    if seek(nodes, prefix + pack_id(start)):
        for key, row in nodes.iternext():
            node = _unpack(prefix, key, row)
            if not key.startswith(prefix):
                return
            yield id_in_key(key), node


def node_chunks(nodes: lmdb.Cursor[bytes], prefix: bytes, start: StreamID) -> Iterator[list[Row]]:
    """The rows of the nodes from `start` on, oldest first, a few, then a thousand at a time; the last are left out."""
    if seek(nodes, prefix + pack_id(start)):
        rows = nodes.iternext()
        size = _FIRST_CHUNK
        while chunk := list(islice(rows, size)):
            if len(chunk) < size or not chunk[-1][0].startswith(prefix):
                return
            yield chunk
            size = _CHUNK


def seek_node(nodes: lmdb.Cursor[bytes], prefix: bytes, entry_id: StreamID) -> NodeRow:
    """Put the cursor on the node that holds an entry; -> the node.  Raises DamagedRowError."""
    if not seek_last(nodes, prefix + pack_id(entry_id)) or not nodes.key().startswith(prefix):
        raise _damaged(prefix)
    node = _unpack(prefix, *nodes.item())
    if entry_id > node.last_id:
        raise _damaged(prefix)
    return node


def seek_last_node(nodes: lmdb.Cursor[bytes], prefix: bytes) -> NodeRow | None:
    """Put the cursor on the last node; -> the node, None when there is none.  Raises DamagedRowError."""
    end = stream_prefix(decode_stream_prefix(prefix) + 1)
    if seek(nodes, end):
        _unpack(prefix, *nodes.item())
    if not seek_below(nodes, end):
        return None
    node = _unpack(prefix, *nodes.item())
    return node if nodes.key().startswith(prefix) else None


class NodeCounts:
    """Counts deleted entries out of the closed nodes of a stream.

    A node is written once for those of its entries that come one after the other, in any order: most that are deleted
    at once are neighbours.
    """

    def __init__(self, nodes: lmdb.Cursor[bytes], prefix: bytes) -> None:
        self._nodes = nodes  # for no other use until `settle`
        self._prefix = prefix
        self._node: NodeRow | None = None
        self._key = b""
        self._first = MIN_ID
        self._gone = 0  # entries of the node
        self._emptied = 0

    def count_out(self, entry_id: StreamID) -> None:
        """Count out an entry that was there.  Raises DamagedRowError."""
        node = self._node
        if node is None or not self._first <= entry_id <= node.last_id:
            self._write()
            self._node = node = seek_node(self._nodes, self._prefix, entry_id)
            self._key = self._nodes.key()
            self._first = id_in_key(self._key)
        self._gone += 1
        if self._gone > node.live:
            raise _damaged(self._prefix)

    def settle(self) -> int:
        """Write what was counted; -> how many nodes became empty, and are gone, since the last call."""
        self._write()
        emptied, self._emptied = self._emptied, 0
        return emptied

    def _write(self) -> None:
        node, gone = self._node, self._gone
        if node is None:
            return
        if node.live > gone:
            left = NodeRow(node.live - gone, node.total, node.size, node.last_id)
            self._nodes.put(self._key, left.pack(self._key))
        else:
            self._nodes.delete()
            self._emptied += 1
        self._node, self._gone = None, 0


def totals(prefix: bytes, rows: list[Row]) -> tuple[list[int], StreamID]:
    """How many entries are left of each of some nodes, and the last ID of the last one.  Raises DamagedRowError."""
    try:
        return decode_live_counts(rows), NodeRow.unpack(*rows[-1]).last_id
    except DamagedRowError:
        raise _damaged(prefix) from None


def _unpack(prefix: bytes, key: bytes, row: bytes) -> NodeRow:
    """As `NodeRow.unpack`, with an error that names the stream if the node is one of its own."""
    try:
        return NodeRow.unpack(key, row)
    except DamagedRowError:
        if key.startswith(prefix):
            raise _damaged(prefix) from None
        raise


def _damaged(prefix: bytes) -> DamagedRowError:
    return DamagedRowError("a node", decode_stream_prefix(prefix))
