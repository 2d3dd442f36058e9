from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.store.errors import CorruptionError
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.data_file import soundness
from riverbed.store.tables.environment import Tables
from tests.support.servers import ROOT


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


def test_pages_that_were_not_needed_in_the_end_may_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tables(tmp_path, 1 << 30).close()
    monkeypatch.setattr(soundness, "walk_pages", lambda data: [])
    os.truncate(tmp_path / STATE_DIRECTORY / DATA_NAME, (tmp_path / STATE_DIRECTORY / DATA_NAME).stat().st_size - 1)
    Tables(tmp_path, 1 << 30, readonly=True).close()


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
