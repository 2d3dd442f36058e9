"""Each row that has a checksum is compared with it, once, however long the steps are."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import pytest

from riverbed.store.databases import copying
from riverbed.store.databases.copying import CopyInTheMaking
from riverbed.store.layout import STATE_DIRECTORY
from riverbed.store.tables import purge as purging
from riverbed.store.tables.damage.scrub import SCRUBBED_TABLES, scrub_step
from riverbed.store.tables.environment import TABLES, Tables
from riverbed.store.tables.reader import TableReader
from tests.support.faults.bit_rot import build
from tests.support.in_process import HandClock, Product

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


# -- rows that no command reaches --------------------------------------------------------------------------------------


def fill(product: Product, key: str) -> None:
    """Twelve entries, four groups of six consumers, and records of three producers."""
    for number in range(1, 13):
        product.run("XADD", key, f"{number}-1", "f", "v")
    for group in range(4):
        product.run("XGROUP", "CREATE", key, f"g{group}", 0)
        for number in range(5):
            product.run("XREADGROUP", "GROUP", f"g{group}", f"c{number}", "COUNT", 2, "STREAMS", key, ">")
        product.run("XGROUP", "CREATECONSUMER", key, f"g{group}", "idle")
    for number in range(9):
        product.run("XADD", key, "IDMP", f"p{number % 3}", f"i{number}", "*", "f", "v")


def test_what_is_being_copied_or_purged_is_no_damage_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexes of such rows are written later, or deleted sooner; a note in table `trash` covers the rows."""
    monkeypatch.setattr(copying, "SLICE_ROWS", 3)
    monkeypatch.setattr(purging, "_ROWS_A_LOOK", 2)
    product = Product(tmp_path / "store", HandClock(), node_max_entries=3)
    slices = 0

    def look() -> None:
        nonlocal slices
        slices += 1
        product.engine.checkpoint()
        tables = product.engine.tables
        with tables.env.begin() as txn:
            reader = TableReader(tables, txn)
            assert [
                found for table in SCRUBBED_TABLES for found in scrub_step(reader, table, b"", 100_000).damage
            ] == []

    def purge() -> None:
        while product.engine.purge(0.0):
            look()
        look()

    fill(product, "s")
    db = product.engine.txn.databases[0]
    stream = db.stream(b"s", 0)
    assert stream is not None
    copy = CopyInTheMaking(db, stream)
    for _ in copy.fill():
        look()
    copy.close()
    purge()
    product.run("COPY", "s", "t")
    for line in ("XGROUP DELCONSUMER t g0 c1", "XGROUP DESTROY t g1", "XTRIM t MAXLEN 2", "XCFGSET t IDMP-MAXSIZE 9"):
        product.run(*line.split())
        purge()
    fill(product, "u")
    product.run("RENAME", "u", "t")
    purge()
    product.run("PEXPIRE", "s", 1000)
    product.run("FLUSHALL")
    product.clock.now_ms += 5000
    product.engine.txn.expire_due(product.clock.now_ms, 100)
    purge()
    assert slices > 100
    product.close()
