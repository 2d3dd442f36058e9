"""Tells whether a directory that this process holds is still where it was.

A lock is on the directory, and files are opened by their paths.  When the directory is moved or deleted, another server
may begin a store at its path: what this one does there by path would ruin it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.real_files import is_directory

MOVED: Final = "the data directory was moved or deleted"
LOG_MOVED: Final = "the directory of the log was moved or deleted"


class HeldDirectory:
    """A directory that stays open: the system gives its number to no other one meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None

    def settle(self) -> None:
        """Remember which directory it is.  Some file systems give it another number when it is first written to."""
        self._identity = self._found()

    @property
    def is_gone(self) -> bool:
        """Whether its path leads to another directory by now, or to none."""
        return self._identity is not None and self._found() != self._identity

    def require_writable(self) -> None:
        """Raise OSError when it is there, and this process may make no files in it."""
        as_effective_user = os.access in os.supports_effective_ids
        if is_directory(self.path) and not os.access(self.path, os.W_OK | os.X_OK, effective_ids=as_effective_user):
            is_readonly = os.statvfs(self.path).f_flag & os.ST_RDONLY
            number = errno.EROFS if is_readonly else errno.EACCES
            raise OSError(number, os.strerror(number), str(self.path))

    def _found(self) -> tuple[int, int] | None:
        """Which directory is at the path; None when there is none."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # nothing is known
            return self._identity
        return found.st_dev, found.st_ino

    def require(self) -> None:
        """Raise OSError when it is gone."""
        if self.is_gone:
            raise OSError(errno.ESTALE, MOVED, str(self.path))


class HeldFiles(OsFiles):
    """The files in a held directory: none is made, moved or removed at its path when it is gone."""

    def __init__(self, held: HeldDirectory) -> None:
        self._held = held

    def create(self, path: Path, /) -> int:
        self._held.require()
        return super().create(path)

    def open_update(self, path: Path, /) -> int:
        self._held.require()
        return super().open_update(path)

    def make_directory(self, path: Path, /) -> None:
        self._held.require()
        super().make_directory(path)

    def remove_directory(self, path: Path, /) -> None:
        self._held.require()
        super().remove_directory(path)

    def rename(self, source: Path, target: Path, /) -> None:
        self._held.require()
        super().rename(source, target)

    def unlink(self, path: Path, /) -> None:
        self._held.require()
        super().unlink(path)
