"""Follows the log as it grows: reads what replicas are sent, from any place, in slices.

    verbatim     the files' bytes as they are, except prefaces: for replicas that keep the same log
    commands     what a foreign replica understands: comment lines, extensions and annotations are left out

The bytes come from the files and not from memory, so a replica may be as far behind as the log reaches, and a slow one
costs nothing.  A place between two batches is a `LogPosition`; `search.py` finds the place of a replication offset.
This module knows no links and never waits: the reader calls again when there is more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from riverbed.store.disk.files import Files
from riverbed.store.errors import CorruptionError
from riverbed.store.format.log_lines import ANNOTATION_START
from riverbed.store.log.append_log import Log
from riverbed.store.log.files.batch import Batch, LogPart, is_preface
from riverbed.store.log.files.long_batch import LEAST_BYTES, LongBatch
from riverbed.store.log.files.part_reader import PartReader
from riverbed.store.log.files.reader import read_part
from riverbed.store.log.manifest import FileType, LogFile, Manifest
from riverbed.store.log.streamed.batch import without_comments
from riverbed.store.position import LogPosition

# A batch that is not kept while a replica takes it.
_LONG_BATCH_BYTES: Final = 1 << 20
# A slice of commands ends after so many batches, at 5 us each.
_SLICE_BATCHES: Final = 100


def number_of(file: LogFile) -> int:
    """The file's number in positions."""
    return -file.seq if file.type is FileType.BASE else file.seq


def start_of(manifest: Manifest) -> LogPosition:
    """The very beginning of a log that has any file."""
    incrs = manifest.incrs
    offset = (incrs[0].start_offset or 0) if incrs else 0
    return LogPosition(number_of(manifest.files[0]), 0, offset)


def first_preface(log: Log, files: Files) -> bytes:
    """The SELECT that the first incr begins with, for replicas that are sent commands; empty without a preface."""
    first = log.home.manifest.incrs[0]
    tail = LogTail(log, files, LogPosition(first.seq, 0, first.start_offset or 0), verbatim=False, preface_of=first.seq)
    try:
        return tail.preface()
    finally:
        tail.close()


