"""Each row that has a checksum is compared with it, once, however long the steps are."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import pytest

from riverbed.store.layout import STATE_DIRECTORY
from riverbed.store.tables.damage.scrub import SCRUBBED_TABLES, scrub_step
from riverbed.store.tables.environment import TABLES, Tables
from riverbed.store.tables.reader import TableReader
from tests.support.faults.bit_rot import build

MAP_BYTES = 1 << 30


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scrub") / "store"
    build(directory)
    return directory


def scrubbed(directory: Path, most_rows: int) -> tuple[dict[str, int], list[str]]:
    """-> the rows of each table, and the damage."""
    counts, damage = {}, []
    tables = Tables(directory, MAP_BYTES, readonly=True)
    for table in SCRUBBED_TABLES:
        key: bytes | None = b""
        counts[table] = 0
        while key is not None:
            with tables.env.begin() as txn:
                step = scrub_step(TableReader(tables, txn), table, key, most_rows)
            key = step.next_key
            counts[table] += step.rows
            damage += step.damage
    tables.close()
    return counts, damage


def rows_of(directory: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    tables = Tables(directory, MAP_BYTES, readonly=True)
    with tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        found = {table: list(reader.rows(table)) for table in TABLES}
    tables.close()
    return found


@pytest.mark.parametrize("most_rows", [1, 7, 100_000])
def test_sound_tables_are_sound_and_each_row_is_read_once(filled: Path, most_rows: int) -> None:
    counts, damage = scrubbed(filled, most_rows)
    assert damage == []
    rows = rows_of(filled)
    assert counts == {table: len(rows[table]) for table in SCRUBBED_TABLES}
    assert all(counts[table] for table in ("entries", "keys", "groups", "pel", "nodes", "meta"))


@pytest.mark.parametrize("table", SCRUBBED_TABLES)
def test_a_flipped_bit_in_the_value_of_any_row_is_found(filled: Path, tmp_path: Path, table: str) -> None:
    rows = [(key, row) for key, row in rows_of(filled)[table] if (table, key) != ("meta", b"format_version")]
    assert rows, "nothing is shown"
    for number in {0, len(rows) // 2, len(rows) - 1}:
        copy = tmp_path / str(number)
        shutil.copytree(filled, copy)
        key, row = rows[number]
        for byte in {len(row) // 2, len(row) - 6}:
            changed = bytearray(row)
            changed[byte] ^= 1
            replace(copy, table, key, key, bytes(changed))
            _, (found,) = scrubbed(copy, 50)
            assert found.startswith(f"table {table}: ")


def replace(directory: Path, table: str, key: bytes, new_key: bytes, row: bytes) -> None:
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin(write=True) as txn:
        db = env.open_db(table.encode(), txn=txn, create=False)
        txn.delete(key, db=db)
        txn.put(new_key, row, db=db)
    env.close()


# A start reads the rows of `meta` by their names, and of notes in `trash` the order alone is in their keys.
@pytest.mark.parametrize("table", sorted(set(TABLES) - {"meta", "trash"}))
def test_a_flipped_bit_in_the_key_of_any_row_is_found(filled: Path, tmp_path: Path, table: str) -> None:
    rows = rows_of(filled)[table]
    assert rows, "nothing is shown"
    for number in {0, len(rows) // 2, len(rows) - 1}:
        key, row = rows[number]
        for byte in {0, 7, min(8, len(key) - 1), len(key) // 2, len(key) - 1}:
            copy = tmp_path / f"{number}-{byte}"
            shutil.copytree(filled, copy)
            changed = bytearray(key)
            changed[byte] ^= 1
            replace(copy, table, key, bytes(changed), row)
            _, damage = scrubbed(copy, 50)
            assert damage, f"byte {byte} of {key.hex()}"
