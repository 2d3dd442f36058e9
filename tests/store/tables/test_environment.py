from __future__ import annotations

import os
from pathlib import Path

import pytest
from lmdb import verify

from riverbed.store.errors import CorruptionError, StoreError
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.environment import Tables


@pytest.mark.parametrize("size", [5000, 8192, 12288, 40_000])
def test_a_file_that_was_cut_is_refused_before_it_can_kill(tmp_path: Path, size: int) -> None:
    tables = Tables(tmp_path, 1 << 30)
    with tables.env.begin(write=True, db=tables.handles["entries"]) as txn:
        for number in range(2000):
            txn.put(b"%08d" % number, b"row" * 10)
    tables.close()
    data = tmp_path / STATE_DIRECTORY / DATA_NAME
    os.truncate(data, size)
    for readonly in (True, False):
        with pytest.raises(CorruptionError, match="is cut off"):
            Tables(tmp_path, 1 << 30, readonly=readonly)
    assert data.stat().st_size == size


def test_the_server_reads_single_pages_and_tools_read_ahead(tmp_path: Path) -> None:
    for readonly in (False, True):
        tables = Tables(tmp_path, 1 << 30, readonly=readonly)
        assert tables.env.flags()["readahead"] is readonly
        tables.close()


def test_pages_that_were_not_needed_in_the_end_may_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tables(tmp_path, 1 << 30).close()
    monkeypatch.setattr(verify, "verify", lambda path: iter(()))
    os.truncate(tmp_path / STATE_DIRECTORY / DATA_NAME, (tmp_path / STATE_DIRECTORY / DATA_NAME).stat().st_size - 1)
    Tables(tmp_path, 1 << 30, readonly=True).close()


def test_a_name_that_lmdb_cannot_have_is_an_error_of_the_store() -> None:
    with pytest.raises(StoreError, match="is not UTF-8"):
        Tables(Path("/data\udcff"), 1 << 20, readonly=True)
