"""Columns that are written while the snapshot itself is compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import Result

from riverbed.store.progress import ignore
from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.snapshot.writer import VERIFYING, take_snapshot
from riverbed.tools.sidecar import beside, sidecar
from riverbed.tools.sidecar.beside import ColumnsBeside
from riverbed.tools.sidecar.sidecar import ColumnsError, fill_columns, fill_columns_beside, stream_columns
from tests.support.program import run
from tests.support.store.stores import Store, sid


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a store that is stopped."""
    store = Store(tmp_path / "store")
    for key in (b"s", b"other"):
        stream = store.stream(key, 0)
        for number in range(1, 9_000):
            stream.append_entry(sid(f"{number}-1"), [b"n", b"%d" % number, b"raw", bytes([number % 256])])
    store.commit()
    store.run("XGROUP", "CREATE", b"s", b"g", "0")
    store.checkpoint()
    store.kill()
    return tmp_path / "store"


def tool(directory: Path, out: Path) -> Result:
    words = ["snapshot", str(directory), str(out), "--columns"]
    return run(*words)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_they_are_those_that_are_written_afterwards(directory: Path, tmp_path: Path) -> None:
    result = tool(directory, tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    snapshot = open_snapshot(tmp_path / "out", verify=True)
    (tmp_path / "after").mkdir()
    fill_columns(snapshot, tmp_path / "after")
    assert files_below(snapshot.path / "columns") == files_below(tmp_path / "after")
    assert stream_columns(snapshot, 0, b"s").entries == 8_999


def test_they_take_over_the_files_of_the_snapshot_before(directory: Path, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    columns = []
    for name in ("a", "b"):
        assert tool(directory, folder / name).exit_code == 0
        columns.append(stream_columns(open_snapshot(folder / name), 0, b"s"))
    assert [os.path.samefile(*files) for files in zip(*(each.files for each in columns), strict=True)] == [True]


def test_a_snapshot_is_made_without_them_when_they_fail(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "MODULE", "riverbed.tools.no_such_module")
    result = tool(directory, tmp_path / "out")
    assert result.exit_code == 2
    assert "which is made" in " ".join(result.stderr.split())
    assert not (open_snapshot(tmp_path / "out", verify=True).path / "columns").exists()


def test_what_fails_in_their_process_is_told_and_taken_away(directory: Path, tmp_path: Path) -> None:
    with ColumnsBeside(ignore) as columns:

        def in_the_way(path: Path, data_bytes: int, time_ms: int) -> object:
            (path / "columns").mkdir()
            return columns.beside(path, data_bytes, time_ms)

        made = take_snapshot(directory, tmp_path / "out", program="test", beside=in_the_way)
    assert columns.failure is not None and "File exists: 'columns'" in columns.failure
    assert not (made.path / "columns").exists()


@pytest.mark.parametrize("when", [VERIFYING, "columns"])
def test_an_interrupt_leaves_nothing(directory: Path, tmp_path: Path, when: str) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()

    def steps(step: str, done: int, total: int) -> None:
        if step == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ColumnsBeside(steps) as columns:
        take_snapshot(directory, folder / "out", program="test", steps=steps, beside=columns.beside)
    assert not list(folder.iterdir())


def test_streams_beyond_what_folders_are_wise_for_have_none(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = take_snapshot(directory, tmp_path / "out", program="test")
    monkeypatch.setattr(sidecar, "_MAX_STREAMS", 1)
    size, time_ms = snapshot.manifest.data_file.size, snapshot.manifest.time_ms
    with pytest.raises(ColumnsError, match="has 2 streams; columns are for 1"):
        fill_columns_beside(snapshot.path, size, time_ms, lambda: snapshot)


def test_a_snapshot_that_is_another_than_its_tables_has_none(directory: Path, tmp_path: Path) -> None:
    one = take_snapshot(directory, tmp_path / "one", program="test")
    store = Store(tmp_path / "second")
    store.stream(b"s", 0).append_entry(sid("1-1"), [b"a", b"b"])
    store.commit()
    store.checkpoint()
    store.kill()
    other = take_snapshot(tmp_path / "second", tmp_path / "other", program="test")
    size, time_ms = one.manifest.data_file.size, one.manifest.time_ms
    with pytest.raises(Exception, match="it says of"):
        fill_columns_beside(one.path, size, time_ms, lambda: other)
    assert not (one.path / "columns" / "manifest.json").exists()


def test_what_the_process_prints_is_printed(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        f"import sys\nif {beside.MODULE!r} in sys.orig_argv:\n    print('a library says so', file=sys.stderr)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]))
    with ColumnsBeside(ignore) as columns:
        take_snapshot(directory, tmp_path / "out", program="test", beside=columns.beside)
    assert columns.failure is None
    assert "a library says so" in capfd.readouterr().err


def test_too_little_space_leaves_the_snapshot_without_columns(directory: Path, tmp_path: Path) -> None:
    with ColumnsBeside(ignore, leave_bytes=1 << 60) as columns:
        made = take_snapshot(directory, tmp_path / "out", program="test", beside=columns.beside)
    assert columns.failure is not None and "not enough space" in columns.failure
    assert not (made.path / "columns").exists()
