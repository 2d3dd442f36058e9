"""What is done to a server amid its work: failing system calls, too little memory or disk, pauses, dead children.

A strike leaves the server in any state, running or ended.  What must hold afterwards is in `rounds.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.faults.disks import fill_up
from tests.support.faults.processes.failing_calls import FOR_EVER, SHORT, FailingCalls
from tests.support.faults.processes.memory_groups import MemoryGroup
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer

ERRORS: Final = {
    "open": (errno.EIO, errno.ENOSPC, errno.EMFILE),
    "write": (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EAGAIN, SHORT),
    "pwrite": (errno.EIO, errno.ENOSPC, errno.EINTR, SHORT),
    "writev": (errno.EIO, errno.ENOSPC, errno.EINTR, SHORT),
    "read": (errno.EIO, errno.EINTR),
    "pread": (errno.EIO, errno.EINTR),
    "fsync": (errno.EIO, errno.ENOSPC, errno.EINTR),
    "fdatasync": (errno.EIO, errno.ENOSPC, errno.EINTR),
    "ftruncate": (errno.EIO, errno.ENOSPC, errno.EINTR),
    "rename": (errno.EIO, errno.ENOSPC),
    "unlink": (errno.EIO,),
    "mmap": (errno.ENOMEM, errno.EAGAIN),
    "msync": (errno.EIO,),
    "accept": (errno.EMFILE, errno.ECONNABORTED, errno.EINTR),
    "receive": (errno.ECONNRESET, errno.EINTR, errno.EAGAIN, SHORT),
    "send": (errno.ECONNRESET, errno.EPIPE, errno.EINTR, errno.EAGAIN, SHORT),
}
# Programs repeat these calls until they succeed, so some must.
_REPEATED: Final = (errno.EINTR, errno.EAGAIN, SHORT)
# Where most can go wrong.
_WEIGHTS: Final = {"write": 4, "pwrite": 12, "writev": 3, "fsync": 2, "fdatasync": 8, "receive": 3, "send": 3}
_MAX_AFTER: Final = {"write": 4, "pwrite": 15, "fsync": 4, "fdatasync": 15, "receive": 30, "send": 30}
_LONG_VALUE: Final = b"x" * (2 << 20)
# Commands that start a child each, or have the server write much.
_CHILDREN: Final[tuple[tuple[str, ...], ...]] = (
    ("BGREWRITEAOF",),
    ("RIVERBED", "SNAPSHOT"),
    ("CONFIG", "SET", "scrub-interval", "1"),
)


@dataclass
class Target:
    """A server, what can be made to fail in it, its replica, and its small disk and its group, if it has them."""

    server: RiverbedServer
    calls: FailingCalls
    disk: Path | None
    replica: RiverbedServer
    group: MemoryGroup | None


def fail_a_call(target: Target, chance: random.Random) -> str:
    """Arm one call; -> what was armed."""
    (call,) = chance.choices(tuple(ERRORS), [_WEIGHTS.get(call, 1) for call in ERRORS])
    number = chance.choice(ERRORS[call])
    times = chance.choice((1, 1, 3) if number in _REPEATED or call == "accept" else (1, FOR_EVER))
    target.calls.fail(call, number, after=chance.randrange(_MAX_AFTER.get(call, 4)), times=times)
    return f"{call} {errno.errorcode.get(number, 'short')} {'for ever' if times == FOR_EVER else 'once'}"


def fail_calls(target: Target, chance: random.Random) -> str:
    """Arm one call or several, and wait a moment for one to fail."""
    told = [fail_a_call(target, chance) for _ in range(chance.choice((1, 1, 2, 3)))]
    deadline, before = time.monotonic() + 0.3, target.calls.failed()
    while target.calls.failed() == before and time.monotonic() < deadline:
        time.sleep(0.005)
    return told[0] if len(told) == 1 else "several failing calls"


def pause(target: Target, chance: random.Random) -> str:
    os.kill(target.server.pid, signal.SIGSTOP)
    time.sleep(chance.uniform(0, 0.1))
    os.kill(target.server.pid, signal.SIGCONT)
    return "STOP and CONT"


def limit_memory(target: Target, chance: random.Random) -> str:
    """Little more address space than there is, and clients that want more."""
    pid = target.server.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    more = chance.choice((0, 1 << 20, 16 << 20))
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))
    _want_memory(target)
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return "memory limit"


def _want_memory(target: Target) -> None:
    with contextlib.suppress(OSError), target.server.client(timeout_s=20) as client:
        for _ in range(8):
            client.ask("XADD", "long", "MAXLEN", 1, "*", "f", _LONG_VALUE)
            client.ask("XRANGE", "long", "-", "+")


def limit_memory_of_all(target: Target, chance: random.Random) -> str:
    """Hardly more memory, page cache and all, than the server and its children have: the kernel may kill one."""
    if target.group is None:
        return limit_memory(target, chance)
    with contextlib.suppress(OSError):  # there is less to free than that
        target.group.limit(target.group.used() + chance.choice((2 << 20, 4 << 20, 16 << 20, 32 << 20)))
    with contextlib.suppress(OSError), target.server.client(timeout_s=20) as client:
        client.ask(*chance.choice(_CHILDREN))
    _want_memory(target)
    target.group.limit(None)
    return "memory group"


def fill_the_disk(target: Target, chance: random.Random) -> str:
    """Leave little room; for ever in half of the cases, which is until the next start."""
    assert target.disk is not None
    with contextlib.suppress(OSError):  # the server was quicker than the look at what is free
        fill_up(target.disk, chance.choice((0, 4096, 100_000)))
    time.sleep(chance.uniform(0, 0.2))
    if chance.random() < 0.5:
        (target.disk / "ballast").unlink()
    return "full disk"


def end_a_child(target: Target, chance: random.Random) -> str:
    """Have a rewrite, a snapshot, a scrub or a full sync begin, and end its process at any moment."""
    words = chance.choice((*_CHILDREN, ("REPLICAOF",)))
    if words[0] == "REPLICAOF":
        return _end_a_full_sync(target, chance)
    with contextlib.suppress(OSError), target.server.client(timeout_s=60) as client:
        client.send(*words)
        _hit_children(target.server, chance)
        client.reply()
    return f"end of the child of {words[0] if len(words) == 1 else words[1]}".replace("SET", "a scrub")


def _end_a_full_sync(target: Target, chance: random.Random) -> str:
    with contextlib.suppress(OSError), target.replica.client() as client:
        client.ask("REPLICAOF", "127.0.0.1", target.server.port)
        _hit_children(target.replica, chance)
    return "end of the child of a full sync"


def _hit_children(server: RiverbedServer, chance: random.Random) -> None:
    time.sleep(chance.uniform(0, 0.4))
    for pid in [*server.children(), *server.children("scrub_worker")]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, chance.choice((signal.SIGKILL, signal.SIGTERM)))


def work_with_children(target: Target, chance: random.Random) -> str:
    """What meets the most system calls: a failing one while the log is rewritten and a snapshot is made."""
    told = fail_a_call(target, chance)
    with contextlib.suppress(OSError), RawClient(target.server.port, timeout_s=60) as client:
        client.send(*chance.choice(_CHILDREN))
        client.reply()
    return told


def nothing(target: Target, chance: random.Random) -> str:
    return "none"


STRIKES: Final[tuple[Callable[[Target, random.Random], str], ...]] = (
    *(fail_calls, fail_calls, fail_calls, fail_calls, work_with_children, work_with_children),
    *(pause, limit_memory, limit_memory_of_all, end_a_child, nothing),
)
