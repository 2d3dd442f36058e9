"""Reads the log from a replication link: takes bytes in any pieces, returns whole and verified batches.

A primary sends a replica the batches of its log unchanged, annotations included, so that the replica notices a flipped
bit and appends the same bytes.  `files/` reads the same from a file; here there is no end to look at, a piece
may end anywhere, and nothing that arrives is trusted: no length, no offset, no frame.

A short batch that is simple and arrived whole is found by the text of its annotation and parsed by C code.  Any other
batch is parsed as it arrives, so that bytes that are no log are refused at the first wrong byte and not kept: whole
requests natively, if possible, and frame by frame what is not one.

The parsed words of a batch take up to ten times as much memory as its bytes.  So a batch of more than a few megabytes
is only checked as it arrives, held once, and parsed again piece by piece when it is executed.  A primary that never
closes a batch may send as many bytes as the longest one has.  So what is checked of a batch of more than 16 MB is held
in a file (`disk/spill.py`), and only the end in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from riverbed.store.checksum import crc32c
from riverbed.store.disk.spill import PIECE_BYTES, Spill
from riverbed.store.format import log_lines
from riverbed.store.format.log_lines import UNCLOSED_WORD, CommandCollector, FrameError, ShortFrame
from riverbed.store.log.files.batch import is_preface
from riverbed.store.log.files.requests import whole_requests
from riverbed.store.log.streamed.batch import NATIVE_PIECE_BYTES, WINDOW_BYTES, StreamedBatch
from riverbed.store.wire import IS_NATIVE, LOGGED, LoggedRequest, count_of, parse_front

# No longer batch is simple.  Those of a primary under full load have 100 to 200 KB; as simple ones they take 0.053 us
# an entry to read, as others 0.064.
_SIMPLE_BYTES: Final = 256 << 10
# So much is not looked into before the batch is whole; what is longer then is parsed as it arrives.
_UNSEEN_BYTES: Final = 64 << 10
_ALL: Final = 1 << 62
# The words of a batch are kept up to this length.
_KEPT_BYTES = 4 << 20
# The bytes of a batch are held in memory up to this length.
HELD_BYTES = 16 << 20
# So much of a longer one counts as one more: some twenty words, at 1 us each.
_FRAME_BYTES: Final = 128


class _Command:
    """A command that is not whole yet: `missing` words must follow, from byte `at` of the batch on."""

    __slots__ = ("at", "missing", "words")

    def __init__(self, count: int, at: int) -> None:
        self.missing = count
        self.at = at
        self.words: list[bytes] = []


class LogStream:
    """Takes bytes and returns batches.  `offset` is the one after the last batch returned.

    With `from_file` the first batch may be the preface of the file it was read from, which does not move the offset.
    """

    def __init__(
        self, offset: int, most_bytes: int, make_spill: Callable[[], Spill] | None = None, *, from_file: bool = False
    ) -> None:
        """No batch may be longer than `most_bytes`.  Without `make_spill` all of it is held in memory."""
        self.offset = offset
        self._most_bytes = most_bytes
        self._make_spill = make_spill
        self._take_whole = whole_requests()
        self._may_be_preface = from_file
        self._buffer = bytearray()
        self.is_unfinished = False  # the last `next` stopped before the end of the buffer
        self._wanted = 1  # this many bytes of the batch must be there before another try
        self._spill: Spill | None = None  # the front of the batch; the buffer has what follows
        self._spilled = 0  # how many bytes that is
        # State of the frame-by-frame parser: its place in the batch, -1 while it is not in use, and what it found.
        self._frame_at = -1
        self._plain_bytes = 0
        self._found = CommandCollector()
        self._keeps_words = True  # until the batch is long
        self._command: _Command | None = None  # the one that is not whole yet
        self._word_end = -1  # in the batch, of a long word that has not arrived whole; -1 for none
        self._damage: FrameError | None = None  # was met behind batches that were still returned

    @property
    def pending_bytes(self) -> int:
        """Bytes in memory of batches not returned yet."""
        return len(self._buffer)

    def close(self) -> None:
        """Give up what has come of a batch."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self, most_frames: int = _ALL) -> StreamedBatch | None:
        """The next whole batch, None when more bytes are needed.

        Also None after about `most_frames` frames of a batch that has more, or when more of it has to leave the memory:
        `is_unfinished` is set then, and the next call continues.  Raises FrameError when what arrived is not a sound
        batch that continues the one before, OSError when a long one cannot be held; the stream can only be closed after
        that.
        """
        self.is_unfinished = False
        if self._make_spill is not None and self._frame_at >= 0:
            self._spill_front(self._make_spill)
        if self._spilled + len(self._buffer) < self._wanted:
            self.is_unfinished = self._can_spill
            return None
        batch = None
        if self._frame_at < 0:
            mark = log_lines.find_line(self._buffer, b"#", 0, _SIMPLE_BYTES)
            if not mark and len(self._buffer) < _UNSEEN_BYTES and self._buffer[0] in b"*#":
                return None
            batch = self._simple_batch(mark)
        if batch is None:
            batch = self._framed_batch(most_frames)
        if batch is not None:
            del self._buffer[: batch.size - self._spilled]
            self._wanted = 1
            self._frame_at = -1
            self._spill, self._spilled = None, 0
            self._may_be_preface = False
            self.offset = batch.offset
        elif self._can_spill:
            self.is_unfinished = True
        return batch

    def next_slice(self, most_bytes: int, most_commands: int) -> list[StreamedBatch]:
        """Whole batches for a slice of work, about as many as that; none also when `is_unfinished` is set.

        Only the last one may be in a file; its taker releases it.  Sound batches before a damaged one are
        returned; the next call raises FrameError.  Raises OSError as `next`.
        """
        if self._damage is not None:
            raise self._damage
        batches: list[StreamedBatch] = []
        size = count = 0
        while size < most_bytes and count < most_commands:
            try:
                batch = self.next(most_commands)
            except FrameError as error:
                if not batches:
                    raise
                self._damage = error  # what was parsed before it would be parsed twice
                break
            if batch is None:
                break
            batches.append(batch)
            if batch.spill is not None:
                break
            size += len(batch.data)
            count += len(batch.requests or ())  # none are held of a longer batch, which ends the slice by its size
        return batches

    def _simple_batch(self, mark: int) -> StreamedBatch | None:
        """The next batch if it is simple, else None; `mark` is where the first comment line in it begins."""
        end = self._buffer.find(b"\n", mark) + 1
        if not mark or not end:
            return None
        data = bytes(memoryview(self._buffer)[:end])
        annotation = log_lines.parse_annotation(data, mark)
        if annotation is None or annotation.covered != mark or annotation.offset != self.offset + mark:
            return None
        if not log_lines.is_sound(annotation, crc32c(memoryview(data)[:mark])):
            return None
        requests = self._take_whole(data, 0, mark)
        if requests is None or not _are_requests(requests):
            return None
        return StreamedBatch(data, mark, mark, requests, annotation.offset)

    def _framed_batch(self, most: int) -> StreamedBatch | None:
        """The next batch, parsed as far as it has arrived; what was parsed is not parsed again."""
        if self._frame_at < 0:
            self._frame_at, self._plain_bytes, self._found, self._command = 0, 0, CommandCollector(), None
            self._keeps_words = True
        if self._word_end >= 0:
            self._pass_word(self._word_end)
            self._word_end = -1
        window = WINDOW_BYTES
        while True:
            if most <= 0:
                self.is_unfinished = True
                return None
            if IS_NATIVE and self._command is None and (count := self._take_requests()):
                most -= count
                continue
            start = self._frame_at if self._command is None else self._command.at
            at = start - self._spilled
            data = bytes(memoryview(self._buffer)[at : at + window])
            try:
                end = start + self._parse_on(data, start)
            except ShortFrame as short:
                if at + short.needed > len(self._buffer):
                    self._need(start + short.needed)
                    if not self._keeps_words and short.line_end is not None:
                        self._word_end = start + short.line_end
                    return None
                most -= 1 + len(data) // _FRAME_BYTES
                if self._keeps_words:
                    window = max(min(2 * window, NATIVE_PIECE_BYTES), short.needed)
                elif short.line_end is not None:
                    self._pass_word(start + short.line_end)
                continue
            self._need(end)
            if self._command is not None:
                if self._keeps_words:
                    self._found.take_command(self._command.words)
                self._command = None
                self._plain_bytes += end - self._frame_at
            elif data.startswith(log_lines.ANNOTATION_START):
                return self._closed(start, end)
            elif self._keeps_words:
                self._found.take_comment(data[: end - start])
            self._frame_at = end
            window = WINDOW_BYTES
            most -= 1

    def _take_requests(self) -> int:
        """Take whole requests natively, a piece of them; -> how many.  Raises FrameError when the batch is too long."""
        start = self._frame_at - self._spilled
        if self._buffer[start : start + 1] != b"*":
            return 0
        self._found.finish()
        requests: list[LoggedRequest] = []
        taken = parse_front(LOGGED, bytes(memoryview(self._buffer)[start : start + NATIVE_PIECE_BYTES]), requests)
        if taken:
            self._need(self._frame_at + taken + 1)
            self._frame_at += taken
            self._plain_bytes += taken
            if self._keeps_words:
                cast("list[LoggedRequest]", self._found.commands).extend(requests)
        return count_of(requests)

    def _parse_on(self, data: bytes, start: int) -> int:
        """Parse `data`, which begins at `start`: a frame, or the missing words of one.  -> where in `data` it ends.

        Raises ShortFrame when it does not end there, and FrameError.
        """
        command = self._command
        position = 0
        if command is None:
            if data.startswith(b"#"):
                return log_lines.parse_frame(data, 0)[1]
            count, position = log_lines.parse_head(data, 0)
            command = self._command = _Command(count, start + position)
        had = len(command.words)
        try:
            return log_lines.parse_words(data, position, command.missing, command.words)
        except ShortFrame as short:
            command.at = start + short.resume_at
            raise
        finally:
            command.missing -= len(command.words) - had
            if not self._keeps_words:
                command.words.clear()

    def _pass_word(self, end: int) -> None:
        """Pass over a long word of the command, which ends at `end`, without a copy of it.  Raises FrameError."""
        at = end - self._spilled
        if self._buffer[at : at + 2] != b"\r\n":
            raise FrameError(UNCLOSED_WORD)
        assert self._command is not None
        self._command.missing -= 1
        self._command.at = end + 2

    def _need(self, size: int) -> None:
        """Note that the batch takes at least `size` bytes.  Raises FrameError when that is too many."""
        if size > self._most_bytes:
            raise FrameError(f"a batch of more than {self._most_bytes} bytes")
        self._wanted = size
        if size > _KEPT_BYTES and self._keeps_words:
            self._keeps_words = False
            self._found = CommandCollector()
            if self._command is not None:
                self._command.words.clear()

    @property
    def _checked_bytes(self) -> int:
        """How many bytes in front of the buffer need not be looked at again."""
        if self._word_end >= 0:
            return min(self._word_end - self._spilled, len(self._buffer))
        return (self._frame_at if self._command is None else self._command.at) - self._spilled

    @property
    def _can_spill(self) -> bool:
        """Whether a piece of a long batch has to leave the memory."""
        is_long = self._frame_at >= 0 and not self._keeps_words and self._spilled + len(self._buffer) > HELD_BYTES
        return is_long and self._make_spill is not None and self._checked_bytes >= PIECE_BYTES

    def _spill_front(self, make_spill: Callable[[], Spill]) -> None:
        """Move a piece of a long batch to its file.  Raises OSError."""
        if not self._can_spill:
            return
        if self._spill is None:
            self._spill = make_spill()
        with memoryview(self._buffer) as held, held[:PIECE_BYTES] as piece:
            self._spill.append(piece)
        del self._buffer[:PIECE_BYTES]
        self._spilled += PIECE_BYTES

    def _closed(self, mark: int, end: int) -> StreamedBatch:
        """The batch that the annotation at `mark` closes.  Raises FrameError when it does not fit, OSError."""
        self._found.finish()
        spill, front = self._spill, self._spilled
        data = bytes(memoryview(self._buffer)[: end - front])
        annotation = log_lines.parse_annotation(data, mark - front)
        if annotation is None:
            raise FrameError("malformed annotation line")
        if annotation.covered != mark or not mark:
            raise FrameError(f"annotation covers {annotation.covered} bytes, not the {mark} since the last one")
        checksum = crc32c(memoryview(data)[: mark - front], 0 if spill is None else spill.checksum)
        if not log_lines.is_sound(annotation, checksum):
            raise FrameError("checksum does not match")
        after = self.offset + self._plain_bytes
        if self._may_be_preface and annotation.offset == self.offset and is_preface(self._found.commands):
            after = self.offset
        if annotation.offset != after:
            raise FrameError(f"the annotation says replication offset {annotation.offset}, not {after}")
        requests = [*self._found.commands] if self._keeps_words else None
        if spill is not None:
            spill.append(memoryview(data))
            data = b""
        return StreamedBatch(data, mark, self._plain_bytes, requests, after, spill)


def _are_requests(requests: list[LoggedRequest]) -> bool:
    """Whether the C parser found arrays of words; that of hiredis accepts any RESP."""
    return IS_NATIVE or all(
        isinstance(words, list) and words and all(isinstance(word, bytes) for word in words) for words in requests
    )
