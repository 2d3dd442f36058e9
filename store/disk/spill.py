"""Holds the bytes of one long batch in a file without a name, from the first ones to those that close it.

    arrives ->  | checked | in memory |        the front goes to the file as soon as it need not be looked at again
                | file    |           |

The file is in the data directory, for only there it is known how much room there is to be, and has no name, so that it
is gone when its process is.  What is in it is read three times: to compare its checksum with that of what was written,
to execute it, and to copy it into the log, which compares the checksum again.  This module knows nothing of batches.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from riverbed.store.checksum import crc32c
from riverbed.store.disk.nameless import nameless_file
from riverbed.store.disk.removal import close_file
from riverbed.store.errors import LacksRoomError

PIECE_BYTES: Final = 1 << 20
# Written between two looks at the free space.
_BYTES_A_SPACE_CHECK: Final = 16 << 20


class Spill:
    """A file that is written, then read as often as need be, and gone when it is closed."""

    def __init__(self, directory: Path, free_bytes: Callable[[Path], int], reserve_bytes: int) -> None:
        """`reserve_bytes` of the free ones are left alone.  Raises OSError."""
        self.size = 0
        self.checksum = 0
        self._directory = directory
        self._free_bytes = free_bytes
        self._reserve_bytes = reserve_bytes
        self._unchecked_bytes = _BYTES_A_SPACE_CHECK
        self._held = contextlib.ExitStack()
        self._file = self._held.enter_context(nameless_file(directory, "batch-"))

    def append(self, data: memoryview) -> None:
        """Raises LacksRoomError, OSError."""
        self._unchecked_bytes += len(data)
        if self._unchecked_bytes >= _BYTES_A_SPACE_CHECK:
            self._unchecked_bytes = 0
            needed = self.size + len(data) + _BYTES_A_SPACE_CHECK  # by the log, for what is in the file
            if self._free_bytes(self._directory) - needed < self._reserve_bytes:
                raise LacksRoomError(errno.ENOSPC, "the disk is nearly full")
        rest = data
        while rest:
            rest = rest[self._file.write(rest) :]
        self.size += len(data)
        self.checksum = crc32c(data, self.checksum)

    def read(self, start: int, end: int) -> bytes:
        """The bytes between two places.  Raises OSError."""
        parts = []
        at = start
        while at < end:
            data = os.pread(self._file.fileno(), end - at, at)
            if not data:
                raise OSError(errno.EIO, "the file of a long batch is shorter than what was written to it")
            parts.append(data)
            at += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pieces(self) -> Iterator[bytes]:
        """All bytes in order.  Raises OSError, at the end when they are not those that were written."""
        checksum = 0
        for at in range(0, self.size, PIECE_BYTES):
            data = self.read(at, min(at + PIECE_BYTES, self.size))
            checksum = crc32c(data, checksum)
            yield data
        if checksum != self.checksum:
            raise OSError(errno.EIO, "the file of a long batch has other bytes than were written to it")

    def close(self) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError):  # then it is freed here and now
                close_file(os.dup(self._file.fileno()))
        self._held.close()
