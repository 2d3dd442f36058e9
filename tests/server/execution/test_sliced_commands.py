"""Long commands in slices: the same replies as if they had run whole, and others have their turn in between."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.background.maintenance import CROWDED_REPLY_S, LONG_REPLY_S
from riverbed.server.execution import sliced_commands
from tests.support.in_process import HandClock
from tests.support.raw import parse
from tests.support.store.stores import Store, dump_database
from tests.support.ticks import Client, Files, Ticks, in_loop

ENTRIES = 600
IDS = [f"{number}-0" for number in range(1, ENTRIES + 1)]
ALL = " ".join(IDS)
SHUFFLED = " ".join(sorted(IDS, key=lambda text: text[::-1]))
LONG = {
    "XACK": f"XACK s g {SHUFFLED} 9-9 1-0",
    "XCLAIM": f"XCLAIM s g Bob 0 {ALL} 7-0",
    "XCLAIM JUSTID": f"XCLAIM s g Bob 0 {SHUFFLED} JUSTID LASTID 800-0",
    "XCLAIM RETRYCOUNT": f"XCLAIM s g Bob 0 {ALL} RETRYCOUNT 5 IDLE 77",
    "XCLAIM FORCE": f"XCLAIM s fresh Bob 0 {ALL} FORCE",
    "XNACK": f"XNACK s g FATAL IDS {ENTRIES + 1} {SHUFFLED} 1-0",
    "XNACK FORCE": f"XNACK s fresh FAIL IDS {ENTRIES} {ALL} RETRYCOUNT 3 FORCE",
    "XDEL": f"XDEL s {SHUFFLED} 5-5",
    "XDELEX": f"XDELEX s IDS {ENTRIES} {ALL}",
    "XDELEX DELREF": f"XDELEX s DELREF IDS {ENTRIES} {SHUFFLED}",
    "XDELEX ACKED": f"XDELEX s ACKED IDS {ENTRIES} {ALL}",
    "XACKDEL": f"XACKDEL s g IDS {ENTRIES + 1} {SHUFFLED} 1-0",
    "XACKDEL DELREF": f"XACKDEL s g DELREF IDS {ENTRIES} {ALL}",
    "XACKDEL ACKED": f"XACKDEL s g ACKED IDS {ENTRIES} {ALL}",
    "XAUTOCLAIM": "XAUTOCLAIM s g Bob 0 - COUNT 100000",
    "XAUTOCLAIM JUSTID": "XAUTOCLAIM s g Bob 0 100-0 COUNT 450 JUSTID",
    "XAUTOCLAIM in vain": "XAUTOCLAIM s g Bob 100000000 - COUNT 250",
    "XPENDING": "XPENDING s g - + 100000",
    "XPENDING of one": "XPENDING s g (20-0 590-0 500 Alice",
    "XPENDING IDLE": "XPENDING s g IDLE 1 - + 100000",
    "XREADGROUP": "XREADGROUP GROUP fresh Bob STREAMS s >",
    "XREADGROUP COUNT": "XREADGROUP GROUP fresh Bob COUNT 500 STREAMS s >",
    "XREADGROUP MAXCOUNT": "XREADGROUP GROUP fresh Bob COUNT 500 MAXCOUNT 560 STREAMS s t > >",
    "XREADGROUP MAXSIZE": "XREADGROUP GROUP fresh Bob MAXSIZE 25000 STREAMS s t > >",
    "XREADGROUP NOACK": "XREADGROUP GROUP fresh Bob NOACK STREAMS t s > >",
    "XREADGROUP history": "XREADGROUP GROUP g Alice COUNT 400 STREAMS s 100-0",
    "XREADGROUP history of two": "XREADGROUP GROUP g Alice STREAMS s t 0 0",
    "XADD DELREF": "XADD s MAXLEN 33 DELREF 9999-1 f v",
    "XADD ACKED": "XADD u MAXLEN 33 ACKED 9999-1 f v",
    "XADD IDMP": "XADD s DELREF IDMP p i MAXLEN 33 * f v",
    "XADD MAXLEN": "XADD s MAXLEN 33 9999-1 f v",
    "XTRIM": "XTRIM s MAXLEN 33",
    "XTRIM MINID": "XTRIM s MINID 555-0",
    "XTRIM ~": "XTRIM s MAXLEN ~ 33 LIMIT 0",
    "XTRIM ~ LIMIT": "XTRIM s MAXLEN ~ 33 LIMIT 310",
    "XTRIM DELREF": "XTRIM s MAXLEN 33 DELREF",
    "XTRIM MINID DELREF": "XTRIM s MINID 555-0 DELREF",
    "XTRIM ~ DELREF": "XTRIM s MAXLEN ~ 33 LIMIT 0 DELREF",
    "XTRIM ~ LIMIT DELREF": "XTRIM s MAXLEN ~ 33 LIMIT 310 DELREF",
    "XTRIM ACKED": "XTRIM u MAXLEN 33 ACKED",
    "XTRIM MINID ACKED": "XTRIM u MINID 555-0 ACKED",
    "XTRIM ~ ACKED": "XTRIM u MAXLEN ~ 33 LIMIT 0 ACKED",
    "XTRIM ~ LIMIT ACKED": "XTRIM u MAXLEN ~ 33 LIMIT 250 ACKED",
    "XREADGROUP CLAIM": "XREADGROUP GROUP fresh Bob CLAIM 5 STREAMS s >",
}


SIZES = (
    "riverbed.server.commands.groups.claiming._SLICE_EXAMINED",
    "riverbed.server.commands.groups.claiming._SLICE_IDS",
    "riverbed.server.commands.groups.claiming._SLICE_CLAIMS",
    "riverbed.server.commands.streams.deletes.SLICE_IDS",
    "riverbed.server.commands.groups.stream_read.SLICE_ENTRIES",
    "riverbed.server.commands.groups.stream_read._SLICE_HISTORY",
    "riverbed.server.commands.groups.reads._SLICE_KEYS",
    "riverbed.server.commands.groups.pending.SLICE_IDS",
    "riverbed.server.commands.groups.pending._SLICE_ACKS",
    "riverbed.server.commands.streams.streams.SLICE_IDS",
)


async def fill(ticks: Ticks, client: Client) -> None:
    """Entries in two streams; a group that has been given all of them, one that has none; some deleted since."""
    for key in ("s", "t"):
        await ticks.ask(client, *(f"XADD {key} {entry_id} f {entry_id}" for entry_id in IDS))
        await ticks.ask(client, f"XGROUP CREATE {key} g 0", f"XGROUP CREATE {key} fresh 0")
        await ticks.ask(client, f"XREADGROUP GROUP g Bob COUNT 50 STREAMS {key} >")
        for _ in range(ENTRIES // 100):
            await ticks.ask(client, f"XREADGROUP GROUP g Alice COUNT 100 STREAMS {key} >")
        await ticks.ask(client, f"XACK {key} g 11-0 12-0 300-0", f"XNACK {key} g FAIL IDS 2 21-0 22-0")
        await ticks.ask(client, f"XDEL {key} 31-0 32-0 400-0")
    # and one of which some is done with
    await ticks.ask(client, *(f"XADD u {entry_id} f {entry_id}" for entry_id in IDS), "XGROUP CREATE u g 0")
    await ticks.ask(client, "XREADGROUP GROUP g Bob COUNT 590 STREAMS u >", f"XACK u g {' '.join(IDS[::3])}")
    ticks.clock.now_ms += 10


async def finish(ticks: Ticks, client: Client, count: int = 1) -> list[bytes]:
    """The next `count` replies, however many ticks they take."""
    replies: list[bytes] = []
    for _ in range(100_000):
        await asyncio.sleep(0)
        replies += client.replies()
        if len(replies) >= count:
            return replies
    raise AssertionError("no reply")


async def fill_through_views(ticks: Ticks, client: Client) -> None:
    """As `fill`, where replies are long: they take more ticks than `ask` waits."""
    await fill(ticks, client)
    client.send("ECHO filled")
    while b"$6\r\nfilled\r\n" not in await finish(ticks, client):
        pass


async def begin(ticks: Ticks, client: Client, command: str) -> None:
    """Have the first slices of a command run, and change something; it is not done after that."""
    offset = ticks.engine.log.end.offset
    client.send(command)
    for _ in range(100):
        if ticks.engine.log.end.offset == offset:
            await asyncio.sleep(0)
    assert client.session.is_sliced
    assert client.replies() == []


def contents(ticks: Ticks) -> dict[bytes, Any]:
    return dump_database(ticks.engine.txn.databases[0])


@pytest.fixture
def ticks_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Ticks]:
    """Makes executors that run one slice a tick, and a small one."""
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)
    for name in SIZES:
        monkeypatch.setattr(name, 20)
    monkeypatch.setattr("riverbed.server.commands.groups.pending._FEW_IDLE", 3)
    monkeypatch.setattr("riverbed.store.groups.pending_reads._SHOW_COST", 20)
    monkeypatch.setattr("riverbed.store.groups.pending_reads._SHOW_ROWS", 3)
    monkeypatch.setattr("riverbed.store.groups.sliced_trim._SLICE", 150)
    monkeypatch.setattr("riverbed.store.groups.sliced_trim._SLICE_NODES", 1)
    return lambda name: Ticks(tmp_path / name)


def close_and_check(ticks: Ticks) -> dict[bytes, Any]:
    """What the store holds; the tables, and the log alone, lead to the same, and the check has nothing to say."""
    held = contents(ticks)
    ticks.close()
    for _ in range(2):
        store = Store(ticks.directory, files=ticks.files)
        assert store.violations() == []
        assert dump_database(store.db) == held
        store.kill()
        shutil.rmtree(ticks.directory / "state")
    return held


@pytest.mark.parametrize("name", LONG)
def test_a_command_in_slices_is_as_good_as_one_that_runs_whole(ticks_of: Callable[[str], Ticks], name: str) -> None:
    async def body() -> None:
        sliced, whole = ticks_of("sliced"), ticks_of("whole")
        first, second = sliced.connect(), whole.connect()
        await fill(sliced, first)
        await fill(whole, second)
        first.send(LONG[name])
        await asyncio.sleep(0)
        assert first.session.is_sliced or name == "XREADGROUP CLAIM"
        (reply,) = await finish(sliced, first)
        second.send("MULTI", LONG[name], "EXEC")
        *_, executed = await finish(whole, second, 3)
        assert executed == b"*1\r\n" + reply
        assert close_and_check(sliced) == close_and_check(whole)

    in_loop(body())


READS = {
    "XREAD": "XREAD STREAMS s t 5-0 0",
    "XREAD COUNT": "XREAD COUNT 500 STREAMS s t 0 0",
    "XREAD MAXCOUNT": "XREAD MAXCOUNT 800 STREAMS s t 0 17-0",
    "XREAD MAXSIZE": "XREAD MAXSIZE 30000 STREAMS s t 0 17-0",
    "XINFO FULL": "XINFO STREAM s FULL COUNT 0",
    "XINFO FULL COUNT": "XINFO STREAM s FULL COUNT 400",
}


@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize("name", READS)
def test_a_long_read_in_pieces_shows_one_moment(
    ticks_of: Callable[[str], Ticks], monkeypatch: pytest.MonkeyPatch, name: str, resp: int
) -> None:
    monkeypatch.setattr("riverbed.server.commands.request.LONG_BYTES", 1000)
    monkeypatch.setattr("riverbed.store.streams.view.PIECE_BYTES", 1000)

    async def body() -> None:
        ticks = ticks_of("d")
        client, other = ticks.connect(), ticks.connect()
        await fill_through_views(ticks, client)
        await ticks.ask(client, f"HELLO {resp}")
        client.send("MULTI", READS[name], "EXEC")
        *_, executed = await finish(ticks, client, 3)
        client.send(READS[name])
        for _ in range(100_000):
            if client.session.long_reply is not None:
                break
            await asyncio.sleep(0)
        assert client.session.long_reply is not None
        other.send("XDEL s 1-0", "DEL t", "XGROUP DESTROY s g", "XADD s * f v")
        (reply,) = await finish(ticks, client)
        assert executed == b"*1\r\n" + reply
        assert parse(reply)  # and no byte more
        ticks.close()

    in_loop(body())


def test_others_have_their_turn_between_slices(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        await begin(ticks, client, LONG["XACK"])
        for number in range(3):
            other.send(f"ECHO {number}")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert other.replies() == [encode_bulk(str(number))]
        assert client.replies() == []
        assert await finish(ticks, client) == [b":%d\r\n" % (ENTRIES - 3)]
        ticks.close()

    in_loop(body())


def encode_bulk(text: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


def test_what_a_client_sends_behind_a_long_command_waits_for_it(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client = ticks.connect()
        await fill(ticks, client)
        client.send(LONG["XACK"], "XPENDING s g", LONG["XAUTOCLAIM"], "PING")
        await asyncio.sleep(0)
        client.send("ECHO last")
        replies = await finish(ticks, client, 5)
        assert replies[0] == b":%d\r\n" % (ENTRIES - 3)
        assert replies[1:3] == [b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n", b"*3\r\n$3\r\n0-0\r\n*0\r\n*0\r\n"]
        assert replies[3:] == [b"+PONG\r\n", encode_bulk("last")]
        ticks.close()

    in_loop(body())


def test_two_readers_in_slices_share_the_entries(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        readers = [ticks.connect(), ticks.connect()]
        await fill(ticks, readers[0])
        for number, reader in enumerate(readers):
            reader.send(f"XREADGROUP GROUP fresh c{number} STREAMS s >")
        read = []
        for reader in readers:
            (reply,) = await finish(ticks, reader)
            ((_, entries),) = to_lists(reply)
            assert len(entries) > 100
            read.append([entry[0] for entry in entries])
        left = [entry_id.encode() for entry_id in IDS if entry_id not in ("31-0", "32-0", "400-0")]
        assert sorted(read[0] + read[1]) == sorted(left)
        assert all(ids == sorted(ids, key=lambda text: int(text[:-2])) for ids in read)
        group = close_and_check(ticks)[b"s"]["groups"][0]
        assert (group["name"], group["entries_read"], len(group["pending"])) == (b"fresh", ENTRIES, len(left))

    in_loop(body())


def to_lists(wire: bytes) -> Any:
    def value(node: Any) -> Any:
        return node.text if node.children is None else [value(child) for child in node.children]

    return value(parse(wire))


def test_a_read_in_slices_ends_with_what_was_there_when_it_began(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, producer = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        await begin(ticks, client, LONG["XREADGROUP"])
        await ticks.ask(producer, "XADD s 5000-0 f late")
        (reply,) = await finish(ticks, client)
        ((_, entries),) = to_lists(reply)
        assert entries[-1][0] == b"600-0"
        (reply,) = await ticks.ask(client, "XREADGROUP GROUP fresh Bob STREAMS s >")
        assert b"5000-0" in reply
        ticks.close()

    in_loop(body())


# -- what may happen in between ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["DEL s", "XGROUP DESTROY s g", "FLUSHALL", "RENAME s other"])
@pytest.mark.parametrize("name", LONG)
def test_a_command_whose_group_goes_answers_what_it_has_done(
    ticks_of: Callable[[str], Ticks], name: str, end: str
) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        client.send(LONG[name])
        await asyncio.sleep(0)
        other.send(end, "XGROUP DESTROY s fresh")
        (reply,) = await finish(ticks, client)
        assert not reply.startswith(b"-"), reply
        assert parse(reply)
        assert not client.session.is_sliced
        assert await ticks.ask(client, "ECHO next") == [encode_bulk("next")]
        close_and_check(ticks)

    in_loop(body())


def test_the_cursor_of_an_autoclaim_whose_group_went_says_that_it_is_complete(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        await begin(ticks, client, "XAUTOCLAIM s g Bob 0 25-0 COUNT 10000 JUSTID")
        await ticks.ask(other, "XGROUP DESTROY s g")
        (reply,) = await finish(ticks, client)
        cursor, claimed, gone = to_lists(reply)
        assert cursor == b"0-0"
        assert 0 < len(claimed) < ENTRIES
        assert gone == [b"31-0", b"32-0"]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("how", ["leaves", "is killed"])
@pytest.mark.parametrize("name", ["XACK", "XCLAIM", "XREADGROUP", "XDEL", "XAUTOCLAIM"])
def test_the_rest_is_not_done_for_a_client_that_goes(ticks_of: Callable[[str], Ticks], name: str, how: str) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        before = contents(ticks)
        await begin(ticks, client, LONG[name])
        if how == "leaves":
            client.leave()
        else:
            await ticks.ask(other, f"CLIENT KILL ID {client.session.id}")
        now = contents(ticks)
        await ticks.settle()
        assert not client.session.is_sliced
        assert client.replies() == []
        assert contents(ticks) == now != before
        assert close_and_check(ticks) == now

    in_loop(body())


@pytest.mark.parametrize("name", ["XACK", "XCLAIM", "XREADGROUP", "XDEL", "XAUTOCLAIM", "XNACK"])
def test_a_slice_that_cannot_be_logged_ends_the_command_and_those_before_it_stay(
    ticks_of: Callable[[str], Ticks], name: str
) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client = ticks.connect()
        await fill(ticks, client)
        await begin(ticks, client, LONG[name])
        before = contents(ticks)
        ticks.files.fail("write", errno.ENOSPC)
        client.send("ECHO behind")
        replies = await finish(ticks, client, 2)
        assert replies[0].startswith(b"-PARTIAL %b was done in part, which stays: " % name.encode())
        assert b" The rest was not done: MISCONF The disk is full." in replies[0]
        assert replies[1] == encode_bulk("behind")
        assert not client.session.is_sliced
        assert contents(ticks) == before
        assert close_and_check(ticks) == before

    in_loop(body())


@pytest.mark.parametrize("name", ["XACK", "XREADGROUP"])
def test_what_is_under_way_when_the_server_becomes_a_replica_is_refused(
    ticks_of: Callable[[str], Ticks], name: str
) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        await begin(ticks, client, LONG[name])
        client.send("ECHO behind")
        assert await ticks.ask(other, "REPLICAOF 127.0.0.1 1") == [b"+OK\r\n"]
        replies = await finish(ticks, client, 2)
        assert replies[0].startswith(b"-PARTIAL %b was done in part, which stays: " % name.encode())
        assert b" The rest was not done: READONLY " in replies[0]
        assert replies[1] == encode_bulk("behind")
        assert await ticks.ask(other, "REPLICAOF NO ONE") == [b"+OK\r\n"]
        close_and_check(ticks)

    in_loop(body())


def test_a_long_reply_is_not_sent_when_what_it_tells_was_not_logged(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        for number in range(1, 4):
            client.send_words("XADD", "s", f"{number}-0", "f", b"x" * 500_000)
        client.send("XGROUP CREATE s g 0")
        await ticks.settle()
        client.replies()
        ticks.files.fail("write", errno.ENOSPC)
        (reply,) = await ticks.ask(client, "XREADGROUP GROUP g Alice STREAMS s >")
        assert reply.startswith(b"-MISCONF ")
        assert client.session.long_reply is None
        (reply,) = await ticks.ask(client, "XPENDING s g")
        assert reply == b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("name", LONG)
def test_every_slice_is_a_state_of_its_own_in_the_log(ticks_of: Callable[[str], Ticks], name: str) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client = ticks.connect()
        await fill(ticks, client)
        client.send(LONG[name])
        moments = 0
        while not client.replies():
            await asyncio.sleep(0)
            held = contents(ticks)
            if moments % 8 == 0:
                # the machine stops here, and its tables are lost
                after = Store(ticks.directory.parent / f"after-{moments}", files=moved(ticks, moments))
                assert dump_database(after.db) == held
                after.kill()
            moments += 1
        ticks.close()

    in_loop(body())


def moved(ticks: Ticks, number: int) -> Files:
    """What is durable now, under another directory."""
    home, other = ticks.directory, ticks.directory.parent / f"after-{number}"
    durable = ticks.files.crash(names=True)
    files = Files()
    for path in durable.paths():
        files.put(other / path.relative_to(home), bytes(durable.data(path)))
    return files


def test_each_slice_is_one_transaction_in_the_log_the_first_one_too(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *[f"XADD s {number}-1 f v" for number in range(1, 2500)], "XGROUP CREATE s g 0")
        before = len(ticks.batches())
        await ticks.ask(client, "XREADGROUP GROUP g c STREAMS s >")
        lines = [line.split()[0] for batch in ticks.batches()[before:] for line in batch]
        assert lines == [b"MULTI", b"XCLAIM", b"XGROUP", b"EXEC"] * 3
        ticks.close()

    in_loop(body())


def test_a_pause_holds_what_is_left_of_a_write(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        await begin(ticks, client, LONG["XACK"])
        await ticks.ask(other, "CLIENT PAUSE 100000 WRITE")
        now = contents(ticks)
        await ticks.settle()
        assert contents(ticks) == now
        assert client.replies() == []
        await ticks.ask(other, "CLIENT UNPAUSE")
        assert await finish(ticks, client) == [b":%d\r\n" % (ENTRIES - 3)]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("read", [LONG["XPENDING"], "XRANGE s - +", "XINFO STREAM s FULL COUNT 0"])
@pytest.mark.parametrize("is_before", [True, False], ids=["begun before", "begun in it"])
def test_a_pause_of_writes_holds_no_read(
    ticks_of: Callable[[str], Ticks], monkeypatch: pytest.MonkeyPatch, read: str, is_before: bool
) -> None:
    monkeypatch.setattr("riverbed.server.commands.request.LONG_BYTES", 1000)
    monkeypatch.setattr("riverbed.store.streams.view.PIECE_BYTES", 1000)

    async def body() -> None:
        ticks = ticks_of("d")
        client, reader, other = ticks.connect(), ticks.connect(), ticks.connect()
        await fill_through_views(ticks, client)
        reader.send(read)
        (expected,) = await finish(ticks, reader)
        await begin(ticks, client, LONG["XACK"].replace(" s ", " t "))
        if is_before:
            reader.send(read)
        other.send("CLIENT PAUSE 100000 WRITE")
        await finish(ticks, other)
        now = contents(ticks)
        if not is_before:
            reader.send(read)
        assert await finish(ticks, reader) == [expected]
        assert contents(ticks) == now
        assert client.replies() == []
        other.send("CLIENT UNPAUSE")
        assert await finish(ticks, client) == [b":%d\r\n" % (ENTRIES - 3)]
        ticks.close()

    in_loop(body())


def test_a_pause_holds_a_write_that_waits_for_a_view(
    ticks_of: Callable[[str], Ticks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverbed.server.commands.request.LONG_BYTES", 1000)

    async def body() -> None:
        ticks = ticks_of("d")
        client, other = ticks.connect(), ticks.connect()
        await fill_through_views(ticks, client)
        monkeypatch.setattr("riverbed.server.limits.views.MAX_VIEWS", 0)
        await ticks.ask(client, LONG["XREADGROUP COUNT"])
        waiting = ticks.executor.sliced_commands.of(client.session)
        assert waiting is not None
        assert waiting.needs_view
        await ticks.ask(other, "CLIENT PAUSE 100000 WRITE")
        now = contents(ticks)
        monkeypatch.setattr("riverbed.server.limits.views.MAX_VIEWS", 64)
        ticks.executor.want_tick()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert contents(ticks) == now
        assert client.replies() == []
        other.send("CLIENT UNPAUSE")
        (reply,) = await finish(ticks, client)
        ((_, entries),) = to_lists(reply)
        assert len(entries) == 500
        ticks.close()

    in_loop(body())


def test_a_write_that_a_pause_holds_is_forgotten_with_its_client_and_finished_by_a_stop(
    ticks_of: Callable[[str], Ticks],
) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, leaver, other = ticks.connect(), ticks.connect(), ticks.connect()
        await fill(ticks, client)
        await begin(ticks, leaver, LONG["XACK"])
        await begin(ticks, client, LONG["XACK"].replace(" s ", " t "))
        await ticks.ask(other, "CLIENT PAUSE 100000 WRITE")
        leaver.leave()
        await ticks.settle()
        assert client.replies() == []
        ticks.executor.let_go()
        assert client.replies() == [b":%d\r\n" % (ENTRIES - 3)]
        ticks.close()

    in_loop(body())


def test_a_watched_key_that_a_slice_changes_breaks_the_transaction(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        client.send(LONG["XDEL"])
        await asyncio.sleep(0)
        assert await ticks.ask(other, "WATCH s", "MULTI", "PING") == [b"+OK\r\n", b"+OK\r\n", b"+QUEUED\r\n"]
        await finish(ticks, client)
        assert await ticks.ask(other, "EXEC") == [b"*-1\r\n"]
        ticks.close()

    in_loop(body())


def test_a_waiting_reader_that_is_woken_with_much_is_served_in_slices(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client, reader = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        await ticks.ask(client, "XGROUP SETID s fresh $")
        assert await ticks.ask(reader, "XREADGROUP GROUP fresh Bob BLOCK 0 STREAMS s >") == []
        client.send("MULTI", *(f"XADD s {number}-0 f v" for number in range(5001, 8001)), "EXEC")
        (reply,) = await finish(ticks, reader)
        ((_, entries),) = to_lists(reply)
        assert len(entries) == 3000
        assert len(ticks.executor.waiters) == 0
        close_and_check(ticks)

    in_loop(body())


def test_many_streams_are_waited_for_only_when_none_has_anything(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        reader, producer = ticks.connect(), ticks.connect()
        keys = [f"k{number}" for number in range(60)]
        await ticks.ask(producer, *(f"XGROUP CREATE {key} g 0 MKSTREAM" for key in keys))
        command = f"XREADGROUP GROUP g c BLOCK 0 STREAMS {' '.join(keys)} {'> ' * 60}"
        # an entry for a stream that has been looked at already
        reader.send(command)
        for _ in range(6):
            await asyncio.sleep(0)
        assert reader.session.is_sliced
        producer.send("XADD k3 1-1 f v")
        (reply,) = await finish(ticks, reader)
        assert to_lists(reply) == [[b"k3", [[b"1-1", [b"f", b"v"]]]]]
        # nothing at all, and then a group that goes
        reader.send(command)
        await ticks.settle()
        assert len(ticks.executor.waiters) == 1
        producer.send("XGROUP DESTROY k59 g")
        (reply,) = await finish(ticks, reader)
        assert reply.startswith(b"-NOGROUP ")
        ticks.close()

    in_loop(body())


# -- a tick has an end -------------------------------------------------------------------------------------------------


def test_a_long_pipeline_leaves_others_their_turn_and_keeps_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the tick moves on at every look: two requests, and the tick is over."""

    class Hurried(HandClock):
        def time(self) -> float:
            self.now_ms += 5
            return super().time()

    monkeypatch.setattr("tests.support.ticks.HandClock", Hurried)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        ticks.executor.fast_path.longest_run = 1
        busy, other = ticks.connect(), ticks.connect()
        busy.send(*(f"ECHO {number}" for number in range(100)))
        other.send("ECHO other")
        replies: list[bytes] = []
        ticks_taken = 0
        while not (answer := other.replies()):
            await asyncio.sleep(0)
            ticks_taken += 1
        assert answer == [encode_bulk("other")]
        assert ticks_taken < 6
        replies += busy.replies()
        assert 0 < len(replies) < 10
        busy.send("ECHO last")
        replies += await finish(ticks, busy, 101 - len(replies))
        assert replies == [encode_bulk(str(number)) for number in range(100)] + [encode_bulk("last")]
        ticks.close()

    in_loop(body())


