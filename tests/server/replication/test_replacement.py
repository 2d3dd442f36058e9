"""What the clients of a server notice of a full sync that replaces its store."""

from __future__ import annotations

import asyncio
from pathlib import Path

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
