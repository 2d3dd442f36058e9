"""What Spark is pointed at may be a stranger's: it follows no link, waits for no pipe, and writes nothing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.spark.errors import OptionError, SourceError
from riverbed.tools.spark.reading.locations import resolve
from riverbed.tools.spark.reading.options import read_options
from riverbed.tools.spark.writing.options import write_options
from tests.support.store.stores import Store
from tests.support.trees import changes, tree

SNAPSHOT = "snapshots/one"
KINDS: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda path, outside: path.symlink_to(outside),
    "link to a file like it": lambda path, outside: path.symlink_to(
        outside.parent / "made" / path.relative_to(path.parents[2])
    ),
    "device": lambda path, outside: path.symlink_to("/dev/zero"),
    "pipe": lambda path, outside: os.mkfifo(path),
    "directory": lambda path, outside: path.mkdir(),
}


@pytest.fixture
def patience() -> Iterator[None]:
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("", ["state/data.mdb", "state/lock.mdb", "state/in-use"]),
        (SNAPSHOT, [f"{SNAPSHOT}/{name}" for name in ("manifest.json", "streams.jsonl", "data.mdb")]),
    ],
)
def test_a_place_with_something_else_in_it_is_refused(tmp_path: Path, kind: str, place: str, names: list[str]) -> None:
    store = Store(tmp_path / "made")
    store.fill(b"s", 30)
    store.checkpoint()
    store.engine.close()
    take_snapshot(store.directory, store.directory / SNAPSHOT, program="test")
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / "cache").mkdir()
    for name in names:
        directory = tmp_path / "store"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(store.directory, directory)
        (directory / name).unlink(missing_ok=True)
        KINDS[kind](directory / name, outside)
        before = tree(directory)
        asked = read_options({"path": str(directory / place), "cacheDirectory": str(tmp_path / "cache")})
        with pytest.raises(SourceError):
            resolve(asked)
        assert set(changes(before, tree(directory))) <= {"changed: state/lock.mdb"}
        assert outside.read_text() == "precious"


@pytest.mark.parametrize("option", ["path", "paths", "cacheDirectory"])
def test_a_path_with_a_nul_is_refused(option: str) -> None:
    with pytest.raises(OptionError, match=r"a path cannot have a NUL in it, as 'a\\x00b' has"):
        read_options({"path": "x", option: '["x", "a\\u0000b"]' if option == "paths" else "a\0b"})
    if option == "path":
        with pytest.raises(OptionError, match="a path cannot have a NUL"):
            write_options({"path": "a\0b"})
