"""What a primary asks of its replicas is asked again when the tick that asked it was undone."""

from __future__ import annotations

import errno
from pathlib import Path

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
