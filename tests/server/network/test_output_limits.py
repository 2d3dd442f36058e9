"""A client that reads slowly is cut off by `client-output-buffer-limit`, hard and soft."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from riverbed.server.network.connection import Connection
from riverbed.server.network.leaving import Leaving
from tests.support.in_process import HandClock
from tests.support.ticks import Ticks, in_loop


class Unread(asyncio.Transport):
    """A transport whose client reads when a test says so."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.unsent = 0
        self.is_cut_off = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def write(self, data: Any) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.is_cut_off

    def abort(self) -> None:
        self.is_cut_off = True

    def close(self) -> None: ...


def scene(directory: Path, limit: str, act: Callable[[Connection, Unread, HandClock], None], cut_off: int) -> None:
    """Let a client begin under `limit`, and `act`; `cut_off` clients are counted as cut off then."""

    async def body() -> None:
        ticks = Ticks(directory, client_output_buffer_limit=f"normal {limit}")
        connection, transport = Connection(ticks.executor, Leaving()), Unread()
        connection.connection_made(transport)
        act(connection, transport, ticks.clock)
        connection.connection_lost(None)
        ticks.close()
        assert ticks.executor.stats.output_limit_disconnections == cut_off

    in_loop(body())


def test_more_than_the_hard_limit_is_too_much_at_once(tmp_path: Path) -> None:
    def act(connection: Connection, transport: Unread, clock: HandClock) -> None:
        transport.unsent = 1000
        connection.attend()
        assert not transport.is_cut_off
        transport.unsent = 1001
        connection.attend()
        assert transport.is_cut_off
        connection.attend()

    scene(tmp_path, "1000 0 0", act, cut_off=1)


def test_more_than_the_soft_limit_is_too_much_after_a_while(tmp_path: Path) -> None:
    def act(connection: Connection, transport: Unread, clock: HandClock) -> None:
        transport.unsent = 501
        connection.attend()
        clock.now_ms += 10_000
        connection.attend()
        assert not transport.is_cut_off
        clock.now_ms += 1
        connection.attend()
        assert transport.is_cut_off

    scene(tmp_path, "1000 500 10", act, cut_off=1)


def test_the_while_begins_again_when_less_is_unread(tmp_path: Path) -> None:
    def act(connection: Connection, transport: Unread, clock: HandClock) -> None:
        transport.unsent = 501
        connection.attend()
        clock.now_ms += 9_000
        transport.unsent = 500
        connection.attend()
        transport.unsent = 501
        for _ in range(2):
            clock.now_ms += 9_000
            connection.attend()
        assert not transport.is_cut_off

    scene(tmp_path, "1000 500 10", act, cut_off=0)


def test_the_while_begins_again_when_all_was_read_between_two_looks(tmp_path: Path) -> None:
    def act(connection: Connection, transport: Unread, clock: HandClock) -> None:
        transport.unsent = 501
        connection.attend()
        connection.pause_writing()
        clock.now_ms += 9_000
        connection.resume_writing()
        for _ in range(2):
            clock.now_ms += 9_000
            connection.attend()
        assert not transport.is_cut_off

    scene(tmp_path, "1000 500 10", act, cut_off=0)