def test_replies_of_many_megabytes_leave_in_pieces(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of("d")
        client = ticks.connect()
        for number in range(1, 301):
            client.send_words("XADD", "s", f"{number}-0", "f", b"x" * 20_000)
        client.send("XGROUP CREATE s g 0")
        await finish(ticks, client, 301)
        pieces: list[bytes] = []
        client.session.send = pieces.append
        client.send("XREADGROUP GROUP g c STREAMS s >", "PING")
        for _ in range(10_000):
            await ticks.settle()
            if pieces[-1:] == [b"+PONG\r\n"]:
                break
        assert pieces[-1] == b"+PONG\r\n"
        assert len(pieces) > 10
        assert max(map(len, pieces)) < 1 << 18
        ((_, entries),) = to_lists(b"".join(pieces[:-1]))
        assert len(entries) == 300
        ticks.close()

    in_loop(body())


def test_no_view_is_shared_behind_a_commit(ticks_of: Callable[[str], Ticks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverbed.server.commands.request.LONG_BYTES", 1000)
    monkeypatch.setattr("riverbed.store.streams.view.PIECE_BYTES", 1000)

    async def body() -> None:
        ticks = ticks_of("d")
        slow, other = ticks.connect(), ticks.connect()
        await fill_through_views(ticks, slow)
        slow.session.congested = True  # so that its view stays open
        slow.send("XRANGE s - +")
        await ticks.settle()
        slow.session.refresh()
        await ticks.ask(other, "XADD s 9000-0 f late")
        ticks.server.checkpoints.checkpoint_now()
        for command in ("XRANGE s - +", "XREVRANGE s + -", "XREAD STREAMS s 0"):
            other.send(command)
            (reply,) = await finish(ticks, other)
            assert b"9000-0" in reply
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("is_crowded", [False, True])
def test_a_client_that_takes_too_little_of_a_long_reply_is_closed_and_its_view_with_it(
    ticks_of: Callable[[str], Ticks], monkeypatch: pytest.MonkeyPatch, is_crowded: bool
) -> None:
    monkeypatch.setattr("riverbed.server.commands.request.LONG_BYTES", 1000)
    monkeypatch.setattr("riverbed.store.streams.view.PIECE_BYTES", 1000)
    monkeypatch.setattr("riverbed.server.limits.views.MAX_VIEWS", 1)

    async def body() -> None:
        ticks = ticks_of("d")
        slow, other = ticks.connect(), ticks.connect()
        await fill_through_views(ticks, slow)
        slow.session.congested = True
        slow.send("XRANGE s - +")
        for _ in range(100_000):
            await asyncio.sleep(0)
            if slow.session.long_reply is not None:
                break
        assert slow.session.long_reply is not None
        if is_crowded:
            await ticks.ask(other, "XADD s 9000-0 f v")
            other.send("XRANGE s - +")
            await ticks.settle()
            assert ticks.executor.sliced_commands.is_crowded
        maintenance = ticks.server.maintenance
        patience_ms = int(1000 * (CROWDED_REPLY_S if is_crowded else LONG_REPLY_S))
        for passed_ms in (patience_ms - 1, 2):
            assert not slow.is_closed
            ticks.clock.now_ms += passed_ms
            maintenance._check_clients(ticks.clock.now_ms)
        assert slow.is_closed
        slow.leave()
        if is_crowded:
            (reply,) = await finish(ticks, other)
            assert b"9000-0" in reply
            await ticks.settle()
        assert ticks.executor.views.open_count == 0
        ticks.close()

    in_loop(body())


def test_a_long_command_whose_last_slice_changes_nothing_was_written_where_the_log_ends(
    ticks_of: Callable[[str], Ticks],
) -> None:
    """WAIT behind it asks replicas for all of it."""

    async def body() -> None:
        ticks = ticks_of("store")
        client, reader = ticks.connect(), ticks.connect()
        await ticks.ask(client, *(f"XADD s {entry_id} f v" for entry_id in IDS))
        await ticks.ask(reader, "PING")
        absent = " ".join(f"{number}-1" for number in range(1, ENTRIES + 1))
        client.send(f"XDEL s {ALL} {absent}")
        assert await finish(ticks, client) == [b":%d\r\n" % ENTRIES]
        assert client.session.written_offset == ticks.engine.log.end.offset
        reader.send(f"XPENDING s g - + {ENTRIES}")
        await ticks.settle()
        assert reader.session.written_offset < client.session.written_offset
        ticks.close()

    in_loop(body())
