"""Writes batches to the end of the file that is appended to, and makes them durable.

    | preface #CK | batch #CK | batch #CK |#########\n#########\n|
          synced ->'         '<- position            padding ->'

After a failed write the file is cut back to the last batch, so that the next append finds it whole: the log survives a
full disk without a restart.  It does not survive a failed sync: the kernel may have dropped the pages that it could not
write, and may report success for the next sync.  So the log refuses everything from then on.  The next start writes
again what was not known to be durable, see `resync.py`.

This module does not know what commands mean, when to sync, or when a file is full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from riverbed.store.checksum import crc32c
from riverbed.store.disk.durable_file import write_all_at
from riverbed.store.disk.files import Files
from riverbed.store.disk.page_cache import CachedEnd
from riverbed.store.errors import LogWriteError
from riverbed.store.format.log_lines import encode_preface
from riverbed.store.log.appending.condition import Condition, caused
from riverbed.store.log.appending.listing import Listing
from riverbed.store.log.appending.successor import Successor
from riverbed.store.log.padding import Padding
from riverbed.store.position import LogPosition

# Longer batches are not copied to be written with their annotation in one call.
_JOINED_BYTES: Final = 1 << 20


class Unsynced(NamedTuple):
    """The end of what was written to the current file when this was made, and was not durable then."""

    fd: int
    file_seq: int
    position: int
    offset: int


class LogWriter:
    """The file that is appended to, and where it ends: the last batch ends at `position`, `offset` is the one there.

    Others read these fields, and change nothing.  For one thread, except that `sync_bytes` may run in another while
    this one appends; no file may be changed to meanwhile.
    """

    def __init__(self, files: Files, listing: Listing, condition: Condition) -> None:
        self.fd = -1  # while the last file takes no appends
        self.file_seq = self.position = self.offset = 0
        self.synced_position = self.synced_offset = 0
        self._files = files
        self._write_at = files.write_at
        self._listing = listing
        self._condition = condition
        self._is_cut = False  # the file has become shorter since the last sync
        self._before_last = (0, 0)  # position and offset before the last append
        self._cached_end = CachedEnd(files)
        self._padding = Padding(files)
        self.successor: Successor | None = None  # while a thread lists the next file

    # -- which file ----------------------------------------------------------------------------------------------------

    def set_end(self, end: LogPosition) -> None:
        """The last batch ends at `end`; what may be behind it is not for this module yet."""
        self.file_seq, self.position, self.offset = end

    def open(self, path: Path) -> None:
        """Append to the file that the end is in; all behind the end is padding.  Raises OSError."""
        self.fd = self._files.open_update(path)
        self._padding.reset(self._files.size(self.fd))

    def set_synced(self) -> None:
        """All that was written is durable."""
        self.synced_position, self.synced_offset = self.position, self.offset

    def begin_file(self, fd: int, file_seq: int) -> None:
        """Append to the empty file `fd` from now on.  The one before it is synced, and is closed."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):  # it is synced, and the manifest lists the next one already
                self._files.close(self.fd)
        self.fd = fd
        self.position = self.synced_position = 0  # before the number: another thread may read both
        self.file_seq = file_seq
        self._is_cut = False
        self._cached_end.begin_file()
        self._padding.reset()

    def begin_successor(self, fd: int, file_seq: int, preface: bytes) -> None:
        """Write all batches to the empty file `fd` as well, behind `preface`.  Raises OSError."""
        start = LogPosition(self.file_seq, self.position, self.offset)
        self.successor = Successor(self._files, fd, file_seq, start, preface)

    def change_to_successor(self) -> int:
        """Append to the successor alone, which is listed and begins with what is durable.

        -> what is added to a place in the file before to have the place in this one.
        """
        successor = self.successor
        assert successor is not None
        start = successor.start
        with contextlib.suppress(OSError):  # the padding; what is before it is cut off later, see `LogHome.cut_copies`
            self._files.truncate(self.fd, self.position)
        position, synced_position, synced_offset = self.position, self.synced_position, self.synced_offset
        is_cut = self._is_cut
        self.begin_file(successor.fd, successor.file_seq)
        self.position, self._is_cut = position + successor.shift, is_cut
        if synced_offset < start.offset:
            synced_position, synced_offset = start.position, start.offset
        self.synced_position, self.synced_offset = synced_position + successor.shift, synced_offset
        self._before_last = (self.position, self.offset)
        self.successor = None  # last, as `Log.lasting_end` is asked for by other threads
        return successor.shift

    def drop_successor(self) -> None:
        """Append to the current file alone again."""
        successor, self.successor = self.successor, None
        assert successor is not None
        with contextlib.suppress(OSError):
            self._files.close(successor.fd)

    def close(self) -> None:
        """Close the file.  Syncs nothing, so a failure to close loses nothing."""
        # of a log that broke as it was listed; one that it broke behind is the current file already
        if self.successor is not None and self.successor.fd != self.fd:
            self.drop_successor()
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                if not self._condition.broken:
                    self.cut_padding()
            with contextlib.suppress(OSError):
                self._files.close(self.fd)
            self.fd = -1

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(self, commands: bytes, command_bytes: int, now_ms: int) -> bytes:
        """Write one batch and its annotation; `command_bytes` is its length without comment lines.  -> the annotation

        Raises LogWriteError with nothing appended.  The next append may succeed, unless the log is broken.

        Every tick calls this: 0.8 us on 100 bytes and 2 us on 24 KB, 1.8 and 12 us with the system call.
        """
        if self._condition.refusal is not None or self.fd < 0 or self._listing.lacks_replids:
            self._require_writable()
        offset = self.offset + command_bytes
        # `encode_annotation`, without the call; a test compares the two.
        tail = b";len=%d;off=%d;t=%d\r\n" % (len(commands), offset, now_ms)
        annotation = b"#CK:crc32c=%08x%b" % (crc32c(tail, crc32c(commands)), tail)
        position = self.position
        end = position + len(commands) + len(annotation)
        try:
            if end - position < _JOINED_BYTES:
                data, start = commands + annotation, position
            else:
                write_all_at(self._files, self.fd, commands, position)
                data, start = annotation, position + len(commands)
            if end < self._padding.end:
                data += self._padding.behind(end)
            written = self._write_at(self.fd, data, start)
            if written != len(data):
                write_all_at(self._files, self.fd, memoryview(data)[written:], start + written)
            if self.successor is not None:
                self.successor.write(commands, position)
                self.successor.write(annotation, position + len(commands))
        except (OSError, MemoryError) as error:
            failure = self._cut_back(error)
        else:
            self._before_last = (position, self.offset)
            self.position = end
            self.offset = offset
            return annotation
        raise failure

    def pad(self) -> None:
        """Have batches like the last one replace padding, in a log that is synced with each.  Raises nothing."""
        if self.fd >= 0:
            self._padding.grow(self.fd, self.position, self.position - self._before_last[0])

    def append_verbatim(self, pieces: Iterable[bytes], offset: int) -> None:
        """Write whole batches of another log with our replication id as they are; `offset` is the one after them.

        The caller has verified them.  Raises LogWriteError with nothing appended, also when `pieces` cannot be read.
        """
        if self._condition.refusal is not None or self.fd < 0 or self._listing.lacks_replids:
            self._require_writable()
        end = self.position
        try:
            for data in pieces:
                write_all_at(self._files, self.fd, data, end)
                if self.successor is not None:
                    self.successor.write(data, end)
                end += len(data)
            write_all_at(self._files, self.fd, self._padding.behind(end), end)
        except (OSError, MemoryError) as error:
            failure = self._cut_back(error)
        else:
            self._before_last = (self.position, self.offset)
            self.position = end
            self.offset = offset
            return
        raise failure

    def write_preface(self, selected: int, now_ms: int) -> None:
        """Begin the current file, which is empty, with SELECT of a database, which does not count in the offset.

        Raises LogWriteError with nothing appended.
        """
        assert self.position == 0, "a preface comes first"
        self.append_verbatim((encode_preface(selected, self.offset, now_ms),), self.offset)

    def _require_writable(self) -> None:
        """Raise LogWriteError unless a batch may be written.

        The manifest must name the replication id of a batch first.  Another start would take it for a batch of the id
        before, and give it to a replica that has others of that id at these offsets: those that a power cut took.
        """
        if self._condition.refusal is not None or self.fd < 0:
            raise LogWriteError(self._condition.refusal or "the last file is not one to append to: rotate first")
        if self._listing.lacks_replids:
            self._listing.write()

    # -- cutting back --------------------------------------------------------------------------------------------------

    def _cut_back(self, error: OSError | MemoryError) -> LogWriteError:
        try:
            self._truncate()
        except OSError as second:
            reason = f"writing the log failed ({error}), and so did cutting it back ({second})"
            return self._condition.break_log(reason, error)
        return caused(LogWriteError(f"writing the log failed: {error}"), error)

    def drop_last_batch(self) -> bool:
        """Cut off what the last `append` wrote, because it could not be synced and was not acknowledged.

        The log is broken already, and ends before the batch until the server stops.  -> whether the batch is gone from
        the disk too; otherwise it may be there after a restart.
        """
        self.position, self.offset = self._before_last
        try:
            self._truncate()
            self._files.sync(self.fd)
            if self.successor is not None:
                self.successor.sync()
        except OSError:
            return False
        return True

    def _truncate(self) -> None:
        """Have the file end with the last batch.  Raises OSError."""
        self._files.truncate(self.fd, self.position)
        if self.successor is not None:
            self.successor.truncate(self.position)
        self._is_cut = True
        self._padding.reset()

    def cut_padding(self) -> None:
        """Have the file end with the last batch: no more is written to it.  Raises OSError."""
        if self._padding.end > self.position:
            self._truncate()

    # -- syncing -------------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything appended durable.  Raises LogWriteError, and the log is broken then."""
        if self._condition.refusal is not None:
            raise LogWriteError(self._condition.refusal)
        position, offset = self.position, self.offset
        if position == self.synced_position and not self._is_cut:
            return
        try:
            self._files.sync(self.fd)
            if self.successor is not None:
                self.successor.sync()
        except OSError as error:
            failure = self._condition.break_log(f"syncing the log failed: {error}", error)
        else:
            self.synced_position, self.synced_offset = position, offset
            self._is_cut = False
            return
        raise failure

    @property
    def unsynced(self) -> Unsynced | None:
        """What a power cut would lose now."""
        if self.position == self.synced_position:
            return None
        return Unsynced(self.fd, self.file_seq, self.position, self.offset)

    def sync_bytes(self, unsynced: Unsynced) -> None:
        """Make `unsynced` durable, in any thread, while more is appended; no file may be changed to meanwhile.

        Raises OSError, also when another sync has failed: this one may report success for what is lost.
        """
        self._files.sync_apart(unsynced.fd)
        if self._condition.broken:
            raise OSError(self._condition.refusal)

    def was_synced(self, unsynced: Unsynced, error: OSError | None) -> None:
        """Note that `sync_bytes` has ended.  Raises LogWriteError when it failed, or the log is broken by now."""
        if self._condition.broken:
            raise LogWriteError(self._condition.refusal)
        if error is not None:
            failure = self._condition.break_log(f"syncing the log failed: {error}", error)
            raise failure
        if unsynced.file_seq == self.file_seq and unsynced.position > self.synced_position:
            self.synced_position, self.synced_offset = unsynced.position, unsynced.offset

    def forget_old(self, durable: LogPosition) -> None:
        """Have the system cache only the end of what is durable up to `durable`; in the thread of `sync_bytes`."""
        if durable.file_seq == self.file_seq:
            self._cached_end.grew(self.fd, durable.position)
