from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.real_files import (
    has_refused_places,
    is_directory,
    is_there,
    read_file,
    read_named_file,
    require_only,
    require_plain,
)
from riverbed.store.errors import UnsafeFileError
from riverbed.store.tables.data_file.power_loss import end_use, has_magic


def test_what_cannot_be_looked_at_is_not_taken_for_missing(tmp_path: Path) -> None:
    file, missing, loop, dangling = (tmp_path / name for name in ("file", "missing", "loop", "dangling"))
    file.touch()
    loop.symlink_to(loop)
    dangling.symlink_to(missing)
    exists = OsFiles().exists
    assert [is_there(path) for path in (tmp_path, file, missing, file / "x", dangling)] == [True, True] + [False] * 3
    assert [is_directory(path) for path in (tmp_path, file, missing, file / "x")] == [True, False, False, False]
    assert [exists(path) for path in (file, missing, file / "x", dangling, loop)] == [True, False, False, True, True]
    for path, number in ((loop / "x", errno.ELOOP), (tmp_path / ("x" * 300), errno.ENAMETOOLONG)):
        for look in (is_there, is_directory, exists):
            with pytest.raises(OSError, match=r"x") as caught:
                look(path)
            assert caught.value.errno == number


@pytest.mark.parametrize("read", [partial(read_file, most_bytes=8), partial(read_named_file, most_bytes=8), has_magic])
def test_a_file_that_the_disk_cannot_read_is_named(read: Callable[[Path], object]) -> None:
    unreadable = Path("/proc/self/mem")  # at its beginning, where no process has memory
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        read(unreadable)


def test_on_macos_a_sync_goes_through_the_cache_of_the_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fsync` does not there.  A file system that does not know F_FULLFSYNC gets what it knows."""
    answer = 0
    full: list[int] = []
    plain: list[int] = []

    def control(fd: int, operation: int) -> int:
        assert operation == 51
        full.append(fd)
        if answer:
            raise OSError(answer, os.strerror(answer))
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", plain.append)
    (tmp_path / "file").touch()
    fd = OsFiles().open_update(tmp_path / "file")
    for sync in (partial(OsFiles().sync, fd), partial(OsFiles().sync_directory, tmp_path), partial(end_use, tmp_path)):
        for answer in (0, errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
            full.clear()
            plain.clear()
            sync()
            assert (len(full), len(plain)) == (1, int(answer != 0))
        answer = errno.EIO
        plain.clear()
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            sync()
        assert plain == [], "a sync that is tried again succeeds though pages are lost"
    OsFiles().close(fd)


def test_what_may_be_deleted_holds_nothing_of_others(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    require_only(ours, ["state"])
    (ours / "state").mkdir(parents=True)
    require_only(ours, ["state", "damaged"])
    (ours / "letter.txt").touch()
    with pytest.raises(UnsafeFileError, match=r"letter\.txt is none of Riverbed's files"):
        require_only(ours, ["state", "damaged"])
    (tmp_path / "link").symlink_to(ours)
    with pytest.raises(UnsafeFileError, match="is a symbolic link"):
        require_only(tmp_path / "link", ["state", "letter.txt"])


def test_a_directory_that_is_deleted_meanwhile_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread deletes what the last repair has left, and the next one looks whether it may."""
    (tmp_path / "repair").mkdir()

    def gone(path: Path) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", gone)
    require_only(tmp_path / "repair", ["state"])


def test_a_file_that_goes_while_its_directory_is_looked_through_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a rewrite that has outlived its server deletes what it wrote, while the next server starts."""
    walk = os.walk

    def walk_and_delete(directory: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for parent, directories, files in walk(directory):
            Path(parent, "temp-rewrite-1.aof").unlink()
            yield parent, directories, files

    (tmp_path / "temp-rewrite-1.aof").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setattr(os, "walk", walk_and_delete)
    with pytest.raises(UnsafeFileError, match="link is a symbolic link"):
        require_plain(tmp_path)
    (tmp_path / "link").unlink()
    (tmp_path / "temp-rewrite-1.aof").touch()
    require_plain(tmp_path)


class Places:
    """What the system tells of a file that lies in pieces of 4 KB, at most 64 of them at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, unwritten: int | None, *, has_last: bool) -> None:
        self.count, self.unwritten, self.has_last = count, unwritten, has_last
        self.calls = 0
        monkeypatch.setattr(fcntl, "ioctl", self.tell)

    def tell(self, fd: int, request: int, places: bytearray) -> int:
        self.calls += 1
        start, length = struct.unpack_from("=QQ", places)
        most = struct.unpack_from("=I", places, 24)[0]
        told = range(start // 4096, min(self.count, start // 4096 + most, -(-(start + length) // 4096)))
        struct.pack_into("=I", places, 20, len(told))
        for at, number in enumerate(told):
            flags = 0x800 * (number == self.unwritten) | (self.has_last and number == self.count - 1)
            struct.pack_into("=QQQ16xI", places, 32 + at * 56, number * 4096, (9000 + number) * 4096, 4096, flags)
        return 0


@pytest.fixture
def full(tmp_path: Path) -> Iterator[int]:
    """The descriptor of a file of 200 pieces without a zero."""
    path = tmp_path / "full"
    path.write_bytes(b"x" * 200 * 4096)
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("has_last", [True, False])
@pytest.mark.parametrize(("unwritten", "calls"), [(None, 4), (0, 1), (70, 2), (199, 4)])
def test_a_file_is_asked_for_all_of_its_places_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, full: int, unwritten: int | None, calls: int, has_last: bool
) -> None:
    places = Places(monkeypatch, 200, unwritten, has_last=has_last)
    assert has_refused_places(full, 0, 200 * 4096) is (unwritten is not None)
    assert places.calls == calls


def test_only_the_places_in_question_count_and_an_empty_file_has_none(
    monkeypatch: pytest.MonkeyPatch, full: int
) -> None:
    places = Places(monkeypatch, 200, 100, has_last=True)
    assert not has_refused_places(full, 0, 100 * 4096)
    assert not has_refused_places(full, 101 * 4096, 200 * 4096)
    assert has_refused_places(full, 100 * 4096 + 5, 100 * 4096 + 6)
    places.count, before = 0, places.calls
    assert not has_refused_places(full, 0, 10**18)
    assert places.calls == before + 1
    assert not has_refused_places(full, 7, 7)


def test_places_that_are_read_as_zeros_lose_nothing(monkeypatch: pytest.MonkeyPatch, full: int) -> None:
    """xfs has such places where nothing was ever written, as LMDB does not write pages that it has freed again."""
    Places(monkeypatch, 200, 100, has_last=True)
    os.pwrite(full, bytes(4096), 100 * 4096)
    assert not has_refused_places(full, 0, 200 * 4096)
    for at in (0, 2000, 4095):
        os.pwrite(full, b"x", 100 * 4096 + at)
        assert has_refused_places(full, 0, 200 * 4096)
        os.pwrite(full, b"\0", 100 * 4096 + at)


@pytest.mark.parametrize("number", [errno.ENOTTY, errno.EOPNOTSUPP, errno.EIO])
def test_a_system_that_cannot_tell_of_places_is_believed_to_have_them(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(fd: int, request: int, places: bytearray) -> int:
        raise OSError(number, "no")

    monkeypatch.setattr(fcntl, "ioctl", fail)
    if number == errno.EIO:
        with pytest.raises(OSError, match="no"):
            has_refused_places(0, 0, 10)
    else:
        assert not has_refused_places(0, 0, 10)
