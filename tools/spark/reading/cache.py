"""Files on this machine's own disk that a query needs: fetched from a shared place, or frozen from a live store.

    DIR/<digest of what it is>/...        complete, since it was renamed into place
    DIR/.temp-xxxx/                       being made, being deleted, or left behind by a kill

An entry is made once, however many executors ask for it at the same time, and used until it is evicted: the least
recently used first, when all of them are larger than the limit.  A process that has asked for an entry holds a shared
lock on it, so that it is not taken away; nor is one that was used a moment ago, by who plans a query that has not
begun to read it.  So the limit may be exceeded by what is in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.flock import hold_directory
from riverbed.tools.spark.errors import SourceError

_TEMPORARY: Final = ".temp-"
_MOMENT_S: Final = 600.0
# What is only a mark has no size, and goes when it was not asked for so long.
_FORGET_MARKS_S: Final = 30 * 86_400.0
_ABANDONED_S: Final = 86_400.0
_MAX_HELD: Final = 64

# Shared locks of this process, by directory: the last ones it asked for.
_held: OrderedDict[Path, int] = OrderedDict()


class Cache:
    """Directories by name of content, in one place on disk."""

    def __init__(self, directory: str | None, most_bytes: int) -> None:
        """`directory` None: one of this user's in the system's place for temporary files."""
        self.path = Path(directory or Path(tempfile.gettempdir(), f"riverbed-spark-{os.getuid()}")).absolute()
        self.most_bytes = most_bytes
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.stat().st_uid != os.getuid():
            raise SourceError(f"{self.path} belongs to another user; choose another cacheDirectory")

    def get(self, identity: str, make: Callable[[Path], None]) -> Path:
        """The directory of `identity`; made by `make`, which is handed an empty one, if it is not there yet.

        It stays while this process has not asked for many others.  Errors of `make` pass through.
        """
        name = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        path = self.path / name
        while not self.hold(path):
            with self._alone(name):
                if not path.exists():
                    self._make(path, make)
        return path

    def hold(self, path: Path) -> bool:
        """Keep an entry, or what is in one, from being evicted -> whether it is there.  Others are left alone."""
        if self.path not in path.parents:
            return path.exists()
        entry = self.path / path.relative_to(self.path).parts[0]
        if entry in _held and not _is_at(entry, _held[entry]):
            os.close(_held.pop(entry))
        if entry not in _held:
            try:
                fd = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
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
    def _alone(self, name: str) -> Iterator[None]:
        """Only one process at a time makes an entry; the others wait for it."""
        fd = os.open(self.path / f".lock-{name[:2]}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _make(self, path: Path, make: Callable[[Path], None]) -> None:
        working = self._temporary()
        working.mkdir()
        try:
            make(working)
            os.rename(working, path)
        finally:
            shutil.rmtree(working, ignore_errors=True)
        self.evict(keep=path)

    def _temporary(self) -> Path:
        return self.path / f"{_TEMPORARY}{secrets.token_hex(6)}"

    def evict(self, keep: Path | None = None) -> None:
        """Delete the least recently used entries until the rest is small enough; `keep` stays in any case."""
        now = time.time()
        entries = []
        for entry in self.path.iterdir():
            with contextlib.suppress(OSError):
                used = entry.stat().st_mtime
                if not entry.name.startswith("."):
                    entries.append((used, _size(entry), entry))
                elif entry.name.startswith(_TEMPORARY) and now - used > _ABANDONED_S:
                    shutil.rmtree(entry, ignore_errors=True)
        total = sum(size for _, size, _ in entries)
        for used, size, entry in sorted(entries):
            is_wanted = entry == keep or now - used < _MOMENT_S
            is_old_mark = size == 0 and now - used > _FORGET_MARKS_S
            if not is_wanted and (total > self.most_bytes or is_old_mark) and self._remove(entry):
                total -= size

    def _remove(self, entry: Path) -> bool:
        """Take an entry away unless a reader holds it -> whether it is gone."""
        with contextlib.suppress(OSError):
            fd = hold_directory(entry)
            if fd is None:
                return False
            try:
                doomed = self._temporary()
                os.rename(entry, doomed)  # in one step: no reader finds half of it
                shutil.rmtree(doomed, ignore_errors=True)
                return True
            finally:
                os.close(fd)
        return False


def _is_at(path: Path, fd: int) -> bool:
    """Whether a directory that was opened is still the one at `path`."""
    try:
        there, opened = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
