"""The rows that runs of pending entries have in their three tables; `runs.py` draws them.

Runs are replaced together: a run that was cut, or was given to another owner, keeps most of its keys, and only rows
that differ are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.pending import UNOWNED, Run, group_prefix, owner_prefix, time_key
from riverbed.store.groups.pending.young import MAX_IN_RUN, Delivery
from riverbed.store.ids import ID_BYTES
from riverbed.store.wire import change_runs

if TYPE_CHECKING:
    import lmdb

_TABLES: Final = ("pel", "pel_by_consumer", "pel_by_time")


def replace_runs(
    cursor_over: Callable[[str], lmdb.Cursor[bytes]], group_no: int, old: list[Run], new: list[Run]
) -> None:
    """Put `new` into the tables, in the place of `old`, whose rows are there."""
    prefix = group_prefix(group_no)
    old_keys = [_keys(group_no, run) for run in old]
    new_keys = [_keys(group_no, run) for run in new]
    for number, table in enumerate(_TABLES):
        cursor = cursor_over(table)
        gone = {keys[number] for keys in old_keys}
        for key in gone.difference([keys[number] for keys in new_keys]):
            if cursor.set_key(key):
                cursor.delete()
        for keys, run in zip(new_keys, new, strict=True):
            if table == "pel":
                cursor.put(keys[number], run.pack(prefix))
            elif keys[number] not in gone:
                cursor.put(keys[number], run.last if table == "pel_by_time" and run.consumer_no == UNOWNED else b"")


def change_rows(
    cursor_over: Callable[[str], lmdb.Cursor[bytes]],
    prefix: bytes,
    rows: list[tuple[bytes, bytes] | None],
    order: list[bytes],
    changed: dict[bytes, Delivery | None],
) -> None:
    """Change entries with the ascending IDs `order`, None removes one; `rows` are their runs as `change_runs` has them.

    Runs are cut, and neighbours that differ in their IDs only become one.  Raises DamagedRowError with nothing changed.
    """
    try:
        tables = change_runs(prefix, rows, order, changed, MAX_IN_RUN)
    except ValueError:
        for key, row in filter(None, rows):
            Run.under(key, row)
        raise DamagedRowError("the order of rows") from None
    for table, (gone, new) in zip(_TABLES, tables, strict=True):
        cursor = cursor_over(table)
        for key in gone:
            # 0.36 us; a delete without a cursor takes 0.5
            if cursor.set_key(key):
                cursor.delete()
        # in the order of their keys, LMDB finds most places on the page where it has put the row before
        cursor.putmulti(new)


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
