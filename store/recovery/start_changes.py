"""What a start changes beside the log before it has succeeded, and takes back when it fails.

A start that fails is tried again, or followed by a repair, and either is judged by what is there: an empty log beside
tables that hold something would be a log to believe, and tables that were begun in a directory that is refused would
be a store.  So a start looks before it writes, and what it has to write to be able to look is kept here:

    state/             made, with LMDB's files, where there was none
    state/lock.mdb     the readers of the tables, which LMDB writes as soon as it opens them
    state/data.mdb     the older of the two meta pages in the place of the newer, see `store/tables/power_loss.py`
    state/compact/     the tables of a compaction that was killed, moved to their place

What the tables lack, and what the log holds beyond them, is in one transaction of LMDB's, which is committed when the
start cannot be refused any more.  The one exception is a log that is too long for one transaction: where LMDB has
committed something of it, that stays.  The tables are then further than they were, and as whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from riverbed.store.disk.files import Files
from riverbed.store.disk.real_files import open_file
from riverbed.store.layout import DATA_NAME, LOCK_NAME
from riverbed.store.swap import KilledCompaction
from riverbed.store.tables import power_loss as powercut
from riverbed.store.tables.power_loss import WentBack

# What is made in the folder of the tables by opening them.
_NAMES: Final = (DATA_NAME, LOCK_NAME, powercut.MARK_NAME, powercut.NEW_MARK_NAME)
# The head of LMDB's lock file and a thousand readers; a start takes the first few.
_LOCK_BYTES: Final = 1 << 17


class StartChanges:
    """A context manager around a start of the store whose tables are in `state`; nothing has them open outside of it.

    A signal that ends the process while it starts is like a kill: nothing is taken back.
    """

    def __init__(self, state: Path, files: Files) -> None:
        """Raises OSError."""
        self._state = state
        self._files = files
        self._had_state = state.exists()
        self._had = {name for name in _NAMES if (state / name).exists()}
        self._locks = list(_LockFile.found(state / LOCK_NAME))
        self._was_empty = DATA_NAME in self._had and not (state / DATA_NAME).stat().st_size
        self._went_back: WentBack | None = None
        self._moves: list[tuple[Path, Path]] = []

    def resolve_doubt(self) -> None:
        """Let the tables be what can be trusted of them.  Raises OSError."""
        self._went_back = powercut.resolve_doubt(self._state)

    def move_in(self, compaction: KilledCompaction) -> None:
        """Let the tables be those that belong to the log.  Raises OSError."""
        self._locks += _LockFile.found(compaction.places.old_lock)  # LMDB writes it where it is moved to
        self._moves = compaction.move_in()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._take_back()

    def _take_back(self) -> None:
        """The error that counts is the one that the start failed with."""
        with contextlib.suppress(OSError):
            if self._went_back is not None:
                self._went_back.undo()
            for source, target in reversed(self._moves):
                self._files.rename(target, source)
            for name in _NAMES:
                if name not in self._had:
                    (self._state / name).unlink(missing_ok=True)
            if self._was_empty:
                os.truncate(self._state / DATA_NAME, 0)
            for lock in self._locks:
                lock.restore()
            if not self._had_state and self._state.exists():
                self._state.rmdir()


class _LockFile(NamedTuple):
    """LMDB's lock file as it was: its length, and what it began with."""

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
        """Write it again, unless a reader has registered in it meanwhile, for whom it is shared memory.

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
    """`directory` and what is missing above it, made; away again, as far as they are empty, when the body fails.

    Raises OSError.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except Exception:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()
        raise
