"""Waiting for what a server does by itself: until it says that it is done, for a minute at most."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.raw import RawClient
from tests.servers import Server

_PATIENCE_S = 60.0


def until(holds: Callable[[], bool], what: str) -> None:
    """Ask again and again whether something is so."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"it never came to be: {what}"
        time.sleep(0.005)


def persistence(client: RawClient) -> dict[str, str]:
    """INFO persistence."""
    lines = client.tree("INFO", "persistence").text.decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def rewrite_ended(client: RawClient) -> dict[str, str]:
    """Wait for the end of a rewrite, well or badly; -> INFO persistence then."""
    until(lambda: persistence(client)["aof_rewrite_in_progress"] == "0", "the end of a rewrite")
    return persistence(client)


def rewritten(server: Server) -> None:
    """Have a server rewrite its log."""
    with server.client() as client:
        assert client.ask("BGREWRITEAOF").startswith(b"+")
        found = rewrite_ended(client)
    assert found["aof_last_bgrewrite_status"] == "ok", f"the rewrite failed\n{server.log_tail()}"
