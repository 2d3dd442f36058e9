"""Copies a stretch of one file to a new file, durably.  This module knows neither the contents nor the purpose."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from riverbed.store.disk.durable_file import file_size, write_all_at
from riverbed.store.disk.files import Files
from riverbed.store.errors import StoreError

# From 2 MB on Linux may take one page of 2 MB for what is written, whose memory the machine mostly does not have at
# hand: 240 MB took 0.3 to 0.6 s of CPU in pieces of 4 MB, and 0.08 in those of 1 MB.
PIECE_BYTES: Final = 1 << 20
_UNSYNCED_BYTES: Final = 64 << 20


def copy_stretch(source: Path, target: Path, begin: int, end: int | None, files: Files) -> None:
    """Copy `source` from `begin` up to `end`, or to its end, to a new file `target`; sync it, but not its name.

    Raises StoreError when the source has become shorter, OSError.
    """
    with GrowingCopy(source, target, files, begin) as copy:
        copy.extend(copy.source_bytes if end is None else end)


def move_to_new_places(path: Path, temporary: Path, files: Files) -> None:
    """Put a copy of `path`, which is made at `temporary`, in its place; sync it, but not its name.

    Raises StoreError, OSError with `path` as it was.
    """
    size, free = file_size(path, files), files.free_bytes(path.parent)
    if free < size:
        raise StoreError(
            f"the disk has refused part of {path} before, a copy needs {size} bytes, and {free} are free: make room"
        )
    try:
        copy_stretch(path, temporary, 0, size, files)
        files.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise


class GrowingCopy:
    """A new file `target`, to which more and more of `source` is copied.  A context manager, which closes both."""

    def __init__(self, source: Path, target: Path, files: Files, begin: int = 0) -> None:
        """The copy begins with byte `begin` of the source.  Raises OSError."""
        self._source = source
        self._files = files
        self._begin = self._at = begin
        self._reading = files.open_read(source)
        try:
            self._writing = files.create(target)
        except BaseException:
            files.close(self._reading)
            raise

    @property
    def source_bytes(self) -> int:
        """How long the source is now."""
        return self._files.size(self._reading)

    def extend(self, end: int) -> None:
        """Copy the source up to byte `end`, and sync the copy, but not its name.

        Raises StoreError when the source has become shorter, OSError.
        """
        files, fd = self._files, self._writing
        unsynced = 0
        while self._at < end:
            piece = files.read_at(self._reading, min(PIECE_BYTES, end - self._at), self._at)
            if not piece:
                raise StoreError(f"{self._source} became shorter while it was copied")
            write_all_at(files, fd, piece, self._at - self._begin)
            self._at += len(piece)
            unsynced += len(piece)
            if unsynced >= _UNSYNCED_BYTES:
                files.sync(fd)
                unsynced = 0
        files.sync(fd)

    def close(self) -> None:
        """Raises OSError."""
        try:
            self._files.close(self._writing)
        finally:
            self._files.close(self._reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
