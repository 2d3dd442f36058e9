"""Reads one file of the log: its batches in order, up to the first that is not sound.

A file of ours is read by two paths.  The fast path finds each annotation by its text and lets C code parse the commands
before it.  Whatever is not simple goes to the exact path, which trusts framing alone.  A client may store anything,
also text that looks like an annotation; the fast path accepts only what the exact path would accept.

What an unsound end means depends on the other files and on what a checkpoint covers; `reader.py` decides that.  Here
damage is an error only where this file alone proves it.

Measured with hiredis and XADDs of seven words, 118 bytes: 2.2 M commands a second in batches of 200, 1.0 M in batches
of five, 0.5 M in batches of two, 0.3 M in batches of one; 0.2 M on the exact path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, cast

import hiredis

from riverbed.store.checksum import crc32c
from riverbed.store.disk.files import Files
from riverbed.store.errors import CorruptionError
from riverbed.store.format import log_lines as logformat
from riverbed.store.format.log_lines import Annotation, CommandCollector, FrameError, ShortFrame
from riverbed.store.log.manifest import FileType, LogFile
from riverbed.store.position import LogPosition
from riverbed.store.wire import IS_NATIVE, LOGGED, LoggedRequest, Run, parse, parse_front, words_of

CHUNK_BYTES: Final = 1 << 20
FEED_BYTES: Final = 1 << 15
LONG_BATCH_BYTES: Final = 32 * CHUNK_BYTES
# A log without annotations does not mark batches: this many commands make one.
PLAIN_BATCH_COMMANDS: Final = 256


class Batch(NamedTuple):
    """What one group commit wrote: `requests` in order, from byte `start` of `file` up to `end`.

    Neighbouring XADDs may be a run in `requests`; `commands` has lists of words only, and is made at each access.
    `time_ms` is the time of the commit, None in a file that is not ours: its commands may not fit, and Redis ignores
    the errors of commands that do not.  `noted_ms` is when the commands were written, to the second, if that Redis
    noted it.
    """

    requests: list[LoggedRequest]
    end: LogPosition
    time_ms: int | None
    file: str
    start: int
    noted_ms: int | None = None

    @property
    def commands(self) -> list[list[bytes]]:
        return words_of(self.requests)

    @property
    def size(self) -> int:
        """Bytes in the file, the annotation included."""
        return self.end.position - self.start


@dataclass(frozen=True, slots=True)
class LogPart:
    """One file to be read, up to `size` bytes, which may be fewer than it holds by now."""

    path: Path
    file: LogFile
    size: int
    is_last: bool

    @property
    def number(self) -> int:
        return -self.file.seq if self.file.type is FileType.BASE else self.file.seq

    def error(self, position: int | None, offset: int, reason: str) -> CorruptionError:
        return CorruptionError(str(self.path), position, f"{reason} (replication offset {offset})")


class PartReader:
    """Reads the batches of one file.

    `place` is the end of the last one, `unsound`, if set, why the file goes on, and `sound_again`, if set, where the
    first sound batch behind that begins.
    """

    def __init__(self, files: Files, fd: int, part: LogPart, plain_batch_commands: int = PLAIN_BATCH_COMMANDS) -> None:
        self._plain_batch_commands = plain_batch_commands
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
        before_start = max(0, position - logformat.MAX_ANNOTATION_BYTES)
        before = self._read(before_start, position - before_start)
        line_start = before.rfind(logformat.ANNOTATION_START)
        annotation = logformat.parse_annotation(before, line_start) if line_start >= 0 else None
        if annotation is None or not before.endswith(annotation.tail) or annotation.offset != place.offset:
            raise part.error(position, place.offset, "no batch ends where reading is to begin")

    def batches(self) -> Iterator[Batch]:
        return self._checksummed() if self._part.file.is_checksummed else self._plain()

    # -- files of ours -------------------------------------------------------------------------------------------------

    def _checksummed(self) -> Iterator[Batch]:
        """Batches of a file in which annotations cover every command.

        The loop body is the fast path: a batch in memory without another annotation's start in it, which the C
        parser takes whole.  Anything else goes to `_exact_batch`, which trusts framing alone.
        """
        number, name, counts, size = self._number, self._name, self._counts, self._size
        match_annotation, crc = logformat.match_annotation, crc32c
        take = whole_requests()
        _, start, offset = self.place
        wanted = CHUNK_BYTES
        while start < size:
            data = self._read(start, min(wanted, size - start))
            view = memoryview(data)
            wanted = CHUNK_BYTES
            at = 0
            while at < len(data):
                mark = logformat.find_line(data, logformat.ANNOTATION_START, at)
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
            data = self._read(at, min(CHUNK_BYTES + logformat.MAX_ANNOTATION_BYTES, self._size - at))
            mark = logformat.find_line(data, b"#", 0, CHUNK_BYTES + 1)
            if mark:
                annotation = logformat.parse_annotation(data, mark)
                if annotation is None or annotation.covered != at + mark - start:
                    return 0
                return annotation.covered + logformat.MAX_ANNOTATION_BYTES
        return 0

    def _exact_batch(self, start: int, offset: int) -> Batch | None:
        """The batch at `start`, frame by frame.  None when it is not sound (see `unsound`)."""
        try:
            commands, command_bytes, annotation, end = self._parse_batch(start)
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
                if line.startswith(logformat.ANNOTATION_START):
                    break
                found.take_comment(line)
            at = end
        found.finish()
        return found.commands, command_bytes, self._verified(line, start, at), end

    def _verified(self, line: bytes, start: int | None, end: int) -> Annotation:
        """The annotation `line` at `end`; `start` is where the one before it ended, None when that is not known."""
        annotation = logformat.parse_annotation(line)
        if annotation is None:
            raise FrameError("malformed annotation line")
        begin = end - annotation.covered
        if begin == end or begin < 0 or start not in (None, begin):
            raise FrameError(f"annotation covers {annotation.covered} bytes, not those since the last one")
        if not logformat.is_sound(annotation, self._sum(begin, end)):
            raise FrameError("checksum does not match")
        return annotation

    def _give_up(self, start: int, offset: int, reason: str, min_advance: int) -> None:
        self.unsound = reason
        self.sound_again = self._find_later_batch(start, offset, min_advance if self._counts else 0)

    def _find_later_batch(self, start: int, offset: int, min_advance: int) -> int | None:
        """Where the first sound batch beyond the damage at `start` begins.

        Annotations are found by their text here, as the framing is broken.  A later batch must end at `offset` plus
        `min_advance` or beyond: so old log contents that a client stored as a value are not taken for the log, as their
        offsets lie before `offset`.  A forgery with a right offset stops the start instead of being cut off, which is
        the safe side.
        """
        at = start
        while True:
            data = self._read(at, min(CHUNK_BYTES, self._size - at))
            mark = 0
            while (mark := data.find(b"\n" + logformat.ANNOTATION_START, mark) + 1) > 0:
                annotation = logformat.parse_annotation(data, mark)
                if annotation is None:
                    continue
                begin = at + mark - annotation.covered
                if begin <= start or annotation.offset < offset + min_advance:
                    continue
                if self._is_batch_after(offset, begin, annotation):
                    return begin
            # The next chunk begins a little earlier, as the end of this one may have cut a line.
            if at + len(data) == self._size:
                return None
            at += len(data) - logformat.MAX_ANNOTATION_BYTES - 1

    def _is_batch_after(self, offset: int, begin: int, annotation: Annotation) -> bool:
        """Whether a sound batch that ends in `annotation` stands at `begin`, and begins at `offset` or later."""
        # Cheaper than parsing frames, and rejects nearly every look-alike.
        if not logformat.is_sound(annotation, self._sum(begin, begin + annotation.covered)):
            return False
        try:
            _, command_bytes, found, _ = self._parse_batch(begin)
        except FrameError:
            return False
        return found == annotation and (not self._counts or annotation.offset - command_bytes >= offset)

    # -- files without checksums ---------------------------------------------------------------------------------------

    def _plain(self) -> Iterator[Batch]:
        """Batches of a file that a Redis wrote, or appended to.

        A batch never ends inside of MULTI, as reading must be able to begin between any two batches.  Annotations in
        the file (a Redis took over a file of ours and dropped our marks from the manifest) are verified.
        """
        number = self._number
        _, start, offset = self.place
        found, count = CommandCollector(), 0  # and how many commands are in it, those of runs among them
        at = start
        uncovered = None if start else 0
        is_open = False
        # A batch holds the commands of one second, where the file notes the time; a transaction is never split.
        noted_ms = next_noted_ms = None
        # The end of what would be kept if the file ended now, and how many of the found requests that is.
        safe, safe_count = self.place, 0

        def batch() -> Batch:
            self.place = safe
            return Batch([*found.commands[:safe_count]], safe, None, self._name, start, noted_ms)

        try:
            for request, end in self._plain_frames(start):
                if request is not None:
                    if not found.is_settled:
                        found.finish()  # a command in comment lines ends here
                        count += 1
                        if not is_open:
                            safe, safe_count = LogPosition(number, at, offset), len(found.commands)
                    size = len(request) if isinstance(request, Run) else 1
                    if safe_count and count + size > self._plain_batch_commands and not is_open:
                        yield batch()
                        found, count, safe_count, start = CommandCollector(), 0, 0, at
                    cast("list[LoggedRequest]", found.commands).append(request)
                    count += size
                    if isinstance(request, list):
                        name = request[0].upper()
                        is_open = name == b"MULTI" or (is_open and name != b"EXEC")
                else:
                    before = len(found.commands)
                    line = self._line(at, end)
                    if line.startswith(logformat.ANNOTATION_START):
                        found.finish()
                        annotation = self._verified(line, uncovered, at)
                        uncovered, offset = end, annotation.offset
                    else:
                        found.take_comment(line)
                        if line.startswith(logformat.TIMESTAMP_START):
                            next_noted_ms = logformat.parse_timestamp(line)
                    count += len(found.commands) - before
                if self._counts and request is not None:
                    offset += end - at
                at = end
                if is_open or not found.is_settled:
                    continue
                safe, safe_count = LogPosition(number, at, offset), len(found.commands)
                if count >= self._plain_batch_commands or (safe_count and next_noted_ms != noted_ms):
                    yield batch()
                    found, count, safe_count, start = CommandCollector(), 0, 0, at
                noted_ms = next_noted_ms
            found.finish()
            if is_open:
                self.unsound = "the file ends inside of MULTI"
            else:
                safe, safe_count = LogPosition(number, at, offset), len(found.commands)
        except ShortFrame as error:
            self.unsound = str(error)
        except FrameError as error:
            raise self._part.error(at, offset, str(error)) from error
        self.place = safe
        if safe_count:
            yield batch()

    def _plain_frames(self, at: int) -> Iterator[tuple[LoggedRequest | None, int]]:
        """The requests from byte `at` on, None for each comment line, and where each ends.

        The native parser takes requests of the usual form, and those that are whole in the window; all others are taken
        one by one.  Raises as `parse_frame` does.
        """
        while at < self._size:
            requests = self._plain_front(at)
            for request in requests:
                at += request.size if isinstance(request, Run) else logformat.command_size(request)
                yield request, at
            if not requests:
                words, at = self._frame(at)
                yield words, at

    def _plain_front(self, at: int) -> list[LoggedRequest]:
        """The requests of the usual form from byte `at` on; none where each command is a batch of its own."""
        requests: list[LoggedRequest] = []
        begin = at - self._window_start
        if IS_NATIVE and self._plain_batch_commands >= PLAIN_BATCH_COMMANDS and 0 <= begin < len(self._window):
            parse_front(LOGGED, self._window[begin : begin + FEED_BYTES], requests)
        return requests

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
        while True:
            try:
                words, end = logformat.parse_frame(self._window, at - self._window_start)
            except ShortFrame as short:
                needed = self._window_start + short.needed
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


def is_preface(requests: Sequence[LoggedRequest]) -> bool:
    """Whether a file's first batch only repeats which database is selected, and so may leave the offset alone."""
    return len(requests) == 1 and isinstance(requests[0], list) and requests[0][0].upper() == b"SELECT"


