"""A Redis that has taken a base is cut off, comes back and is sent the rest: of the same log, or all of another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from riverbed.server.replication.prefixes import PREFIX_S
from riverbed.server.replication.sender import EMPTY_RDB, GETACK
from riverbed.store.log.tail import LogTail
from tests.support.rewriter import rewrite_here
from tests.support.ticks import Client, Ticks, in_loop


class Redis:
    """A foreign replica, with the bytes that it was sent since it last asked."""

    def __init__(self, ticks: Ticks) -> None:
        self._ticks = ticks
        self.link: Client = ticks.connect()
        self.sent = bytearray()
        self.id, self.offset = "?", -2

    async def ask(self) -> str:
        """Connect, and ask for what follows; -> the primary's answer."""
        self.link = self._ticks.connect()
        self.sent.clear()
        self.link.session.send = self.sent.extend
        self.link.send(f"PSYNC {self.id} {self.offset + 1}")
        await self._ticks.settle()
        answer, _, rest = bytes(self.sent).partition(b"\r\n")
        self.sent[:] = rest
        return answer.decode()

    async def acknowledge(self, *offsets: int) -> None:
        """Send these acknowledgements in one piece."""
        self.link.send(*(f"REPLCONF ACK {offset}" for offset in offsets))
        await self._ticks.settle()

    async def take_base(self) -> None:
        """Take a full sync up to the question behind the base."""
        self.id, self.offset = "?", -2
        found = re.fullmatch(r"\+FULLRESYNC (\w{40}) (-?\d+)", await self.ask())
        assert found is not None
        self.sent[:] = self.sent.removeprefix(b"$%d\r\n%b" % (len(EMPTY_RDB), EMPTY_RDB))
        assert self.sent.endswith(GETACK)
        self.id, self.offset = found[1], int(found[2]) + len(self.sent)


async def with_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ticks:
    """A primary whose log has a base, and an entry behind it."""
    ticks = Ticks(tmp_path)
    rewrite_here(monkeypatch, ticks.engine)
    client = ticks.connect()
    await ticks.ask(client, "XADD s 1-1 f v")
    await ticks.server.rewriting.start()
    await ticks.ask(client, "XADD s 2-1 f late")
    assert ticks.engine.log.base is not None
    return ticks


def test_a_redis_comes_back_for_the_rest_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        ticks = await with_base(tmp_path, monkeypatch)
        replica = Redis(ticks)
        await replica.take_base()
        assert b"late" not in replica.sent
        await replica.acknowledge(replica.offset)
        assert replica.link.is_closed
        assert await replica.ask() == f"+CONTINUE {ticks.engine.log.replids.replication_id}"
        assert replica.sent.count(b"late") == 1
        assert not ticks.server.replication.primary.awaits_return
        ticks.close()

    in_loop(body())


def test_a_redis_is_cut_off_when_it_answers_with_the_offset_before_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        ticks = await with_base(tmp_path, monkeypatch)
        replica = Redis(ticks)
        await replica.take_base()
        before = replica.offset - len(GETACK)
        await replica.acknowledge(before - 1)
        assert not replica.link.is_closed
        await replica.acknowledge(before)
        assert replica.link.is_closed
        assert (await replica.ask()).startswith("+CONTINUE")
        assert await ticks.ask(ticks.connect(), "WAIT 0 0") == [b":0\r\n"], "it has acknowledged nothing of the log"
        ticks.close()

    in_loop(body())


def test_a_redis_that_has_not_got_the_question_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says every second may be the offset before the question; its offset would never be one of the log."""

    async def body() -> None:
        ticks = await with_base(tmp_path, monkeypatch)
        replica = Redis(ticks)
        await replica.take_base()
        replica.offset -= len(GETACK)
        await replica.acknowledge(replica.offset)
        assert (await replica.ask()).startswith("+FULLRESYNC")
        ticks.close()

    in_loop(body())


def test_a_redis_that_comes_back_for_a_log_that_was_left_is_sent_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have the beginning of one store and the end of another."""

    async def body() -> None:
        ticks = await with_base(tmp_path, monkeypatch)
        primary, client, replica = ticks.server.replication.primary, ticks.connect(), Redis(ticks)
        open_files = ticks.files.open_count
        await replica.take_base()
        await replica.acknowledge(replica.offset)
        assert primary.awaits_return
        await ticks.ask(client, "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE")
        assert not primary.awaits_return
        assert ticks.files.open_count == open_files
        assert (await replica.ask()).startswith("+FULLRESYNC")
        ticks.close()

    in_loop(body())


def test_what_was_kept_of_another_log_is_not_continued(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, other = Ticks(tmp_path / "this"), Ticks(tmp_path / "other")
        engine, replica = other.engine, Redis(ticks)
        replica.id, replica.offset = "a" * 40, 5
        tail = LogTail(engine.log, engine.files, engine.log.end, verbatim=False)
        ticks.server.replication.primary.prefixes.keep(replica.id, replica.offset, tail)
        assert (await replica.ask()).startswith("+FULLRESYNC")
        for each in (ticks, other):
            each.close()

    in_loop(body())


def test_a_redis_that_stays_away_is_waited_for_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        ticks = await with_base(tmp_path, monkeypatch)
        primary, replica = ticks.server.replication.primary, Redis(ticks)
        await replica.take_base()
        await replica.acknowledge(replica.offset)
        for wait_s, is_awaited in ((PREFIX_S - 1, True), (2, False)):
            ticks.clock.now_ms += int(wait_s * 1000)
            primary.cycle()
            assert primary.awaits_return is is_awaited
        assert (await replica.ask()).startswith("+FULLRESYNC")
        ticks.close()

    in_loop(body())


def test_a_redis_that_acknowledges_the_base_twice_is_cut_off_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a pause of the primary two acknowledgements come in one piece."""

    async def body() -> None:
        ticks = await with_base(tmp_path, monkeypatch)
        replica = Redis(ticks)
        await replica.take_base()
        await replica.acknowledge(replica.offset, replica.offset)
        assert replica.sent.endswith(GETACK)
        assert "a bug" not in caplog.text
        assert (await replica.ask()).startswith("+CONTINUE")
        ticks.close()

    in_loop(body())
