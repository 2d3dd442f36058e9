"""Copying a stretch of one file to a new one, durably.  It knows neither what is in it nor why it is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from riverbed.store.disk.files import Files
from riverbed.store.errors import StoreError

_PIECE_BYTES: Final = 4 << 20


def copy_stretch(source: Path, target: Path, begin: int, end: int | None, files: Files) -> None:
    """Make `target` of the bytes of `source` from `begin` up to `end`, or to its end, and sync it, but not its name.

    Raises StoreError when the source has become shorter, OSError.
    """
    reading = files.open_read(source)
    try:
        writing = files.create(target)
        try:
            at = begin
            stop = files.size(reading) if end is None else end
            while at < stop:
                piece = memoryview(files.read_at(reading, min(_PIECE_BYTES, stop - at), at))
                if not piece:
                    raise StoreError(f"{source} became shorter while it was copied")
                at += len(piece)
                while piece:
                    piece = piece[files.write(writing, piece) :]
            files.sync(writing)
        finally:
            files.close(writing)
    finally:
        files.close(reading)
