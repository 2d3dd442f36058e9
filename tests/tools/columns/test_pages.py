from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from riverbed.store.errors import CorruptionError
from riverbed.tools.columns.pages import PageTable, UnknownFileError

Rows = list[tuple[bytes, bytes]]
KEY_BYTES = 24
EVERYTHING = [(bytes(KEY_BYTES), b"\xff" * (KEY_BYTES - 1) + b"\xfe")]


def key_of(number: int) -> bytes:
    """Over all three numbers of a key, and in the order of `number`."""
    return b"%b%b%b" % tuple(part.to_bytes(8, "big") for part in (number >> 16, number >> 8 & 0xFF, number & 0xFF))


def write(directory: Path, rows: dict[bytes, bytes], *, seed: int = 0, deleted: int = 0) -> Path:
    """A compact copy of tables that were filled in random order; -> its data.mdb."""
    rnd = random.Random(seed)
    for each in ("live", "copy"):
        shutil.rmtree(directory / each, ignore_errors=True)
        (directory / each).mkdir(parents=True)
    env = lmdb.open(str(directory / "live"), max_dbs=20, map_size=1 << 28, sync=False)
    others = [env.open_db(b"table %d" % number) for number in range(8)]
    table = env.open_db(b"entries")
    keys = list(rows)
    rnd.shuffle(keys)
    spare = [key_of((1 << 20) + number) for number in range(deleted)]
    with env.begin(write=True) as txn:
        for number, key in enumerate([*keys, *spare]):
            txn.put(key, rows.get(key, b"x" * rnd.randrange(3000)), db=table)
            txn.put(key, b"another's", db=others[number % 8])
    with env.begin(write=True) as txn:
        for key in spare:
            txn.delete(key, db=table)
    env.copy(str(directory / "copy"), compact=True)
    env.close()
    return directory / "copy" / "data.mdb"


def read(path: Path, ranges: list[tuple[bytes, bytes]] = EVERYTHING, pages: int = 5) -> Rows:
    """All rows of the leaves that hold `ranges`."""
    found: Rows = []
    with PageTable(path, b"entries", KEY_BYTES) as table:
        leaves = table.leaves(ranges)
        for at in range(0, len(leaves), pages):
            rows = table.rows(leaves[at : at + pages])
            for i in range(len(rows.starts)):
                start, end = int(rows.starts[i]), int(rows.ends[i])
                page = 0 if rows.pages is None else int(rows.pages[i])
                value = table.long_value(page, end - start) if page else rows.buffer[start:end].tobytes()
                found.append((b"".join(int(part).to_bytes(8, "big") for part in rows.keys[i]), value))
    return found


def values_of(sizes: list[int], seed: int) -> dict[bytes, bytes]:
    rnd = random.Random(seed)
    numbers = rnd.sample(range(1 << 18), len(sizes))
    return {key_of(number): rnd.randbytes(size) for number, size in zip(numbers, sizes, strict=True)}


# Around those from which on a value has pages of its own, and those that are whole pages.
sizes = st.sampled_from([0, 1, 2, 7, 8, 60, 200, 1000, 1990, 2000, 2010, 4064, 4080, 4081, 9000])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(sizes, max_size=400) | st.integers(0, 3000).map(lambda count: [50] * count),
    st.integers(0, 99),
    st.sampled_from([0, 0, 300]),
)
def test_every_row_is_read_that_lmdb_has(tmp_path: Path, lengths: list[int], seed: int, deleted: int) -> None:
    rows = values_of(lengths, seed)

    assert read(write(tmp_path, rows, seed=seed, deleted=deleted)) == sorted(rows.items())


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """A file four pages deep, some of whose values are long."""
    rows = values_of([200] * 6000 + [3000] * 40, 1)
    return write(tmp_path_factory.mktemp("pages"), rows), sorted(rows.items())


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_leaves_of_ranges_are_few_and_miss_no_row(some: tuple[Path, Rows], data: st.DataObject) -> None:
    path, rows = some
    bounds = sorted(data.draw(st.lists(st.integers(0, 1 << 18), min_size=2, max_size=8, unique=True)))
    ranges = [(key_of(first), key_of(last)) for first, last in zip(bounds[::2], bounds[1::2], strict=False)]

    found = read(path, ranges)

    def inside(key: bytes) -> bool:
        return any(first <= key <= last for first, last in ranges)

    assert [row for row in found if inside(row[0])] == [row for row in rows if inside(row[0])]
    # Of pages that reach over an end of a range, two for each, something else is read as well.
    assert sum(not inside(key) for key, _ in found) <= 2 * 20 * len(ranges)


