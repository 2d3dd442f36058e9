"""Undoes what a start has changed beside the log, when the start fails.

A failed start is tried again, or followed by a repair, and both judge the directory by its files.  They would believe
an empty log beside tables with data, and would take tables that were begun in a refused directory for a store.  So a
start looks before it writes, and this module undoes what a start must write to be able to look:

    state/             made, with LMDB's files, where there was none
    state/lock.mdb     the readers of the tables, which LMDB writes as soon as it opens them
    state/data.mdb     the older of the two meta pages in the place of the newer, see `data_file/power_loss.py`;
                       behind its end, what LMDB writes of a long transaction before that is committed
    state/compact/     the tables of a compaction that was killed, moved to their place

The mark stays that a start has left where the disk did not take the newer commit: the next sync of it tells no more.

What the tables lack, and what the log holds beyond them, goes into one LMDB transaction, which is committed when the
start cannot be refused any more.  It takes at most 600 MB of memory, however long the log is: measured with 500 MB of
log, in 1 and in 100,000 streams.  A server leaves 32 MB to execute, or 64 MB after a power cut, as it has itself
changed that much in memory (`server/background/checkpoints/checkpoints.py`).  Commits on the way take as long, or
longer, and could be undone only where no page is used again: with 100,000 streams, each 16 MB of log would take 270 MB
of the disk.

A start from nothing executes all of the log, and does commit on the way: its memory stays flat, and after a kill the
next start continues there.  When it fails, what it made is removed.  The one exception are tables that a killed start
has left half made: when the next start fails too, they stay, further than before and as whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.disk.real_files import is_there, make_directory, open_file, read_file
from riverbed.store.layout import DATA_NAME, LOCK_NAME
from riverbed.store.recovery.kept_pages import kept_pages
from riverbed.store.swap import KilledCompaction
from riverbed.store.tables.data_file import power_loss
from riverbed.store.tables.data_file.power_loss import WentBack
from riverbed.store.tables.environment import Tables

# The files that opening the tables makes in their folder.
_NAMES: Final = (DATA_NAME, LOCK_NAME, power_loss.MARK_NAME, power_loss.NEW_MARK_NAME)
# The head of LMDB's lock file and a thousand readers; a start takes the first few.
_LOCK_BYTES: Final = 1 << 17
# What LMDB makes first: two meta pages, each of 32 KB at most.
_MAX_BARE_BYTES: Final = 1 << 16


class StartChanges:
    """A context manager around a start of the store whose tables are in `state`; nothing has them open outside of it.

    A signal that ends the process while it starts is like a kill: nothing is taken back.
    """

    def __init__(self, state: Path, files: Files) -> None:
        """Raises OSError."""
        self._state = state
        self._files = files
        self._had_state = is_there(state)
        self._had = {name for name in _NAMES if is_there(state / name)}
        self._locks = list(_LockFile.found(state / LOCK_NAME))
        self._data = state / DATA_NAME
        self._bare = _contents_if_bare(self._data)
        self._whole_bytes: int | None = None  # length of the tables before the uncommitted transaction
        self._went_back: WentBack | None = None
        self._moves: list[tuple[Path, Path]] = []

    @property
    def has_gone_back(self) -> bool:
        """Whether the tables went back to the commit before."""
        return self._went_back is not None

    def resolve_doubt(self) -> list[Path]:
        """Go back to the tables that can be trusted; -> the files that were moved.  Raises StoreError, OSError."""
        self._went_back = power_loss.resolve_doubt(self._state)
        return power_loss.move_refused(self._state)

    def move_in(self, compaction: KilledCompaction) -> None:
        """Move the tables in that belong to the log.  Raises OSError."""
        self._locks += _LockFile.found(compaction.places.old_lock)  # LMDB writes it after the move
        self._moves = compaction.move_in()

    @contextlib.contextmanager
    def uncommitted(self, tables: Tables) -> Iterator[None]:
        """A context manager around one transaction of the tables that is not committed before the end.

        Raises lmdb.Error, OSError.
        """
        self._whole_bytes = self._data.stat().st_size
        with kept_pages(tables):
            yield
        self._whole_bytes = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._take_back()

    def _take_back(self) -> None:
        """Undo the changes, each also where another cannot be undone; the error that counts is that of the start."""
        as_possible = contextlib.suppress(OSError)
        with as_possible:
            if self._went_back is not None:
                self._went_back.undo()
        with as_possible:
            if self._whole_bytes is not None:
                os.truncate(self._data, self._whole_bytes)
        with as_possible:
            for source, target in reversed(self._moves):
                self._files.rename(target, source)
            for name in _NAMES:  # never tables that could not be moved back: there are no others
                if name not in self._had:
                    (self._state / name).unlink(missing_ok=True)
        with as_possible:
            if self._bare is not None:
                _restore(self._data, self._bare)
        for lock in self._locks:
            with as_possible:
                lock.restore()
        with as_possible:
            if not self._had_state and is_there(self._state):
                self._state.rmdir()


def _contents_if_bare(path: Path) -> bytes | None:
    """The contents of tables that are too short to hold much; None when they are missing or longer.  Raises OSError."""
    if not is_there(path) or path.stat().st_size > _MAX_BARE_BYTES:
        return None
    return read_file(path, _MAX_BARE_BYTES)


def _restore(path: Path, contents: bytes) -> None:
    """Make `contents` the contents of the file.  Raises OSError."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.pread(fd, len(contents), 0) != contents:
            os.pwrite(fd, contents, 0)
        if os.fstat(fd).st_size != len(contents):
            os.ftruncate(fd, len(contents))
    finally:
        os.close(fd)


class _LockFile(NamedTuple):
    """LMDB's lock file as it was: its length, and its first bytes."""

    path: Path
    size: int
    head: bytes

    @classmethod
    def found(cls, path: Path) -> Iterator[_LockFile]:
        """-> the one at `path`, if it is there.  Raises OSError."""
        try:
            fd = open_file(path, os.O_RDONLY)
        except (FileNotFoundError, PermissionError):
            return
        try:
            yield cls(path, os.fstat(fd).st_size, os.pread(fd, _LOCK_BYTES, 0))
        finally:
            os.close(fd)

    def restore(self) -> None:
        """Write the file as it was, unless another process has it open and uses it as shared memory.

        LMDB itself begins the file again when the next process opens it alone.  Raises OSError.
        """
        fd = open_file(self.path, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)  # LMDB's own lock, which every process holds
            except BlockingIOError:
                return
            if os.pread(fd, _LOCK_BYTES, 0) != self.head:
                os.pwrite(fd, self.head, 0)
            if os.fstat(fd).st_size != self.size:
                os.ftruncate(fd, self.size)
        finally:
            os.close(fd)


@contextlib.contextmanager
def made_directory(directory: Path) -> Iterator[None]:
    """Make `directory` and what is missing above it, durably; when the body fails, remove them if they are empty.

    Raises OSError.
    """
    missing = [path for path in (directory, *directory.parents) if not is_there(path)]
    try:
        make_directory(directory)
        for path in reversed(missing):
            with contextlib.suppress(PermissionError):  # in a folder that may be written and not read
                OsFiles().sync_directory(path.parent)
        yield
    except Exception:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()
        raise
