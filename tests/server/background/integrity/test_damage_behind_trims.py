"""A damaged node that appends with a trim have to pass over: nothing that clients were told of is lost beside it.

Appends go to streams that are lent to native code, which looks at no node behind the first.  What they trim is removed
when the stream is taken back, long after they were answered.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from riverbed.server.execution.waiters import AT_ONCE
from riverbed.store.databases import lent
from riverbed.store.databases.database import Database
from riverbed.store.errors import DamagedRowError
from riverbed.store.format.log_lines import encode_annotation
from riverbed.store.layout import STATE_DIRECTORY
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.streams.runs import put_all_rows
from riverbed.store.streams.stream import Stream
from riverbed.store.tables.writing.transaction import Transaction
from riverbed.store.wire import Tail, take_tails
from tests.support.raw import encode
from tests.support.ticks import Client, Ticks, in_loop
from tests.support.waiting import until_true

DAMAGED = b'-ERR a node of key "s" in database 0 is damaged'
ENTRIES = 200


async def filled(directory: Path) -> tuple[Ticks, Client]:
    """A stream of twenty nodes in the tables, and nothing that mends them."""
    ticks = Ticks(directory, stream_node_max_entries=10)
    client = ticks.connect()
    await ticks.ask(client, *(f"XADD s {number}-1 f v" for number in range(1, ENTRIES + 1)))
    ticks.engine.checkpoint()
    ticks.keep_transaction()
    return ticks, client


def damage(ticks: Ticks, number: int, table: str = "nodes") -> None:
    """Flip a bit of the node of this number."""
    cursor = ticks.engine.txn.cursor(table)
    cursor.first()
    for _ in range(number):
        cursor.next()
    key, row = cursor.item()
    cursor.put(key, bytes([row[0] ^ 1]) + row[1:])


async def lent_by_its_row(ticks: Ticks, client: Client, count: int) -> Database:
    """The database, whose stream has no object, and so many appended entries that wait."""
    db = ticks.engine.txn.databases[0]
    db.forget_cached()
    ticks.engine.txn.cached_bytes = 0
    await ticks.ask(client, *(f"XADD s {ENTRIES + number}-1 f v" for number in range(1, count + 1)))
    assert db.lent_count == 1
    return db


def end(ticks: Ticks, directory: Path) -> Ticks:
    """End as a kill does, and start with the log alone."""
    ticks.close(save=False)
    shutil.rmtree(directory / STATE_DIRECTORY)
    return Ticks(directory, files=ticks.files, stream_node_max_entries=10)


@pytest.mark.parametrize("meets", ["command", "checkpoint"])
def test_trims_that_were_answered_are_not_lost_by_what_meets_the_damage(tmp_path: Path, meets: str) -> None:
    async def body() -> None:
        ticks, client = await filled(tmp_path)
        damage(ticks, 1)
        await ticks.ask(client, "XADD other * f v")
        ticks.engine.checkpoint()
        added = [f"{number}-1" for number in range(ENTRIES + 1, ENTRIES + 6)]
        assert await ticks.ask(client, *(f"XADD s MAXLEN {ENTRIES} {entry_id} f v" for entry_id in added)) == [
            b"$5\r\n%b\r\n" % entry_id.encode() for entry_id in added
        ]
        for _ in range(2):
            if meets == "command":
                [reply] = await ticks.ask(client, "XLEN s")
                assert reply.startswith(DAMAGED)
            else:
                with pytest.raises(DamagedRowError):
                    ticks.engine.checkpoint()
        [again] = await ticks.ask(client, f"XADD s {added[0]} f again")
        assert again.startswith(b"-ERR ")
        assert not ticks.executor.gave_up
        ticks = end(ticks, tmp_path)
        assert await ticks.ask(ticks.connect(), "XLEN s", "XREVRANGE s + - COUNT 1") == [
            b":%d\r\n" % ENTRIES,
            b"*1\r\n*2\r\n$5\r\n%b\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n" % added[-1].encode(),
        ]
        ticks.close()

    in_loop(body())


def test_a_wait_for_many_keys_that_meets_the_damage_loses_nothing_and_is_answered(tmp_path: Path) -> None:
    """It looks at its keys between commands, thousands of them in several ticks."""

    async def body() -> None:
        ticks, client = await filled(tmp_path)
        damage(ticks, 1)
        await ticks.ask(client, "XADD other * f v")
        ticks.engine.checkpoint()
        ticks.executor.blocking.turn_s = 0.0
        waiting = ticks.connect()
        keys = [*(f"k{number}" for number in range(20 * AT_ONCE)), "s", "n"]
        waiting.send(f"XREAD BLOCK 0 STREAMS {' '.join(keys)} {' '.join('$' for _ in keys)}")
        await until_true(lambda: len(ticks.executor.waiters) == 1)
        added = [f"{number}-1" for number in range(ENTRIES + 1, ENTRIES + 6)]
        replies = await ticks.ask(client, *(f"XADD s MAXLEN {ENTRIES} {entry_id} f v" for entry_id in added))
        assert replies == [b"$5\r\n%b\r\n" % entry_id.encode() for entry_id in added]
        await until_true(lambda: not ticks.executor.waiters)
        [reply] = waiting.replies()  # of tables that were made again of the log
        assert [entry_id for entry_id in added if entry_id.encode() in reply] == added
        [again] = await ticks.ask(client, f"XADD s {added[0]} f again")
        assert again.startswith(b"-ERR ")
        assert not ticks.executor.gave_up
        ticks = end(ticks, tmp_path)
        assert await ticks.ask(ticks.connect(), "XLEN s") == [b":%d\r\n" % ENTRIES]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("meets", ["command", "checkpoint", "primary"])
def test_what_memory_was_too_short_for_is_read_from_the_log_before_anything_else(tmp_path: Path, meets: str) -> None:
    def short(key: bytes) -> Stream:
        raise MemoryError

    async def body() -> None:
        ticks, client = await filled(tmp_path)
        db = await lent_by_its_row(ticks, client, 15)
        with pytest.raises(MemoryError):
            db._lent.take_back(b"s", short)
        if meets == "checkpoint":
            ticks.engine.checkpoint()
        if meets == "primary":
            stream, lines = LogStream(ticks.engine.offset, 1 << 20), encode(("XADD", "of", "1-1", "f", "v"))
            stream.feed(lines + encode_annotation(lines, ticks.engine.offset + len(lines), 1))
            ticks.engine.apply(list(iter(stream.next, None)))
        assert ticks.engine.txn.has_lost is (meets == "command")
        assert await ticks.ask(client, "XLEN s", "XREVRANGE s + - COUNT 1") == [
            b":%d\r\n" % (ENTRIES + 15),
            b"*1\r\n*2\r\n$5\r\n%d-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n" % (ENTRIES + 15),
        ]
        ticks.close()

    in_loop(body())


def test_a_checkpoint_that_has_lost_nothing_to_damage_undoes_nothing(tmp_path: Path) -> None:
    """An undo meets the damage again, and may have to execute the whole log; before, a repair would mend it."""

    async def body() -> None:
        ticks, client = await filled(tmp_path)
        await ticks.ask(
            client, "XGROUP CREATE s g 0", "XREADGROUP GROUP g Alice COUNT 100 STREAMS s >", "XADD o 1-1 f v"
        )
        ticks.engine.checkpoint()
        await ticks.ask(client, "XACK s g 1-1", "XGROUP CREATE capped g 0 MKSTREAM")
        await ticks.ask(client, *(f"XADD capped MAXLEN 20 {number}-1 f v" for number in range(1, 60)))
        damage(ticks, 0, "pel")
        database = ticks.engine.txn.databases[0]
        before = database.stream(b"o", 0)
        for _ in range(2):
            with pytest.raises(DamagedRowError):
                ticks.engine.checkpoint()
        assert database.stream(b"o", 0) is before
        assert await ticks.ask(client, "XLEN capped") == [b":20\r\n"]
        ticks.close(save=False)

    in_loop(body())


def test_a_stream_that_cannot_be_lent_stays_as_it_is(tmp_path: Path) -> None:
    """Its first node is looked at when it is lent to appends that trim."""

    async def body() -> None:
        ticks, client = await filled(tmp_path)
        added = [f"{ENTRIES + 1}-1", f"{ENTRIES + 2}-1"]
        await ticks.ask(client, *(f"XADD s {entry_id} f v" for entry_id in added))
        assert await ticks.ask(client, "XLEN s") == [b":%d\r\n" % (ENTRIES + 2)]
        damage(ticks, 0)
        appends = [f"XADD s MAXLEN 1000 {ENTRIES + number}-1 f v" for number in (3, 4)]
        *_, reply = await ticks.ask(client, "MULTI", *appends, "EXEC")
        assert reply.startswith(DAMAGED)
        assert await ticks.ask(client, "XLEN s") == [b":%d\r\n" % (ENTRIES + 2)]
        [again] = await ticks.ask(client, f"XADD s {added[0]} f again")
        assert again.startswith(b"-ERR The ID specified in XADD is equal or smaller")
        ticks = end(ticks, tmp_path)
        assert await ticks.ask(ticks.connect(), "XLEN s") == [b":%d\r\n" % (ENTRIES + 2)]
        ticks.close()

    in_loop(body())


def test_settings_that_damage_keeps_from_being_applied_are_not_changed(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, client = await filled(tmp_path)
        damage(ticks, 1)
        await ticks.ask(client, "XADD other * f v")
        ticks.engine.checkpoint()
        await ticks.ask(client, f"XADD s MAXLEN {ENTRIES} {ENTRIES + 1}-1 f v")
        [reply] = await ticks.ask(client, "CONFIG SET requirepass new stream-node-max-entries 7")
        assert reply.startswith(DAMAGED)
        password, most = b"$11\r\nrequirepass\r\n$0\r\n\r\n", b"$23\r\nstream-node-max-entries\r\n$2\r\n10\r\n"
        assert await ticks.ask(client, "CONFIG GET requirepass", "CONFIG GET stream-node-max-entries") == [
            b"*2\r\n" + password,
            b"*2\r\n" + most,
        ]
        assert ticks.connect().session.authenticated
        # what writes no rows does not hang on them
        assert await ticks.ask(client, "CONFIG SET slowlog-log-slower-than 5") == [b"+OK\r\n"]
        ticks.close(save=False)

    in_loop(body())


@pytest.mark.once  # it is not seen which function the compiled form calls
def test_rows_that_a_read_put_back_while_memory_was_short_are_read_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(txn: Transaction, tails: list[Tail]) -> None:
        take_tails(tails)
        raise MemoryError

    async def body() -> None:
        ticks, client = await filled(tmp_path)
        db = await lent_by_its_row(ticks, client, 5)
        monkeypatch.setattr(lent, put_all_rows.__name__, short)
        with pytest.raises(MemoryError):
            db._lent.put_back([b"s"])
        monkeypatch.undo()
        assert await ticks.ask(client, "XLEN s") == [b":%d\r\n" % (ENTRIES + 5)]
        ticks.close()
        again = Ticks(tmp_path, files=ticks.files, stream_node_max_entries=10)
        [reply] = await again.ask(again.connect(), "XRANGE s - +")
        assert reply.startswith(b"*%d\r\n" % (ENTRIES + 5))
        again.close()

    in_loop(body())
