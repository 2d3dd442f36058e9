"""Reads a file of ours: each batch is closed by an annotation with its checksum.

There are two paths.  The fast path finds each annotation by its text and lets C code parse the commands before it.
Whatever is not simple goes to the exact path, which trusts framing alone.  A client may store anything, also text that
looks like an annotation; the fast path accepts only what the exact path would accept.

Measured with hiredis and XADDs of seven words, 118 bytes: 2.2 M commands a second in batches of 200, 1.0 M in batches
of five, 0.5 M in batches of two, 0.3 M in batches of one; 0.2 M on the exact path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from riverbed.store.checksum import crc32c
from riverbed.store.format import log_lines
from riverbed.store.format.log_lines import Annotation, CommandCollector, FrameError, ShortFrame
from riverbed.store.log.files.batch import Batch, is_preface
from riverbed.store.log.files.holes import Holes
from riverbed.store.log.files.part_reader import CHUNK_BYTES, LongBatchError, PartReader
from riverbed.store.log.files.requests import whole_requests
from riverbed.store.position import LogPosition

LONG_BATCH_BYTES: Final = 32 * CHUNK_BYTES
# Word by word this takes up to five milliseconds.
_SHORT_BYTES: Final = 64 << 10
# What is looked at behind damage for a later batch: so many times the bytes that are there, or so many in all.
_MOST_LOOKS: Final = 64
_LEAST_LOOKED_AT = 256 << 20
_PARSING: Final = 50  # takes so many times as long as a checksum


class ChecksummedReader(PartReader):
    """Reads a file in which annotations cover every command."""

    def batches(self) -> Iterator[Batch]:
        """As of `PartReader`.

        The loop body is the fast path: a batch in memory without another annotation's start in it, which the C
        parser takes whole.  Anything else goes to `_exact_batch`, which trusts framing alone.
        """
        number, name, counts, size = self._number, self._name, self._counts, self._size
        match_annotation, crc = log_lines.match_annotation, crc32c
        take = whole_requests()
        _, start, offset = self.place
        wanted = CHUNK_BYTES
        while start < size:
            data = self._read(start, min(wanted, size - start))
            view = memoryview(data)
            wanted = CHUNK_BYTES
            at = 0
            while at < len(data):
                mark = log_lines.find_line(data, log_lines.ANNOTATION_START, at)
                match = match_annotation(data, mark) if mark else None
                if match is not None:
                    checksum, tail, covered, after_text, time = match.groups()
                    after = int(after_text)
                    if (
                        int(covered) == mark - at
                        and crc(tail, crc(view[at:mark])) == int(checksum, 16)
                        and after == (offset + mark - at if counts else offset)
                    ):
                        requests = take(data, at, mark)
                        if requests is not None:
                            begin = start + at
                            at = match.end()
                            offset = after
                            self.place = place = LogPosition(number, start + at, offset)
                            yield Batch(requests, place, int(time), name, begin)
                            continue
                if not mark and start + len(data) < size:
                    # The chunk ends before the batch does.
                    if at:
                        break
                    if self.leaves_long:
                        self.is_before_long = True
                        return
                    wanted = self._reach(start, len(data))
                    if wanted > len(data):
                        break
                self._window, self._window_start = data, start
                batch = self._exact_batch(start + at, offset)
                if batch is None:
                    return
                self._window = b""
                self.place = batch.end
                offset = batch.end.offset
                yield batch
                at = batch.end.position - start
            start += at

    def _reach(self, start: int, searched: int) -> int:
        """How many bytes from `start` on a long batch and its annotation take, 0 when it is not a simple one.

        Beyond `LONG_BATCH_BYTES` a batch is not worth holding in memory twice, once here and once in the C parser.
        """
        for at in range(start + searched - 1, min(start + LONG_BATCH_BYTES, self._size), CHUNK_BYTES):
            data = self._read(at, min(CHUNK_BYTES + log_lines.MAX_ANNOTATION_BYTES, self._size - at))
            mark = log_lines.find_line(data, b"#", 0, CHUNK_BYTES + 1)
            if mark:
                annotation = log_lines.parse_annotation(data, mark)
                if annotation is None or annotation.covered != at + mark - start:
                    return 0
                return annotation.covered + log_lines.MAX_ANNOTATION_BYTES
        return 0

    def _exact_batch(self, start: int, offset: int) -> Batch | None:
        """The batch at `start`, frame by frame.  None when it is not sound (see `unsound`)."""
        if self.leaves_long:
            self._most_end = start + _SHORT_BYTES
        try:
            commands, command_bytes, annotation, end = self._parse_batch(start)
        except LongBatchError:
            self.is_before_long = True
            return None
        except ShortFrame:
            # The framing is faultless so far: the batch was cut short, or damage made a length in it larger.
            self._give_up(start, offset, "the file ends before an annotation closes the batch", min_advance=1)
            return None
        except FrameError as error:
            self._give_up(start, offset, str(error), min_advance=0)
            return None
        after = offset + command_bytes if self._counts else offset
        if start == 0 and annotation.offset == offset and is_preface(commands):
            after = offset
        if annotation.offset != after:
            raise self._part.error(
                start,
                offset,
                f"sound batch, but its annotation says replication offset {annotation.offset}, not {after}",
            )
        return Batch([*commands], LogPosition(self._number, end, after), annotation.time_ms, self._name, start)

    def _parse_batch(self, start: int) -> tuple[list[list[bytes]], int, Annotation, int]:
        """-> commands, bytes of the plain ones, annotation and end of the batch at `start`.  Raises FrameError."""
        found = CommandCollector()
        command_bytes = 0
        at = start
        while True:
            words, end = self._frame(at)
            if words is not None:
                found.take_command(words)
                command_bytes += end - at
            else:
                line = self._line(at, end)
                if line.startswith(log_lines.ANNOTATION_START):
                    break
                found.take_comment(line)
            at = end
        found.finish()
        return found.commands, command_bytes, self._verified(line, start, at), end

    def _give_up(self, start: int, offset: int, reason: str, min_advance: int) -> None:
        self.unsound = reason
        self.sound_again = self._find_later_batch(start, offset, min_advance if self._counts else 0)

    def _find_later_batch(self, start: int, offset: int, min_advance: int) -> int | None:
        """Where the first sound batch beyond the damage at `start` begins.

        Annotations are found by their text here, as the framing is broken.  A later batch must end at `offset` plus
        `min_advance` or beyond: so old log contents that a client stored as a value are not taken for the log, as their
        offsets lie before `offset`.  A forgery with a right offset stops the start instead of being cut off, which is
        the safe side; so do very many look-alikes, each of which says that it covers much: raises CorruptionError.
        """
        left = max(_MOST_LOOKS * (self._size - start), _LEAST_LOOKED_AT)
        at, holes = start, Holes(self._files, self._fd)
        while at < self._size:
            data = self._read(at, min(CHUNK_BYTES, self._size - at))
            if holes.has(data, at):
                at = holes.behind(at + len(data))
                continue
            mark = 0
            while (mark := data.find(b"\n" + log_lines.ANNOTATION_START, mark) + 1) > 0:
                annotation = log_lines.parse_annotation(data, mark)
                if annotation is None:
                    continue
                begin = at + mark - annotation.covered
                if begin <= start or annotation.offset < offset + min_advance:
                    continue
                left -= annotation.covered
                # Cheaper than parsing frames, and rejects nearly every look-alike.
                if log_lines.is_sound(annotation, self._sum(begin, begin + annotation.covered)):
                    left -= _PARSING * annotation.covered
                    if self._is_batch_after(offset, begin, annotation):
                        return begin
                if left < 0:
                    reason = "damaged, and too much behind it looks like the ends of batches to be looked at"
                    raise self._part.error(start, offset, reason)
            # The next chunk begins a little earlier, as the end of this one may have cut a line.
            if at + len(data) == self._size:
                return None
            at += len(data) - log_lines.MAX_ANNOTATION_BYTES - 1
        return None

    def _is_batch_after(self, offset: int, begin: int, annotation: Annotation) -> bool:
        """Whether a batch stands at `begin`, from `offset` or later on, that ends in `annotation`, whose sum fits."""
        try:
            _, command_bytes, found, _ = self._parse_batch(begin)
        except FrameError:
            return False
        return found == annotation and (not self._counts or annotation.offset - command_bytes >= offset)
