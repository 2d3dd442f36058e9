"""What the native module and its reference have in common, and what those who use them must know."""

from __future__ import annotations

from typing import Final

# Of which interface this is: a native module of another one was built from an older source, and is not used.
INTERFACE: Final = 27

# What `parse` may make of neighbours.
NO_RUNS: Final = 0
APPENDED: Final = 1
LOGGED: Final = 2

SEAL_BYTES: Final = 5  # behind the row of an entry: CRC-32C of the stream's number and the row, and the mark
SEAL_MARK: Final = b"\1"
