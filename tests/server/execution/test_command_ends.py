"""A handler need not ask for it: what it changes of a group is in the log behind its lines, however it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.request import Request
from riverbed.server.commands.slices import Work, in_slices
from riverbed.server.commands.table import COMMANDS
from riverbed.server.protocol.replies import Block, Reply
from riverbed.store.ids import StreamID
from tests.support.ticks import Ticks, in_loop

POSITION = b"XGROUP SETID s g 0-9 ENTRIESREAD -1"
CONSUMER = b"XGROUP CREATECONSUMER s g Alice"
SEEN = b"XSEEN s g Alice 1700000000000 -1"


def get_or_create(request: Request) -> int:
    """Change a consumer and the position, and do no more."""
    stream = request.db.stream(b"s", request.now_ms)
    assert stream is not None
    group = request.db.groups(stream).get(b"g")
    assert group is not None
    group.get_or_create(b"Alice", request.now_ms)
    group.raise_position(StreamID(9))
    return 1


def block(request: Request) -> Block:
    get_or_create(request)
    return Block((b"s",), None, request.argv)


def _work(request: Request) -> Work:
    get_or_create(request)
    yield "one"
    return 1


def slices(request: Request) -> Reply:
    return in_slices(request, _work)


def fail(request: Request) -> None:
    get_or_create(request)
    raise RuntimeError("a bug")


async def prepared(ticks: Ticks) -> None:
    client = ticks.connect()
    await ticks.ask(client, "XADD s 1-1 f v", "XGROUP CREATE s g 0")


def plant(monkeypatch: pytest.MonkeyPatch, handler: object) -> None:
    load_commands()
    monkeypatch.setattr(COMMANDS[b"XTRIM"], "handler", handler)


@pytest.mark.parametrize("handler", [get_or_create, block, slices])
@pytest.mark.parametrize("name", ["XTRIM", "xTrim"])  # the fast path, and the careful one
def test_what_a_handler_leaves_unsaid_is_logged_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: object, name: str
) -> None:
    plant(monkeypatch, handler)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        await prepared(ticks)
        client, other = ticks.connect(), ticks.connect()
        client.send(f"{name} s MAXLEN 9")
        other.send("XADD t 2-1 f v")
        await ticks.settle()
        lines = [line for batch in ticks.batches()[1:] for line in batch]
        assert lines == [b"MULTI", POSITION, CONSUMER, SEEN, b"EXEC", b"XADD t 2-1 f v"]
        client.leave()
        ticks.close()

    in_loop(body())


def test_in_a_transaction_it_is_logged_before_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, get_or_create)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        await prepared(ticks)
        await ticks.ask(ticks.connect(), "MULTI", "XTRIM s MAXLEN 9", "XADD t 2-1 f v", "EXEC")
        assert ticks.batches()[1] == [b"MULTI", POSITION, CONSUMER, SEEN, b"XADD t 2-1 f v", b"EXEC"]
        ticks.close()

    in_loop(body())


def test_all_of_a_stream_is_logged_before_the_next_one_of_a_read(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        await prepared(ticks)
        client = ticks.connect()
        await ticks.ask(client, "XADD t 2-1 f v", "XGROUP CREATE t g 0")
        await ticks.ask(client, "XREADGROUP GROUP g Alice COUNT 9 NOACK STREAMS s t > >")
        assert ticks.batches()[-1] == [
            *(b"MULTI", b"XGROUP SETID s g 1-1 ENTRIESREAD 1", CONSUMER, SEEN),
            *(b"XGROUP SETID t g 2-1 ENTRIESREAD 1", CONSUMER.replace(b" s ", b" t "), SEEN.replace(b" s ", b" t ")),
            b"EXEC",
        ]
        ticks.close()

    in_loop(body())


def test_so_is_all_of_the_first_read_when_a_stream_is_named_twice(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        await prepared(ticks)
        client = ticks.connect()
        await ticks.ask(client, "XREADGROUP GROUP g Alice STREAMS s >", "XADD s 1-2 f v")
        ticks.clock.now_ms += 5
        await ticks.ask(client, "XREADGROUP GROUP g Alice STREAMS s s 0 >")
        claim = b"XCLAIM s g Alice 0 %b TIME 1700000000005 RETRYCOUNT %d FORCE JUSTID LASTID %b"
        assert ticks.batches()[-1] == [
            *(b"MULTI", claim % (b"1-1", 2, b"1-1"), b"XSEEN s g Alice 1700000000005 1700000000000"),
            *(claim % (b"1-2", 1, b"1-2"), b"XGROUP SETID s g 1-2 ENTRIESREAD 2", b"EXEC"),
        ]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("commands", [["XTRIM s MAXLEN 9"], ["MULTI", "XTRIM s MAXLEN 9", "EXEC"]])
def test_nothing_is_logged_of_a_command_that_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[str]
) -> None:
    plant(monkeypatch, fail)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        await prepared(ticks)
        client = ticks.connect()
        replies = await ticks.ask(client, *commands, "XINFO CONSUMERS s g", "XADD t 2-1 f v")
        assert replies[-3].startswith(b"-ERR internal error")
        assert replies[-2] == b"*0\r\n"
        assert [line for batch in ticks.batches()[1:] for line in batch] == [b"XADD t 2-1 f v"]
        ticks.close()

    in_loop(body())
