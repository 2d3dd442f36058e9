"""What the operating system says about this process: memory and processor time.

Linux answers from /proc; elsewhere `resource` answers less precisely.  Knows nothing of the store or of clients.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from typing import Final

_STATUS: Final = "/proc/self/status"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes.  `private` is memory that only this process pays for; `mapped` is file pages, mostly LMDB's.

    The kernel takes `mapped` back whenever it likes, so it is `private` that must not grow with the data.
    """

    resident: int
    private: int
    mapped: int
    peak_resident: int


def _kilobyte_fields(path: str) -> dict[str, int]:
    """The `Name:   123 kB` lines of a /proc file, in bytes; empty where there is no such file."""
    fields = {}
    try:
        with open(path, encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, rest = line.partition(":")
                words = rest.split()
                if len(words) == 2 and words[1] == "kB":
                    fields[name] = int(words[0]) * 1024
    except OSError:
        return {}
    return fields


def memory_use() -> MemoryUse:
    fields = _kilobyte_fields(_STATUS)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    resident = fields.get("VmRSS", peak)
    mapped = fields.get("RssFile", 0) + fields.get("RssShmem", 0)
    return MemoryUse(resident, fields.get("RssAnon", resident - mapped), mapped, max(peak, resident))


def system_memory() -> int:
    """Bytes of memory in this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(who: int = resource.RUSAGE_SELF) -> tuple[float, float]:
    """Seconds of processor time in the kernel and in user code."""
    usage = resource.getrusage(who)
    return usage.ru_stime, usage.ru_utime
