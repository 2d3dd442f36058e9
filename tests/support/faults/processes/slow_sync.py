"""A slow disk: every sync of a real server waits, by a library that `slow_sync.c` is compiled into."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final

from tests.support.faults.processes.library import compile_library

FOR_EVER_MS: Final = 1 << 40
_SOURCE: Final = Path(__file__).with_suffix(".c")
_MILLISECONDS: Final = struct.Struct("=q")


class SlowSync:
    """The delay of every sync of the servers that are started with `environment`; none at first.

    The library, and the file through which it is told the delay, are in `place`.  AssertionError without a compiler.
    """

    def __init__(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        library, table = compile_library(_SOURCE, place), place / "delay"
        table.write_bytes(bytes(_MILLISECONDS.size))
        with table.open("r+b") as file:
            self._table = mmap.mmap(file.fileno(), 0)
        self.environment = {**os.environ, "LD_PRELOAD": str(library), "SLOW_SYNC": str(table)}

    def delay(self, milliseconds: int) -> None:
        """Delay every sync by so much from now on, those under way as well."""
        _MILLISECONDS.pack_into(self._table, 0, milliseconds)
