"""Reads one file of the log: where reading begins, and the frames and checksums of its bytes.

What an unsound end means depends on the other files and on what a checkpoint covers; `log/reader.py` decides that.
Here damage is an error only where this file alone proves it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

from riverbed.store.checksum import crc32c
from riverbed.store.disk.files import Files
from riverbed.store.format import log_lines
from riverbed.store.format.log_lines import Annotation, FrameError, ShortFrame
from riverbed.store.log.files.batch import Batch, LogPart
from riverbed.store.log.manifest import FileType
from riverbed.store.position import LogPosition

CHUNK_BYTES: Final = 1 << 20


class LongBatchError(FrameError):
    """A batch is one of those that the reader leaves."""


class PartReader(ABC):
    """Reads the batches of one file.

    `place` is the end of the last one, `unsound`, if set, why the file goes on, and `sound_again`, if set, where the
    first sound batch behind that begins.

    With `leaves_long`, `batches` ends before a batch that is not short, and sets `is_before_long`: for a reader that
    holds others up, and goes over it in slices, see `long_batch.py`.
    """

    leaves_long = False
    is_before_long = False

    def __init__(self, files: Files, fd: int, part: LogPart) -> None:
        self.place = LogPosition(part.number, 0, 0)
        self.unsound: str | None = None
        self.sound_again: int | None = None
        self._part = part
        self._size = part.size
        self._files = files
        self._fd = fd
        self._name = str(part.path)
        self._number = part.number
        # Commands of the base are state, not history: they do not count in the offset.
        self._counts = part.file.type is not FileType.BASE
        # The stretch of the file in memory that frames are parsed from.
        self._window = b""
        self._window_start = 0
        self._most_end = sys.maxsize  # of the frames of a batch that is not left

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """The batches from `place` on, up to the first that is not sound.  Raises CorruptionError, OSError."""

    def begin(self, place: LogPosition) -> None:
        """Begin at `place`, which is in this file, or the end of the file before it."""
        part, file = self._part, self._part.file
        if place.file_seq == self._number:
            self._check_boundary(place)
            self.place = place
            return
        if file.is_checksummed and file.start_offset not in (None, place.offset):
            raise part.error(
                0, place.offset, f"begins at replication offset {file.start_offset}, the file before ends elsewhere"
            )
        self.place = LogPosition(self._number, 0, place.offset)

    def _check_boundary(self, place: LogPosition) -> None:
        """Check that a batch ends at `place`, which comes from LMDB or a replica.  Raises CorruptionError."""
        part, position = self._part, place.position
        if position > self._size:
            raise part.error(self._size, place.offset, f"ends before byte {position}, where reading is to begin")
        if not part.file.is_checksummed or position == 0:
            return
        before_start = max(0, position - log_lines.MAX_ANNOTATION_BYTES)
        before = self._read(before_start, position - before_start)
        line_start = before.rfind(log_lines.ANNOTATION_START)
        annotation = log_lines.parse_annotation(before, line_start) if line_start >= 0 else None
        if annotation is None or not before.endswith(annotation.tail) or annotation.offset != place.offset:
            raise part.error(position, place.offset, "no batch ends where reading is to begin")

    # -- bytes of the file ---------------------------------------------------------------------------------------------

    def _read(self, position: int, size: int) -> bytes:
        data = self._files.read_at(self._fd, size, position)
        if len(data) != size:
            raise self._part.error(position + len(data), self.place.offset, "the file became shorter while it was read")
        return data

    def _frame(self, at: int) -> tuple[list[bytes] | None, int]:
        """The frame at byte `at` and where it ends; reads more of the file as the frame needs it."""
        if at < self._window_start:
            self._window, self._window_start = b"", at
        if at > self._most_end:
            raise LongBatchError
        while True:
            try:
                words, end = log_lines.parse_frame(self._window, at - self._window_start)
            except ShortFrame as short:
                needed = self._window_start + short.needed
                if needed > self._most_end:
                    raise LongBatchError from short
                if needed > self._size:
                    raise
                # A damaged length may point gigabytes ahead: check its far end before reading all of that.
                if short.line_end is not None and self._read(needed - 2, 2) != b"\r\n":
                    raise FrameError("a bulk string is not closed by a line end where its length says") from short
                grown = 2 * len(self._window) if at == self._window_start else CHUNK_BYTES
                self._window = self._read(at, min(max(CHUNK_BYTES, needed - at, grown), self._size - at))
                self._window_start = at
            else:
                return words, self._window_start + end

    def _line(self, start: int, end: int) -> bytes:
        return self._window[start - self._window_start : end - self._window_start]

    def _sum(self, start: int, end: int) -> int:
        """CRC-32C of a stretch of the file."""
        window_end = self._window_start + len(self._window)
        if self._window_start <= start and end <= window_end:
            return crc32c(memoryview(self._window)[start - self._window_start : end - self._window_start])
        total = 0
        for at in range(start, end, CHUNK_BYTES):
            total = crc32c(self._read(at, min(CHUNK_BYTES, end - at)), total)
        return total

    def _verified(self, line: bytes, start: int | None, end: int) -> Annotation:
        """The annotation `line` at `end`; `start` is where the one before it ended, None when that is not known."""
        annotation = log_lines.parse_annotation(line)
        if annotation is None:
            raise FrameError("malformed annotation line")
        begin = end - annotation.covered
        if begin == end or begin < 0 or start not in (None, begin):
            raise FrameError(f"annotation covers {annotation.covered} bytes, not those since the last one")
        if not log_lines.is_sound(annotation, self._sum(begin, end)):
            raise FrameError("checksum does not match")
        return annotation
