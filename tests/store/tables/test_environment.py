from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.store.errors import CorruptionError, StoreError
from riverbed.store.format.resp import encode_entry
from riverbed.store.ids import MAX_ID, MIN_ID
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.environment import TABLES, Tables
from tests.support.store.stores import Store, sid


def test_the_server_reads_single_pages_and_tools_read_ahead(tmp_path: Path) -> None:
    for readonly in (False, True):
        tables = Tables(tmp_path, 1 << 30, readonly=readonly)
        assert tables.env.flags()["readahead"] is readonly
        tables.close()


def test_a_name_that_lmdb_cannot_have_is_an_error_of_the_store() -> None:
    with pytest.raises(StoreError, match="is not UTF-8"):
        Tables(Path("/data\udcff"), 1 << 20, readonly=True)


def test_unused_space_of_pages_does_not_have_what_was_in_memory_before(tmp_path: Path) -> None:
    """A server's memory has had passwords in it, and its pages go to snapshots and their readers."""
    tables = Tables(tmp_path, 1 << 30)
    secrets = [b"password" * 510 + b"%d" % number for number in range(5_000)]
    assert all(secrets)
    del secrets
    with tables.env.begin(write=True, db=tables.handles["entries"]) as txn:
        for number in range(20_000):
            txn.put(b"%08d" % (number * 7919 % 20_000), b"row" * 10)
    tables.close()
    assert b"password" not in (tmp_path / STATE_DIRECTORY / DATA_NAME).read_bytes()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_lost_is_not_made_empty(tmp_path: Path, name: str) -> None:
    """A flipped bit in the name of a table, which stands in a page of LMDB, is enough."""
    store = Store(tmp_path)
    store.run("XADD", "s", "1-1", "f", "v")
    store.checkpoint()
    store.engine.close()
    path = tmp_path / STATE_DIRECTORY / DATA_NAME
    data = path.read_bytes()
    node = len(name).to_bytes(2, "little") + name.encode()
    assert node in data
    path.write_bytes(data.replace(node, node[:-1] + b"?"))

    with pytest.raises(CorruptionError, match=f"table {name} is missing, or empty"):
        store.open()

    checked = subprocess.run(
        [sys.executable, "-m", "riverbed.tools.entry", "check", str(tmp_path), "--repair"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    store.open()
    assert [row for _, row in store.stream(b"s").rows(MIN_ID, MAX_ID)] == [encode_entry(sid("1-1"), [b"f", b"v"])]
    store.kill()
