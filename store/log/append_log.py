"""The log: one group commit is one write; files are added, never changed.

    incr 5 (closed)                    incr 6 (appended to)
    | batch #CK | batch #CK | batch #CK |   | preface #CK | batch #CK | batch #CK |<- end
                                                             synced ->'         '<- written

`append` writes a tick's commands and the annotation that closes them, `sync` makes them durable, `rotate` begins the
next file.  Every file begins with SELECT.  In a file that follows others it is a preface: the SELECT that is in force,
which does not count in the offset.  Each server ends its files where it likes; offsets are the same on all servers.

The end of the log is known only after a read to the end.  So a log that holds anything takes no appends until `read`
is exhausted, and `cut_tail` has cut the torn tail that `read` found, if any.

After a failed write the file is cut back to the last batch, so that the next append finds it whole: the log survives a
full disk without a restart.  It does not survive a failed sync: the kernel may have dropped the pages that it could not
write, and may report success for the next sync.  So the log refuses everything from then on.  The next start writes
again what was not known to be durable, see `resync.py`.

This module does not know what commands mean, when to sync, or what a checkpoint covers; the rules of reading are in
`reader.py`, the bytes in `store/format/log_lines.py`, the list of files in `manifest.py`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from riverbed.store.checksum import crc32c
from riverbed.store.disk.durable_file import cut_file, write_all_at
from riverbed.store.disk.files import Files
from riverbed.store.disk.page_cache import CachedEnd
from riverbed.store.disk.shared_files import SharedFiles
from riverbed.store.errors import LogWriteError
from riverbed.store.format.log_lines import encode_annotation
from riverbed.store.layout import LOG_DIRECTORY
from riverbed.store.log.home import Base, LogHome
from riverbed.store.log.manifest import FileType, LogFile, Manifest, ReplacedError
from riverbed.store.log.padding import Padding
from riverbed.store.log.reader import Batch, LogPart, LogReader, TornTail
from riverbed.store.log.resync import make_durable
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds

__all__ = ["Base", "Batch", "Log", "TornTail", "Unsynced"]

DEFAULT_SEGMENT_BYTES: Final = 256 * 1024 * 1024

# Longer batches are not copied to be written with their annotation in one call.
_JOINED_BYTES: Final = 1 << 20

_UNREAD: Final = "the log was not read to its end yet"
_UNCUT: Final = "the log has a torn tail that was not cut off yet"
_CLOSED: Final = "the log is closed"


class Follower(Protocol):
    """A reader that follows the log as it grows (`tail.py`)."""

    def hold(self) -> None:
        """Open the files that are still to be read; raises OSError."""


class Unsynced(NamedTuple):
    """The end of what was written to the current file when this was made, and was not durable then."""

    fd: int
    file_seq: int
    position: int
    offset: int


class Log:
    """The append-only files of one server, made by `find` or `begin`.

    For one thread, except that `sync_bytes` may run in another while this one appends; nothing may rotate meanwhile.
    """

    def __init__(self, home: LogHome, files: Files, segment_bytes: int, load_truncated: bool) -> None:
        self.home = home
        self.torn_tail: TornTail | None = None
        self.follows_power_cut = False  # it was written to when the machine stopped
        self.synced_offset = 0
        self.broken = False
        # Why nothing may be appended now; None when it may.
        self.refusal: str | None = _UNREAD
        # Why the next file could not be begun when it was due; None when it could.
        self.rotate_error: str | None = None
        self._files = files
        self._write_at = files.write_at
        self._segment_bytes = segment_bytes
        self._load_truncated = load_truncated
        # The file appended to and its end; the descriptor is -1 while the last file takes no appends.
        self._fd = -1
        self._seq = self._position = self._offset = 0
        self._synced_position = 0
        self._is_cut = False  # the file has become shorter since the last sync
        self._before_last = (0, 0)  # position and offset before the last append
        self._rotate_at = 0
        self._closed_bytes = 0
        self.base_bytes = 0
        self._ids_are_unlisted = False  # the manifest on the disk has other replication ids
        self._was_created_with_home: bool | None = None  # None when the log was there before
        # The readers that follow the log, and the files that they have open.
        self.tails: set[Follower] = set()
        self.open_files = SharedFiles(files)
        self._cached_end = CachedEnd(files)
        self._padding = Padding(files)

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
        sizes = {part.file: part.size for part in home.parts()}
        log._closed_bytes = sum(sizes.values())
        log.base_bytes = sizes[home.manifest.base] if home.manifest.base is not None else 0
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
        self.refusal = None
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
        log._offset = start_offset
        log._begin_file(seq)
        log.refusal = None
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
    def end(self) -> LogPosition:
        """The end of the last batch.  Raises LogWriteError until the log was read to its end."""
        if self.refusal == _UNREAD:
            raise LogWriteError(_UNREAD)
        return LogPosition(self._seq, self._position, self._offset)

    @property
    def offset(self) -> int:
        """The replication offset of `end`, without its checks: each tick asks for it."""
        return self._offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all files that would be loaded."""
        return self._closed_bytes + self._position

    @property
    def incr_count(self) -> int:
        return len(self.home.manifest.incrs)

    @property
    def unsynced_bytes(self) -> int:
        return self._position - self._synced_position

    @property
    def unsynced(self) -> Unsynced | None:
        """What a power cut would lose now."""
        if self._position == self._synced_position:
            return None
        return Unsynced(self._fd, self._seq, self._position, self._offset)

    @property
    def synced(self) -> LogPosition:
        """The end of what is durable."""
        return LogPosition(self._seq, self._synced_position, self.synced_offset)

    @property
    def is_full(self) -> bool:
        """Whether the current file has reached its full length."""
        return self._position >= self._rotate_at

    @property
    def is_overdue(self) -> bool:
        """Whether the next file begins whatever that costs: the current one is an eighth too long, or read-only."""
        return self._fd < 0 or self._position >= self._rotate_at + max(self._segment_bytes // 8, 1)

    @property
    def base(self) -> Base | None:
        """The base that the first incr continues, None when there is none."""
        return self.home.base(self.base_bytes)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing that counts in the offset was written since the current file was begun."""
        incrs = self.home.manifest.incrs
        return self._fd >= 0 and bool(incrs) and incrs[-1].start_offset == self._offset

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
        the first pass opens the log for appends, or sets `torn_tail`.
        """
        is_first = self.refusal in (_UNREAD, _UNCUT)
        parts = self.home.parts()
        if is_first:
            # The log will be executed, checkpointed and shown to clients now, and must not be lost after that.
            make_durable(parts, durable, self._files)
            self._files.sync_directory(self.home.path)  # the manifest, and the names that it lists
        else:
            parts[-1] = replace(parts[-1], size=self._position)
        reader = self._reader(parts)
        yield from reader.batches(start, min_position or start)
        if is_first and reader.end is not None:
            self._continue_at(parts[-1], reader.end, reader.torn_tail)

    def read_only(self, start: LogPosition | None) -> Iterator[Batch]:
        """Yield every batch from `start` on, and change nothing.  Raises CorruptionError, OSError."""
        return self._reader(self.home.parts()).batches(start, start)

    def _reader(self, parts: list[LogPart]) -> LogReader:
        may_lack_writes = self.follows_power_cut and self.home.manifest.is_unsynced
        return LogReader(parts, self._files, load_truncated=self._load_truncated, may_lack_writes=may_lack_writes)

    def _continue_at(self, last: LogPart, end: LogPosition, torn_tail: TornTail | None) -> None:
        self._seq, self._position, self._offset = end
        self._closed_bytes = sum(part.size for part in self.home.parts()[:-1])
        self.torn_tail = torn_tail
        if torn_tail is not None:
            self.refusal = _UNCUT
            return
        if last.file.type is FileType.INCR and last.file.is_checksummed:
            self._fd = self._files.open_update(last.path)
            self._padding.reset(self._files.size(self._fd))
            self._rotate_at = self._segment_bytes
        else:
            # Annotations must cover a whole file, and here they do not: the first append begins a new file.
            self._rotate_at = 0
        self._synced_position, self.synced_offset = self._position, self._offset
        self.refusal = None

    def cut_tail(self) -> TornTail | None:
        """Cut off the torn tail that `read` found, if any, and open the log for appends.  Returns what was cut."""
        torn = self.torn_tail
        if torn is None or self.refusal != _UNCUT:
            return None
        last = self.home.parts()[-1]
        cut_file(last.path, torn.position, self._files)
        self._continue_at(last, self.end, None)
        self.torn_tail = torn
        return torn

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(self, commands: bytes, command_bytes: int, now_ms: int) -> bytes:
        """Write one batch and its annotation; `command_bytes` is its length without comment lines.  -> the annotation

        Raises LogWriteError with nothing appended.  The next append may succeed, unless `broken`.

        Every tick calls this: 0.8 us on 100 bytes and 2 us on 24 KB, 1.8 and 12 us with the system call.
        """
        if self.refusal is not None or self._fd < 0 or self._ids_are_unlisted:
            self._require_writable()
        offset = self._offset + command_bytes
        # `encode_annotation`, without the call; a test compares the two.
        tail = b";len=%d;off=%d;t=%d\r\n" % (len(commands), offset, now_ms)
        annotation = b"#CK:crc32c=%08x%b" % (crc32c(tail, crc32c(commands)), tail)
        position = self._position
        end = position + len(commands) + len(annotation)
        try:
            if end - position < _JOINED_BYTES:
                data, start = commands + annotation, position
            else:
                write_all_at(self._files, self._fd, commands, position)
                data, start = annotation, position + len(commands)
            if end < self._padding.end:
                data += self._padding.behind(end)
            written = self._write_at(self._fd, data, start)
            if written != len(data):
                write_all_at(self._files, self._fd, memoryview(data)[written:], start + written)
        except OSError as error:
            raise self._cut_back(error) from error
        self._before_last = (position, self._offset)
        self._position = end
        self._offset = offset
        return annotation

    def pad(self) -> None:
        """Have batches like the last one replace padding, in a log that is synced with each.  Raises nothing."""
        if self._fd >= 0:
            self._padding.grow(self._fd, self._position, self._position - self._before_last[0])

    def append_verbatim(self, pieces: Iterable[bytes], offset: int) -> None:
        """Write whole batches of another log with our replication id as they are; `offset` is the one after them.

        The caller has verified them.  Raises LogWriteError with nothing appended, also when `pieces` cannot be read.
        """
        if self.refusal is not None or self._fd < 0 or self._ids_are_unlisted:
            self._require_writable()
        end = self._position
        try:
            for data in pieces:
                write_all_at(self._files, self._fd, data, end)
                end += len(data)
            write_all_at(self._files, self._fd, self._padding.behind(end), end)
        except (OSError, MemoryError) as error:
            raise self._cut_back(error) from error
        self._before_last = (self._position, self._offset)
        self._position = end
        self._offset = offset

    def write_preface(self, select: bytes, now_ms: int) -> None:
        """Begin the current file, which is empty, with the command `select`, which does not count in the offset.

        Raises LogWriteError with nothing appended.
        """
        assert self._position == 0, "a preface comes first"
        self.append_verbatim((select + encode_annotation(select, self._offset, now_ms),), self._offset)

    def _require_writable(self) -> None:
        """Raise LogWriteError unless a batch may be written.

        The manifest must name the replication id of a batch first.  Another start would take it for a batch of the id
        before, and give it to a replica that has others of that id at these offsets: those that a power cut took.
        """
        if self.refusal is not None or self._fd < 0:
            raise LogWriteError(self.refusal or "the last file is not one to append to: rotate first")
        if self._ids_are_unlisted:
            self._put_manifest(self.home.manifest)

    def _cut_back(self, error: OSError | MemoryError) -> LogWriteError:
        try:
            self._truncate()
        except OSError as second:
            return self._break(f"writing the log failed ({error}), and so did cutting it back ({second})")
        return LogWriteError(f"writing the log failed: {error}")

    def _break(self, reason: str) -> LogWriteError:
        self.broken = True
        self.refusal = reason
        return LogWriteError(reason)

    def drop_last_batch(self) -> bool:
        """Cut off what the last `append` wrote, because it could not be synced and was not acknowledged.

        The log is broken already, and ends before the batch until the server stops.  -> whether the batch is gone from
        the disk too; otherwise it may be there after a restart.
        """
        self._position, self._offset = self._before_last
        try:
            self._truncate()
            self._files.sync(self._fd)
        except OSError:
            return False
        return True

    def _truncate(self) -> None:
        """Have the file end with the last batch.  Raises OSError."""
        self._files.truncate(self._fd, self._position)
        self._is_cut = True
        self._padding.reset()

    def _cut_padding(self) -> None:
        if self._padding.end > self._position:
            self._truncate()

    def sync(self) -> None:
        """Make everything appended durable.  Raises LogWriteError, and the log is broken then."""
        if self.refusal is not None:
            raise LogWriteError(self.refusal)
        position, offset = self._position, self._offset
        if position == self._synced_position and not self._is_cut:
            return
        try:
            self._files.sync(self._fd)
        except OSError as error:
            raise self._break(f"syncing the log failed: {error}") from error
        self._synced_position, self.synced_offset = position, offset
        self._is_cut = False

    def sync_bytes(self, unsynced: Unsynced) -> None:
        """Make `unsynced` durable, in any thread, while more is appended; no file may be begun meanwhile.

        Raises OSError.
        """
        self._files.sync(unsynced.fd)

    def forget_old(self, durable: LogPosition) -> None:
        """Have the system cache only the end of what is durable up to `durable`; in the thread of `sync_bytes`."""
        if durable.file_seq == self._seq:
            self._cached_end.grew(self._fd, durable.position)

    def was_synced(self, unsynced: Unsynced, error: OSError | None) -> None:
        """Note that `sync_bytes` has ended.  Raises LogWriteError when it failed, and the log is broken then."""
        if error is not None:
            raise self._break(f"syncing the log failed: {error}") from error
        if unsynced.file_seq == self._seq and unsynced.position > self._synced_position:
            self._synced_position, self.synced_offset = unsynced.position, unsynced.offset

    def rotate_if_needed(self) -> bool:
        """Begin the next file when this one is full; call this before a batch is composed.

        Returns whether the file is empty, and so must begin with SELECT, or a preface.  A full disk does not
        stop the log here: it continues in the current file, and `rotate_error` says why.
        """
        if self.is_full:
            try:
                self.rotate()
            except LogWriteError as error:
                if self.refusal is not None or self._fd < 0:
                    raise
                self.rotate_error = str(error)
                self._rotate_at = self._position + max(self._segment_bytes // 8, 1)
        return self._position == 0

    def rotate(self) -> None:
        """Make the current file durable, begin the next incr file and close the current one.

        Raises LogWriteError; the log continues in the current file, unless it is broken.
        """
        try:
            self._cut_padding()
        except OSError as error:
            raise LogWriteError(f"the padding of the log could not be cut off: {error}") from error
        self.sync()
        try:
            self._begin_file()
        except ReplacedError as error:
            raise self._break(str(error)) from error
        except OSError as error:
            raise LogWriteError(f"the next file of the log could not be begun: {error}") from error
        self.rotate_error = None

    def _begin_file(self, first_seq: int = 1) -> None:
        """Append to the next incr file from now on.  Raises OSError, ReplacedError."""
        file, fd = self.home.begin_file(self._offset, self._position, first_seq)
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # it is synced, and the manifest lists the next one already
                self._files.close(self._fd)
        self._fd = fd
        self._closed_bytes += self._position
        self._seq = file.seq
        self._position = self._synced_position = 0
        self._is_cut = False
        self._rotate_at = self._segment_bytes
        self._cached_end.begin_file()
        self._padding.reset()

    # -- the manifest --------------------------------------------------------------------------------------------------

    def _put_manifest(self, manifest: Manifest) -> None:
        """Raises LogWriteError with the old one in place, or the log broken."""
        try:
            self.home.put_manifest(manifest)
        except ReplacedError as error:
            raise self._break(str(error)) from error
        except OSError as error:
            raise LogWriteError(f"the manifest could not be written: {error}") from error
        self._ids_are_unlisted = False

    @property
    def replids(self) -> ReplicationIds:
        """The replication ids whose offsets the log continues."""
        replids = self.home.manifest.replids
        assert replids is not None, "set when the engine opened the log"
        return replids

    def set_replids(self, replids: ReplicationIds) -> None:
        """Use other replication ids from here on.

        Raises LogWriteError when they could not be made durable; they apply all the same, and the next append tries
        again before it writes.
        """
        self.home.manifest = replace(self.home.manifest, replids=replids)
        self._ids_are_unlisted = True
        self._put_manifest(self.home.manifest)

    def write_manifest(self) -> None:
        """Write the manifest again, in the place of what the disk has.  Raises LogWriteError as `set_replids` does."""
        self._put_manifest(self.home.manifest)

    def note_policy(self, *, is_unsynced: bool) -> None:
        """Note whether a power cut may take writes that later ones follow, before the first such write.

        Raises LogWriteError as `set_replids` does.
        """
        self._put_manifest(replace(self.home.manifest, is_unsynced=is_unsynced))

    def hold_tails(self) -> None:
        """Have every tail open the files that it still has to read: some are about to be deleted."""
        for tail in list(self.tails):
            tail.hold()

    # -- base and history ----------------------------------------------------------------------------------------------

    def adopt_base(self, temporary: Path, size: int, command_bytes: int, from_seq: int) -> Base:
        """Make the state in `temporary` the base of the log, which incr `from_seq` continues.

        The file is in our directory, whole and durable; a checkpoint in `from_seq` or later is durable too.  The file
        is renamed, and one replacement of the manifest makes everything before it history: a crash leaves the log as it
        was, or as it will be.  Raises LogWriteError with the log as it was, unless it is broken.
        """
        base = self.home.manifest.next_base(size, command_bytes)
        manifest = self.home.manifest.begun_with(base, from_seq)
        path = self.home.path / base.name
        try:
            self.hold_tails()
            self._files.rename(temporary, path)
        except OSError as error:
            raise LogWriteError(f"the rewritten log could not be put in place: {error}") from error
        try:
            self._put_manifest(manifest)
        except LogWriteError:
            if not self.broken:  # the manifest of a broken log may list the file
                with contextlib.suppress(OSError):
                    self._files.unlink(path)
            raise
        self.base_bytes = size
        self._closed_bytes = size + sum(file.size or 0 for file in manifest.incrs[:-1])
        adopted = self.base
        assert adopted is not None
        return adopted

    def begin_removal(self, kept_from: int) -> list[Path]:
        """-> the files to delete: what the log does without, but not what lies behind offset `kept_from`.

        Readers that are within one of them keep it open; no other reader begins there.  Raises OSError.
        """
        paths = self.home.leftovers(kept_from)
        if paths:
            self.hold_tails()
            self.home.end_backlog([path.name for path in paths])
        return paths

    def end_backlog(self) -> None:
        """Send replicas nothing more of what lies before the log: it cannot be read."""
        self.home.end_backlog([file.name for file in self.home.manifest.history])

    def forget_history(self) -> None:
        """Remove the history files that are deleted from the manifest.  Raises LogWriteError, OSError."""
        manifest = self.home.without_deleted()
        if manifest != self.home.manifest:
            self._put_manifest(manifest)

    def close(self) -> None:
        """Close the files.  Syncs nothing, so a failure to close loses nothing."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                if not self.broken:
                    self._cut_padding()
            with contextlib.suppress(OSError):
                self._files.close(self._fd)
            self._fd = -1
        self.refusal = self.refusal or _CLOSED
