"""What a server does beside its clients because a question asks for it: a rewrite of its log, a snapshot of Redis.

One that comes to nothing is an error: it would be measured as one that takes no time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from benchmarks.load.traffic import info
from tests.support.servers import Server

_LOOK_S: Final = 0.02
_MOST_S: Final = 600.0


def rewrite_log(server: Server) -> float:
    """Have the log rewritten; -> seconds.  AssertionError when it is not, or not by now."""
    return _done(server, "BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_bgrewrite_status")


def bgsave(server: Server) -> float:
    """Have a Redis write an RDB file; -> seconds.  AssertionError as above."""
    return _done(server, "BGSAVE", "rdb_bgsave_in_progress", "rdb_last_bgsave_status")


@contextlib.contextmanager
def rewritten_after(server: Server, delay_s: float) -> Iterator[None]:
    """Have the log rewritten once, so many seconds after the `with` block begins, which ends when that is done."""

    def later() -> None:
        time.sleep(delay_s)
        rewrite_log(server)

    with ThreadPoolExecutor(1) as pool:
        rewriting = pool.submit(later)
        yield
        rewriting.result()


def _done(server: Server, command: str, progress: str, status: str) -> float:
    begun = time.perf_counter()
    with server.client() as client:
        reply = client.ask(command)
    if not reply.startswith(b"+") or b"scheduled" in reply:  # INFO would say that none is in progress
        raise AssertionError(f"{command} says {reply!r}")
    while (found := info(server.port, "persistence"))[progress] != "0":
        if time.perf_counter() - begun > _MOST_S:
            raise AssertionError(f"{progress} after {_MOST_S:g} s")
        time.sleep(_LOOK_S)
    seconds = time.perf_counter() - begun
    if found[status] != "ok":
        raise AssertionError(f"{command} failed\n{server.log_tail()}")
    return seconds
