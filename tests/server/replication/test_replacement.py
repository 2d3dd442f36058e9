"""What the clients of a server notice of a full sync that replaces its store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from riverbed.server.replication import replacement
from tests.support.ticks import Ticks, in_loop


def test_a_transaction_that_watched_a_key_of_the_old_store_is_not_done(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        watching, other = ticks.connect(), ticks.connect()
        watching.send("WATCH s")
        other.send("PING")
        await ticks.settle()
        ticks.server.replication.needs.replacement._change_all_keys()
        for client in (watching, other):
            client.send("MULTI", "XLEN s", "EXEC")
        await ticks.settle()
        assert watching.replies()[-1] == b"*-1\r\n"
        assert other.replies()[-1] == b"*1\r\n:0\r\n"
        ticks.close()

    in_loop(body())


def test_a_client_waits_for_nothing_that_only_the_old_store_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement, "adopt", lambda engine, directory: None)  # the store that is here is the new one

    async def body() -> None:
        ticks = Ticks(tmp_path)
        ahead, level = ticks.connect(), ticks.connect()
        for client in (ahead, level):
            await ticks.ask(client, "XADD s * f v")
        written, end = level.session.written_offset, ticks.engine.log.end.offset
        ahead.session.written_offset = end + 1000
        ticks.server.replication.needs.replacement.adopt(tmp_path)
        assert (ahead.session.written_offset, level.session.written_offset) == (end, written)
        assert await ticks.ask(ahead, "WAITAOF 1 0 0") == [b"*2\r\n:1\r\n:0\r\n"]
        ticks.close()

    in_loop(body())


def test_a_client_that_was_reading_the_old_store_does_nothing_in_the_new_one(tmp_path: Path) -> None:
    """It is cut off in the middle of a reply, and what it has sent behind has come already."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, other = ticks.connect(), ticks.connect()
        await ticks.ask(other, *(f"XADD s {number}-1 f {'v' * 10_000}" for number in range(1, 500)))
        reader.send("XRANGE s - +", "XADD t 1-1 f v")
        for _ in range(100):
            if reader.session.long_reply is None:
                await asyncio.sleep(0)
        assert reader.session.long_reply is not None
        ticks.server.replication.needs.replacement._cut_off_readers()
        await ticks.settle()
        assert reader.is_closed
        assert await ticks.ask(other, "XLEN t") == [b":0\r\n"]
        ticks.close()

    in_loop(body())
