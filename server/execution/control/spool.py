"""A file without a name for the long replies of a transaction: written, then read, and gone when it is closed.

All such files together are bounded, and leave room on the disk and descriptors for everything else.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from riverbed.store.disk.nameless import nameless_file
from riverbed.store.streams.view import PIECE_BYTES

if TYPE_CHECKING:
    from riverbed.store.engine import Engine

# In the files of all clients together: a transaction whose replies need more is undone.
MAX_SPOOLED_BYTES: Final = 4 << 30
# Descriptors that are left for the log, the tables and child processes when a file of replies is open.
_SPARE_DESCRIPTORS: Final = 8
# Written between two checks of the free space.
_BYTES_A_SPACE_CHECK: Final = 16 << 20


class SpoolError(Exception):
    """There is no room for the replies of a transaction.  The text is for the client."""


class SpoolSpace:
    """The bytes that the files of all transactions take together, and their limit."""

    def __init__(self, engine: Engine, clients_to_come: Callable[[], int]) -> None:
        """`clients_to_come` returns how many more clients may connect."""
        self._engine = engine
        self._clients_to_come = clients_to_come
        self._unchecked_bytes = _BYTES_A_SPACE_CHECK
        self.bytes = 0

    @property
    def directory(self) -> Path:
        return self._engine.directory

    def take(self, size: int) -> None:
        """Take `size` bytes more.  Raises SpoolError, OSError."""
        if self.bytes + size > MAX_SPOOLED_BYTES:
            raise SpoolError(f"the replies of all transactions would take more than {MAX_SPOOLED_BYTES >> 30} GB")
        self._unchecked_bytes += size
        if self._unchecked_bytes >= _BYTES_A_SPACE_CHECK:
            reserve = self._engine.space.reserve_bytes
            # leave more than the reserve: no write is to be refused because of replies
            if self._engine.files.free_bytes(self.directory) - self._unchecked_bytes < reserve + (reserve >> 2):
                raise SpoolError("its replies are too long for memory, and the disk is nearly full")
            self._unchecked_bytes = 0
        self.bytes += size

    def check_descriptor(self, descriptor: int) -> None:
        """Raise SpoolError if a file with this descriptor, the lowest free one, leaves too few for everything else.

        A server that has no descriptor left to open its log stops.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        needed = self._clients_to_come() + _SPARE_DESCRIPTORS
        if limit != resource.RLIM_INFINITY and limit - descriptor - 1 < needed:
            raise SpoolError("its replies are too long for memory, and too many files are open (see ulimit -n)")

    def give_back(self, size: int) -> None:
        self.bytes -= size


@contextlib.contextmanager
def _as_spool_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpoolError(f"its replies are too long for memory, and a file cannot take them: {error}") from error


class Spool:
    """A file that is written, then read from its beginning, and gone when it is closed."""

    def __init__(self, space: SpoolSpace) -> None:
        """Raises SpoolError."""
        self._space = space
        self._held = contextlib.ExitStack()
        with _as_spool_error():
            self._file = self._held.enter_context(nameless_file(space.directory, "replies-"))
        try:
            space.check_descriptor(self._file.fileno())
        except SpoolError:
            self._held.close()
            raise
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._size = 0
        self.written_bytes = 0

    def append(self, data: bytes) -> None:
        """Raises SpoolError."""
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered.  Raises SpoolError."""
        if not self._gathered:
            return
        rest = memoryview(b"".join(self._gathered))
        self._gathered.clear()
        self._gathered_bytes = 0
        with _as_spool_error():
            self._space.take(len(rest))
            self._size += len(rest)
            end = self.written_bytes + len(rest)
            while rest:
                rest = rest[self._file.write(rest) :]
            self.written_bytes = end

    @property
    def end(self) -> int:
        """Where the next bytes will be in the file."""
        return self.written_bytes + self._gathered_bytes

    def pieces(self, part: range) -> Generator[bytes, None, None]:
        """The bytes of `part` of the file.  Raises OSError."""
        at = part.start
        while at < part.stop:
            data = os.pread(self._file.fileno(), min(PIECE_BYTES, part.stop - at), at)
            if not data:
                raise OSError("a file of replies is shorter than what was written to it")
            at += len(data)
            yield data

    def close(self) -> None:
        self._space.give_back(self._size)
        self._held.close()
