"""Passes over the holes of a sparse file, which may be far longer than any disk and could be read for hours.

That the file system has a hole there is not enough: after a sync that failed, memory may have bytes that the disk has
no place for.  So a hole is read, and is passed over only from where there are more zeros than any value of the log can
have: what follows belongs to no whole batch.
"""

from __future__ import annotations

from riverbed.store.disk.files import Files

LONGEST_READ = 1 << 30  # twice what a value can have


class Holes:
    """The holes of one open file, which is read forwards."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd
        self._begin: int | None = None  # of the zeros that were read last

    def has(self, data: bytes, position: int) -> bool:
        """Whether `data`, which was read at `position`, is zeros for which the disk keeps nothing."""
        if data == bytes(len(data)) and self._files.next_data(self._fd, position) >= position + len(data):
            if self._begin is None:
                self._begin = position
            return True
        self._begin = None
        return False

    def behind(self, position: int) -> int:
        """Where to read on, when all before `position` was read and the last of it was in a hole."""
        if self._begin is None or position - self._begin < LONGEST_READ:
            return position
        return self._files.next_data(self._fd, position)
