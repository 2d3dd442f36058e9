"""The consumer groups of a stream as one transaction sees them, with their consumers and pending entries.

Dead rows are left out: consumers of destroyed groups, and pending entries of deleted consumers.  `numbers_named`
finds a group or a consumer by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from riverbed.store.errors import CorruptionError, DamagedRowError
from riverbed.store.format.groups import (
    CONSUMER_KEY_BYTES,
    GROUP_KEY_BYTES,
    NAME_KEY_BYTES,
    NAMED_SINCE,
    NAMES_OF_GROUPS,
    ConsumerRow,
    GroupRow,
    consumer_key,
    decode_consumer_no,
    decode_group_no,
    group_key,
    name_row,
)
from riverbed.store.format.meta import read_version
from riverbed.store.format.pending import UNOWNED, Run, group_prefix
from riverbed.store.format.streams import StreamRow, decode_stream_prefix, stream_prefix
from riverbed.store.tables.places import seek, seek_below

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.tables.reader import TableReader


class LiveGroup(NamedTuple):
    """A group's row, and its consumers by number."""

    group_no: int
    row: GroupRow
    consumers: dict[int, ConsumerRow]

    def runs(self, reader: TableReader, first: bytes = b"") -> Iterator[Run]:
        """The runs of pending entries in ID order, from the run on that may hold the packed ID `first`.

        Raises CorruptionError at the end of all runs when they are not as many as the group's row counts.
        """
        prefix = group_prefix(self.group_no)
        count = 0
        for key, row in reader.rows("pel", prefix, prefix + first):
            run = Run.under(key, row)
            if run.consumer_no == UNOWNED or run.consumer_no in self.consumers:
                count += len(run)
                yield run
        if not first and count != self.row.pel_count:
            raise _miscounted(reader, f"group {self.group_no}", count, self.row.pel_count, "pending entries")


def live_groups(reader: TableReader, stream_no: int) -> list[LiveGroup]:
    """The groups of a stream, sorted by name."""
    groups: dict[int, LiveGroup] = {}
    for packed, row in reader.rows("groups", stream_prefix(stream_no)):
        group_no = decode_group_no(packed)
        if len(packed) == GROUP_KEY_BYTES:
            groups[group_no] = LiveGroup(group_no, GroupRow.unpack(packed, row), {})
        elif len(packed) == CONSUMER_KEY_BYTES and group_no in groups:
            groups[group_no].consumers[decode_consumer_no(packed)] = ConsumerRow.unpack(packed, row)
    return sorted(groups.values(), key=lambda group: group.row.name)


def counted_groups(reader: TableReader, row: StreamRow) -> list[LiveGroup]:
    """As `live_groups`.  Raises CorruptionError when groups or consumers are not as many as the rows count."""
    groups = live_groups(reader, row.stream_no)
    if len(groups) != row.group_count:
        raise _miscounted(reader, f"stream {row.stream_no}", len(groups), row.group_count, "groups")
    for group in groups:
        if len(group.consumers) != group.row.consumer_count:
            named = f"group {group.group_no}"
            raise _miscounted(reader, named, len(group.consumers), group.row.consumer_count, "consumers")
    return groups


def _miscounted(reader: TableReader, owner: str, found: int, counted: int, what: str) -> CorruptionError:
    reason = f"{owner} counts {counted} {what}, and there are {found}; `riverbed check` shows more"
    return CorruptionError(str(reader.path), None, reason)


def has_names(reader: TableReader) -> bool:
    """Whether groups and consumers are found by rows of their names: else an earlier version has made the tables."""
    version = read_version(reader.meta_row)
    return isinstance(version, int) and version >= NAMED_SINCE


def group_rows(cursor: lmdb.Cursor[bytes], stream_no: int, first_no: int = 0) -> Iterator[tuple[int, GroupRow]]:
    """(group_no, row) of the groups of a stream, by number from `first_no` on, without reading their consumers.

    The cursor is over table `groups`, and must not be moved during the iteration.
    """
    for group_no, key, row in _rows_of_groups(cursor, stream_no, first_no):
        yield group_no, GroupRow.unpack(key, row)


def group_names(cursor: lmdb.Cursor[bytes], stream_no: int) -> Iterator[tuple[int, bytes]]:
    """(group_no, name) of the groups of a stream; as `group_rows`."""
    for group_no, key, row in _rows_of_groups(cursor, stream_no):
        yield group_no, GroupRow.name_in(key, row)


def _rows_of_groups(
    cursor: lmdb.Cursor[bytes], stream_no: int, first_no: int = 0
) -> Iterator[tuple[int, bytes, bytes]]:
    """(group_no, key, row), not unpacked; as `group_rows`."""
    prefix = stream_prefix(stream_no)
    found = seek(cursor, group_key(stream_no, first_no))
    while found and cursor.key().startswith(prefix):
        key, row = cursor.item()
        group_no = decode_group_no(key)
        if group_no == NAMES_OF_GROUPS:
            return
        if len(key) == GROUP_KEY_BYTES:
            yield group_no, key, row
        found = seek(cursor, group_key(stream_no, group_no + 1))


def consumer_rows(
    cursor: lmdb.Cursor[bytes], stream_no: int, group_no: int, first_no: int = 0
) -> Iterator[tuple[int, ConsumerRow]]:
    """(consumer_no, row) of the consumers of a group, by number from `first_no` on.

    The cursor is over table `groups`, and must not be moved during the iteration.
    """
    prefix = group_key(stream_no, group_no)
    if seek(cursor, consumer_key(stream_no, group_no, first_no)):
        for key, row in cursor.iternext():
            if len(key) != CONSUMER_KEY_BYTES or not key.startswith(prefix):
                return
            yield decode_consumer_no(key), ConsumerRow.unpack(key, row)


def consumer_row(cursor: lmdb.Cursor[bytes], stream_no: int, group_no: int, consumer_no: int) -> ConsumerRow | None:
    """The row of a consumer, None when there is none.  Raises DamagedRowError."""
    key = consumer_key(stream_no, group_no, consumer_no)
    if cursor.set_key(key):
        return ConsumerRow.unpack(key, cursor.value())
    _require_sound_neighbours(cursor, key, "a consumer's row")
    return None


def numbers_named(cursor: lmdb.Cursor[bytes], prefix: bytes) -> list[int]:
    """The numbers of the groups or consumers with a name's digest, mostly one; of `group_name_prefix` or the like.

    Raises DamagedRowError.
    """
    numbers = []
    found = seek(cursor, prefix)
    while found and cursor.key().startswith(prefix):
        key, row = cursor.item()
        if not _is_bound(key, row):
            raise DamagedRowError("the row of a name", decode_stream_prefix(key))
        numbers.append(int.from_bytes(key[len(prefix) :], "big"))
        found = cursor.next()
    if not numbers:
        _require_sound_neighbours(cursor, prefix, "the row of a name")
    return numbers


def _require_sound_neighbours(cursor: lmdb.Cursor[bytes], key: bytes, what: str) -> None:
    """Raise DamagedRowError if a row beside the place of a key that is missing is not the one of its own key.

    A flipped bit of a key mostly leaves the row where it was.
    """
    is_sound = not cursor.set_range(key) or (cursor.key() > key and _is_bound(*cursor.item()))
    if is_sound and seek_below(cursor, key):
        is_sound = cursor.key() < key and _is_bound(*cursor.item())
    if not is_sound:
        raise DamagedRowError(what, decode_stream_prefix(key))


def _is_bound(key: bytes, row: bytes) -> bool:
    return row == name_row(key) if len(key) == NAME_KEY_BYTES else ConsumerRow.is_bound(key, row)
