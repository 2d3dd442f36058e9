"""Reads a file without checksums, which a Redis wrote, or appended to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from riverbed.store.disk.files import Files
from riverbed.store.format import log_lines
from riverbed.store.format.log_lines import CommandCollector, FrameError, ShortFrame
from riverbed.store.log.files.batch import Batch, LogPart
from riverbed.store.log.files.part_reader import PartReader
from riverbed.store.log.files.requests import FEED_BYTES
from riverbed.store.position import LogPosition
from riverbed.store.wire import IS_NATIVE, LOGGED, LoggedRequest, Run, parse_front

# A log without annotations does not mark batches: this many commands make one.
PLAIN_BATCH_COMMANDS: Final = 256


class PlainReader(PartReader):
    """Reads a file without checksums.

    A batch never ends inside of MULTI, as reading must be able to begin between any two batches.  Annotations in the
    file (a Redis took over a file of ours and dropped our marks from the manifest) are verified.
    """

    def __init__(self, files: Files, fd: int, part: LogPart, batch_commands: int = PLAIN_BATCH_COMMANDS) -> None:
        super().__init__(files, fd, part)
        self._batch_commands = batch_commands

    def batches(self) -> Iterator[Batch]:
        """As of `PartReader`."""
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
            for request, end in self._frames(start):
                if request is not None:
                    if not found.is_settled:
                        found.finish()  # a command in comment lines ends here
                        count += 1
                        if not is_open:
                            safe, safe_count = LogPosition(number, at, offset), len(found.commands)
                    size = len(request) if isinstance(request, Run) else 1
                    if safe_count and count + size > self._batch_commands and not is_open:
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
                    if line.startswith(log_lines.ANNOTATION_START):
                        found.finish()
                        annotation = self._verified(line, uncovered, at)
                        uncovered, offset = end, annotation.offset
                    else:
                        found.take_comment(line)
                        if line.startswith(log_lines.TIMESTAMP_START):
                            next_noted_ms = log_lines.parse_timestamp(line)
                    count += len(found.commands) - before
                if self._counts and request is not None:
                    offset += end - at
                at = end
                if is_open or not found.is_settled:
                    continue
                safe, safe_count = LogPosition(number, at, offset), len(found.commands)
                if count >= self._batch_commands or (safe_count and next_noted_ms != noted_ms):
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

    def _frames(self, at: int) -> Iterator[tuple[LoggedRequest | None, int]]:
        """The requests from byte `at` on, None for each comment line, and where each ends.

        The native parser takes requests of the usual form, and those that are whole in the window; all others are taken
        one by one.  Raises as `parse_frame` does.
        """
        while at < self._size:
            requests = self._front(at)
            for request in requests:
                at += request.size if isinstance(request, Run) else log_lines.command_size(request)
                yield request, at
            if not requests:
                words, at = self._frame(at)
                yield words, at

    def _front(self, at: int) -> list[LoggedRequest]:
        """The requests of the usual form from byte `at` on; none where each command is a batch of its own."""
        requests: list[LoggedRequest] = []
        begin = at - self._window_start
        if IS_NATIVE and self._batch_commands >= PLAIN_BATCH_COMMANDS and 0 <= begin < len(self._window):
            parse_front(LOGGED, self._window[begin : begin + FEED_BYTES], requests)
        return requests
