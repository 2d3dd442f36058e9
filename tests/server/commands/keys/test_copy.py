"""COPY in slices: the copy appears whole and equals its source of that moment, whatever clients do meanwhile."""

from __future__ import annotations

import asyncio
import errno
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.commands.keys.keys import COPY_ATTEMPTS
from riverbed.server.execution import sliced_commands
from riverbed.store.check import check
from riverbed.store.databases import copying
from riverbed.store.databases.copying import CopyInTheMaking
from riverbed.store.databases.transaction import FEW_LENT_BYTES
from riverbed.store.format.resp import bulk
from riverbed.store.tables.writing.transaction import PART
from riverbed.store.wire import APPENDED, Run, parse
from tests.support.raw import encode
from tests.support.store.stores import Store, dump_database
from tests.support.ticks import Ticks, in_loop

ENTRIES = 60
SLICE = 2
FILL = [
    *(f"XADD s {number}-1 f v{number}" for number in range(1, ENTRIES + 1)),
    *(f"XADD s IDMP producer i{number} * f v{number}" for number in range(20)),
    "XDEL s 3-1 20-1",
    "XTRIM s MINID 2-1",
    "XGROUP CREATE s g 0",
    "XREADGROUP GROUP g Alice COUNT 10 STREAMS s >",
    "XREADGROUP GROUP g Bob COUNT 20 STREAMS s >",
    "XACK s g 7-1",
    "XNACK s g FAIL IDS 2 8-1 9-1",
    "XREADGROUP GROUP g Carol COUNT 1 STREAMS s >",
    "XGROUP DELCONSUMER s g Carol",
    "XGROUP CREATE s h 5-1",
    "XGROUP POLICY s h MAXDELIVERIES 3 DEADLETTER letters CONSUMERTTL 1000000",
    "XGROUP CREATECONSUMER s h Dora",
    "PEXPIREAT s 9000000000000",
]
# Looked through from each of them to the end of all, it would take hours.
LIKE_LINES = "#RB:" * 200_000 + "."
# Other clients' commands while a copy is made, and whether the copy begins again then.
MEANWHILE = {
    "nothing": ([], False),
    "new entries": (["XADD s 200000000{n}-1 f new", "XADD s 200000000{n}-2 a b c d"], False),
    "another stream": (["XADD other * XADD s 1-1 v", "XDEL other 1-1"], False),
    "words like hidden lines": (
        ["XADD other * f #RB:A", "XADD other * f #RB+abc=d==", f"XADD other * f {LIKE_LINES}"],
        False,
    ),
    "XDEL": (["XDEL s 4-1"], True),
    "XTRIM": (["XTRIM s MAXLEN 30"], True),
    "XADD MAXLEN": (["XADD s MAXLEN 40 200000000{n}-1 f v"], True),
    "XSETID": (["XSETID s 2000000009999-0"], True),
    "XACK": (["XACK s g 10-1"], True),
    "XCLAIM": (["XCLAIM s g Dora 0 12-1 13-1"], True),
    "XREADGROUP": (["XREADGROUP GROUP h Dora COUNT 7 STREAMS s >"], True),
    "a group": (["XGROUP CREATE s new 0"], True),
    "no group": (["XGROUP DESTROY s g"], True),
    "a policy": (["XGROUP POLICY s g MAXDELIVERIES 7 DEADLETTER more"], True),
    "a consumer": (["XGROUP DELCONSUMER s g Bob"], True),
    "a record": (["XADD s IDMP producer new * f v"], True),
    "records forgotten": (["XCFGSET s IDMP-MAXSIZE 7"], True),
    "a deadline": (["PEXPIREAT s 9000000000001"], True),
    "another stream of the name": (["MULTI", "DEL s", *(f"XADD s {n}-1 f v" for n in range(70, 90)), "EXEC"], True),
    "another database": (["MULTI", "SWAPDB 0 1", "SWAPDB 0 1", "EXEC"], True),
    "renamed to and fro": (["MULTI", "RENAME s t", "RENAME t s", "EXEC"], True),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small slices, one a tick."""
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)
    monkeypatch.setattr(copying, "SLICE_ROWS", SLICE)


class Copying:
    """A server with a stream, and a client that copies it."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.ticks = Ticks(directory, stream_node_max_entries=7, **settings)
        self.client = self.ticks.connect()
        self.other = self.ticks.connect()

    async def fill(self) -> None:
        for line in FILL:
            (reply,) = await self.ticks.ask(self.client, line)
            assert not reply.startswith(b"-"), (line, reply)

    async def begin(self, line: str = "COPY s copy") -> None:
        """Send COPY, and let a few slices run."""
        self.client.send(line)
        for _ in range(4):
            await asyncio.sleep(0)
        assert self.client.session.is_sliced

    async def end(self) -> tuple[list[bytes], int]:
        """Let the copy go on; -> its reply, and how often it has begun."""
        begun = set()
        while self.client.session.is_sliced:
            begun.update(
                each.stream_no for each in self.ticks.engine.txn.observers if isinstance(each, CopyInTheMaking)
            )
            await asyncio.sleep(0)
        await self.ticks.settle()
        return self.client.replies(), len(begun)

    async def meanwhile(self, line: str) -> None:
        """Have the other client run a command while the copy is made."""
        self.other.send(line)
        replies: list[bytes] = []
        while not replies:
            await asyncio.sleep(0)
            replies = self.other.replies()
        assert not replies[0].startswith(b"-"), (line, replies)

    def dump(self) -> dict[bytes, Any]:
        return dump_database(self.ticks.engine.txn.databases[0])

    def rows(self) -> dict[str, int]:
        """How many rows each table of streams and groups has, once all dead rows are purged."""
        engine = self.ticks.engine
        engine.checkpoint()
        while engine.purge(1.0):
            pass
        tables = ("entries", "nodes", "groups", "pel", "pel_by_consumer", "pel_by_time", "idmp", "idmp_ids", "trash")
        return {table: int(engine.txn.lmdb.stat(engine.txn.handles[table])["entries"]) for table in tables}

    def close(self) -> None:
        """End the server, check its tables, and compare them with what its log alone makes."""
        held = self.dump()
        self.client.leave()
        self.other.leave()
        self.ticks.close()
        assert [str(violation) for violation in check(self.directory, files=self.ticks.files)] == []
        shutil.rmtree(self.directory / "state")
        again = Store(self.directory, files=self.ticks.files, node_max_entries=7)
        assert dump_database(again.db) == held
        again.engine.close()


@pytest.mark.parametrize("name", MEANWHILE)
def test_a_copy_is_its_source_of_the_moment_it_appears(tmp_path: Path, name: str) -> None:
    lines, begins_again = MEANWHILE[name]

    async def body() -> None:
        server = Copying(tmp_path)
        await server.fill()
        await server.begin()
        for number, line in enumerate(lines):
            await server.meanwhile(line.format(n=1000 + number))
            assert b"copy" not in server.dump()
            server.ticks.engine.checkpoint()
        assert server.client.session.is_sliced, server.client.replies()
        replies, begun = await server.end()
        assert replies == [b":1\r\n"]
        assert begun == (1 if not begins_again else 2)
        held = server.dump()
        assert held[b"copy"] == held[b"s"]
        assert not server.ticks.engine.txn.observers
        server.close()

    in_loop(body())


def test_a_source_that_always_changes_is_copied_in_one_turn_at_last(tmp_path: Path) -> None:
    async def body() -> None:
        server = Copying(tmp_path)
        await server.fill()
        await server.begin()
        begun = 1
        for number in range(1, 1000):
            if not server.client.session.is_sliced:
                break
            before = server.ticks.engine.txn.observers[-1]
            server.other.send(f"XGROUP SETID s h {number}-0")
            for _ in range(3):
                await asyncio.sleep(0)
            begun += [before] != server.ticks.engine.txn.observers
        await server.ticks.settle()
        assert server.client.replies() == [b":1\r\n"]
        assert begun == COPY_ATTEMPTS
        held = server.dump()
        assert held[b"copy"]["entries"] == held[b"s"]["entries"]
        server.close()

    in_loop(body())


@pytest.mark.parametrize(
    ("line", "key"), [("DEL s", b"copy"), ("RENAME s t", b"copy"), ("FLUSHALL", b"copy"), ("PEXPIREAT s 1", b"copy")]
)
def test_a_source_that_goes_is_not_copied(tmp_path: Path, line: str, key: bytes) -> None:
    async def body() -> None:
        server = Copying(tmp_path)
        await server.fill()
        await server.begin()
        await server.meanwhile(line)
        assert (await server.end())[0] == [b":0\r\n"]
        assert key not in server.dump()
        server.close()

    in_loop(body())


def test_a_source_that_expires_is_not_copied(tmp_path: Path) -> None:
    async def body() -> None:
        server = Copying(tmp_path)
        await server.fill()
        await server.meanwhile(f"PEXPIREAT s {server.ticks.clock.now_ms + 1000}")
        await server.begin()
        server.ticks.clock.now_ms += 1001
        assert (await server.end())[0] == [b":0\r\n"]
        assert server.dump() == {}
        server.close()

    in_loop(body())


def test_a_destination_that_comes_meanwhile_stays(tmp_path: Path) -> None:
    async def body() -> None:
        server = Copying(tmp_path)
        await server.fill()
        await server.begin()
        await server.meanwhile("XADD copy 1-1 f v")
        assert (await server.end())[0] == [b":0\r\n"]
        assert server.dump()[b"copy"]["length"] == 1
        await server.begin("COPY s copy REPLACE")
        await server.meanwhile("XADD copy 2-1 f v")
        assert server.dump()[b"copy"]["length"] == 2
        assert (await server.end())[0] == [b":1\r\n"]
        held = server.dump()
        assert held[b"copy"] == held[b"s"]
        server.close()

    in_loop(body())


def test_a_copy_that_is_given_up_leaves_no_row(tmp_path: Path) -> None:
    async def body() -> None:
        server = Copying(tmp_path)
        await server.fill()
        before = server.rows()
        await server.begin()
        rows = server.rows()
        assert rows["entries"] + rows["groups"] + rows["pel"] + rows["idmp"] > sum(
            before[table] for table in ("entries", "groups", "pel", "idmp")
        )
        assert rows["trash"] == 2  # held: the purge leaves them alone
        server.client.leave()
        await server.ticks.settle()
        assert server.rows() == before
        server.client = server.ticks.connect()
        server.close()

    in_loop(body())


def test_a_start_after_a_crash_purges_what_was_copied(tmp_path: Path) -> None:
    async def body() -> None:
        server = Copying(tmp_path)
        await server.fill()
        before = server.rows()
        await server.begin()
        server.ticks.engine.checkpoint()
        assert server.rows() != before
        server.client.leave = server.other.leave = lambda: None
        server.ticks.close(save=False)
        again = Copying(tmp_path, files=server.ticks.files)
        assert again.rows() == before
        assert again.dump().keys() == {b"s"}
        again.close()

    in_loop(body())


def test_an_undone_tick_ends_a_copy_with_an_error(tmp_path: Path) -> None:
    async def body() -> None:
        server = Copying(tmp_path)
        await server.fill()
        before = server.rows()
        await server.begin()
        server.ticks.files.fail("write", errno.EIO)
        server.other.send("XADD other 1-1 f v")
        (reply,) = (await server.end())[0]
        assert reply.startswith(b"-MISCONF"), reply
        assert server.dump().keys() == {b"s"}
        assert server.rows() == before
        server.close()

    in_loop(body())


def test_a_copy_in_a_transaction_is_made_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        server = Copying(tmp_path)
        await server.fill()
        replies = await server.ticks.ask(server.client, "MULTI", "XDEL s 30-1", "COPY s copy", "XLEN copy", "EXEC")
        assert replies[-1].startswith(b"*3\r\n:1\r\n:1\r\n:")
        held = server.dump()
        assert held[b"copy"] == held[b"s"]
        server.close()

    in_loop(body())


def test_what_others_change_meanwhile_does_not_keep_a_copy_from_ending(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(b"s", "1-1")
    store.run("XGROUP", "CREATE", "s", "g", "0")
    store.txn.write_back()
    for number in range(PART + 1):
        store.add(b"before%d" % number, "1-1")
    copy = CopyInTheMaking(store.db, store.stream())
    slices = copy.fill()
    next(slices)
    assert len(store.txn.dirty) == 1
    store.add(b"meanwhile", "1-1")  # the next part writes it as well
    assert len(list(islice(slices, 100))) < 100
    assert not copy.is_stale
    copy.close()
    store.engine.abandon()


def test_a_copy_writes_what_has_changed_and_not_what_is_lent(tmp_path: Path) -> None:
    """Under full load there is always more of that, and a copy would not end."""
    store = Store(tmp_path)
    store.add(b"s", "1-1")
    store.run("XGROUP", "CREATE", "s", "g", "0")
    busy = [b"busy%d" % number for number in range(60)]
    for key in busy:
        store.add(key, "1-1")
    store.txn.write_back()
    for number in range(PART + 1):
        store.add(b"before%d" % number, "1-1")
    runs = parse(APPENDED, b"".join(encode(("XADD", key, "*", "f", "v" * 1000)) for key in busy) * 5) or []
    copy = CopyInTheMaking(store.db, store.stream())
    slices = copy.fill()
    for _ in range(100):
        for run in runs:
            assert isinstance(run, Run)
            assert store.db.append_run(run, store.clock.now_ms)[0] == len(run)
        assert store.db.lent_bytes > FEW_LENT_BYTES
        if next(slices, True):
            break
    else:
        pytest.fail("the copy does not end")
    copy.close()
    store.engine.abandon()


def test_a_key_whose_bytes_overlap_themselves_is_seen_to_be_another_stream(tmp_path: Path) -> None:
    """The log names it in such a way that one place hides the other."""
    key = b"$3\r\n1-1\r\n\r\n$14"
    assert len(key) == 14
    name = b"zz$4\r\nXADD\r\n" + bulk(key)[: -len(b"\r\n$14\r\n")]

    async def body() -> None:
        server = Copying(tmp_path)
        client, other = server.client, server.other
        for number in range(100):
            client.send_words("XADD", key, f"5-{number}", "f", "old")
        other.send_words("XADD", name, "7-1", "f", "new")
        await server.ticks.settle()
        assert len(client.replies()) == 100 and len(other.replies()) == 1
        client.send_words("COPY", key, "copy")
        for _ in range(4):
            await asyncio.sleep(0)
        assert client.session.is_sliced
        other.send_words("RENAME", name, key)
        replies, _ = await server.end()
        assert replies == [b":1\r\n"]
        assert await server.ticks.ask(client, "XRANGE copy - +") == [
            b"*1\r\n*2\r\n$3\r\n7-1\r\n*2\r\n$1\r\nf\r\n$3\r\nnew\r\n"
        ]
        server.ticks.close()

    in_loop(body())
