"""Rows of pending entries, which are runs of neighbours that were delivered together."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from riverbed.store.checksum import crc32c
from riverbed.store.wire.reference.ids import ID_BYTES, KEY_BYTES, PREFIX_BYTES, find_id, unpacked
from riverbed.store.wire.reference.rows import Rows

_CHECKSUM_BYTES: Final = 4  # behind a run; those of format version 2 have none
_RUN_HEAD: Final = 20  # consumer_no:u32 moment:u64 delivery_count:u64, then the IDs
_TURN_AT: Final = 48  # in a moment: the turn, over the delivery time
_BEHIND: Final = b"\xff" * ID_BYTES
_NO_TIME: Final = bytes(8)

# Owner, moment, delivery count; the owner 0 is none, and the moment is then the number of the release.
Delivery = tuple[int, int, int]
_Piece = tuple[Delivery, list[bytes]]  # a run: its delivery and its IDs
TableChange = tuple[list[bytes], Rows]  # keys that are gone, rows to be put


def show_pending(
    prefix: bytes,
    rows: list[bytes],
    first: bytes,
    last: bytes,
    owners: dict[int, bytes],
    now_ms: int,
    until_ms: int,
    most: int,
) -> tuple[bytes, int]:
    """The pending entries of `rows` as XPENDING shows them; -> (elements of its reply, how many).

    Rows of the table `pel` whose keys begin with `prefix`, which are runs: those of the `owners`, whose names are there
    as bulk strings by number, and delivered by `until_ms` or without an owner, which is number 0.  Of these the IDs
    from `first` to `last`, `most` of them.  ValueError when a row is no run.
    """
    if len(prefix) != PREFIX_BYTES or len(first) != ID_BYTES or len(last) != ID_BYTES or most < 0:
        raise ValueError("no prefix of a group, not two packed IDs, or a negative number of entries")
    shown: list[bytes] = []
    for row in rows:
        if len(shown) == most:
            break
        (number, moment, deliveries), ids = _decoded(prefix, row)
        owner, time_ms = owners.get(number), _time_of(moment)
        if owner is None or (number and time_ms > until_ms):
            continue
        idle_ms = max(now_ms - time_ms, 0) if number else -1
        for packed in [packed for packed in ids if first <= packed <= last][: most - len(shown)]:
            text = b"%d-%d" % (int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:], "big"))
            shown.append(b"*4\r\n$%d\r\n%b\r\n%b:%d\r\n:%d\r\n" % (len(text), text, owner, idle_ms, deliveries))
    return b"".join(shown), len(shown)


def change_runs(
    prefix: bytes,
    rows: list[tuple[bytes, bytes] | None],
    order: list[bytes],
    changed: dict[bytes, Delivery | None],
    most: int,
) -> tuple[TableChange, TableChange, TableChange]:
    """What becomes of runs when entries of theirs change; -> the keys that are gone and the rows to be put, by table.

    The tables are `pel`, `pel_by_consumer` and `pel_by_time`; the rows to be put ascend.  `rows` are rows of `pel`
    whose keys begin with `prefix`, None between those that are no neighbours.  They have the ascending IDs `order`,
    whose deliveries `changed` has, None when they are not pending any more.  Neighbouring pieces of an owner that
    differ in their IDs only become one run of at most `most`.  ValueError when a row is no run, or is not in order, and
    when an ID is in none of them.
    """
    if len(prefix) != PREFIX_BYTES or most < 0:
        raise ValueError("no prefix of a group, or a negative number of entries")
    old: list[_Piece] = []
    new: list[_Piece] = []
    left = order[::-1]
    last = b""
    first = 0  # of the pieces that may be joined
    for item in rows:
        if item is None:
            first = len(new)
            continue
        key, row = item
        own, ids = _decoded(prefix, row)
        if not ids or key != prefix + ids[-1] or [last, *ids] != sorted({last, *ids}):
            raise ValueError("the IDs of runs do not ascend, or the key is another one")
        last = ids[-1]
        old.append((own, ids))
        states: list[tuple[bool, Delivery | None, bytes]] = []
        for packed in ids:
            changes = bool(left) and left[-1] == packed
            states.append((changes, changed[left.pop()] if changes else own, packed))
        stays = [state for state in states if state[1] is not None]
        for (_, delivery), those in groupby(stays, lambda state: state[:2]):
            assert delivery is not None
            piece = [packed for _, _, packed in those]
            if len(new) > first and delivery[0] and new[-1][0] == delivery and len(new[-1][1]) + len(piece) <= most:
                new[-1][1].extend(piece)
            else:
                new.append((delivery, piece))
    if left:
        raise ValueError("an ID that is in none of these runs")
    was = [_rows_of_run(prefix, *piece) for piece in old]
    tables = [_rows_of_run(prefix, *piece) for piece in new]
    by_id, by_owner, by_time = (
        _table_change([run[table][0] for run in was], [run[table] for run in tables], stays=table > 0)
        for table in range(3)
    )
    return by_id, by_owner, by_time


def _table_change(old: list[bytes], new: Rows, *, stays: bool) -> TableChange:
    """From the keys that a table has to the rows that it shall have, ascending; what `stays` there is not put again."""
    keys = {key for key, _ in new}
    return [key for key in old if key not in keys], sorted([row for row in new if not (stays and row[0] in old)])


def open_run(key: bytes, row: bytes) -> tuple[int, int, int, bytes]:
    """A row of `pel`; -> (owner, moment, delivery count, IDs).  ValueError when it is no run."""
    prefix, _ = unpacked(key)
    delivery, ids = _decoded(prefix, row)
    return *delivery, b"".join(ids)


def find_delivery(key: bytes | None, row: bytes, wanted: bytes) -> Delivery | None:
    """What a row of `pel` says of the entry that ends the key `wanted`; None when the row does not have it.

    `key` is that of the row, None if the row is of the group of `wanted`, and was found to be a run before.  ValueError
    when it is none, or not under this key.
    """
    if len(wanted) != KEY_BYTES:
        raise ValueError("this is no key of a run")
    if key is None:
        owner, moment, count, ids = open_run(wanted, row[: len(row) - (len(row) - _RUN_HEAD) % ID_BYTES])
    else:
        owner, moment, count, ids = open_run(key, row)
        if not ids or not key.endswith(ids[-ID_BYTES:]):
            raise ValueError("a run under another key than its own")
        if key[:PREFIX_BYTES] != wanted[:PREFIX_BYTES]:
            return None
    return None if find_id(ids, wanted[PREFIX_BYTES:]) < 0 else (owner, moment, count)


def _decoded(prefix: bytes, row: bytes) -> _Piece:
    if (len(row) - _RUN_HEAD) % ID_BYTES == _CHECKSUM_BYTES:
        row, checksum = row[:-_CHECKSUM_BYTES], row[-_CHECKSUM_BYTES:]
        sums = [crc32c(row, crc32c(prefix)), crc32c(row)]  # that without a prefix is of format version 3
        if int.from_bytes(checksum, "big") not in sums:
            raise ValueError("this is no run")
    if len(row) < _RUN_HEAD or (len(row) - _RUN_HEAD) % ID_BYTES:
        raise ValueError("this is no run")
    owner, moment, count = (int.from_bytes(row[a:b], "big") for a, b in ((0, 4), (4, 12), (12, 20)))
    return (owner, moment, count), [row[at : at + ID_BYTES] for at in range(_RUN_HEAD, len(row), ID_BYTES)]


def _rows_of_run(prefix: bytes, delivery: Delivery, ids: list[bytes]) -> Rows:
    """The (key, row) of a run in each of its three tables."""
    owner, moment, count = delivery
    row = owner.to_bytes(4, "big") + moment.to_bytes(8, "big") + count.to_bytes(8, "big") + b"".join(ids)
    return [
        (prefix + ids[-1], row + crc32c(row, crc32c(prefix)).to_bytes(_CHECKSUM_BYTES, "big")),
        (prefix + owner.to_bytes(4, "big") + ids[-1], b""),
        (prefix + _place(owner, moment) + (ids[-1] if owner else b""), b"" if owner else ids[-1]),
    ]


def _time_of(moment: int) -> int:
    return moment % (1 << _TURN_AT)


def _place(owner: int, moment: int) -> bytes:
    """What a key of `pel_by_time` has between the group and the last ID, which only runs with an owner have there."""
    if not owner:
        return _NO_TIME + moment.to_bytes(ID_BYTES, "big")
    turn = moment >> _TURN_AT
    return (_time_of(moment) + 1).to_bytes(8, "big") + (_BEHIND + turn.to_bytes(2, "big") if turn else b"")
