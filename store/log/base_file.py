"""Pieces of a state as a file of the log: batches with annotations, synced on the way.

Whether anybody then reads the file is decided by the manifest; until it is listed there it is worth nothing, and who
finds it may delete it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from riverbed.store.disk.files import Files
from riverbed.store.format.log_lines import encode_annotation
from riverbed.store.log.commands import Piece

# A disk that is given much to write at once makes the server's own syncs wait for it: beside 8 MB at a time one in ten
# took 25 ms, beside 1 MB 16, alone 12, and the file is done no later.
_SYNC_BYTES: Final = 1 << 20


class BaseSize(NamedTuple):
    """What was written so far; `command_bytes` without comment lines."""

    size: int
    command_bytes: int
    entries: int


def write_base(
    path: Path,
    pieces: Iterable[Piece],
    files: Files,
    *,
    offset: int,
    now_ms: int,
    progress: Callable[[BaseSize], None] | None = None,
) -> BaseSize:
    """Write `pieces` to a new file, each as a batch, and make it durable; -> its size.

    `offset` is the replication offset at which the state stood.  `progress` is told after each piece and may raise to
    end it.  An exception leaves what was written so far.  Raises OSError.
    """
    size = command_bytes = entries = unsynced = 0
    fd = files.create(path)
    try:
        for piece in pieces:
            # two writes: a copy of a megabyte costs more than a system call
            for data in (piece.data, encode_annotation(piece.data, offset, now_ms)):
                rest = memoryview(data)
                while rest:
                    rest = rest[files.write(fd, rest) :]
                size += len(data)
                unsynced += len(data)
            command_bytes += piece.command_bytes
            entries += piece.entries
            if unsynced >= _SYNC_BYTES:
                files.sync(fd)
                unsynced = 0
            if progress is not None:
                progress(BaseSize(size, command_bytes, entries))
        files.sync(fd)
    finally:
        files.close(fd)
    return BaseSize(size, command_bytes, entries)
