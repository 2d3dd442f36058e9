"""System calls of a real server that fail on request, by a library that `failing_calls.c` is compiled into.

The library is loaded into the server and its children by LD_PRELOAD, and reads what is to fail from a file that it
shares with the tests.  Nothing fails until `fail` asks for it.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final

from tests.support.faults.processes.library import compile_library

# As `enum call` in the C file has them.
CALLS: Final = (
    *("open", "write", "pwrite", "writev", "read", "pread", "fsync", "fdatasync", "ftruncate"),
    *("rename", "unlink", "mmap", "msync", "accept", "receive", "send"),
)
FOR_EVER: Final = -1
SHORT: Final = 0  # in place of an error number: a write of half of the bytes, a receive of one
_SOURCE: Final = Path(__file__).with_suffix(".c")
_ROW: Final = struct.Struct("=qqqq")  # after, times, error, failed


def build(directory: Path) -> Path:
    """Compile the library in `directory`; AssertionError when there is no compiler."""
    return compile_library(_SOURCE, directory)


class FailingCalls:
    """What is to fail in one server, on files below `directory`; in `place` is the file that both share."""

    def __init__(self, library: Path, place: Path, directory: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        table = place / "failing-calls"
        table.write_bytes(bytes(_ROW.size * len(CALLS)))
        with table.open("r+b") as file:
            self._table = mmap.mmap(file.fileno(), 0)
        self.environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FAILING_CALLS": str(table),
            "FAILING_BELOW": str(directory),
        }

    def fail(self, call: str, number: int, *, after: int = 0, times: int = FOR_EVER) -> None:
        """Let `after` calls pass, and have as many as `times` fail with the error `number`, or be short ones."""
        at = CALLS.index(call) * _ROW.size
        _, _, _, failed = _ROW.unpack_from(self._table, at)
        _ROW.pack_into(self._table, at, after, 0, number, failed)
        struct.pack_into("=q", self._table, at + 8, times)

    def forgive(self) -> None:
        """Nothing fails from now on."""
        for number in range(len(CALLS)):
            struct.pack_into("=q", self._table, number * _ROW.size + 8, 0)

    def failed(self) -> dict[str, int]:
        """How many calls have failed in all, by name."""
        rows = [_ROW.unpack_from(self._table, number * _ROW.size) for number in range(len(CALLS))]
        return {call: row[3] for call, row in zip(CALLS, rows, strict=True) if row[3]}