@contextmanager
def changed(path: Path, at: int, data: bytes) -> Iterator[None]:
    with path.open("r+b") as file:
        file.seek(at)
        before = file.read(len(data))
        file.seek(at)
        file.write(data)
        file.flush()
        try:
            yield
        finally:
            file.seek(at)
            file.write(before)


def test_a_flipped_bit_is_an_error_or_changes_no_row_but_by_its_own_bytes(some: tuple[Path, Rows]) -> None:
    path, rows = some
    pristine = path.read_bytes()
    rnd = random.Random(5)
    errors = 0
    for _ in range(150):
        # Half of them where pages are described; in those of values every other byte is one of a value.
        page = rnd.randrange(len(pristine) // 4096)
        at = page * 4096 + (rnd.randrange(16 + 40) if rnd.random() < 0.5 else rnd.randrange(4096))
        flipped = bytes([pristine[at] ^ 1 << rnd.randrange(8)])
        with changed(path, at, flipped):
            try:
                found = read(path, pages=800)
            except (CorruptionError, UnknownFileError):
                errors += 1
                continue
        assert [key for key, _ in found] == [key for key, _ in rows]
        different = [(now, was) for (_, now), (_, was) in zip(found, rows, strict=True) if now != was]
        assert len(different) <= 1
        assert all(sum(a != b for a, b in zip(now, was, strict=True)) == 1 for now, was in different)
    assert errors > 20


def test_pages_full_of_noise_are_an_error(some: tuple[Path, Rows]) -> None:
    path, rows = some
    rnd = random.Random(6)
    for page in [0, 1, *(rnd.randrange(2, path.stat().st_size // 4096) for _ in range(40))]:
        with changed(path, page * 4096, rnd.randbytes(4096)):
            try:
                found = read(path, pages=800)
            except (CorruptionError, UnknownFileError):
                continue
        assert found == rows or [key for key, _ in found] == [key for key, _ in rows]


def test_a_page_in_the_place_of_another_is_an_error(some: tuple[Path, Rows]) -> None:
    """Each is sound by itself, and even its number may be right."""
    path, rows = some
    pristine = path.read_bytes()
    rnd = random.Random(7)
    for _ in range(40):
        first, second = rnd.sample(range(2, len(pristine) // 4096), 2)
        data = pristine[first * 4096 : first * 4096 + 4096]
        with changed(path, second * 4096, second.to_bytes(8, "little") + data[8:]):
            try:
                found = read(path, pages=800)
            except CorruptionError:
                continue
        assert [key for key, _ in found] == [key for key, _ in rows]


def test_a_file_that_was_cut_is_an_error(some: tuple[Path, Rows], tmp_path: Path) -> None:
    path, _ = some
    data = path.read_bytes()
    cut = tmp_path / "cut.mdb"
    for size in (0, 10, 4096, 5000, 8192, len(data) // 2, len(data) - 4096, len(data) - 1):
        cut.write_bytes(data[:size])
        with pytest.raises(CorruptionError):
            read(cut)


def test_a_file_that_is_cut_while_it_is_read_is_an_error(some: tuple[Path, Rows], tmp_path: Path) -> None:
    path = tmp_path / "cut.mdb"
    path.write_bytes(some[0].read_bytes())
    with PageTable(path, b"entries", KEY_BYTES) as table:
        leaves = table.leaves(EVERYTHING)
        with path.open("r+b") as file:
            file.truncate(1 << 16)
        with pytest.raises(CorruptionError, match="the file ends"):
            table.rows(leaves)


def test_what_only_lmdb_can_read_is_left_to_it(tmp_path: Path) -> None:
    path = write(tmp_path, {key_of(1): b"x"})
    with pytest.raises(UnknownFileError, match="no table"):
        PageTable(path, b"entrees", KEY_BYTES)
    with changed(path, 16 + 4, b"\x02"), pytest.raises(UnknownFileError, match="version 2"):
        PageTable(path, b"entries", KEY_BYTES)
    env = lmdb.open(str(tmp_path / "live"), max_dbs=20, map_size=1 << 28)
    env.open_db(b"several", dupsort=True)
    env.close()
    with pytest.raises(UnknownFileError, match="flags"):
        PageTable(tmp_path / "live" / "data.mdb", b"several", KEY_BYTES)
