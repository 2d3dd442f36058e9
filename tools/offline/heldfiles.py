"""Files of a log that is in use: read as they were when they were taken hold of, whatever becomes of their names.

A server that rewrites its log deletes the files that it needs no more, and a long log takes minutes to be read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from riverbed.store.disk.files import OsFiles


class HeldFiles(OsFiles):
    """`Files` on the operating system that keeps some open.  A context manager, which lets go of them."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def hold(self, paths: Iterable[Path]) -> bool:
        """Take hold of all of them, and of nothing when one is not there.  Raises OSError."""
        try:
            for path in paths:
                self._held[path] = super().open_read(path)
        except FileNotFoundError:
            self._let_go()
            return False
        return True

    def open_read(self, path: Path, /) -> int:
        held = self._held.get(path)
        return super().open_read(path) if held is None else os.dup(held)

    def exists(self, path: Path, /) -> bool:
        return path in self._held or super().exists(path)

    def _let_go(self) -> None:
        while self._held:
            with contextlib.suppress(OSError):
                os.close(self._held.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()
