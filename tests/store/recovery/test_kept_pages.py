"""While pages are kept LMDB writes behind them alone, whichever of them are free."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.store.recovery.kept_pages import kept_pages
from riverbed.store.tables.environment import Tables

_META_PAGES = 2


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Tables in which about half of the pages are free."""
    tables = Tables(tmp_path, 1 << 28)
    for _ in range(4):
        rewrite(tables)
    return tables


def rewrite(tables: Tables) -> None:
    with tables.env.begin(write=True, db=tables.handles["entries"]) as txn:
        for number in range(2000):
            txn.put(b"%08d" % number, os.urandom(100))


def contents(tables: Tables) -> bytes:
    return (tables.path / "data.mdb").read_bytes()[_META_PAGES * tables.env.stat()["psize"] :]


def test_no_page_is_written_over_while_pages_are_kept(tables: Tables) -> None:
    before = contents(tables)
    with kept_pages(tables):
        for _ in range(3):  # commits write where a transaction that is too large for memory does
            rewrite(tables)
            assert contents(tables)[: len(before)] == before
    size = len(contents(tables))
    assert size > len(before)
    rewrite(tables)
    assert len(contents(tables)) == size
    assert contents(tables)[: len(before)] != before
    tables.close()


def test_pages_are_kept_by_a_reader_that_is_gone_afterwards(tables: Tables) -> None:
    with kept_pages(tables):
        assert [(reader.pid, reader.transaction_no) for reader in tables.readers()] == [(os.getpid(), 0)]
    assert tables.readers() == []
    tables.close()


def test_the_process_stays_known_as_one_that_has_the_tables_open(tables: Tables) -> None:
    """Else the next process to open them would begin the lock file again, and with it LMDB's lock of the writer."""
    look = (
        "import lmdb, sys; e = lmdb.open(sys.argv[1], readonly=True, max_readers=1024); "
        "print(e.readers().count(sys.argv[2]))"
    )
    with kept_pages(tables):
        command = [sys.executable, "-c", look, str(tables.path), str(os.getpid())]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert found.stdout == "1\n"
    tables.close()
