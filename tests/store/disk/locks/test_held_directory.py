"""A directory that is moved, deleted or replaced while this process holds it: nothing is done at its path any more."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from riverbed.store.disk.locks.held_directory import MOVED, HeldDirectory, HeldFiles
from riverbed.store.errors import LogWriteError
from tests.support.store.stores import Store
from tests.support.trees import changes, tree


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    (path / "file").write_bytes(b"x")
    return path


def move(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def replace(directory: Path) -> None:
    move(directory)
    directory.mkdir()
    (directory / "file").write_bytes(b"another's")


def link(directory: Path) -> None:
    replace(directory)
    directory.rename(directory.with_name("other"))
    directory.symlink_to(directory.with_name("other"))


def put_a_file_there(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_bytes(b"")


WAYS: list[Callable[[Path], object]] = [move, replace, link, put_a_file_there, shutil.rmtree]


def test_a_store_whose_log_may_not_be_written_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path, files=None).engine.close()
    asked = []

    def denied(path: Path, mode: int, **how: object) -> bool:
        asked.append(mode)
        return path.name != "appendonlydir"

    with monkeypatch.context() as patched:
        patched.setattr("os.access", denied)
        with pytest.raises(PermissionError) as caught:
            Store(tmp_path, files=None)
    assert caught.value.filename == str(tmp_path / "appendonlydir")
    assert os.W_OK | os.X_OK in asked
    Store(tmp_path, files=None).engine.close()


@pytest.mark.parametrize("how", WAYS)
def test_it_is_gone_when_its_path_leads_elsewhere(directory: Path, how: Callable[[Path], object]) -> None:
    fd = os.open(directory, os.O_RDONLY)
    held = HeldDirectory(directory)
    assert not held.is_gone
    held.settle()
    (directory / "more").mkdir()
    assert not held.is_gone
    how(directory)
    assert held.is_gone
    os.close(fd)


def test_it_may_come_back(directory: Path) -> None:
    held = HeldDirectory(directory)
    held.settle()
    move(directory)
    assert held.is_gone
    directory.with_name("elsewhere").rename(directory)
    assert not held.is_gone
    held.require()


def test_a_path_that_cannot_be_looked_at_shows_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldDirectory(directory)
    held.settle()

    def fail(_: object) -> os.stat_result:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(os, "stat", fail)
    assert not held.is_gone


@pytest.mark.parametrize(
    "work",
    [
        lambda files, path: files.create(path / "new"),
        lambda files, path: files.open_update(path / "file"),
        lambda files, path: files.make_directory(path / "new"),
        lambda files, path: files.remove_directory(path / "empty"),
        lambda files, path: files.rename(path / "file", path / "other"),
        lambda files, path: files.unlink(path / "file"),
    ],
)
def test_no_file_is_made_moved_or_removed_at_the_path_of_one_that_is_gone(
    directory: Path, work: Callable[[HeldFiles, Path], object]
) -> None:
    held = HeldDirectory(directory)
    held.settle()
    replace(directory)
    (directory / "empty").mkdir()
    before = tree(directory)
    with pytest.raises(OSError, match=MOVED) as caught:
        work(HeldFiles(held), directory)
    assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, str(directory))
    assert tree(directory) == before


def test_a_store_whose_directory_was_replaced_does_nothing_to_the_store_at_its_path(tmp_path: Path) -> None:
    path = tmp_path / "data"
    store = Store(path, segment_bytes=1 << 16)
    store.add(b"s", "1-1")
    store.engine.checkpoint()
    path.rename(tmp_path / "moved")
    other = Store(path)
    other.add(b"s", "9-9")
    other.engine.checkpoint()
    before = tree(path)
    store.add(b"s", "2-1", words=(b"f", b"x" * (1 << 17)))  # the next checkpoint begins another file
    store.engine.commit(store.clock.now_ms)
    errors = []
    for work in (store.engine.checkpoint, store.engine.divide_log, store.engine.checkpoint):
        try:
            work()
        except (LogWriteError, OSError, lmdb.Error) as error:
            errors.append(str(error))
    assert all(MOVED in error for error in errors)
    assert MOVED in str(store.engine.log.rotate_error)
    store.engine.abandon()
    # both are of one process, whose list of mutexes goes through both lock files
    assert changes(before, tree(path)) in ([], ["changed: state/lock.mdb"])
    other.engine.close()
    for directory, entries in ((tmp_path / "moved", 2), (path, 1)):
        again = Store(directory)
        assert again.stream().length == entries
        again.engine.close()
