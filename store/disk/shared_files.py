"""Files that are open once, for however many readers: each reads from a place of its own, and none moves the others.

Many replicas may read the same files of the log, and hold on to those that are about to be deleted.
"""

from __future__ import annotations

from pathlib import Path

from riverbed.store.disk.files import Files


class SharedFiles:
    """Open files by their paths, which never name another file as long as one is open."""

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
        """One reader needs it no longer.  Raises OSError."""
        self._users[fd] -= 1
        if not self._users[fd]:
            del self._users[fd]
            self._open = {path: number for path, number in self._open.items() if number != fd}
            self._files.close(fd)
