"""Has the operating system cache no more of a growing file than its last bytes.

The log is read again only by replicas, which follow closely, and after a crash.  What the system caches of it pushes
pages of the tables out of memory, which readers need.  Where a host takes back what a virtual machine has not used for
a while, each fresh page has to be asked for besides: with 700,000 appends a second, clients waited up to 100 ms for
them, and a third of the rate was lost.  Pages that were dropped are the next ones to be used.
"""

from __future__ import annotations

from typing import Final

from riverbed.store.disk.files import Files

# A replica that is less behind reads from memory.
KEPT_BYTES: Final = 32 << 20
# Large pages of the cache are dropped as a whole only.
STEP_BYTES: Final = 4 << 20


class CachedEnd:
    """The last bytes of a file that something appends to."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._forgotten = 0

    def begin_file(self) -> None:
        """Another file is appended to from now on."""
        self._forgotten = 0

    def grew(self, fd: int, durable_bytes: int) -> None:
        """The first `durable_bytes` of the file are on the disk.  For one thread at a time."""
        end = (durable_bytes - KEPT_BYTES) // STEP_BYTES * STEP_BYTES
        if end > self._forgotten:
            self._files.forget(fd, self._forgotten, end - self._forgotten)
            self._forgotten = end
