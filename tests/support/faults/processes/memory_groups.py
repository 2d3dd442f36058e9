"""Groups of processes whose memory the kernel limits together, page cache and all (cgroups, version 1 and 2).

The kernel takes back the pages of mapped files first.  When that is not enough, it kills a process of the group.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
_PATIENCE_S: Final = 20


class MemoryGroup:
    """A new group; OSError when this system lets us make none: it takes root, and a hierarchy that can be written."""

    def __init__(self) -> None:
        hierarchy = _CGROUPS / "memory"
        self._is_first_version = hierarchy.is_dir()
        self._root = hierarchy if self._is_first_version else _CGROUPS
        self._directory = self._root / f"riverbed-test-{os.getpid()}-{time.monotonic_ns()}"
        self._limit = "memory.limit_in_bytes" if self._is_first_version else "memory.max"
        self._events = "memory.oom_control" if self._is_first_version else "memory.events"
        self._directory.mkdir()

    def add(self, pid: int) -> None:
        """Its children of later are in the group too; what it has already allocated stays with its old one."""
        (self._directory / "cgroup.procs").write_text(str(pid))

    def used(self) -> int:
        """Bytes that cannot be freed: all but the page cache."""
        words = (self._directory / "memory.stat").read_text().split()
        return int(words[words.index("rss" if self._is_first_version else "anon") + 1])

    def limit(self, size: int | None) -> None:
        """In bytes, None is without end; OSError when the kernel cannot free as much as is over it already."""
        none = "-1" if self._is_first_version else "max"
        (self._directory / self._limit).write_text(none if size is None else str(size))

    def killed(self) -> int:
        """How many processes of the group the kernel has killed for want of memory."""
        words = (self._directory / self._events).read_text().split()
        return int(words[words.index("oom_kill") + 1])

    def close(self) -> None:
        """Let its processes go, and remove it."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            for pid in (self._directory / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (self._root / "cgroup.procs").write_text(pid)
            try:
                return self._directory.rmdir()
            except OSError:  # one of its processes is ending
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
