"""Writes the pieces of a state as a file of the log: batches with annotations, synced on the way.

The manifest decides whether the file is read.  Until the manifest lists the file, it is worth nothing and may be
deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from riverbed.store.disk.durable_file import write_file
from riverbed.store.disk.files import Files
from riverbed.store.format.log_lines import encode_annotation
from riverbed.store.log.commands import Piece


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

    `offset` is the replication offset of the state.  `progress` is called after each piece and may raise to stop the
    writing.  An exception leaves what was written so far.  Raises OSError.
    """
    written = BaseSize(0, 0, 0)

    def batches() -> Iterator[bytes]:
        nonlocal written
        for piece in pieces:
            # two writes: a copy of a megabyte costs more than a system call
            annotation = encode_annotation(piece.data, offset, now_ms)
            yield piece.data
            yield annotation
            size = written.size + len(piece.data) + len(annotation)
            written = BaseSize(size, written.command_bytes + piece.command_bytes, written.entries + piece.entries)
            if progress is not None:
                progress(written)

    write_file(path, batches(), files, is_read_soon=False)
    return written
