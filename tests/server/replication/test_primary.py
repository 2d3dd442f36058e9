"""What a primary asks: only replicas that are a Redis, once for each offset that is waited for, again if undone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from riverbed.server.replication.sender import GETACK
from tests.support.ticks import Ticks, in_loop

QUESTION = b"REPLCONF GETACK *"


def questions(ticks: Ticks) -> int:
    return sum(batch.count(QUESTION) for batch in ticks.batches())


def test_a_question_that_was_undone_is_asked_again_and_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, replica, other = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(replica, "REPLCONF capa psync2", "PSYNC ? -1")
        writer.send("XADD s 1-1 f v", "WAIT 1 0")
        # the tick behind the write fails, which is the one that asks
        ticks.files.fail("write", errno.ENOSPC, after=1)
        await ticks.settle()
        assert writer.replies() == [b"$3\r\n1-1\r\n"]
        assert questions(ticks) == 0
        ticks.engine.check_space()
        assert ticks.engine.refusal is None
        for entry_id in ("2-1", "3-1"):
            assert await ticks.ask(other, f"XADD s {entry_id} f v") == [b"$3\r\n%b\r\n" % entry_id.encode()]
            assert questions(ticks) == 1
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(("introduction", "asked"), [("REPLCONF riverbed 1", 0), ("REPLCONF capa psync2", 3)])
def test_only_foreign_replicas_are_asked_and_once_for_each_offset_that_was_written(
    tmp_path: Path, introduction: str, asked: int
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, replica = ticks.connect(), ticks.connect()
        await ticks.ask(replica, introduction, "PSYNC ? -1")
        for number in range(1, 4):
            writer.send(f"XADD s {number}-1 f v")
            await ticks.settle()
            end = ticks.engine.log.end.offset + asked // 3 * len(GETACK)
            waiting = [ticks.connect() for _ in range(20)]
            for client in waiting:
                client.session.written_offset = writer.session.written_offset
                client.send("WAIT 2 0")
                await ticks.settle()
            assert questions(ticks) == number * asked // 3
            assert ticks.engine.log.end.offset == end
        ticks.close()

    in_loop(body())
