"""Runs to rows, lines of the log and replies.

What a client sends is appended to a `Tail`, which says what the open node of a stream takes.  An entry that is not so
simple, because its options act or the node is full, ends the appending and is left to others.  Of exact trims the tail
only counts how many entries they remove.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from riverbed.store.wire.reference.ids import ID_BYTES, KEY_BYTES, MAX_HALF, MAX_ID, unpacked
from riverbed.store.wire.reference.rows import Rows, seal
from riverbed.store.wire.reference.runs import Entry, Run, Trim
from riverbed.store.wire.reference.streams import open_stream, pack_stream

_MAX_TRIMMED: Final = 256
_TRIMMED_BYTES: Final = 64
_NO_ID: Final = bytes(ID_BYTES)
_MAX_COUNT: Final = (1 << 62) - 1  # of what a stream has; as many can be added


class Node(NamedTuple):
    """What a node was given: how many entries, the bytes of their fields, the first and the last packed ID."""

    entries: int
    size: int
    first: bytes
    last: bytes


class Tail:
    """What may be appended to a stream, and what was.

    Its user answers for the rest: that no client waits for the stream, that it does not expire, and that
    nothing else looks at it or changes it in the meantime.
    """

    __slots__ = (
        "_last_id",
        "_length",
        "_most",
        "_new_node",
        "_node_end",
        "_node_live",
        "_nodes",
        "_nodes_left",
        "_oldest",
        "_room",
        "_rows",
        "_stream",
        "prefix",
        "size",
        "trimmed",
    )

    def __init__(
        self,
        last_key: bytes,
        oldest: bytes,
        node_end: bytes,
        length: int,
        node_live: int,
        most: int,
        room: int,
        max_entries: int,
        max_bytes: int,
        nodes: int,
    ) -> None:
        self.prefix, self._last_id = unpacked(last_key)
        self._oldest = int.from_bytes(oldest, "big")
        self._node_end = int.from_bytes(node_end, "big")
        numbers = (length, node_live, most, room, max_entries, max_bytes, nodes)
        if not len(oldest) == len(node_end) == ID_BYTES or min(numbers) < 0:
            raise ValueError("not two packed IDs, or a negative number")
        self._length = length
        self._node_live = node_live
        self._most = most
        self._room = room
        self._new_node = max_entries, max_bytes
        self._nodes_left = nodes
        self._nodes = [Node(0, 0, _NO_ID, _NO_ID)]
        self._rows: Rows = []
        self._stream: tuple[bytes, bytes] | None = None  # the (key, row) that it was opened by
        self.size = 0  # bytes of these rows and their keys, and of what is to be removed
        self.trimmed = 0  # entries to be removed from the front

    @property
    def last_id(self) -> bytes:
        return self._last_id.to_bytes(ID_BYTES, "big")

    def nodes(self) -> list[Node]:
        """What each node was given; in front that which was open at first."""
        return list(self._nodes)

    def take_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The rows of the table of entries that were appended since the last call."""
        rows, self._rows, self.size = self._rows, [], self.trimmed * _TRIMMED_BYTES
        return iter(rows)

    def opened_by(self, key: bytes, row: bytes) -> Tail:
        """The same tail, of the stream with this row."""
        self._stream = key, row
        return self

    def stream_row(self) -> tuple[bytes, bytes] | None:
        """The (key, row) of the stream with what was appended.

        None when the tail was not opened by a row, when nodes were opened, or when entries are to be removed.
        """
        if self._stream is None or len(self._nodes) > 1 or self.trimmed:
            return None
        key, row = self._stream
        values = open_stream(key, row)
        assert values is not None, "a row that was read before"
        [(count, size, first, _)] = self._nodes
        if count:
            stream_no, _, length, added, expire_ms, first_id, *_ = values
            deleted, floor, tail_first, _, group_count, node_count, total, dead, used, _ = values[8:]
            last = self._last_id
            first_id = first_id if length else int.from_bytes(first, "big")
            head = (stream_no, None, length + count, added + count, expire_ms)
            ids = (first_id, last, last, deleted, floor, tail_first, last)
            values = (*head, *ids, group_count, node_count, total + count, dead, used + size, None)
        changed = pack_stream(key, values)
        assert changed is not None, "values that were read from a row"
        return key, changed

    def takes(self, entry: Entry, now: int) -> int | None:
        """The ID that the entry gets; None when the tail does not take it as it is."""
        if not self._has_room(entry.size) and (not self._nodes_left or entry.size >= self._new_node[1]):
            return None
        wanted = max(now, self._last_id + 1) if entry.wanted is None else entry.wanted
        if not self._last_id < wanted <= MAX_ID or self.count_trimmed(entry.trim) is None:
            return None
        return wanted

    def _has_room(self, size: int) -> bool:
        count, used, _, _ = self._nodes[-1]
        return count < self._most and size < self._room - used

    def count_trimmed(self, trim: Trim | None) -> int | None:
        """How many entries a trim removes when the entry has been appended; None: unknown, or not to be left for later.

        Exact trims are left for later, up to some hundreds of entries together.
        """
        if trim is None:
            return 0
        if trim.by_id:
            return 0 if trim.threshold <= (self._node_end if trim.is_approximate else self._oldest) else None
        excess = self._length + 1 - trim.threshold
        if excess <= 0:
            return 0
        if trim.threshold == 0:
            return None
        if trim.is_approximate:
            return 0 if excess < self._node_live else None
        return excess if excess <= _MAX_TRIMMED - self.trimmed else None

    def trim(self, count: int) -> int:
        """Note that the first `count` entries are to be removed; -> for how many bytes that counts."""
        self.trimmed += count
        self.size += count * _TRIMMED_BYTES
        self._length -= count
        self._node_live = max(self._node_live - count, 0)
        return count * _TRIMMED_BYTES

    def add(self, run: Run, entry: Entry, entry_id: int, bulk: bytes) -> int:
        """Append the entry, whose ID is `bulk` as a bulk string; -> the bytes of its row and the key."""
        if not self._has_room(entry.size):
            self._most, self._room = self._new_node
            self._nodes_left -= 1
            self._nodes.append(Node(0, 0, _NO_ID, _NO_ID))
        packed = entry_id.to_bytes(ID_BYTES, "big")
        row = b"%b*%d\r\n%b" % (bulk, entry.word_count, run.fields(entry))
        row = seal(self.prefix, row)
        self._rows.append((self.prefix + packed, row))
        count, size, first, _ = self._nodes[-1]
        self._nodes[-1] = Node(count + 1, size + entry.size, first if count else packed, packed)
        self._last_id = entry_id
        self._length += 1
        self.size += KEY_BYTES + len(row)
        return KEY_BYTES + len(row)


