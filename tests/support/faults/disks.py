"""Small disks to be filled, files that grow no further, and a disk that refuses writes; to mount disks takes root."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.support.waiting import until

_BLOCK_BYTES = 4096


@contextlib.contextmanager
def tables_that_cannot_grow() -> Iterator[None]:
    """Meanwhile this process writes no file beyond three pages: a short log is shorter, and tables are longer."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * _BLOCK_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def small_tmpfs(place: Path, size: int) -> Iterator[Path]:
    """An empty tmpfs of `size` bytes, mounted at `place` meanwhile."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "riverbed-test", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(mount)}: {done.stderr.strip()} (root is needed)"
    try:
        yield place
    finally:
        unmount(place)


class Ext4:
    """An ext4 file system in a file, mounted at `directory`; a context manager around its use."""

    def __init__(self, image: Path, directory: Path, size: int) -> None:
        self.image = image
        self.directory = directory
        directory.mkdir()
        with image.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", "-q", "-b", str(_BLOCK_BYTES), "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        self._device: Path | None = None

    def mount(self) -> None:
        self._device = Path(_run("losetup", "--find", "--show", str(self.image)).strip())
        _run("mount", str(self._device), str(self.directory))

    def unmount(self) -> None:
        if self._device is not None:
            unmount(self.directory)
            _run("losetup", "--detach", str(self._device))
            self._device = None

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()


class RefusingDisk(Ext4):
    """One whose disk refuses what is written to places that were free, for as long as `refusing` lasts.

    Its file is in a tmpfs, in which the free places of the file system are holes: where no memory is left for them, the
    loop device fails to write there.  The places of its journal and its tables are no holes.

    A loop device takes a write of several blocks for done when the first of them was: it gets no more than one at once.
    """

    def __init__(self, image: Path, directory: Path, size: int) -> None:
        super().__init__(image, directory, size)
        with image.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def mount(self) -> None:
        super().mount()
        assert self._device is not None
        Path(f"/sys/block/{self._device.name}/queue/max_sectors_kb").write_text(str(_BLOCK_BYTES >> 10))

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Meanwhile the disk fails."""
        _run("fstrim", str(self.directory))
        ballast = fill_up(self.image.parent, 0)
        try:
            yield
        finally:
            ballast.unlink()


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()} (root, and /dev/loop-control, are needed)"
    return done.stdout


def unmount(place: Path) -> None:
    """Unmount it, once the workers of a killed server have noticed its end: they run when nothing else wants to."""
    until(lambda: subprocess.run(["umount", place], check=False).returncode == 0, f"{place} is unmounted")


def fill_up(disk: Path, free: int) -> Path:
    """Leave only about `free` bytes, never fewer; -> the file to delete."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        while True:
            status = os.statvfs(disk)
            size = (status.f_bavail - -(-free // status.f_frsize)) * status.f_frsize
            try:
                if size > 0:
                    os.posix_fallocate(file.fileno(), 0, size)
                return ballast
            except OSError as error:
                if error.errno != errno.ENOSPC:  # the server has written something since
                    raise
