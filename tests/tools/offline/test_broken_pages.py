"""Pages that would have LMDB end the process: every tool names the damage in their place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.program import run
from tests.support.store.stores import Store
from tests.support.trees import changes, tree

COMMANDS = {
    "stat": ["stat", "{}"],
    "dump": ["dump", "{}", "s"],
    "compare": ["compare", "{}-sound", "{}"],
    "snapshot": ["snapshot", "{}", "{}-taken"],
    "compact": ["compact", "{}", "--yes"],
}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A store that was closed, with a leaf whose free space begins beyond its end."""
    store = Store(tmp_path / "store")
    store.add(b"s", *(f"{number}-0" for number in range(1, 2000)))
    store.engine.close()
    shutil.copytree(store.directory, tmp_path / "store-sound")
    path = store.directory / "state" / "data.mdb"
    data = bytearray(path.read_bytes())
    page = max(at for at in range(8192, len(data), 4096) if data[at + 10] == 2 and data[at + 16 : at + 18] != b"\0\0")
    data[page + 12 : page + 14] = b"\xff\xff"
    path.write_bytes(data)
    return store.directory


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_that_lmdb_would_end_at_is_named(broken: Path, name: str) -> None:
    before = tree(broken)
    result = run(*[word.format(broken) for word in COMMANDS[name]])
    assert (result.exit_code, result.stdout) == (2, "")
    text = " ".join(result.stderr.split())
    assert "data.mdb: " in text and " page " in text and "`riverbed check` says more" in text
    assert [path for path in changes(before, tree(broken)) if "lock.mdb" not in str(path)] == []
    assert {path.name for path in broken.parent.iterdir()} == {"store", "store-sound"}