def open_tail(
    last_key: bytes,
    oldest: bytes,
    node_end: bytes,
    length: int,
    node_live: int,
    most: int,
    room: int,
    max_entries: int,
    max_bytes: int,
    nodes: int,
) -> Tail:
    """A tail that takes at most `most` entries, whose fields have less than `room` bytes together, into the open node.

    Further ones go into at most `nodes` new nodes of `max_entries` and less than `max_bytes`.  `last_key` has the
    prefix of the stream's rows and its last ID; `length` is the stream's.  An approximate trim by length removes
    `node_live` entries at least, none with a threshold of 0; an approximate trim by ID removes nothing up to
    `node_end`, an exact one up to `oldest`.  ValueError when a number is negative, or the bytes are too many.
    """
    return Tail(last_key, oldest, node_end, length, node_live, most, room, max_entries, max_bytes, nodes)


def open_tail_by_row(key: bytes, row: bytes, max_entries: int, max_bytes: int, nodes: int) -> Tail | None:
    """As `open_tail`, of the stream with this row in the table of streams, for entries that do not trim.

    The open node takes what is left of `max_entries` and `max_bytes`; none is open when it has had no entry.  None when
    the row is not bound to its key, has a long key or settings, or expires.  ValueError when a number is negative.
    """
    if min(max_entries, max_bytes, nodes) < 0:
        raise ValueError("a negative number")
    values = open_stream(key, row)
    if values is None or values[4]:
        return None
    stream_no, _, length, *_ = values
    last_id, total, size = values[6], values[14], values[16]
    if max(value for at, value in enumerate(values) if at in (2, 3, 12, 13, 14, 15, 16)) > _MAX_COUNT:
        return None
    most = max(max_entries - total, 0) if total else 0
    room = max(max_bytes - size, 0) if total else 0
    last_key = stream_no.to_bytes(KEY_BYTES - ID_BYTES, "big") + last_id.to_bytes(ID_BYTES, "big")
    return open_tail(last_key, _NO_ID, _NO_ID, length, 0, most, room, max_entries, max_bytes, nodes).opened_by(key, row)


def take_tails(tails: list[Tail]) -> tuple[Iterator[tuple[bytes, bytes]], list[tuple[bytes, bytes] | None]]:
    """`Tail.take_rows` of all these tails, which are of different streams, in order, and `Tail.stream_row` of each."""
    stream_rows = [tail.stream_row() for tail in tails]
    return iter(sorted(row for tail in tails for row in tail.take_rows())), stream_rows


def keys_in_order(tails: dict[bytes, Tail]) -> list[bytes]:
    """The keys of these tails, which are of different streams, in the order of the rows of these streams."""
    return sorted(tails, key=lambda key: tails[key].prefix)


