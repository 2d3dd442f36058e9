"""A cache on this machine's disk for snapshots that a query fetches from elsewhere or takes of a live store.

    DIR/riverbed-<digest of the identity>/...   complete, since it was renamed into place
    DIR/.riverbed-xxxx/                         being made, being deleted, or left behind by a kill

Whatever has another name is not of the cache, and stays: a user may name a folder that has other things in it.

An entry is made once, even if many executors ask for it at the same time.  When all entries together are larger than
the limit, the least recently used ones are evicted.  A process that has asked for an entry holds a shared lock on it,
so that the entry is not evicted.  An entry that was used a moment ago is not evicted either: a query may have been
planned with it and not read it yet.  So entries in use may exceed the limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.locks.flock import hold_directory
from riverbed.tools.spark.errors import SourceError

_ENTRY: Final = "riverbed-"
_TEMPORARY: Final = ".riverbed-"
_ENTRY_NAME: Final = re.compile(rf"{_ENTRY}[0-9a-f]{{32}}")
_TEMPORARY_NAME: Final = re.compile(rf"\{_TEMPORARY}[0-9a-f]{{12}}")
_MOMENT_S: Final = 600.0
# Marks are entries without bytes.  They are evicted when they were not asked for so long.
_FORGET_MARKS_S: Final = 30 * 86_400.0
_WHEN_MARKS_EVICT: Final = "00"  # one name in 256
_ABANDONED_S: Final = 86_400.0
_MAX_HELD: Final = 64

# Shared locks of this process, by directory: those of the entries it asked for last.
_held: OrderedDict[Path, int] = OrderedDict()


class Cache:
    """Directories in one folder, named by a digest of their identity."""

    def __init__(self, directory: str | None, most_bytes: int) -> None:
        """`directory` None: this user's own directory in the system's directory for temporary files."""
        self.path = Path(directory or Path(tempfile.gettempdir(), f"riverbed-spark-{os.getuid()}")).absolute()
        self.most_bytes = most_bytes
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Where all may write, another user may have made the directory that is named after this one, or a link.
        found = self.path.stat(follow_symlinks=bool(directory))
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            raise SourceError(f"{self.path} belongs to another user; choose another cacheDirectory")

    def get(self, identity: str, make: Callable[[Path], None], is_whole: Callable[[Path], bool] = Path.exists) -> Path:
        """The directory of `identity`.  If it is missing, `make` is called with an empty directory to fill.

        It stays until this process has asked for many others.  Errors of `make` are not caught.  One that is not whole
        any more is made again: where temporary files are, other programs delete those that are old.
        """
        path = self._path(identity)
        is_new = False
        while not (self.hold(path) and (is_new or _is(is_whole, path))):
            with self._alone(path):
                if path.exists() and not _is(is_whole, path):
                    self._discard(path)  # those that read it have opened its files
                if not path.exists():
                    self._make(path, make)
                    is_new = True
        return path

    def find(self, identity: str) -> Path | None:
        """The directory of `identity`, if it is there."""
        path = self._path(identity)
        return path if self.hold(path) else None

    def _path(self, identity: str) -> Path:
        return self.path / f"{_ENTRY}{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}"

    def hold(self, path: Path) -> bool:
        """Protect the entry that has `path` from eviction -> whether `path` exists.  Locks nothing but entries.

        Raises SourceError for an entry that another user has put there, whose contents could be anything.
        """
        if self.path not in path.parents:
            return path.exists()
        entry = self.path / path.relative_to(self.path).parts[0]
        if _ENTRY_NAME.fullmatch(entry.name) is None:
            return path.exists()
        if entry in _held and not _is_at(entry, _held[entry]):
            os.close(_held.pop(entry))
        if entry not in _held:
            try:
                fd = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            if os.fstat(fd).st_uid != os.getuid():
                os.close(fd)
                raise SourceError(f"{entry} belongs to another user; choose another cacheDirectory")
            fcntl.flock(fd, fcntl.LOCK_SH)
            if not _is_at(entry, fd):  # evicted before it was locked
                os.close(fd)
                return False
            _held[entry] = fd
            while len(_held) > _MAX_HELD:
                os.close(_held.popitem(last=False)[1])
        _held.move_to_end(entry)
        os.utime(entry)
        return path.exists()

    @contextlib.contextmanager
    def _alone(self, entry: Path) -> Iterator[None]:
        """Let only one process at a time make an entry; the others wait for it."""
        lock = self.path / f".lock-{_digest(entry)[:2]}"
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _make(self, path: Path, make: Callable[[Path], None]) -> None:
        working = self._temporary()
        working.mkdir(mode=0o700)  # what is copied may be for this user alone, and the folder may be for all
        try:
            make(working)
            _sync(working)
            os.rename(working, path)
        finally:
            shutil.rmtree(working, ignore_errors=True)
        # To look for what to evict takes a look at each entry.  Marks, of which there may be thousands, take no room.
        if any(path.iterdir()) or _digest(path).startswith(_WHEN_MARKS_EVICT):
            self.evict(keep=path)

    def _temporary(self) -> Path:
        return self.path / f"{_TEMPORARY}{secrets.token_hex(6)}"

    def evict(self, keep: Path | None = None) -> None:
        """Delete the least recently used entries until the rest is small enough; never delete `keep`."""
        now = time.time()
        entries = []
        for entry in self.path.iterdir():
            with contextlib.suppress(OSError):
                used = entry.lstat().st_mtime
                if _ENTRY_NAME.fullmatch(entry.name):
                    entries.append((used, _size(entry), entry))
                elif _TEMPORARY_NAME.fullmatch(entry.name) and now - used > _ABANDONED_S:
                    shutil.rmtree(entry, ignore_errors=True)
        total = sum(size for _, size, _ in entries)
        for used, size, entry in sorted(entries):
            is_wanted = entry == keep or now - used < _MOMENT_S
            is_old_mark = size == 0 and now - used > _FORGET_MARKS_S
            if not is_wanted and (total > self.most_bytes or is_old_mark) and self._remove(entry):
                total -= size

    def _remove(self, entry: Path) -> bool:
        """Delete an entry unless a reader holds it -> whether it was deleted."""
        with contextlib.suppress(OSError):
            fd = hold_directory(entry, may_be_link=False)
            if fd is None:
                return False
            try:
                self._discard(entry)
                return True
            finally:
                os.close(fd)
        return False

    def _discard(self, entry: Path) -> None:
        doomed = self._temporary()
        os.rename(entry, doomed)  # one step, so that no reader finds a part of it
        shutil.rmtree(doomed, ignore_errors=True)


def _is(whole: Callable[[Path], bool], path: Path) -> bool:
    try:
        return whole(path)
    except OSError:
        return False


def _sync(directory: Path) -> None:
    """Have the files of an entry on the disk before it has its name: a power cut would leave short ones."""
    for file in directory.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def _digest(entry: Path) -> str:
    return entry.name.removeprefix(_ENTRY)


def _is_at(path: Path, fd: int) -> bool:
    """Whether the directory opened as `fd` is still the one at `path`."""
    try:
        there, opened = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
