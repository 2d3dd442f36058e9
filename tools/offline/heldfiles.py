"""Keep the files of a log in use open, so that they can be read even after the server deletes them.

A server that rewrites its log deletes the old files, and reading a long log takes minutes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from riverbed.store.disk.files import OsFiles


class HeldFiles(OsFiles):
    """`Files` of the operating system, some of which stay open.  A context manager, which closes them."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def hold(self, paths: Iterable[Path]) -> bool:
        """Open all of them; -> False, with none held, when one is missing.  Raises OSError."""
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