def unknown_keys(run: Run, at: int, max_bytes: int, *dicts: dict[bytes, Any]) -> list[bytes]:
    """The keys of the entries of `run` from `at` on that are in none of the `dicts`, some more than once.

    Without those of entries that trim, or whose fields have `max_bytes` or more.
    """
    if not 0 <= at <= len(run) or max_bytes < 0:
        raise ValueError("not a place in the run, or a negative number")
    simple = [entry.key for entry in run.entries[at:] if entry.trim is None and entry.size < max_bytes]
    return [key for key in simple if not any(key in known for known in dicts)]


def append(
    run: Run, at: int, tails: dict[bytes, Tail], watched: dict[bytes, int], now_ms: int
) -> tuple[int, int, bytes, bytes]:
    """Append the entries of `run` from `at` on to the tails of their keys; -> (count, bytes of rows, log, replies).

    Ends before the first entry whose key has no tail or is `watched`, or that its tail does not take.
    """
    if not 0 <= at <= len(run) or now_ms < 0:
        raise ValueError("not a place in the run, or a negative time")
    log, replies, size = [], [], 0
    for entry, tail, entry_id in _taken(run, at, tails, watched, now_ms << 64):
        text = b"%d-%d" % (entry_id >> 64, entry_id & MAX_HALF)
        bulk = b"$%d\r\n%b\r\n" % (len(text), text)
        front = [b"XADD", entry.key]
        trimmed = tail.count_trimmed(entry.trim)
        size += tail.add(run, entry, entry_id, bulk)
        if trimmed and entry.trim is not None:
            front += [b"MAXLEN", b"=", b"%d" % entry.trim.threshold]
            size += tail.trim(trimmed)
        words = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in front])
        log += [b"*%d\r\n" % (len(front) + 1 + entry.word_count), words, bulk, run.fields(entry)]
        replies.append(bulk)
    return len(replies), size, b"".join(log), b"".join(replies)


def load(run: Run, at: int, tails: dict[bytes, Tail], watched: dict[bytes, int]) -> tuple[int, int]:
    """As `append`, for a run out of a log, which has the IDs of its entries; -> (count, bytes of rows)."""
    if not 0 <= at <= len(run):
        raise ValueError("not a place in the run")
    count = size = 0
    for entry, tail, entry_id in _taken(run, at, tails, watched, 0):
        trimmed = tail.count_trimmed(entry.trim) or 0
        size += tail.add(run, entry, entry_id, run.id_bulk(entry)) + tail.trim(trimmed)
        count += 1
    return count, size


def _taken(
    run: Run, at: int, tails: dict[bytes, Tail], watched: dict[bytes, int], now: int
) -> Iterator[tuple[Entry, Tail, int]]:
    """The entries of `run` from `at` on, with their tails and IDs; each is added before the next one is asked for."""
    for entry in run.entries[at:]:
        tail = None if entry.key in watched else tails.get(entry.key)
        entry_id = None if tail is None else tail.takes(entry, now)
        if tail is None or entry_id is None:
            return
        yield entry, tail, entry_id


def expand_one(run: Run, key: bytes, log_head: bytes) -> tuple[bytes, int, bytes, bytes]:
    """The first entry of `run` with the ID in `key`, whatever it asks for; -> (row, bytes of fields, log, reply).

    The line of the log is `log_head`, the ID and the fields.
    """
    prefix, entry_id = unpacked(key)
    text = b"%d-%d" % (entry_id >> 64, entry_id & MAX_HALF)
    bulk = b"$%d\r\n%b\r\n" % (len(text), text)
    entry = run.entries[0]
    fields = run.fields(entry)
    row = b"%b*%d\r\n%b" % (bulk, entry.word_count, fields)
    return seal(prefix, row), entry.size, b"".join((log_head, bulk, fields)), bulk


def load_xadds(run: Run, at: int, most: int, room: int, last_key: bytes, rows: Rows) -> tuple[int, int, bytes]:
    """The rows of a run out of a log are appended to `rows`; -> (count, bytes of fields, last key).

    As many as there are, at most `most`, and those whose fields have less than `room` bytes together.  `last_key` is
    that of the row before.  The first entry that trims, has another key, or an ID not above the last one, ends it.
    """
    prefix, _ = unpacked(last_key)
    count = size = 0
    for entry in run.fitting(at, most, room):
        key = prefix + (entry.wanted or 0).to_bytes(ID_BYTES, "big")
        if key <= last_key or entry.key != run.key or entry.trim is not None:
            break
        row = b"%b*%d\r\n%b" % (run.id_bulk(entry), entry.word_count, run.fields(entry))
        rows.append((key, seal(prefix, row)))
        count += 1
        size += entry.size
        last_key = key
    return count, size, last_key
