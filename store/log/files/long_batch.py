"""Goes over a long batch of a checksummed file in slices: nothing of it is kept, however long it and its words are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from riverbed.store.checksum import crc32c
from riverbed.store.disk.files import Files
from riverbed.store.errors import CorruptionError
from riverbed.store.format import log_lines
from riverbed.store.format.log_lines import UNCLOSED_WORD, FrameError, ShortFrame
from riverbed.store.position import LogPosition
from riverbed.store.wire import IS_NATIVE, LOGGED, LoggedRequest, parse_front

# A slice has at least so many bytes, where the file has them: no length line and no comment line is longer.
LEAST_BYTES: Final = 1 << 10
# So much is parsed at once: natively, and word by word.
_NATIVE_BYTES: Final = 64 << 10
_WORDS_BYTES: Final = 4 << 10
# A slice ends after about so many words that are parsed one by one, at half a microsecond each.
_SLICE_WORDS: Final = 2000


class LongBatch:
    """The batch at `place`.  `at` is the byte that `take` goes on from, `end` the place behind it, None until then."""

    def __init__(self, place: LogPosition, *, counts: bool) -> None:
        """The commands of a base do not count in the offset."""
        self.at = place.position
        self.end: LogPosition | None = None
        self._place = place
        self._counts = counts
        self._checksum = self._covered = self._command_bytes = 0  # of what is before `at`
        # What is missing of the command at `at`: so many words, and so many bytes of the first one with its line end.
        self._words = self._word_bytes = 0

    def read(self, files: Files, fd: int, size: int, path: Path) -> bytes:
        """Go over at most `size` more bytes of the file; -> the commands in them.

        Raises CorruptionError when the batch is not sound, OSError.
        """
        at = self.at
        try:
            return self.take(files.read_at(fd, size, at))
        except FrameError as error:
            raise CorruptionError(str(path), at, str(error)) from error

    def take(self, data: bytes) -> bytes:
        """Go over some of `data`, which the file has from `at` on; -> the commands in that, without comment lines.

        Raises FrameError when the batch is not sound; that its checksum does not fit, is found at its end.
        """
        parts = []
        begin = at = 0  # what is behind `begin` is in no part yet
        mark = None  # where the annotation begins
        left = _SLICE_WORDS
        try:
            while mark is None and at < len(data) and left > 0:
                before, words = at, self._words
                if words:
                    at = self._pass_words(data, at)
                    left -= words - self._words
                elif data.startswith(b"#", at):
                    _, at = log_lines.parse_frame(data, at)
                    parts.append(data[begin:before])
                    begin = at
                    if data.startswith(log_lines.ANNOTATION_START, before):
                        mark = before
                else:
                    at += _whole_requests(data, at)
                    if at == before:
                        self._words, at = log_lines.parse_head(data, at)
                if at == before:
                    break
                left -= 1
        except ShortFrame:
            pass
        if not at:
            raise FrameError("the file ends before an annotation closes the batch")
        parts.append(data[begin:at])
        commands = b"".join(parts)
        covered = at if mark is None else mark
        self._checksum = crc32c(memoryview(data)[:covered], self._checksum)
        self._covered += covered
        self._command_bytes += len(commands)
        self.at += at
        if mark is not None:
            self._close(data[mark:at])
        return commands

    def _pass_words(self, data: bytes, at: int) -> int:
        """Pass over words of the command from `at` on; -> where those end that `data` has."""
        if not self._word_bytes:
            words: list[bytes] = []
            try:
                size = log_lines.parse_words(data[at : at + _WORDS_BYTES], 0, self._words, words)
            except ShortFrame as short:
                size = short.resume_at
                if short.line_end is not None:
                    self._word_bytes = short.line_end + 2 - size
            self._words -= len(words)
            at += size
        if self._word_bytes:
            size = min(self._word_bytes - 2, len(data) - at)
            self._word_bytes -= size
            at += size
            if self._word_bytes == 2 and at + 2 <= len(data):
                if data[at : at + 2] != b"\r\n":
                    raise FrameError(UNCLOSED_WORD)
                self._words -= 1
                self._word_bytes = 0
                at += 2
        return at

    def _close(self, line: bytes) -> None:
        annotation = log_lines.parse_annotation(line)
        if annotation is None:
            raise FrameError("malformed annotation line")
        if annotation.covered != self._covered or not self._covered:
            raise FrameError(f"annotation covers {annotation.covered} bytes, not those since the last one")
        if not log_lines.is_sound(annotation, self._checksum):
            raise FrameError("checksum does not match")
        offset = self._place.offset + (self._command_bytes if self._counts else 0)
        if annotation.offset != offset:
            raise FrameError(f"the annotation says replication offset {annotation.offset}, not {offset}")
        self.end = LogPosition(self._place.file_seq, self.at, offset)


def _whole_requests(data: bytes, at: int) -> int:
    """How many bytes from `at` on are whole requests of the usual form; none without the native module."""
    requests: list[LoggedRequest] = []
    return parse_front(LOGGED, data[at : at + _NATIVE_BYTES], requests) if IS_NATIVE else 0
