"""Commands of very many words: done in slices, with the replies and the effects that they have as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.server.commands import channels as pubsub
from riverbed.server.commands.clients import client_list as clientlist
from riverbed.server.commands.request import Request
from riverbed.server.commands.session import Session
from riverbed.server.commands.table import COMMANDS
from riverbed.server.execution import sliced_commands
from riverbed.server.stats.stats import SLOWLOG_WORDS
from tests.support.ticks import Client, Ticks, in_loop

NAMES = [f"k{number}" for number in range(100)]
ALL = " ".join(NAMES)
SOME = " ".join(NAMES[::2])
SLICE = 7
MAX_SLICES_A_PING = 3  # one a tick, of which a request sees two or three
SIZES = (
    "riverbed.server.commands.clients.client_control._WORDS_A_SLICE",
    "riverbed.server.commands.clients.client_list._IDS_A_SLICE",
    "riverbed.server.commands.clients.connection._WORDS_A_SLICE",
    "riverbed.server.commands.admin.command._NAMES_A_SLICE",
    "riverbed.server.commands.keys.keys._KEYS_A_SLICE",
    "riverbed.server.commands.clients.pubsub._NAMES_A_SLICE",
    "riverbed.server.commands.clients.transactions._KEYS_A_SLICE",
)

COUNTED = {
    "CLIENT KILL": f"CLIENT KILL {'ID 100 SKIPME yes ' * 30}",
    "CLIENT KILL, wrong at its end": f"CLIENT KILL {'ID 100 ' * 50} ID",
    "CLIENT LIST ID": f"CLIENT LIST ID {' '.join(map(str, range(100, 200)))}",
    "CLIENT LIST ID, wrong at its end": f"CLIENT LIST ID {'100 ' * 100} x",
    "COMMAND GETKEYS": f"COMMAND GETKEYS DEL {ALL}",
    "COMMAND GETKEYS XREAD": f"COMMAND GETKEYS XREAD COUNT 1 STREAMS {ALL} {'0 ' * len(NAMES)}",
    "COMMAND GETKEYSANDFLAGS": f"COMMAND GETKEYSANDFLAGS DEL {ALL}",
    "COMMAND GETKEYSANDFLAGS XREAD": f"COMMAND GETKEYSANDFLAGS XREAD STREAMS {ALL} {'0 ' * len(NAMES)}",
    "HELLO": f"HELLO 3 {'SETNAME a ' * 50}",
    "HELLO, wrong at its end": f"HELLO 3 {'SETNAME a ' * 50} SETNAME",
    "DEL": f"DEL {ALL} {SOME}",
    "UNLINK": f"UNLINK {SOME} none",
    "EXISTS": f"EXISTS {ALL} {SOME} none",
    "TOUCH": f"TOUCH {ALL} none",
    "WATCH": f"WATCH {ALL} {SOME}",
    "PUBSUB NUMSUB": f"PUBSUB NUMSUB {ALL}",
    "PUBSUB SHARDNUMSUB": f"PUBSUB SHARDNUMSUB {ALL}",
}
SUBSCRIBING = {
    "SUBSCRIBE": (f"SUBSCRIBE {ALL} {SOME}", "SUBSCRIBE"),
    "PSUBSCRIBE": (f"PSUBSCRIBE {ALL} {SOME}", "PSUBSCRIBE"),
    "SSUBSCRIBE": (f"SSUBSCRIBE {ALL} {SOME}", "SSUBSCRIBE"),
    "UNSUBSCRIBE": (f"UNSUBSCRIBE {SOME} none", "SUBSCRIBE"),
    "PUNSUBSCRIBE": (f"PUNSUBSCRIBE {SOME} none", "PSUBSCRIBE"),
    "SUNSUBSCRIBE": (f"SUNSUBSCRIBE {SOME} none", "SSUBSCRIBE"),
    "UNSUBSCRIBE of all": ("UNSUBSCRIBE", "SUBSCRIBE"),
    "PUNSUBSCRIBE of all": ("PUNSUBSCRIBE", "PSUBSCRIBE"),
    "SUNSUBSCRIBE of all": ("SUNSUBSCRIBE", "SSUBSCRIBE"),
}


@pytest.fixture
def ticks_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, int], Ticks]:
    """Makes executors with so many words to a slice, of which they run one a tick."""
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)

    def make(name: str, words: int) -> Ticks:
        for size in SIZES:
            monkeypatch.setattr(size, words)
        return Ticks(tmp_path / name)

    return make


async def run(ticks: Ticks, command: str, prepare: str = "") -> tuple[bytes, int]:
    """-> all that answers the command, and how many requests of another client were served meanwhile."""
    client, other = ticks.connect(), ticks.connect()
    await ticks.ask(other, *(f"XADD {name} 1-0 f v" for name in NAMES[::3]))
    if prepare:
        await finish(client, f"{prepare} {ALL}", len(NAMES))
    client.send(command)
    served = 0
    await asyncio.sleep(0)
    while client.session.is_sliced:
        assert await finish(other, "PING", 1) == [b"+PONG\r\n"]
        served += 1
    await ticks.settle()
    return b"".join(client.replies()), served


async def finish(client: Client, command: str, count: int) -> list[bytes]:
    client.send(command)
    replies: list[bytes] = []
    while len(replies) < count:
        await asyncio.sleep(0)
        replies += client.replies()
    return replies


@pytest.mark.parametrize("command", COUNTED.values(), ids=COUNTED)
def test_others_are_served_while_many_names_are_worked_off(ticks_of: Callable[[str, int], Ticks], command: str) -> None:
    async def body() -> None:
        whole = ticks_of("whole", 1000)
        expected, served = await run(whole, command)
        assert served == 0
        whole.close()
        sliced = ticks_of("sliced", SLICE)
        reply, served = await run(sliced, command)
        assert reply == expected
        assert served >= len(command.split()) // 2 // SLICE // MAX_SLICES_A_PING
        sliced.close()

    in_loop(body())


@pytest.mark.parametrize(("command", "before"), SUBSCRIBING.values(), ids=SUBSCRIBING)
def test_others_are_served_while_a_client_subscribes_to_many_names(
    ticks_of: Callable[[str, int], Ticks], command: str, before: str
) -> None:
    prepare = "" if command.startswith(before) else before

    async def body() -> None:
        whole = ticks_of("whole", 1000)
        expected, served = await run(whole, command, prepare)
        assert served == 0
        whole.close()
        sliced = ticks_of("sliced", SLICE)
        reply, served = await run(sliced, command, prepare)
        assert reply == expected
        count = len(command.split()) - 1 or len(NAMES)
        assert served >= count // SLICE // MAX_SLICES_A_PING
        sliced.close()

    in_loop(body())


def test_a_message_never_comes_before_the_confirmation_of_its_channel(
    ticks_of: Callable[[str, int], Ticks],
) -> None:
    async def body() -> None:
        ticks = ticks_of("d", SLICE)
        client, other = ticks.connect(), ticks.connect()
        client.send(f"SUBSCRIBE {ALL}")
        await asyncio.sleep(0)
        heard = []
        while client.session.is_sliced:
            (reply,) = await finish(other, "PUBLISH k0 hello", 1)
            assert reply == b":1\r\n"
            heard += client.replies()
        await ticks.settle()
        heard += client.replies()
        kinds = [frame.split(b"\r\n")[2] for frame in heard]
        assert kinds.count(b"subscribe") == len(NAMES)
        assert kinds[:SLICE] == [b"subscribe"] * SLICE
        assert b"message" in kinds[SLICE:-SLICE]
        names = [frame.split(b"\r\n")[4].decode() for frame in heard if b"\r\nsubscribe\r\n" in frame]
        assert names == NAMES
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_a_client_that_goes_while_it_subscribes_leaves_no_subscription(
    ticks_of: Callable[[str, int], Ticks], how: str
) -> None:
    async def body() -> None:
        ticks = ticks_of("d", SLICE)
        for kind in ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"):
            client, other = ticks.connect(), ticks.connect()
            client.send(f"{kind} {ALL}")
            await asyncio.sleep(0)
            assert client.session.is_sliced
            if how == "leaves":
                client.leave()
            else:
                await ticks.ask(other, f"CLIENT KILL ID {client.session.id}")
            await ticks.settle()
            pubsub = ticks.executor.context.pubsub
            assert [len(names) for names in (pubsub.channels, pubsub.patterns, pubsub.shard_channels)] == [0, 0, 0]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(("changed", "breaks"), [("k1", True), ("other", False)])
def test_a_key_that_changes_while_more_are_watched_breaks_the_transaction(
    ticks_of: Callable[[str, int], Ticks], changed: str, breaks: bool
) -> None:
    async def body() -> None:
        ticks = ticks_of("d", SLICE)
        client, other = ticks.connect(), ticks.connect()
        client.send(f"WATCH {ALL}")
        await asyncio.sleep(0)
        assert client.session.is_sliced
        await ticks.ask(other, f"XADD {changed} 1-0 f v")
        assert await finish(client, "MULTI", 2) == [b"+OK\r\n"] * 2
        *_, executed = await ticks.ask(client, "PING", "EXEC")
        assert executed == (b"*-1\r\n" if breaks else b"*1\r\n+PONG\r\n")
        assert ticks.executor.watches.clear(client.session) is None
        assert len(ticks.executor.watches) == 0
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("changed", [NAMES[0], NAMES[SLICE - 1], NAMES[SLICE], NAMES[-1]])
def test_every_key_of_many_is_watched_whichever_slice_it_is_in(
    ticks_of: Callable[[str, int], Ticks], changed: str
) -> None:
    async def body() -> None:
        ticks = ticks_of("d", SLICE)
        client, other = ticks.connect(), ticks.connect()
        assert await finish(client, f"WATCH {ALL}", 1) == [b"+OK\r\n"]
        await ticks.ask(other, f"XADD {changed} 1-0 f v")
        assert await ticks.ask(client, "MULTI", "EXEC") == [b"+OK\r\n", b"*-1\r\n"]
        ticks.close()

    in_loop(body())


def test_a_client_that_is_listed_many_times_is_described_once(
    ticks_of: Callable[[str, int], Ticks], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = []
    describe = clientlist._describe

    def note(request: Request, session: Session) -> bytes:
        described.append(session.id)
        return describe(request, session)

    monkeypatch.setattr(clientlist, "_describe", note)

    async def body() -> None:
        ticks = ticks_of("d", SLICE)
        client, other = ticks.connect(), ticks.connect()
        ids = [client.session.id, 1000, other.session.id] * 40
        (reply,) = await finish(client, f"CLIENT LIST ID {' '.join(map(str, ids))}", 1)
        lines = reply.partition(b"\r\n")[2].splitlines()
        assert [int(line.split()[0][3:]) for line in lines if line] == [number for number in ids if number != 1000]
        assert described == [client.session.id, other.session.id]
        ticks.close()

    in_loop(body())


def test_the_slow_log_looks_for_secrets_only_among_the_words_that_it_shows(
    ticks_of: Callable[[str, int], Ticks], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []

    def note(words: list[bytes]) -> list[bytes]:
        looked_at.append(len(words))
        return words

    monkeypatch.setattr(COMMANDS[b"HELLO"], "redact", note)

    async def body() -> None:
        ticks = ticks_of("d", 1000)
        client = ticks.connect()
        await ticks.ask(client, "CONFIG SET slowlog-log-slower-than 0")
        await finish(client, f"HELLO 2 {'SETNAME a ' * 50}", 1)
        assert looked_at == [SLOWLOG_WORDS]
        (reply,) = await ticks.ask(client, "SLOWLOG GET 1")
        assert b"... (%d more arguments)" % (102 - SLOWLOG_WORDS + 1) in reply
        ticks.close()

    in_loop(body())


def test_a_client_that_publishes_to_itself_in_slices_hears_of_it_behind_the_reply(
    ticks_of: Callable[[str, int], Ticks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverbed.server.commands.channels._NAMES_A_STEP", SLICE)

    async def body() -> None:
        ticks = ticks_of("d", SLICE)
        client = ticks.connect()
        await ticks.ask(client, "HELLO 3")
        await finish(client, f"PSUBSCRIBE {ALL} a*", len(NAMES) + 1)
        client.send("PUBLISH abc hello")
        await asyncio.sleep(0)
        assert client.session.is_sliced
        await ticks.settle()
        reply, message = client.replies()
        assert reply == b":1\r\n"
        assert b"pmessage" in message
        ticks.close()

    in_loop(body())


def test_patterns_are_parsed_when_they_are_compared_for_the_first_time(
    ticks_of: Callable[[str, int], Ticks], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    async def body() -> None:
        ticks = ticks_of("d", 1000)
        client, other = ticks.connect(), ticks.connect()
        await finish(client, f"PSUBSCRIBE {ALL} a*", len(NAMES) + 1)
        assert made == []
        for _ in range(2):
            assert await ticks.ask(other, "PUBLISH abc hello") == [b":1\r\n"]
        assert made == [*map(str.encode, NAMES), b"a*"]
        ticks.close()

    class Noted(pubsub.Glob):
        def __init__(self, pattern: bytes) -> None:
            made.append(pattern)
            super().__init__(pattern)

    monkeypatch.setattr(pubsub, "Glob", Noted)
    in_loop(body())
