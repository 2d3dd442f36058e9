"""A batch of the log as it came over a replication link, and how a long one is parsed again when it is executed.

The parsed words of a batch take up to ten times as much memory as its bytes.  So those of a long one are not kept: its
requests come a piece at a time from its bytes, which are in memory or in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, cast

from riverbed.store.disk.spill import Spill
from riverbed.store.format import log_lines
from riverbed.store.format.log_lines import CommandCollector, ShortFrame
from riverbed.store.wire import IS_NATIVE, LOGGED, LoggedRequest, parse_front, words_of

# So much of a long batch is parsed natively at once.
NATIVE_PIECE_BYTES: Final = 64 << 10
# How much of a frame is parsed at first; nearly all frames are shorter.
WINDOW_BYTES: Final = 4 << 10
# No longer request is parsed natively as a whole.
_MOST_NATIVE_BYTES: Final = 64 << 20


class StreamedBatch(NamedTuple):
    """One batch: its `data`, of which the first `covered` bytes stand before the annotation, and what it holds.

    The data of a long batch are in the file `spill`, and `data` is empty; who takes it closes it with `release`.

    `command_bytes` of the covered bytes are plain commands, the rest comment lines; `offset` is the one after it.
    `requests` is None when they must be parsed again, because they are too many to be held at once; `pieces` has them
    in order in any case.  Neighbouring XADDs may be a run in it; `commands` has lists of words only, and is made at
    each access.
    """

    data: bytes
    covered: int
    command_bytes: int
    requests: Sequence[LoggedRequest] | None
    offset: int
    spill: Spill | None = None

    @property
    def size(self) -> int:
        return len(self.data) if self.spill is None else self.spill.size

    def pieces(self) -> Iterator[Sequence[LoggedRequest]]:
        """The requests, a few at a time.  Raises FrameError when an extension line is malformed, OSError."""
        if self.requests is not None:
            return iter((self.requests,))
        spill = self.spill
        if spill is None:
            return _parsed_again(lambda start, end: self.data[start:end], self.covered)
        for _ in spill.pieces():  # nothing is executed that was not compared with its checksum
            pass
        return _parsed_again(spill.read, self.covered)

    @property
    def commands(self) -> list[list[bytes]]:
        return words_of([request for piece in self.pieces() for request in piece])

    def command_data(self) -> bytes:
        """The plain commands alone, for a foreign replica; not of a long batch."""
        assert self.spill is None, "it is read from the log"
        return without_comments(self.data, self.covered, self.command_bytes)

    def release(self) -> None:
        if self.spill is not None:
            self.spill.close()


def data_of(batches: Sequence[StreamedBatch]) -> Iterator[bytes]:
    """The bytes of a slice's batches, those of a long one in pieces.  Raises OSError."""
    yield b"".join([batch.data for batch in batches])
    spill = batches[-1].spill
    if spill is not None:
        yield from spill.pieces()


def without_comments(data: bytes, covered: int, command_bytes: int) -> bytes:
    """The first `covered` bytes of the sound batch `data`, without comment lines."""
    if covered == command_bytes:
        return data[:covered]
    parts = []
    at = 0
    while at < covered:
        words, end = log_lines.parse_frame(data, at)
        if words is not None:
            parts.append(data[at:end])
        at = end
    return b"".join(parts)


def _parsed_again(read: Callable[[int, int], bytes], covered: int) -> Iterator[list[LoggedRequest]]:
    """The requests in the first `covered` bytes of a sound batch, a piece at a time; `read` has what is between two.

    A request that is longer than a piece is in memory as a whole.
    """
    found = CommandCollector()
    at = 0
    while at < covered:
        taken = 0
        if IS_NATIVE and found.is_settled:
            piece = read(at, min(at + NATIVE_PIECE_BYTES, covered))
            taken = parse_front(LOGGED, piece, cast("list[LoggedRequest]", found.commands))
        if taken:
            at += taken
        else:
            at = _take_frame(read, at, covered, found)
        if found.is_settled and found.commands:
            yield [*found.commands]
            found.commands.clear()
    found.finish()
    yield [*found.commands]


def _take_frame(read: Callable[[int, int], bytes], start: int, covered: int, found: CommandCollector) -> int:
    """Take the frame at `start`, which is whole; -> where it ends."""
    window = WINDOW_BYTES
    while True:
        data = read(start, min(start + window, covered))
        try:
            words, size = log_lines.parse_frame(data, 0)
        except ShortFrame as short:
            if start + window >= covered:
                raise
            if window == WINDOW_BYTES and (size := _take_long(read, start, covered, found)):
                return start + size
            window = max(2 * window, short.needed)
            continue
        if words is None:
            found.take_comment(data[:size])
        else:
            found.take_command(words)
        return start + size


def _take_long(read: Callable[[int, int], bytes], start: int, covered: int, found: CommandCollector) -> int:
    """Take a request of very many words natively, and those behind it; -> how many bytes, 0 if that cannot be.

    Word by word a million of them would hold all clients up for seconds.
    """
    if not (IS_NATIVE and found.is_settled):
        return 0
    window = taken = 0
    while not taken and window < _MOST_NATIVE_BYTES and start + window < covered:
        window = max(4 * window, NATIVE_PIECE_BYTES)
        taken = parse_front(
            LOGGED, read(start, min(start + window, covered)), cast("list[LoggedRequest]", found.commands)
        )
    return taken
