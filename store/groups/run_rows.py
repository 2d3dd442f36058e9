"""The rows that runs of pending entries have in their three tables; `pending.py` draws them.

Runs are replaced together: a run that was cut, or was given to another owner, keeps most of its keys, and only rows
that differ are touched.

A flipped bit in LMDB's tree has a cursor find a row from the page where it stands, and put the same row elsewhere: then
there are two, and what was acknowledged is pending again.  So no row of `pel` is put where the rows beside it are not
those that have to be there, and none that has to be deleted may be missing.  It raises TornRunsError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.pending import UNOWNED, Run, group_prefix, owner_prefix, time_key
from riverbed.store.groups.young import MAX_IN_RUN, Delivery
from riverbed.store.ids import ID_BYTES
from riverbed.store.tables.ranges import seek
from riverbed.store.wire import change_runs

if TYPE_CHECKING:
    import lmdb

_TABLES: Final = ("pel", "pel_by_consumer", "pel_by_time")


class TornRunsError(DamagedRowError):
    """Rows of a group have changed, and others that should have changed with them could not be found."""

    def __init__(self) -> None:
        super().__init__("the order of rows")


def add_runs(cursor_over: Callable[[str], lmdb.Cursor[bytes]], group_no: int, runs: list[Run]) -> None:
    """Put ascending runs into the tables, above all others of the group.  Raises TornRunsError."""
    cursor = cursor_over("pel")
    prefix = group_prefix(group_no)
    _require_room(cursor, prefix + runs[0].last, prefix + runs[-1].last)
    for run in runs:
        by_id, by_owner, by_time = _keys(group_no, run)
        cursor.put(by_id, run.pack(prefix))
        cursor_over("pel_by_consumer").put(by_owner, b"")
        cursor_over("pel_by_time").put(by_time, b"")


def _require_room(cursor: lmdb.Cursor[bytes], first: bytes, last: bytes) -> None:
    """Raise TornRunsError unless searches for two keys, and so for all between them, end between the same two rows."""
    try:
        is_found = seek(cursor, first)
        behind = cursor.key() if is_found else b""
    except DamagedRowError:
        raise TornRunsError from None
    if behind == first or cursor.set_range(last) != is_found or (is_found and cursor.key() != behind):
        raise TornRunsError


def replace_runs(
    cursor_over: Callable[[str], lmdb.Cursor[bytes]], group_no: int, old: list[Run], new: list[Run]
) -> None:
    """Put `new` into the tables, in the place of `old`, whose rows are there.  Raises TornRunsError."""
    prefix = group_prefix(group_no)
    old_keys = [_keys(group_no, run) for run in old]
    new_keys = [_keys(group_no, run) for run in new]
    for number, table in enumerate(_TABLES):
        cursor = cursor_over(table)
        there = {keys[number] for keys in old_keys}
        if table == "pel":
            for keys, run in zip(new_keys, new, strict=True):
                _put_run(cursor, keys[number], run.pack(prefix), is_there=keys[number] in there)
        gone = there.difference([keys[number] for keys in new_keys])
        if _delete(cursor, gone) < len(gone) and table == "pel":
            raise TornRunsError
        if table != "pel":
            for keys, run in zip(new_keys, new, strict=True):
                if keys[number] not in there:
                    cursor.put(keys[number], run.last if table == "pel_by_time" and run.consumer_no == UNOWNED else b"")


def _put_run(cursor: lmdb.Cursor[bytes], key: bytes, row: bytes, *, is_there: bool) -> None:
    """Put a row of `pel`.  Raises TornRunsError."""
    if not is_there:
        _require_room(cursor, key, key)
    elif not cursor.set_key(key):
        raise TornRunsError
    cursor.put(key, row)


def change_rows(
    cursor_over: Callable[[str], lmdb.Cursor[bytes]],
    prefix: bytes,
    rows: list[tuple[bytes, bytes] | None],
    order: list[bytes],
    changed: dict[bytes, Delivery | None],
) -> None:
    """Change entries with the ascending IDs `order`, None removes one; `rows` are their runs as `change_runs` has them.

    Runs are cut, and neighbours that differ in their IDs only become one.  Raises DamagedRowError with nothing
    changed, TornRunsError.
    """
    try:
        tables = change_runs(prefix, rows, order, changed, MAX_IN_RUN)
    except ValueError:
        for key, row in filter(None, rows):
            Run.under(key, row)
        raise DamagedRowError("the order of rows") from None
    for table, (gone, new) in zip(_TABLES, tables, strict=True):
        cursor = cursor_over(table)
        if table == "pel":
            _put_pieces(cursor, [row[0] for row in rows if row is not None], new)
        if _delete(cursor, gone) < len(gone) and table == "pel":
            raise TornRunsError
        if table != "pel":
            # in the order of their keys, LMDB finds most places on the page where it has put the row before
            cursor.putmulti(new)


def _put_pieces(cursor: lmdb.Cursor[bytes], old: list[bytes], new: list[tuple[bytes, bytes]]) -> None:
    """Put rows of `pel`, pieces of the runs with the keys `old`, which are there; both ascend.  Raises TornRunsError.

    A piece that is not under the key of its run belongs before this one, and is put only where it is found so; the next
    one of the same run belongs behind it, where the cursor is.  A search takes 0.4 us, to put a row as much.
    """
    at = placed = 0
    for key, row in new:
        while old[at] < key:
            at += 1
        if key == old[at]:
            is_right = cursor.set_key(key)
        elif placed == at + 1:
            is_right = True
        else:
            is_right = cursor.set_range(key) and cursor.key() == old[at]
            placed = at + 1
        if not is_right:
            raise TornRunsError
        cursor.put(key, row)


def _delete(cursor: lmdb.Cursor[bytes], keys: Collection[bytes]) -> int:
    """Delete the rows with these keys; -> how many there were."""
    deleted = 0
    for key in keys:
        # 0.36 us; a delete without a cursor takes 0.5
        if cursor.set_key(key):
            cursor.delete()
            deleted += 1
    return deleted


def _keys(group_no: int, run: Run) -> tuple[bytes, bytes, bytes]:
    """The keys of a run in the three tables."""
    last = run.last
    return group_prefix(group_no) + last, owner_prefix(group_no, run.consumer_no) + last, time_key(group_no, run)


def pieces(ids: list[bytes], wanted: Mapping[bytes, Delivery], old: Run | None) -> Iterator[Run]:
    """`ids` as runs: IDs in `wanted` as it says, the others as they were in `old`."""
    deliveries = [wanted.get(packed) for packed in ids]
    begin = 0
    while begin < len(ids):
        delivery = deliveries[begin]
        end = begin + 1
        most = min(len(ids), begin + MAX_IN_RUN)
        while end < most and deliveries[end] == delivery:
            end += 1
        packed = b"".join(ids[begin:end])
        if delivery is not None:
            yield Run(*delivery, packed)
        else:
            assert old is not None, "an ID that is neither new nor old"
            yield Run(*old.delivery, packed)
        begin = end


def cut_out(few: list[bytes], wanted: Mapping[bytes, Delivery], old: Run) -> Iterator[Run]:
    """As `pieces` of all IDs of `old`, of which a few change: the rest is not taken apart."""
    at = 0
    for packed in few:
        begin = old.find(packed)
        if begin > at:
            yield Run(*old.delivery, old.packed[at:begin])
        yield Run(*wanted[packed], packed)
        at = begin + ID_BYTES
    if at < len(old.packed):
        yield Run(*old.delivery, old.packed[at:])
