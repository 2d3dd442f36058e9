"""Copies a stretch of one file to a new file, durably.  This module knows neither the contents nor the purpose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.durable_file import write_file
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
    reading = files.open_read(source)
    try:
        stop = files.size(reading) if end is None else end
        write_file(target, _stretch(source, reading, begin, stop, files), files, _UNSYNCED_BYTES)
    finally:
        files.close(reading)


def _stretch(source: Path, fd: int, at: int, stop: int, files: Files) -> Iterator[bytes]:
    while at < stop:
        piece = files.read_at(fd, min(PIECE_BYTES, stop - at), at)
        if not piece:
            raise StoreError(f"{source} became shorter while it was copied")
        at += len(piece)
        yield piece
