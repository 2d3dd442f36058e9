"""Clients in threads of their own, each of which talks to a server until its connection ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from tests.support.raw import RawClient
from tests.support.servers import Server
from tests.support.waiting import until

PATIENCE_S: Final = 60


class ClientThread(threading.Thread):
    """One connection.  Ends when the connection does, or its work; `error` is anything else."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._port = server.port

    def run(self) -> None:
        try:
            with contextlib.suppress(OSError), RawClient(self._port, timeout_s=PATIENCE_S) as client:
                self.work(client)
        except BaseException as error:  # whatever it is, the test must see it
            self.error = error

    def work(self, client: RawClient) -> None:
        raise AssertionError("a kind of client says what it does")


def finish(threads: Sequence[ClientThread]) -> None:
    """Wait for the ends of all; raise what went wrong in any of them, other than a connection that ended."""
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a client hangs"
        if thread.error is not None:
            raise thread.error


class CountingThread(ClientThread):
    """Counts what was acknowledged, and judges by that what a server holds that was ended meanwhile."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.acknowledged = 0

    def complaints(self, client: RawClient) -> Iterator[str]:
        raise AssertionError("a kind of client says what must be there")


def until_acknowledged(threads: Sequence[CountingThread], count: int) -> None:
    """Wait until so many were acknowledged, or until one client has failed or all are done."""

    def is_reached() -> bool:
        is_over = any(thread.error for thread in threads) or not any(thread.is_alive() for thread in threads)
        return is_over or sum(thread.acknowledged for thread in threads) >= count

    until(is_reached, f"{count} that are acknowledged")


def complaints(server: Server, threads: Sequence[CountingThread]) -> list[str]:
    """What all of them complain about."""
    with server.client() as client:
        return [line for thread in threads for line in thread.complaints(client)]
