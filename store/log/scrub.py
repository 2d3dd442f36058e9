"""Compares files of the log with their checksums, from the end to the beginning, and makes nothing of their commands.

    ... | batch #CK | batch #CK | batch #CK |
                                ^ end: an annotation ends here, and says where its batch begins

So no text that a client has stored can be taken for an annotation, and the work is that of the checksum.  A flipped bit
anywhere in a file of ours is found.  Files that a Redis has written carry no checksums, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from riverbed.store.checksum import crc32c
from riverbed.store.disk.files import Files
from riverbed.store.errors import CorruptionError
from riverbed.store.format.log_lines import (
    ANNOTATION_START,
    MAX_ANNOTATION_BYTES,
    Annotation,
    is_sound,
    parse_annotation,
)
from riverbed.store.log.append_log import Log
from riverbed.store.log.manifest import LogFile
from riverbed.store.log.reader import LogPart, part_of

# About as many bytes are read at once; with batches of a hundred bytes that is a millisecond of work.
STEP_BYTES: Final = 64 << 10
_HEAD_BYTES: Final = len(ANNOTATION_START) + len("crc32c=") + 8  # of an annotation, before its tail


def scrubbed_files(log: Log) -> list[LogFile]:
    """The files of `log` to compare, the kept backlog included."""
    manifest = log.home.manifest
    return [file for file in (*manifest.backlog, *manifest.files) if file.is_checksummed]


def scrubbed_part(log: Log, file: LogFile, files: Files) -> LogPart:
    """One of them, as far as it is written now, and will stay.

    Raises CorruptionError when it is missing or shorter than it was closed with; OSError.
    """
    end = log.lasting_end
    part = part_of(log.home.path, file, files, is_last=False)
    return replace(part, size=end.position) if part.number == end.file_seq else part


def scrub(part: LogPart, files: Files) -> Iterator[int]:
    """Compare one file with its checksums; yields the bytes of each step.  Raises CorruptionError, OSError."""
    fd = files.open_read(part.path)
    try:
        end = part.size
        while end:
            start = max(end - STEP_BYTES, 0)
            window = files.read_at(fd, end - start, start)
            if len(window) < end - start:
                raise CorruptionError(str(part.path), start + len(window), "the file became shorter than it was")
            begin = _whole_batches(part, window, start)
            if begin == end:
                last = _last_batch(part, window, start, end)
                checksum = 0
                for at in range(last.begin, last.mark, STEP_BYTES):
                    piece = files.read_at(fd, min(STEP_BYTES, last.mark - at), at)
                    checksum = crc32c(piece, checksum)
                    yield len(piece)
                _compare(part, last, checksum)
                yield end - last.mark
                end = last.begin
            else:
                yield end - begin
                end = begin
    finally:
        files.close_deleted(fd)


class _Found(NamedTuple):
    """A batch: where it begins and where its annotation begins, in the file."""

    begin: int
    mark: int
    annotation: Annotation


def _whole_batches(part: LogPart, window: bytes, start: int) -> int:
    """Compare the batches at the end of `window`, which begins at byte `start`; -> where the first of them begins."""
    view = memoryview(window)
    end = start + len(window)
    while end > start and not (start and end - start < MAX_ANNOTATION_BYTES):
        last = _last_batch(part, window, start, end)
        if last.begin < start:
            break
        batch = view[last.begin - start : last.mark - start]
        _compare(part, last, crc32c(batch))
        end = last.begin
    return end


def _last_batch(part: LogPart, window: bytes, start: int, end: int) -> _Found:
    """The batch that ends at byte `end`, by its annotation; `window` begins at byte `start`."""
    at = end - start
    mark = window.rfind(ANNOTATION_START, max(at - MAX_ANNOTATION_BYTES, 0), at)
    annotation = parse_annotation(window, mark) if mark >= 0 else None
    if annotation is None or mark + _HEAD_BYTES + len(annotation.tail) != at:
        raise CorruptionError(str(part.path), end, "no annotation ends before this byte")
    begin = start + mark - annotation.covered
    if begin < 0:
        raise CorruptionError(str(part.path), end, "the annotation before this byte covers more than there is")
    return _Found(begin, start + mark, annotation)


def _compare(part: LogPart, found: _Found, checksum: int) -> None:
    if not is_sound(found.annotation, checksum):
        raise CorruptionError(str(part.path), found.begin, f"checksum does not match, up to byte {found.mark}")
