from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.store.errors import CorruptionError, StoreError
from riverbed.store.format.resp import encode_entry
from riverbed.store.ids import MAX_ID, MIN_ID
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.data_file import mapped, soundness
from riverbed.store.tables.environment import TABLES, Tables
from riverbed.store.wire import find_keys
from tests.support.servers import ROOT
from tests.support.store.stores import Store, sid


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
    monkeypatch.setattr(soundness, "walk_pages", lambda data: [])
    os.truncate(tmp_path / STATE_DIRECTORY / DATA_NAME, (tmp_path / STATE_DIRECTORY / DATA_NAME).stat().st_size - 1)
    Tables(tmp_path, 1 << 30, readonly=True).close()


def found(tables: Tables, commit_no: int, keys: list[bytes]) -> bytes:
    return find_keys(tables.committed_pages(commit_no), commit_no, b"entries", keys)


def test_keys_are_found_as_the_last_commit_has_left_them_while_the_file_grows(tmp_path: Path) -> None:
    tables = Tables(tmp_path, 1 << 30)
    handle, data = tables.handles["entries"], tmp_path / STATE_DIRECTORY / DATA_NAME
    keys = [b"%08d" % number for number in range(5000)]
    sizes = [data.stat().st_size]
    for count in (10, 200, 5000):
        txn = tables.begin()
        for key in keys[:count]:
            txn.put(key, b"row" * 10, db=handle)
        txn.commit()
        sizes.append(data.stat().st_size)
        txn = tables.begin()
        txn.delete(keys[0], db=handle)
        assert found(tables, txn.id() - 1, keys) == bytes([n < count for n in range(5000)])
        txn.abort()
    assert sizes[-1] > 3 * sizes[0]
    tables.close()


def test_keys_are_in_doubt_where_the_file_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(tmp_path, 1 << 30)
    with tables.begin() as txn:
        txn.put(b"key", b"row", db=tables.handles["entries"])
        commit_no = txn.id()
    with monkeypatch.context() as patch:
        patch.setattr(mapped, "open_file", lambda path, flags: os.open(tmp_path / "nothing", flags))
        assert found(tables, commit_no, [b"key"]) == b"\0"
    with tables.begin() as txn:
        txn.put(b"other", b"row", db=tables.handles["entries"])
        commit_no = txn.id()
    assert found(tables, commit_no, [b"key", b"other", b"more"]) == b"\1\1\0"
    tables.close()


SERVING = """
import sys
from pathlib import Path
from riverbed.store.tables.environment import Tables

tables = Tables(Path(sys.argv[1]), 1 << 30)
for line in sys.stdin:
    print(len(tables.readers()), flush=True)
"""


def test_a_file_that_a_server_is_writing_is_walked_again_under_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tables(tmp_path, 1 << 30).close()
    data = tmp_path / STATE_DIRECTORY / DATA_NAME
    readers: list[int] = []
    server = subprocess.Popen(
        [sys.executable, "-c", SERVING, tmp_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None and server.stdout is not None

    def walk(data: Path) -> list[str]:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write("\n")
        server.stdin.flush()
        readers.append(int(server.stdout.readline()))
        return ["keys out of order"] if len(readers) < 3 else []

    try:
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline() == "0\n"  # it has the tables open
        os.truncate(data, data.stat().st_size - 1)
        monkeypatch.setattr(soundness, "walk_pages", walk)
        Tables(tmp_path, 1 << 30, readonly=True).close()
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait(60)
    assert readers == [1, 1, 1]


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
