"""Small disks to be filled: a tmpfs of a given size, which takes root."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import until


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