def whole_requests() -> Callable[[bytes, int, int], list[LoggedRequest] | None]:
    """A function that parses the requests between two positions, natively if possible; None if they are not whole."""
    return partial(parse, LOGGED) if IS_NATIVE else _HiredisReader().take


class _HiredisReader:
    """Parses whole commands with hiredis, where there is no native module."""

    def __init__(self) -> None:
        self._parser = hiredis.Reader()
        self._data = b""
        self._is_suspect = False  # hiredis might allocate too much memory for it

    def take(self, data: bytes, start: int, end: int) -> list[LoggedRequest] | None:
        if data is not self._data:
            self._data, self._is_suspect = data, logformat.announces_too_much(data)
        if self._is_suspect and logformat.announces_too_much(data[start:end]):
            return None
        parser = self._parser
        commands: list[LoggedRequest] = []
        try:
            # Feed pieces: hiredis moves the rest of its buffer after every kilobyte, so that 2.4 MB at once take 50 ms
            # instead of 9.
            for at in range(start, end, FEED_BYTES):
                parser.feed(data, at, min(FEED_BYTES, end - at))
                commands += iter(parser.gets, False)
            if not parser.has_data():
                return commands
        except hiredis.ProtocolError:
            pass
        self._parser = hiredis.Reader()
        return None
