"""A start writes the end of the log again before it executes it, as the disk may not have it.

A killed process leaves pages that the system has still to write.  A failed sync leaves worse: the kernel may have
dropped those pages and marked them clean.  Then they are read like any others, the next sync succeeds, and a power cut
loses them.  A checkpoint of what was read there would be ahead of the log for good.  When the same bytes are written
again in the same place, their pages are dirty like any new ones.

On ext4 that is not enough for bytes that made the file longer, see `has_refused_places`: a copy takes the file's place.

Two parts of the log are known to be durable: what a checkpoint says (`synced` of the tables' meta rows), and every file
that the manifest lists with its length, as the file was synced before that.  Everything else is written again: the last
file, or the end of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from riverbed.store.disk.copying import move_to_new_places
from riverbed.store.disk.durable_file import write_all_at
from riverbed.store.disk.files import Files
from riverbed.store.disk.real_files import naming
from riverbed.store.log.files.holes import Holes
from riverbed.store.log.home import TEMPORARY_PREFIX
from riverbed.store.log.reader import LogPart
from riverbed.store.position import LogPosition

_CHUNK_BYTES: Final = 1 << 20
# Behind any place in a log.
EVERYTHING: Final = LogPosition(sys.maxsize, 0, 0)


def make_durable(parts: Iterable[LogPart], known: LogPosition | None, files: Files) -> list[Path]:
    """Make `parts` durable, but for their names; the disk holds everything before `known` already.

    -> the files whose place a copy has taken.  Raises StoreError, OSError.
    """
    moved = []
    for part in parts:
        if known is not None and part.number < known.file_seq:
            continue
        start = 0
        if part.file.size is not None:
            start = part.size
        elif known is not None and part.number == known.file_seq:
            start = min(known.position, part.size)
        if not _write_durably(part, start, files):
            move_to_new_places(part.path, part.path.with_name(f"{TEMPORARY_PREFIX}{part.path.name}"), files)
            moved.append(part.path)
    return moved


def _write_durably(part: LogPart, start: int, files: Files) -> bool:
    """Write the bytes from `start` on again; -> whether the disk has them."""
    target = files.open_update(part.path)
    try:
        source = files.open_read(part.path)
        try:
            with naming(part.path):
                _write_again(source, target, start, part.size, files)
                files.sync(target)
                if part.file.size is not None:
                    return True
                end = files.size(source)  # with the padding, to be written over
                return not files.has_refused_places(source, start, end)
        finally:
            files.close(source)
    finally:
        files.close(target)


def _write_again(source: int, target: int, start: int, end: int, files: Files) -> None:
    holes = Holes(files, source)
    while start < end:
        # A chunk ends where a block does: to write the front of a block that is in a hole would make the rest data.
        data = files.read_at(source, min(_CHUNK_BYTES - start % _CHUNK_BYTES, end - start), start)
        if not data:
            return  # the file became shorter: the reader decides what that means
        if holes.has(data, start):  # it would take space, and a torn tail in it is cut off
            start = holes.behind(start + len(data))
            continue
        write_all_at(files, target, data, start)
        start += len(data)
