"""A transaction that has run once, for a reply too long for memory, and waits for a view to run again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from riverbed.server.protocol.replies import LONG_BYTES
from tests.support.ticks import Client, Ticks, in_loop


async def begin(ticks: Ticks, client: Client, *commands: str) -> None:
    """Have a transaction run once; it waits for a view because it reads `big`."""
    other = ticks.connect()
    other.send_words("XADD", "big", "1-1", "f", b"v" * (LONG_BYTES + 1))
    await ticks.settle()
    client.send("MULTI", *commands, "EXEC")
    await asyncio.sleep(0)
    assert client.session.is_sliced


def test_it_is_refused_if_by_then_the_gate_refuses_reads(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await begin(ticks, client, "XLEN big", "XRANGE big - +")
        ticks.executor.gate.replicate(no_writes="READONLY a replica", no_reads="MASTERDOWN no link")
        await ticks.settle()
        assert client.replies()[-1] == b"-EXECABORT Transaction discarded because of: MASTERDOWN no link\r\n"
        ticks.close()

    in_loop(body())


def test_a_command_that_its_user_may_not_run_is_noted_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(other, "ACL SETUSER ann on >pw ~big ~s +@all")
        await ticks.ask(client, "AUTH ann pw", "MULTI", "XLEN s", "XRANGE big - +")
        await ticks.ask(other, "ACL SETUSER ann -xlen")
        other.send_words("XADD", "big", "1-1", "f", b"v" * (LONG_BYTES + 1))
        await ticks.settle()
        client.send("EXEC")
        await asyncio.sleep(0)
        assert client.session.is_sliced
        await ticks.settle()
        assert b"-NOPERM " in b"".join(client.replies())
        reply = (await ticks.ask(other, "ACL LOG"))[-1]
        assert reply.startswith(b"*1\r\n")
        assert b"count\r\n:1\r\n" in reply
        ticks.close()

    in_loop(body())
