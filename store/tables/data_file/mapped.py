"""The data file in memory, for reads that bypass LMDB."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from riverbed.store.disk.real_files import open_file

# A mapped file of more bytes is mapped again when it has grown by one part in so many.
_LARGE: Final = 16 << 20
_GROWN: Final = 8


class MappedFile:
    """The pages of the file at `path`, as the last commit has left them.

    It stays open, so that another file that takes its place is never read as if it were this one.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._fd = open_file(path, os.O_RDONLY)
        self._pages: mmap.mmap | bytes = b""
        self._looked_for = -1  # the commit behind which it was looked whether the file has grown

    def pages(self, commit_no: int) -> mmap.mmap | bytes:
        """The whole file, or most of it if it has grown little, or nothing if it cannot be mapped."""
        if self._looked_for != commit_no:
            self._looked_for = commit_no
            self._map_grown()
        return self._pages

    def _map_grown(self) -> None:
        """Map the file into memory, if it has grown, a large one only if it has grown much.

        To unmap what was mapped before takes up to a millisecond for 100 MB.
        """
        try:
            mapped = len(self._pages)
            unmapped = os.fstat(self._fd).st_size - mapped
            if not unmapped or (mapped > _LARGE and unmapped < mapped // _GROWN):
                return
            pages = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return  # LMDB is asked for what is not mapped
        pages.madvise(mmap.MADV_RANDOM)
        self._pages = pages

    @property
    def is_at_its_path(self) -> bool:
        """Whether the file at the path is still this one: the system gives its number to no other while it is open."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        self._pages = b""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
