"""Files on this machine's own disk that a query needs: fetched from a shared place, or frozen from a live store.

    DIR/<digest of what it is>/...        complete, since it was renamed into place
    DIR/.temp-xxxx/                       being made, or left behind by a kill

An entry is made once, however many executors ask for it at the same time, and used until it is evicted: the least
recently used first, when all of them are larger than the limit.  Who reads an entry holds a shared lock on it, so that
it is not taken away; where it is only mapped, what was deleted stays readable anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.spark.errors import SourceError

_TEMPORARY = ".temp-"


class Cache:
    """Directories by name of content, in one place on disk."""

    def __init__(self, directory: str | None, most_bytes: int) -> None:
        """`directory` None: one of this user's in the system's place for temporary files."""
        self.path = Path(directory or Path(tempfile.gettempdir(), f"riverbed-spark-{os.getuid()}"))
        self.most_bytes = most_bytes
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.stat().st_uid != os.getuid():
            raise SourceError(f"{self.path} belongs to another user; choose another cacheDirectory")

    def get(self, identity: str, make: Callable[[Path], None]) -> Path:
        """The directory of `identity`; made by `make`, which is handed an empty one, if it is not there yet."""
        name = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        path = self.path / name
        if not path.exists():
            with self._alone(name):
                if not path.exists():
                    self._make(path, make)
        os.utime(path)
        return path

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
        working = self.path / f"{_TEMPORARY}{secrets.token_hex(6)}"
        working.mkdir()
        try:
            make(working)
            os.rename(working, path)
        finally:
            shutil.rmtree(working, ignore_errors=True)
        self.evict(keep=path)

    def evict(self, keep: Path | None = None) -> None:
        """Delete the least recently used entries until the rest is small enough; `keep` stays in any case."""
        entries = []
        for entry in self.path.iterdir():
            if entry.name.startswith("."):
                continue
            with contextlib.suppress(OSError):
                entries.append((entry.stat().st_mtime, _size(entry), entry))
        total = sum(size for _, size, _ in entries)
        for _, size, entry in sorted(entries):
            if total <= self.most_bytes:
                return
            if entry == keep:
                continue
            shutil.rmtree(entry, ignore_errors=True)
            total -= size


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
