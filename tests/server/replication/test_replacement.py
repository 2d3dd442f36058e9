"""What the clients of a server notice of a full sync that replaces its store."""

from __future__ import annotations

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
