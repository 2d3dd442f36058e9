"""Files that are opened once for any number of readers, each of which reads from a place of its own.

Many replicas may read the same files of the log, and keep files open that are about to be deleted.
"""

from __future__ import annotations

from pathlib import Path

from riverbed.store.disk.files import Files


class SharedFiles:
    """Open files by path.  While a file is open, its path must not name another file."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: dict[Path, int] = {}
        self._users: dict[int, int] = {}

    def open(self, path: Path) -> int:
        """-> a descriptor for `read_at`, to be given back with `close`.  Raises OSError."""
        fd = self._open.get(path)
        if fd is None:
            fd = self._open[path] = self._files.open_read(path)
            self._users[fd] = 0
        self._users[fd] += 1
        return fd

    def close(self, fd: int) -> None:
        """Give a descriptor back; the last reader's call closes the file.  Raises OSError."""
        self._users[fd] -= 1
        if not self._users[fd]:
            del self._users[fd]
            self._open = {path: number for path, number in self._open.items() if number != fd}
            self._files.close_deleted(fd)
