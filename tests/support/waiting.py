"""Waiting for what a server does by itself: until it says that it is done, for two minutes at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.raw import RawClient
from tests.support.servers import Server

_PATIENCE_S = 120.0


def until(holds: Callable[[], bool], what: str) -> None:
    """Ask again and again whether something is so."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"it never came to be: {what}"
        time.sleep(0.005)


async def until_true(holds: Callable[[], bool]) -> None:
    """As `until`, while the loop runs."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        await asyncio.sleep(0.002)


async def until_turn(holds: Callable[[], bool]) -> None:
    """As `until_true`, asking in every turn of the loop: what is waited for may be over in the next one."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        await asyncio.sleep(0)


def until_counted(count: Callable[[], int], enough: int, what: str) -> None:
    """Wait until a count is reached, however slowly it grows; two minutes without any growth are too many."""
    reached = -1
    while (now := count()) < enough:
        if now > reached:
            reached = now
            deadline = time.monotonic() + _PATIENCE_S
        assert time.monotonic() < deadline, f"it stayed at {reached}: {what}"
        time.sleep(0.005)


def until_blocked(client: RawClient, count: int) -> None:
    """Wait until the server says that so many clients are blocked."""
    line = b"blocked_clients:%d\r\n" % count
    until(lambda: line in client.ask("INFO", "clients"), f"{count} blocked clients")


def rewrite_ended(client: RawClient) -> dict[str, str]:
    """Wait for the end of a rewrite, well or badly; -> INFO persistence then."""

    def is_over() -> bool:
        found = client.info("persistence")
        return (found["aof_rewrite_in_progress"], found["aof_rewrite_scheduled"]) == ("0", "0")

    until(is_over, "the end of a rewrite")
    return client.info("persistence")


def rewritten(server: Server) -> None:
    """Have a server rewrite its log."""
    with server.client() as client:
        assert client.ask("BGREWRITEAOF").startswith(b"+")
        found = rewrite_ended(client)
    assert found["aof_last_bgrewrite_status"] == "ok", f"the rewrite failed\n{server.log_tail()}"


def process_ended(pid: int) -> None:
    """Wait for the end of a process that is nobody's child any more.  Linux only."""

    def is_gone() -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        # dead, where nobody cares for orphans: the first process of many a container does not
        return stat.rpartition(")")[2].split()[0] in "ZX"

    until(is_gone, f"the end of process {pid}")
