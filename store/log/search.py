"""Finds the place of a replication offset in the log, in slices: where a replica that comes back is to go on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from riverbed.store.disk.files import Files
from riverbed.store.errors import CorruptionError
from riverbed.store.log.append_log import Log
from riverbed.store.log.files.batch import LogPart
from riverbed.store.log.files.long_batch import LongBatch
from riverbed.store.log.files.reader import read_part
from riverbed.store.position import LogPosition

# Some places are remembered, so that a search need not begin at the head of a file.
_KNOWN_OFFSET_BYTES: Final = 1 << 20
_MAX_KNOWN_OFFSETS: Final = 4096
# A search looks at no more at once, and at no more of a long batch.
_SEARCH_BYTES: Final = 1 << 20
_LONG_SLICE_BYTES: Final = 256 << 10


class KnownOffsets:
    """Known places between batches, where searches can begin."""

    def __init__(self) -> None:
        self.places: list[LogPosition] = []

    def add(self, place: LogPosition) -> None:
        places = self.places
        if places and 0 <= place.offset - places[-1].offset < _KNOWN_OFFSET_BYTES:
            return
        if len(places) >= _MAX_KNOWN_OFFSETS:
            del places[1::2]
        places.append(place)


class LogSearch:
    """Looks for the place of `offset` in the log, some batches at a time, as a long file takes seconds.

    When `step` has returned True, `place` is the end of the last batch up to `offset`, and `skip` the number of bytes
    of commands between the two.  `place` is None when the log does not have the offset, or when no batch ends there and
    one must (`any_byte` is False).  A search that is given up is to be closed: it keeps a file open.
    """

    def __init__(self, log: Log, files: Files, offset: int, known_offsets: KnownOffsets, *, any_byte: bool) -> None:
        self.place: LogPosition | None = None
        self.skip = 0
        self.file_seq = 0  # the file that was looked at last
        self._log = log
        self._files = files
        self._offset = offset
        self._any_byte = any_byte
        self._known_offsets = known_offsets
        self._begin()

    def _begin(self) -> None:
        self._moves = self._log.moves
        self._steps = self._search(self._start(self._known_offsets))

    def step(self, batch_count: int) -> bool:
        """Read about `batch_count` more batches, fewer long ones; -> whether the search is over.

        Raises CorruptionError, OSError.
        """
        if self._log.moves != self._moves:  # what lay at the end of the log may lie elsewhere
            self._begin()
        left = _SEARCH_BYTES
        for number, size in enumerate(self._steps, 1):
            left -= size
            if number >= batch_count or left <= 0:
                return False
        return True

    def close(self) -> None:
        self._steps.close()

    def _start(self, known_offsets: KnownOffsets) -> LogPosition | None:
        """The last known place at or before the offset."""
        log, offset = self._log, self._offset
        starts = [
            LogPosition(file.seq, 0, file.start_offset)
            for file in log.home.manifest.streamed
            if file.is_checksummed and file.start_offset is not None
        ]
        numbers = {place.file_seq for place in starts}
        starts += [place for place in known_offsets.places if place.file_seq in numbers]
        return max((place for place in starts if place.offset <= offset), default=None)

    def _search(self, start: LogPosition | None) -> Generator[int, None, None]:
        """Yields how many bytes were read."""
        log, offset = self._log, self._offset
        end = log.end
        if start is None or offset > end.offset:
            return
        if offset == end.offset:
            self.place = end
            return
        while True:
            for place, behind, size in self._batches(start, end):
                if behind.offset > offset:
                    if self._any_byte or place.offset == offset:
                        self.place, self.skip = place, offset - place.offset
                    return
                yield size
                start = behind
            later = [file.seq for file in log.home.manifest.streamed if file.seq > start.file_seq]
            if not later:
                return
            start = LogPosition(min(later), 0, start.offset)

    def _batches(self, start: LogPosition, end: LogPosition) -> Iterator[tuple[LogPosition, LogPosition, int]]:
        """The batches of one file from `start` on: where each begins and ends, and how much was read.

        A long one that is not over yet ends where it begins.
        """
        self.file_seq = start.file_seq
        file = next((file for file in self._log.home.manifest.streamed if file.seq == start.file_seq), None)
        if file is None:
            raise CorruptionError(str(self._log.home.path), None, f"file {start.file_seq} of the log was deleted")
        path = self._log.home.path / file.name
        fd = self._files.open_read(path)
        try:
            if file.seq == end.file_seq:
                size = end.position
            else:
                size = self._files.size(fd) if file.size is None else file.size
            while True:
                reader = read_part(self._files, fd, LogPart(path, file, size, is_last=False))
                reader.leaves_long = True
                reader.begin(start)
                for batch in reader.batches():
                    yield start, batch.end, batch.size
                    start = batch.end
                if reader.unsound is not None:
                    raise CorruptionError(str(path), reader.place.position, reader.unsound)
                if not reader.is_before_long:
                    return
                long = LongBatch(start, counts=True)
                while long.end is None:
                    yield start, start, _LONG_SLICE_BYTES
                    long.read(self._files, fd, min(_LONG_SLICE_BYTES, size - long.at), path)
                yield start, long.end, _LONG_SLICE_BYTES
                start = long.end
        finally:
            self._files.close_deleted(fd)
