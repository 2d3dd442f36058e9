"""A copy of a stream in the making: rows under a number that no key has yet, filled in slices.

    source     idempotence records, groups with consumers and pending entries, entries with their nodes
       |  some hundred rows a slice
       v
    copy       a note in `trash`, which the purge leaves alone: a start after a crash has the rows deleted
       |  all rows are there, and the source is still what they were made of
       v
    Database.finish_copy    gives the number to a key, and logs COPY

COPY is in the log where the copy gets its key, so it must equal the source of that moment.  All that changes a stream
is logged: what is logged meanwhile is searched for the source's key.  New entries do no harm, as they come behind all
others and are copied last.  After any other change the copy is stale, and the caller begins again.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from riverbed.store.format import streams
from riverbed.store.format.entries import bare_row
from riverbed.store.format.groups import (
    CONSUMER_KEY_BYTES,
    GROUP_KEY_BYTES,
    NAMES_OF_GROUPS,
    ConsumerRow,
    GroupRow,
    consumer_key,
    decode_consumer_no,
    decode_group_no,
    group_key,
    group_name_key,
    look_key,
    name_row,
)
from riverbed.store.format.idempotence import with_records_no
from riverbed.store.format.log_lines import EXTENSION_NEXT, EXTENSION_START
from riverbed.store.format.resp import bulk
from riverbed.store.format.streams import entry_key, packed_id_in, stream_prefix
from riverbed.store.groups.pending.run_rows import replace_runs
from riverbed.store.tables.places import seek
from riverbed.store.wire import seal

if TYPE_CHECKING:
    from riverbed.store.groups.group import Group
    from riverbed.store.groups.groups import Groups
    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.writing.transaction import Transaction

# Rows of a slice, about 1 us each; the rows of a run of pending entries count as these.
SLICE_ROWS = 500
_RUN_ROWS: Final = 8
_RUN_BYTES: Final = 100  # without its IDs
_SLICE_BYTES: Final = 1 << 18
_RECORD_TABLES: Final = ("idmp", "idmp_ids", "idmp_times")
_EXTENSION: Final = re.compile(
    b"(?:%b|%b)([A-Za-z0-9+/=]*+)\r\n" % (re.escape(EXTENSION_START), re.escape(EXTENSION_NEXT))
)
# These change keys that they do not name.
_ALL_KEYS: Final = (bulk(b"FLUSHDB"), bulk(b"SWAPDB"))


class Source(Protocol):
    """The database of the source."""

    txn: Transaction

    def stream(self, key: bytes, now_ms: int) -> Stream | None: ...

    def groups(self, stream: Stream) -> Groups: ...


class CopyInTheMaking:
    """The rows of a copy of one stream.  `close` ends the making of it, also after `Database.finish_copy`."""

    def __init__(self, db: Source, stream: Stream) -> None:
        self.source_key = stream.key
        self._db = db
        self._txn = txn = db.txn
        self.source_no = stream.stream_no
        self._source_records_no = 0 if stream.idempotence is None else stream.idempotence.records_no
        self.stream_no = self._new_stream_no()
        self.records_no = self._new_stream_no() if self._source_records_no else 0
        self.looks: list[tuple[bytes, bytes]] = []  # rows of `consumer_ttls`, for the moment it has a key
        self.dead_letters: set[bytes] = set()  # the keys to which groups of the copy will move entries
        self.is_stale = False
        needle = re.escape(bulk(stream.key))
        self._named = re.compile(b"(?=%b)" % needle)  # a key may be such that its bytes overlap themselves
        self._plain_append = re.compile(re.escape(bulk(b"XADD")) + needle + rb"\$\d+\r\n\d+-\d+\r\n")
        txn.end_command()
        self._seen = len(txn.log)  # pieces of this tick's log that are looked through
        self._notes = txn.dead_rows
        for number in self._numbers:
            self._notes.hold_stream(number)
        txn.observers.append(self)

    def _new_stream_no(self) -> int:
        number = self._txn.next_stream_no
        self._txn.next_stream_no += 1
        self._txn.copied_bytes += 1  # the tables differ already: see `LiveState.restore`
        return number

    @property
    def _numbers(self) -> list[int]:
        return [self.stream_no, self.records_no] if self.records_no else [self.stream_no]

    # -- what happens to the source meanwhile --------------------------------------------------------------------------

    def look(self) -> bool:
        """Look through what this tick has logged so far; -> whether the copy is stale."""
        pieces = self._txn.log[self._seen :]
        self._seen += len(pieces)
        if pieces and not self.is_stale:
            logged = b"".join(pieces)
            self.is_stale = self._names_source(logged) or self._names_source(b"".join(_hidden_commands(logged)))
        return self.is_stale

    def _names_source(self, commands: bytes) -> bool:
        """Whether a command that may change the source, other than by an entry behind all others, is among these."""
        if any(name in commands for name in _ALL_KEYS):
            return True
        named = len(self._named.findall(commands))
        return named > 0 and named > len(self._plain_append.findall(commands))

    def logged(self, log: list[bytes]) -> None:
        self.look()
        self._seen = 0

    def record_dropped(self, records_no: int) -> None:
        if records_no == self._source_records_no:
            self.is_stale = True

    def lost(self) -> None:
        self.is_stale = True

    def close(self, *, is_alive: bool = False) -> None:
        """Leave the rows to the purge, unless the copy `is_alive`: it has a key."""
        txn = self._txn
        if self in txn.observers:
            txn.observers.remove(self)
        if self._notes is txn.dead_rows:  # else the tables were read again, and all notes are the purge's
            for number in self._numbers:
                self._notes.release(number, is_alive=is_alive)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def fill(self) -> Generator[None, None, None]:
        """Copy all rows, in slices; stop copying when it is stale.  `Database.finish_copy` has to follow at once."""
        for part in (self._copy_records, self._copy_groups, self._copy_entries):
            for _ in part():
                yield
                if self.look():
                    return

    def _source(self) -> Stream:
        """The source, with its rows as they are now."""
        stream = self._db.stream(self.source_key, 0)
        assert stream is not None and stream.stream_no == self.source_no, "a copy that is not stale has no source"
        return stream

    def _copy_records(self) -> Iterator[None]:
        txn = self._txn
        for table in _RECORD_TABLES if self.records_no else ():
            old = low = stream_prefix(self._source_records_no)
            while low:
                source, target = txn.lmdb.cursor(txn.handles[table]), txn.cursor(table)
                found = seek(source, low)
                low = b""
                rows = 0
                while found and source.key().startswith(old):
                    if rows == SLICE_ROWS:
                        low = source.key()
                        break
                    new_key, row = with_records_no(table, *source.item(), self.records_no)
                    target.put(new_key, row)
                    txn.copied_bytes += len(new_key) + len(row)
                    rows += 1
                    found = source.next()
                if low:
                    yield

    def _copy_groups(self) -> Iterator[None]:
        """Copy the rows of groups and consumers as they stand in their table: a group, its consumers, their names."""
        txn = self._txn
        stream = self._source()
        if not stream.group_count:
            return
        yield from self._write_back()
        prefix = low = stream.prefix
        group_no = new_no = 0
        rows = size = 0
        while seek(cursor := txn.cursor("groups"), low):
            key, row = cursor.item()
            if not key.startswith(prefix):
                return
            low = key + b"\0"
            if decode_group_no(key) == NAMES_OF_GROUPS:
                return
            if len(key) == GROUP_KEY_BYTES:
                group_no = decode_group_no(key)
                new_no = txn.next_group_no
                txn.next_group_no += 1
                new_key = group_key(self.stream_no, new_no)
                group = GroupRow.unpack(key, row)._replace(look_ms=0)
                cursor.put(new_key, group.pack(new_key))
                name_key = group_name_key(self.stream_no, group.name, new_no)
                cursor.put(name_key, name_row(name_key))
                if group.policy is not None and group.policy.dead_letter is not None:
                    self.dead_letters.add(group.policy.dead_letter)
                if group.policy is not None and group.policy.consumer_ttl_ms:
                    self.looks.append((look_key(0, self.stream_no, new_no), group.name))
                if group.pel_count:
                    yield from self._copy_pending(group.name, group_no, new_no)
            elif decode_group_no(key) != group_no:
                low = group_key(self.source_no, decode_group_no(key) + 1)  # of a destroyed group, left to the purge
                continue
            elif len(key) == CONSUMER_KEY_BYTES:
                new_key = consumer_key(self.stream_no, new_no, decode_consumer_no(key))
                cursor.put(new_key, ConsumerRow.unpack(key, row).pack(new_key))
            else:
                new_key = group_key(self.stream_no, new_no) + key[GROUP_KEY_BYTES:]
                cursor.put(new_key, name_row(new_key))
            txn.copied_bytes += len(new_key) + len(row)
            rows += 1
            size += len(row)
            if rows == SLICE_ROWS or size >= _SLICE_BYTES:
                rows = size = 0
                yield

    def _write_back(self) -> Iterator[None]:
        """Put into the tables what has changed in memory so far.  Later changes of the source's groups are logged."""
        txn = self._txn
        left = len(txn.dirty)  # below 0 when a part has written some of those later changes as well
        while left > 0:
            before = len(txn.dirty)
            txn.write_changed()  # not what is lent: appends go on, and so would this
            left = min(left - before + len(txn.dirty), len(txn.dirty))
            if left > 0:
                yield

    def _copy_pending(self, name: bytes, group_no: int, new_no: int) -> Iterator[None]:
        """Copy the living runs of pending entries of a group."""
        after = b""
        while True:
            group = self._group(name)
            assert group.group_no == group_no, "the name of a group leads to another one"
            rows = 0
            for place, run in group.pel.by_time(after):
                after = place
                rows += _RUN_ROWS
                if run is not None:
                    replace_runs(self._txn.cursor, new_no, [], [run])
                    self._txn.copied_bytes += _RUN_BYTES + len(run.packed)
                if rows >= SLICE_ROWS:
                    break
            else:
                return
            yield

    def _group(self, name: bytes) -> Group:
        group = self._db.groups(self._source()).get(name)
        assert group is not None, "a copy that is not stale has lost a group of its source"
        return group

    def _copy_entries(self) -> Iterator[None]:
        """Copy entries, and nodes as far as their entries are copied.  At the last slice none is left."""
        txn = self._txn
        prefix, new_prefix = stream_prefix(self.source_no), stream_prefix(self.stream_no)
        low = low_node = entry_key(self.source_no, self._source().floor_id)
        is_last = False
        while not is_last:
            self._source()  # takes it back if it is lent to runs of XADD
            source, target = txn.reader, txn.lmdb.cursor(txn.handles["entries"])
            found = seek(source, low)
            rows = size = 0
            while found and rows < SLICE_ROWS and size < _SLICE_BYTES:
                key, row = source.item()
                if not key.startswith(prefix):
                    found = False
                    break
                target.put(new_prefix + packed_id_in(key), seal(new_prefix, bare_row(key, row)))
                low = key + b"\0"
                rows += 1
                size += len(row)
                found = source.next()
            txn.copied_bytes += size + rows * len(low)
            is_last = not found
            low_node = self._copy_nodes(low_node, None if is_last else low)
            if not is_last:
                yield

    def _copy_nodes(self, low: bytes, end: bytes | None) -> bytes:
        """Copy the nodes from the key `low` on, which begin below `end`; -> where to go on."""
        txn = self._txn
        prefix, new_prefix = stream_prefix(self.source_no), stream_prefix(self.stream_no)
        source, target = txn.nodes, txn.lmdb.cursor(txn.handles["nodes"])
        found = seek(source, low)
        while found:
            key, row = source.item()
            if not key.startswith(prefix) or (end is not None and key >= end):
                break
            new_key = new_prefix + packed_id_in(key)
            target.put(new_key, streams.NodeRow.unpack(key, row).pack(new_key))
            low = key + b"\0"
            found = source.next()
        return low


def _hidden_commands(logged: bytes) -> Iterator[bytes]:
    """The parts of commands in the extension lines of a log, and of what looks like such lines in its words."""
    for text in _EXTENSION.findall(logged):
        with contextlib.suppress(binascii.Error):  # a word: only lines of our own are sure to be base64
            yield base64.b64decode(text)
