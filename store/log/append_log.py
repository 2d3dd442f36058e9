"""The log: one group commit is one write; files are added, never changed.

    incr 5 (closed)                    incr 6 (appended to)
    | batch #CK | batch #CK | batch #CK |   | preface #CK | batch #CK | batch #CK |<- end
                                                             synced ->'         '<- written

`Log` finds or makes the files, has them read, and begins the next one when one is full.  Its parts are in `appending/`:

    log.writer     appends a tick's commands with the annotation that closes them, and makes them durable
    log.listing    the manifest, when ids or policy change
    log.history    a new base, and the files that it makes superfluous

A file begins in one go (`rotate`), or in a thread while more is appended (`begin_next_file`), see
`appending/successor.py`.

Every file begins with SELECT.  In a file that follows others it is a preface: the SELECT that is in force, which does
not count in the offset.  Each server ends its files where it likes; offsets are the same on all servers.

The end of the log is known only after a read to the end.  So a log that holds anything takes no appends until `read`
is exhausted, and `cut_tail` has cut the torn tail that `read` found, if any.

This module does not know what commands mean, when to sync, or what a checkpoint covers; the rules of reading are in
`reader.py`, the bytes in `store/format/log_lines.py`, the list of files in `manifest.py`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from riverbed.store.disk.durable_file import cut_file
from riverbed.store.disk.files import Files
from riverbed.store.errors import LogWriteError
from riverbed.store.layout import LOG_DIRECTORY
from riverbed.store.log.appending.condition import CLOSED, UNCUT, UNREAD, Condition
from riverbed.store.log.appending.history import History
from riverbed.store.log.appending.listing import Listing
from riverbed.store.log.appending.replacement import Replacement
from riverbed.store.log.appending.writer import LogWriter
from riverbed.store.log.home import Base, LogHome
from riverbed.store.log.manifest import FileType, LogFile, Manifest, ReplacedError
from riverbed.store.log.reader import Batch, LogPart, LogReader, TornTail
from riverbed.store.log.resync import make_durable
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds

__all__ = ["Base", "Batch", "Log", "TornTail"]

DEFAULT_SEGMENT_BYTES: Final = 1 << 30
# What a file may be too long while a slow disk has a checkpoint: twice of what may wait for the disk.
MAX_OVER_BYTES: Final = 64 << 20


class Log:
    """The append-only files of one server, made by `find` or `begin`.

    For one thread, except that `writer.sync_bytes` or a `Replacement` may run in another while this one appends;
    nothing may rotate meanwhile.
    """

    def __init__(self, home: LogHome, files: Files, segment_bytes: int, load_truncated: bool) -> None:
        self.home = home
        self.condition = Condition()
        self.listing = Listing(home, self.condition, files)
        self.history = History(home, self.listing, self.condition, files)
        self.writer = LogWriter(files, self.listing, self.condition)
        self.torn_tail: TornTail | None = None
        self.follows_power_cut = False  # it was written to when the machine stopped, or a sync of it has failed
        # Why the next file could not be begun when it was due; None when it could.
        self.rotate_error: str | None = None
        # Those that a start has put in other places of the disk, as it had refused part of them.
        self.moved_files: list[Path] = []
        # How often places at the end of the log have become places of another file, while the file was begun.
        self.moves = 0
        self._files = files
        self._segment_bytes = segment_bytes
        self._load_truncated = load_truncated
        self._rotate_at = 0
        self._was_created_with_home: bool | None = None  # None when the log was there before

    @classmethod
    def find(
        cls,
        directory: Path,
        files: Files,
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        load_truncated: bool = True,
    ) -> Self:
        """The log of the store in `directory`; it may not exist yet.

        Raises CorruptionError when the files are not what the manifest says; `read` checks their contents.
        """
        home = LogHome.find(directory / LOG_DIRECTORY, files)
        log = cls(home, files, segment_bytes, load_truncated)
        log.listing.measure()
        return log

    def create(self) -> None:
        """Make an empty log where there is none.  Raises OSError with nothing left of it."""
        assert self.is_missing
        had_home = self._files.exists(self.home.path)
        try:
            self.home.create()
            self._begin_file()
        except OSError:
            self.home.remove(with_directory=not had_home)
            raise
        self.condition.refusal = None
        self._was_created_with_home = not had_home

    def take_back(self) -> None:
        """Remove the log that `create` has just made, when the start fails afterwards.  Not for a log that was used."""
        if self._was_created_with_home is not None:
            self.close()
            self.home.remove(with_directory=self._was_created_with_home)

    @classmethod
    def begin(
        cls,
        directory: Path,
        files: Files,
        *,
        start_offset: int,
        seq: int,
        base: LogFile | None,
        replids: ReplicationIds,
    ) -> Self:
        """Begin a log in `directory` that continues from `start_offset` with incr `seq`, after `base`.

        The manifest lists the base; the caller must put the file there.  Raises OSError.
        """
        home = LogHome(directory / LOG_DIRECTORY, files, Manifest(base=base, replids=replids, is_unsynced=True))
        log = cls(home, files, sys.maxsize, True)
        files.make_directory(home.path)
        log.writer.set_end(LogPosition(0, 0, start_offset))
        log._begin_file(seq)
        log.condition.refusal = None
        return log

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def is_missing(self) -> bool:
        """Whether there is no log yet."""
        return not self.home.manifest.files

    @property
    def is_new(self) -> bool:
        """Whether it was made by this process, and no earlier one has written to it."""
        return self._was_created_with_home is not None

    @property
    def broken(self) -> bool:
        """Whether it takes no more writes until the server starts again."""
        return self.condition.broken

    @property
    def end(self) -> LogPosition:
        """The end of the last batch.  Raises LogWriteError until the log was read to its end."""
        if self.condition.refusal == UNREAD:
            raise LogWriteError(UNREAD)
        writer = self.writer
        return LogPosition(writer.file_seq, writer.position, writer.offset)

    @property
    def offset(self) -> int:
        """The replication offset of `end`, without its checks: each tick asks for it."""
        return self.writer.offset

    @property
    def synced(self) -> LogPosition:
        """The end of what is durable."""
        writer = self.writer
        return LogPosition(writer.file_seq, writer.synced_position, writer.synced_offset)

    @property
    def synced_offset(self) -> int:
        return self.writer.synced_offset

    @property
    def unsynced_bytes(self) -> int:
        return self.writer.position - self.writer.synced_position

    @property
    def size_bytes(self) -> int:
        """Bytes of all files that would be loaded."""
        return self.listing.closed_bytes + self.writer.position

    @property
    def base(self) -> Base | None:
        """The base that the first incr continues, None when there is none."""
        return self.listing.base

    @property
    def base_bytes(self) -> int:
        return self.listing.base_bytes

    @property
    def incr_count(self) -> int:
        return len(self.home.manifest.incrs)

    @property
    def replids(self) -> ReplicationIds:
        """The replication ids whose offsets the log continues."""
        replids = self.home.manifest.replids
        assert replids is not None, "set when the engine opened the log"
        return replids

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(
        self,
        start: LogPosition | None = None,
        *,
        min_position: LogPosition | None = None,
        durable: LogPosition | None = None,
    ) -> Iterator[Batch]:
        """Yield every batch from `start` on, a position between two batches, or from the very beginning.

        Reads what the log holds when the first batch is requested: later appends do not appear.  Raises CorruptionError
        when the log is not whole up to `min_position` (default `start`), and for any damage but a torn tail; see
        `reader.py`.  The first pass makes durable everything behind `durable`, which the disk may not have.  The end of
        the first pass opens the log for appends, or sets `torn_tail`.  Any later pass finds the log whole up to `end`.
        Raises as `make_durable` does as well.
        """
        is_first = self.condition.refusal in (UNREAD, UNCUT)
        parts = self.home.parts()
        if is_first:
            # The log will be executed, checkpointed and shown to clients now, and must not be lost after that.
            self.moved_files = make_durable(parts, durable, self._files)
            self._files.sync_directory(self.home.path)  # the manifest, and the names that it lists
        else:
            parts[-1] = replace(parts[-1], size=self.writer.position)
        reader = self._reader(parts)
        yield from reader.batches(start, min_position or start if is_first else self.end)
        if is_first and reader.end is not None:
            self._continue_at(parts[-1], reader.end, reader.torn_tail)

    def read_only(self, start: LogPosition | None) -> Iterator[Batch]:
        """Yield every batch from `start` on, and change nothing.  Raises CorruptionError, OSError."""
        return self._reader(self.home.parts()).batches(start, start)

    def _reader(self, parts: list[LogPart]) -> LogReader:
        may_lack_writes = self.follows_power_cut and self.home.manifest.is_unsynced
        return LogReader(parts, self._files, load_truncated=self._load_truncated, may_lack_writes=may_lack_writes)

    def _continue_at(self, last: LogPart, end: LogPosition, torn_tail: TornTail | None) -> None:
        self.writer.set_end(end)
        self.follows_power_cut = False  # what it took is known now
        self.listing.measure_closed()
        self.torn_tail = torn_tail
        if torn_tail is not None:
            self.condition.refusal = UNCUT
            return
        if last.file.type is FileType.INCR and last.file.is_checksummed:
            self.writer.open(last.path)
            self._rotate_at = self._segment_bytes
        else:
            # Annotations must cover a whole file, and here they do not: the first append begins a new file.
            self._rotate_at = 0
        self.writer.set_synced()
        self.condition.refusal = None
        self.home.cut_copies(self.home.manifest.incrs[:-1])

    @property
    def may_cut(self) -> bool:
        """Whether the torn tail that `read` found is to be cut off."""
        return self.condition.refusal == UNCUT

    def cut_tail(self) -> TornTail | None:
        """Cut off the torn tail that `read` found, if any, and open the log for appends.  Returns what was cut."""
        torn = self.torn_tail
        if torn is None or not self.may_cut:
            return None
        last = self.home.parts()[-1]
        cut_file(last.path, torn.position, self._files)
        self._continue_at(last, self.end, None)
        self.torn_tail = torn
        return torn

    # -- rotation ------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether the current file has reached its full length."""
        return self.writer.position >= self._rotate_at

    @property
    def is_overdue(self) -> bool:
        """Whether the next file begins in this tick: the current one is an eighth too long, or read-only."""
        writer = self.writer
        if writer.successor is not None:  # it has begun
            return False
        return writer.fd < 0 or writer.position >= self._rotate_at + max(self._segment_bytes // 8, 1)

    @property
    def is_far_too_long(self) -> bool:
        """Whether even a checkpoint under way is waited for, to begin the next file."""
        return self.is_overdue and (self.writer.fd < 0 or self.writer.position >= self._rotate_at + MAX_OVER_BYTES)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing that counts in the offset was written since the current file was begun."""
        incrs = self.home.manifest.incrs
        return self.writer.fd >= 0 and bool(incrs) and incrs[-1].start_offset == self.writer.offset

    def rotate_if_needed(self) -> bool:
        """Begin the next file when this one is full; call this before a batch is composed.

        Returns whether the file is empty, and so must begin with SELECT, or a preface.  A full disk does not
        stop the log here: it continues in the current file, and `rotate_error` says why.
        """
        writer = self.writer
        if self.is_full:
            try:
                self.rotate()
            except LogWriteError as error:
                if self.condition.refusal is not None or writer.fd < 0:
                    raise
                self.rotate_later(error)
        return writer.position == 0

    def rotate(self) -> None:
        """Make the current file durable, begin the next incr file and close the current one.

        Raises LogWriteError; the log continues in the current file, unless it is broken.
        """
        self.listing.settle()
        try:
            self.writer.cut_padding()
        except OSError as error:
            raise LogWriteError(f"the padding of the log could not be cut off: {error}") from error
        self.writer.sync()
        try:
            self._begin_file()
        except ReplacedError as error:
            raise self.condition.break_log(str(error)) from error
        except OSError as error:
            raise LogWriteError(f"the next file of the log could not be begun: {error}") from error
        self.rotate_error = None

    def begin_next_file(self, preface: bytes) -> Replacement:
        """Begin the next incr file behind the last batch; a thread has to `run` what is returned.

        Batches go to both files until `listing.settle` has put the outcome into effect: then `end` is in the new file,
        or `rotate_error` says why not.  Raises LogWriteError with nothing begun.
        """
        writer = self.writer
        if writer.fd < 0:
            raise LogWriteError("the last file of the log takes no appends, and the next one could not be begun")
        manifest, file = self.home.manifest.continued(writer.offset, writer.position, 1)
        path = self.home.path / file.name
        try:
            fd = self.home.create_file(file.name)
            try:
                writer.begin_successor(fd, file.seq, preface)
                return self.listing.begin(manifest, lambda error: self._next_is_listed(path, error), (writer.fd, fd))
            except (OSError, MemoryError):
                if writer.successor is None:
                    self._files.close(fd)
                else:
                    writer.drop_successor()
                self._files.unlink(path)
                raise
        except OSError as error:
            raise LogWriteError(f"the next file of the log could not be begun: {error}") from error

    def _next_is_listed(self, path: Path, error: LogWriteError | None) -> None:
        """Change to the file `path`, or go on with the current one, when the file could not be listed."""
        if error is not None:
            self.writer.drop_successor()
            if not self.broken:  # the manifest of a broken log may list the file
                with contextlib.suppress(OSError):
                    self._files.unlink(path)
            self.rotate_later(error)
            return
        *before, closed, current = self.home.manifest.incrs
        assert closed.size is not None
        self.home.cut_copies(before[-1:])
        shift = self.writer.change_to_successor()
        self.listing.closed_bytes += closed.size
        self.history.moved(closed, current, shift)
        self.moves += 1
        self._rotate_at = self._segment_bytes
        self.rotate_error = None

    def rotate_later(self, error: LogWriteError) -> None:
        """Go on with the current file for a while, as the next one could not be begun."""
        self.rotate_error = str(error)
        self._rotate_at = max(self._rotate_at, self.writer.position + max(self._segment_bytes // 8, 1))

    @property
    def next_start(self) -> LogPosition:
        """Where the file begins that a thread is about to list."""
        successor = self.writer.successor
        assert successor is not None
        return LogPosition(successor.file_seq, 0, successor.start.offset)

    @property
    def lasting_end(self) -> LogPosition:
        """The end of what will stay where it is, for any thread: where the next file begins while it is begun."""
        successor = self.writer.successor
        return self.end if successor is None else successor.start

    def _begin_file(self, first_seq: int = 1) -> None:
        """Append to the next incr file from now on.  Raises OSError, ReplacedError."""
        file, fd = self.listing.begin_file(self.writer.offset, self.writer.position, first_seq)
        self.writer.begin_file(fd, file.seq)
        self._rotate_at = self._segment_bytes

    def close(self) -> None:
        """Close the files.  Syncs nothing, so a failure to close loses nothing."""
        self.listing.settle()
        self.writer.close()
        if not self.broken:
            self.home.cut_copies(self.home.manifest.incrs[:-1])
        self.condition.refusal = self.condition.refusal or CLOSED