class LogTail:
    """Reads from `place` on, with the preface of the file `preface_of`, which is the first of a full sync.

    Close it after use: it keeps files open.
    """

    def __init__(
        self,
        log: Log,
        files: Files,
        place: LogPosition,
        *,
        verbatim: bool,
        skip: int = 0,
        preface_of: int = 0,
        only_file: bool = False,
    ) -> None:
        """The first `skip` bytes of commands are left out, for a replica that has them.

        With `only_file` reading ends with the file that `place` is in.
        """
        self.place = place
        self._log = log
        self._files = files
        self._open_files = log.history.open_files
        self._verbatim = verbatim
        self._skip = skip
        self._preface_of = preface_of
        self._only_file = only_file
        self._fd = -1
        self._file: LogFile | None = None
        self._held: dict[int, tuple[LogFile, int]] = {}
        self._batches: Iterator[Batch] | None = None
        self._reader: PartReader | None = None
        # commands before `place` that were not returned yet: these, then those of the long batch that ends there
        self._unread = memoryview(b"")
        # or a batch that begins there, which is gone over twice, so that nothing is returned of it that is not sound
        self._long: LongBatch | None = None
        log.history.tails.add(self)

    def reads(self, log: Log) -> bool:
        """Whether it reads `log`, and not one that was in its place before."""
        return self._log is log

    def read(self, most: int) -> bytes | None:
        """At most `most` bytes of what comes next, none at the end.  Raises CorruptionError, OSError.

        None after a slice that has nothing, or of a long batch that is only looked at: the next call goes on.
        """
        read = self._read_bytes if self._verbatim else self._read_commands
        while True:
            limit = self._limit()
            data = read(most, limit)
            if data or data is None:
                return data
            if self.place.position < limit:
                continue  # only bytes that are not for replicas were read
            if not self._next_file():
                return b""

    def preface(self) -> bytes:
        """The command in the preface of the current file, at whose beginning the tail is; empty without a preface."""
        limit = self._limit()
        size = self._preface_end(limit) if limit else 0
        data = self._files.read_at(self._fd, size, 0)
        return data[: data.rfind(b"\n" + ANNOTATION_START) + 1]

    def jump(self, place: LogPosition) -> None:
        """Continue at `place`, a later one: what lies between was sent in another way."""
        if place.file_seq != self.place.file_seq:
            self._close_file()
            for number in [number for number in self._held if number < place.file_seq]:
                self._open_files.close(self._held.pop(number)[1])
        self._batches = self._long = None
        self._unread = memoryview(b"")
        self.place = place

    def hold(self) -> None:
        """Open the files that are still to be read: some are about to be deleted."""
        present, manifest = self.place.file_seq, self._log.home.manifest
        for file in manifest.streamed if present > 0 else manifest.files:
            number = number_of(file)
            is_ahead = number >= present if number < 0 or present > 0 else True
            if is_ahead and number not in self._held and not (number == present and self._fd >= 0):
                self._held[number] = file, self._open_files.open(self._log.home.path / file.name)

    @property
    def held_bytes(self) -> int:
        """The bytes of the deleted files that are still to be read: the disk has them back when no tail reads these."""
        manifest = self._log.home.manifest
        listed = {number_of(file) for file in (*manifest.backlog, *manifest.files)}
        held: dict[int, tuple[LogFile | None, int]] = {**self._held}
        if self._fd >= 0:
            held[self.place.file_seq] = self._file, self._fd
        return sum(_size(self._files, fd, file) for number, (file, fd) in held.items() if number not in listed)

    def moved(self, closed: LogFile, current: LogFile, shift: int) -> None:
        """Continue in `current` if the place is behind the end of `closed`, see `Follower.moved`."""
        assert closed.size is not None
        held = self._held.get(closed.seq)
        if held is not None:
            self._held[closed.seq] = closed, held[1]
        number, position, offset = self.place
        if number != closed.seq:
            return
        if self._file is not None:
            self._file = closed
        if self._long is not None and not self._is_sound(self._long):
            self._long = None  # it may end in the other file
        if position > closed.size:
            self._close_file()
            self.place = LogPosition(current.seq, position + shift, offset)
            if self._long is not None:
                self._long.at += shift
        elif self._batches is not None:  # they end where the file ended
            self._batches = None

    def close(self) -> None:
        self._log.history.tails.discard(self)
        self._close_file()
        for _, fd in self._held.values():
            self._open_files.close(fd)
        self._held.clear()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _limit(self) -> int:
        """Open the current file; -> up to where it may be read."""
        number = self.place.file_seq
        if self._fd < 0:
            self._file, self._fd = self._open(number)
        end = self._log.end
        return end.position if number == end.file_seq else _size(self._files, self._fd, self._file)

    def _open(self, number: int) -> tuple[LogFile, int]:
        held = self._held.pop(number, None)
        if held is not None:
            return held
        manifest = self._log.home.manifest
        for file in (*manifest.backlog, *manifest.files):
            if number_of(file) == number:
                return file, self._open_files.open(self._log.home.path / file.name)
        raise CorruptionError(str(self._log.home.path), None, f"file {number} of the log is not there any more")

    def _next_file(self) -> bool:
        """Go to the file after the current one, which was read to its end; False when there is none."""
        present = self.place.file_seq
        if self._only_file:
            return False
        manifest = self._log.home.manifest
        listed = manifest.streamed if present > 0 else manifest.incrs
        incrs = {file.seq for file in listed} | {number for number in self._held if number > 0}
        later = [number for number in incrs if number > present] if present > 0 else list(incrs)
        if not later:
            return False
        self._close_file()
        self.place = LogPosition(min(later), 0, self.place.offset)
        return True

    def _close_file(self) -> None:
        if self._fd >= 0:
            self._open_files.close(self._fd)
            self._fd = -1
        self._batches = None

    # -- verbatim ------------------------------------------------------------------------------------------------------

    def _read_bytes(self, most: int, limit: int) -> bytes | None:
        number, position, offset = self.place
        if position == 0 and limit and number > 0 and number != self._preface_of:
            position = self._preface_end(limit)
        size = min(most, limit - position)
        data = self._files.read_at(self._fd, size, position) if size > 0 else b""
        if len(data) < size:
            raise CorruptionError(str(self._log.home.path), position, f"file {number} became shorter than it was")
        self.place = LogPosition(number, position + len(data), offset)
        return data

    def _preface_end(self, limit: int) -> int:
        """Where the preface of the current file ends, 0 when it has none."""
        first = next(self._part_reader(limit).batches(), None)
        assert self._file is not None
        if first is not None and first.end.offset == self._file.start_offset and is_preface(first.requests):
            return first.end.position
        return 0

    # -- commands ------------------------------------------------------------------------------------------------------

    def _part_reader(self, limit: int) -> PartReader:
        number, position, offset = self.place
        file = self._file
        assert file is not None
        if self._verbatim and position == 0:
            offset = file.start_offset or 0  # reading bytes does not count the offset
        reader = read_part(self._files, self._fd, LogPart(self._log.home.path / file.name, file, limit, is_last=False))
        reader.leaves_long = True
        reader.begin(LogPosition(number, position, offset))
        return reader

    def _read_commands(self, most: int, limit: int) -> bytes | None:
        """A batch may be longer than `most`: the rest of it is returned by the next calls."""
        if not self._unread:
            commands = self._next_batches(most, limit) if self._long is None else self._next_slice(most, limit)
            if not commands and (self._long is not None or self._batches is not None):
                return None
            self._unread = memoryview(commands)
        piece, self._unread = bytes(self._unread[:most]), self._unread[most:]
        return piece

    def _next_slice(self, most: int, limit: int) -> bytes:
        """Go over some more of the long batch; -> the commands in that, once the batch is known to be sound."""
        batch = self._long
        assert batch is not None and self._file is not None
        is_sound = self._is_sound(batch)
        path = self._log.home.path / self._file.name
        commands = batch.read(self._files, self._fd, min(max(most, LEAST_BYTES), limit - batch.at), path)
        if is_sound:
            if batch.end is not None:
                self._long = None
            return self._unskipped(commands)
        if batch.end is not None:
            self._long, self.place = self._new_long(self.place), batch.end
        return b""

    def _new_long(self, place: LogPosition) -> LongBatch:
        assert self._file is not None
        return LongBatch(place, counts=self._file.type is not FileType.BASE)

    def _is_sound(self, batch: LongBatch) -> bool:
        """Whether all of the batch was compared with its checksum, and it is gone over for its commands."""
        return batch.at < self.place.position

    def _unskipped(self, commands: bytes) -> bytes:
        skip = min(self._skip, len(commands))
        self._skip -= skip
        return commands[skip:]

    def _next_batches(self, most: int, limit: int) -> bytes:
        """The commands of whole batches, until there are `most` bytes, or the slice or the file ends.

        A long batch comes in slices, and is only noted: a slow replica would keep it in memory.
        """
        parts = []
        size = 0
        if self._batches is None:
            self._reader = self._part_reader(limit)
            self._batches = self._reader.batches()
        for _ in range(_SLICE_BATCHES):
            batch = next(self._batches, None)
            if batch is None:
                self._batches = None  # the file may have grown by the next time
                assert self._reader is not None
                if self._reader.unsound is not None:
                    raise CorruptionError(str(self._log.home.path), self.place.position, self._reader.unsound)
                if self._reader.is_before_long:
                    self._long = self._new_long(self.place)
                break
            is_first = batch.start == 0 and batch.end.offset == self.place.offset
            begin, self.place = self.place, batch.end
            if is_first and self._preface_of != batch.end.file_seq > 0 and is_preface(batch.requests):
                continue
            if batch.time_ms is not None and batch.size > max(most, _LONG_BATCH_BYTES):
                self._long = self._new_long(LogPosition(batch.end.file_seq, batch.start, begin.offset))
                self._batches = self._reader = None  # it has the batch, too
                break
            data = self._files.read_at(self._fd, batch.size, batch.start)
            covered = data.rfind(b"\n" + ANNOTATION_START) + 1 if batch.time_ms is not None else len(data)
            has_comments = data.startswith(b"#") or data.find(b"\n#", 0, covered - 1) >= 0
            commands = self._unskipped(without_comments(data, covered, -1 if has_comments else covered))
            parts.append(commands)
            size += len(commands)
            if size >= most:
                break
        return b"".join(parts)


def _size(files: Files, fd: int, file: LogFile | None) -> int:
    """Of a file that is closed: the manifest says it, but not in the copy of its line that is older than its end."""
    return files.size(fd) if file is None or file.size is None else file.size
