"""A range of entries, or of pending ones, around a key with a flipped bit is what it was or an error: it lacks none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.entries import bare_row
from riverbed.store.format.pending import group_prefix, last_in_run
from riverbed.store.groups.pending.runs import PendingRuns
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, pack_id
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.streams.stream import Stream
from riverbed.store.streams.view import StreamView
from tests.support.store.stores import Store, finished, sid

_FIRST, _COUNT = 100, 24
_IDS = range(_FIRST, _FIRST + _COUNT)
# Of the milliseconds and of the sequence numbers: the small ones lead to neighbours, and to other entries' own keys.
_BITS = [64 + bit for bit in (0, 1, 2, 3, 4, 6, 7, 40)] + [0, 5]
_MANY = 1 << 20  # bytes


def _numbers(values: Sequence[bytes]) -> list[int]:
    return [int(value.split(b"\r\n")[1].partition(b"-")[0]) for value in values]


def _reads(stream: Stream, start: StreamID, end: StreamID, count: int | None) -> Iterator[tuple[str, bool, list[int]]]:
    """(name, whether it goes backward, what it has found) of each way to read the range that finds no damage."""

    def entries(reverse: bool) -> Sequence[bytes]:
        return stream.entries_within(start, end, count, _MANY, reverse=reverse) or []

    def rows(reverse: bool) -> Sequence[bytes]:
        return [value for _, value in stream.rows(start, end, count, reverse=reverse)]

    def rows_within(reverse: bool) -> Sequence[bytes]:
        return [value for _, value in stream.rows_within(start, end, count, _MANY, reverse=reverse) or []]

    ways: dict[str, Callable[[bool], Sequence[bytes]]] = {"entries": entries, "rows": rows, "within": rows_within}
    for name, read in ways.items():
        for reverse in (False, True):
            try:
                yield name, reverse, _numbers(read(reverse))
            except DamagedRowError:
                continue
    try:
        yield "keys", False, [int.from_bytes(key[8:16], "big") for key in stream.keys(start, end, count)]
    except DamagedRowError:
        pass


@contextmanager
def _flipped(path: Path, key: bytes, bit: int) -> Iterator[None]:
    """Meanwhile a bit of a key is another one, wherever the key stands in the file."""
    data = path.read_bytes()
    byte = len(key) - 1 - bit // 8
    changed = bytearray(key)
    changed[byte] ^= 1 << bit % 8
    assert key in data
    with path.open("r+b") as file:
        file.write(data.replace(key, bytes(changed)))
    try:
        yield
    finally:
        with path.open("r+b") as file:
            file.write(data)


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize(("node_entries", "before", "chosen"), [(100, 5, 0), (4, 5, 0), (7, 150, 1)])
def test_a_range_around_a_flipped_bit_is_right_or_an_error(
    tmp_path: Path, node_entries: int, before: int, chosen: int, is_measured: bool
) -> None:
    store = Store(tmp_path, node_max_entries=node_entries)
    store.fill(b"r", before)
    for number in _IDS:
        store.run("XADD", "s", f"{number}-0", "f", "v")
    store.fill(b"t", 20)
    store.checkpoint()
    if is_measured:
        store.txn.largest_row = _MANY  # as beside a large entry
    stream = store.stream(b"s")
    chance = random.Random(node_entries)
    right = 0
    for number in _IDS[chosen::2]:
        for bit in _BITS:
            with _flipped(tmp_path / STATE_DIRECTORY / DATA_NAME, stream.prefix + pack_id(sid(f"{number}-0")), bit):
                first, last = sorted(chance.choices(range(_FIRST - 4, _IDS[-1] + 5), k=2))
                for start, end in (
                    (MIN_ID, MAX_ID),
                    (sid(f"{_FIRST}-0"), sid(f"{_IDS[-1]}-0")),
                    (sid(f"{first}-0"), sid(f"{last}-0")),
                    (sid(f"{number}-0"), MAX_ID),
                    (MIN_ID, sid(f"{number}-0")),
                    (StreamID(sid(f"{number - 1}-0") + 1), MAX_ID),
                ):
                    expected = [found for found in _IDS if start <= sid(f"{found}-0") <= end]
                    for count in (None, 1, 2, 5, _COUNT):
                        for name, reverse, found in _reads(stream, start, end, count):
                            wanted = expected[::-1] if reverse else expected
                            assert found == wanted[:count], (name, reverse, number, bit, first, last, count)
                            right += 1
    assert right > 1000
    store.txn.log.clear()
    store.engine.abandon()


@pytest.mark.parametrize("large", [0, 70_000])
def test_a_long_reply_around_a_flipped_bit_is_right_or_an_error(tmp_path: Path, large: int) -> None:
    store = Store(tmp_path, node_max_entries=7)
    store.fill(b"r", 5)
    for number in _IDS:
        store.run("XADD", "s", f"{number}-0", "f", b"v" * (large if number == _FIRST + 9 else 1))
    store.fill(b"t", 20)
    stream = store.stream(b"s")
    right = errors = 0
    with store.view() as view:
        shown = StreamView(view, stream)
        for number in _IDS[:: 1 if large else 2]:
            for bit in (0, 5, 64, 65, 66, 68, 70, 104, 128, 129):
                with _flipped(tmp_path / STATE_DIRECTORY / DATA_NAME, stream.prefix + pack_id(sid(f"{number}-0")), bit):
                    for first, last in (
                        (0, 999),
                        (_FIRST, number),
                        (number, 999),
                        (number - 1, number + 1),
                        (103, 118),
                    ):
                        expected = [found for found in _IDS if first <= found <= last]
                        for read in (_shown_range, _shown_sizes):
                            try:
                                found = read(shown, first, last)
                            except DamagedRowError:
                                errors += 1
                                continue
                            assert found == expected, (read, number, bit, first, last)
                            right += 1
    assert right > 200 and errors > 100
    store.txn.log.clear()
    store.engine.abandon()


def _shown_range(shown: StreamView, first: int, last: int) -> list[int]:
    """The entries of a range as a long XRANGE shows them."""
    start, end = sid(f"{first}-0"), sid(f"{last}-0")
    reply = b"".join(shown.pieces(start, end, finished(shown.count(start, end)), b"!"))
    return [int(piece.split(b"\r\n")[1].partition(b"-")[0]) for piece in reply.split(b"!")[1:]]


def _shown_sizes(shown: StreamView, first: int, last: int) -> list[int]:
    """As `_shown_range`, as a long XREAD counts them, which knows no end."""
    start, found = sid(f"{first}-0"), 0
    while (more := shown.sizes(start, 4))[0]:
        found += len(more[0])
        start = more[1]
    reply = b"".join(shown.pieces(sid(f"{first}-0"), MAX_ID, found, b"!"))
    numbers = [int(piece.split(b"\r\n")[1].partition(b"-")[0]) for piece in reply.split(b"!")[1:]]
    return [number for number in numbers if number <= last]


@pytest.mark.parametrize("has_neighbours", [False, True])
@pytest.mark.parametrize("count", [6, 12, 40])
def test_a_walk_through_pending_entries_around_a_flipped_bit_is_right_or_an_error(
    tmp_path: Path, count: int, has_neighbours: bool
) -> None:
    store = Store(tmp_path)
    store.txn.next_group_no = 77
    for key in (b"r", b"s", b"t") if has_neighbours else (b"s",):
        store.fill(key, count)
        for number in range(count):
            store.deliver(key, 1, consumer="AB"[number % 2])
    store.checkpoint()
    group = store.groups(b"s").get(b"g")
    assert group is not None
    prefix = group_prefix(group.group_no)
    right = 0
    for victim in range(1, count + 1, 1 if count < 20 else 3):
        for bit in (*_BITS, 128, 129, 130):
            with _flipped(tmp_path / STATE_DIRECTORY / DATA_NAME, prefix + pack_id(sid(f"{victim}-0")), bit):
                for start in {1, 2, max(victim - 1, 1), victim, victim + 1, count}:
                    for name, found in _walks(store, group.group_no, sid(f"{start}-0")):
                        wanted = list(range(start, count + 1))
                        assert found == ([count] if name == "last" else wanted), (name, victim, bit, start)
                        right += 1
    assert right > 100
    store.txn.log.clear()
    store.engine.abandon()


def _walks(store: Store, group_no: int, start: StreamID) -> Iterator[tuple[str, list[int]]]:
    """(name, what it has found) of each walk through the pending entries from `start` on that finds no damage."""
    pending = PendingRuns(store.txn, group_no, lambda number: True)

    def runs() -> list[bytes]:
        return [run.last for run in pending.runs(start, MAX_ID, lambda: [1, 2])]

    def rows() -> list[bytes]:
        found: list[bytes] = []
        place: StreamID | None = start
        while place is not None:
            some, place = pending.rows(place, MAX_ID, None, lambda: [1, 2], 5)
            found += map(last_in_run, some)
        return found

    def last() -> list[bytes]:
        found = pending.last_id(lambda: [1, 2])
        return [] if found is None else [pack_id(found)]

    for name, walk in {"runs": runs, "rows": rows, "last": last}.items():
        try:
            yield name, [int.from_bytes(packed[:8], "big") for packed in walk()]
        except DamagedRowError:
            continue


@pytest.mark.parametrize("table", ["pel_by_consumer", "pel_by_time"])
def test_a_list_of_pending_entries_with_a_flipped_bit_in_a_key_is_right_or_an_error(tmp_path: Path, table: str) -> None:
    """Nothing was written beside it: the list has all of its keys, and a search may pass over some."""
    count = 60
    store = Store(tmp_path)
    store.fill(b"s", count)
    for number in range(count):
        store.deliver(b"s", 1, consumer="AB"[number % 2])
        store.clock.now_ms += 1
    store.checkpoint()
    group = store.groups(b"s").get(b"g")
    assert group is not None
    right = errors = 0
    for key in list(store.txn.cursor(table).iternext(values=False))[::3]:
        for bit in (*range(64, 72), 88, 101, 127, 128, 130, 160):
            with _flipped(tmp_path / STATE_DIRECTORY / DATA_NAME, key, bit):
                for start in (1, 2, 25, count):
                    try:
                        found = list(_listed(store, group.group_no, table, start))
                    except DamagedRowError:
                        errors += 1
                        continue
                    step = 2 if table == "pel_by_consumer" else 1
                    assert found == list(range(start, count + 1, step)), (key.hex(), bit, start)
                    right += 1
    assert errors > 100 and (right > 100 or table == "pel_by_time")
    store.txn.log.clear()
    store.engine.abandon()


def _listed(store: Store, group_no: int, table: str, start: int) -> Iterator[int]:
    """The pending entries of a consumer from one of its own on, or those of the group in the order of their times."""
    pending = PendingRuns(store.txn, group_no, lambda number: True)
    if table == "pel_by_consumer":
        runs = list(pending.owned(2 - start % 2, sid(f"{start}-0"), MAX_ID))
    else:
        runs = [run for _, run in pending.by_time(b"")][start - 1 :]
    for run in runs:
        yield int.from_bytes(run.last[:8], "big")


def test_a_key_of_another_length_is_damage() -> None:
    with pytest.raises(DamagedRowError):
        bare_row(bytes(25), b"$3\r\n0-1\r\n*0\r\n")
