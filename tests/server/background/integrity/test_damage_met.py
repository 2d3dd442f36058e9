"""Whatever meets damage in the tables has them mended: a start, an undone tick, a rewrite, a snapshot, a replica."""

from __future__ import annotations

import asyncio
import re
import struct
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest

from riverbed.server.background.checkpoints.checkpoints import RETRY_S
from riverbed.server.replication.follower import Follower
from riverbed.server.replication.link import LinkError
from riverbed.store.databases.transaction import MAX_CHANGED
from riverbed.store.errors import Refusal
from riverbed.store.groups.pending.young import MAX_PART
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, STATE_DIRECTORY
from riverbed.store.offline.replaced import REPLACED_DIRECTORY
from tests.conftest import StartRiverbed
from tests.server.background.integrity.test_repairs import ASK, QUIET, VALUE, require_whole, with_damage
from tests.support.raw import RawClient
from tests.support.read_log import unpadded
from tests.support.replicas import fill, follow, info, until_level
from tests.support.rewriter import rewrite_here
from tests.support.servers import RiverbedServer, StartError
from tests.support.store.planting import RefusingRows, flip_row
from tests.support.ticks import Client, Ticks, in_loop
from tests.support.waiting import until, until_true

MENDING = {**QUIET, "auto-repair": "yes"}
# Rows of entries as large as this have pages of their own.
PAGE_BYTES = 4096
LEAF = struct.Struct("<QHH")  # the head of a page: number, padding, flags


def files_of(directory: Path) -> dict[Path, bytes]:
    """What counts in a store; the rest is who had it open."""
    found = [directory / STATE_DIRECTORY / DATA_NAME, *(directory / LOG_DIRECTORY).iterdir()]
    return {path: path.read_bytes() for path in found}


def acknowledge_the_first_of_a_run(client: RawClient) -> None:
    """A hundred entries are pending in a row of the tables, and one of them no more, which is not in them yet."""
    fill(client, "s", 300)
    client.ask("XGROUP", "CREATE", "s", "g", "0")
    client.ask("XREADGROUP", "GROUP", "g", "Alice", "COUNT", "100", "STREAMS", "s", ">")
    first = client.ask("XRANGE", "s", "-", "+", "COUNT", "1").split(b"\r\n")[3]
    client.ask("SAVE")
    assert client.ask("XACK", "s", "g", first.decode()) == b":1\r\n"


def with_tail_on_damage(start: StartRiverbed) -> RiverbedServer:
    """A killed server; the tail of its log acknowledges entries of a run that is damaged in the tables."""
    server = start(options={**MENDING, "checkpoint-interval-ms": 600_000})
    with server.client() as client:
        acknowledge_the_first_of_a_run(client)
    server.kill()
    flip(server.directory, "pel")
    return server


def flip(directory: Path, table: str) -> None:
    """Flip the last bit of the first row of a table, in place, as the disk does."""
    env = lmdb.open(str(directory / STATE_DIRECTORY), max_dbs=30, map_size=1 << 30, readonly=True, lock=False)
    with env.begin() as txn:
        key, row = next(iter(txn.cursor(env.open_db(table.encode(), txn=txn, create=False))))
    env.close()
    flip_row(directory, key, row)


# -- a start -----------------------------------------------------------------------------------------------------------


def test_a_start_whose_log_ends_on_a_damaged_row_makes_the_tables_again(start_riverbed: StartRiverbed) -> None:
    server = with_tail_on_damage(start_riverbed)
    server.start()
    assert "made the tables again" in server.log_text()
    with server.client() as client:
        assert client.ask("XPENDING", "s", "g").startswith(b"*4\r\n:99\r\n")
        assert client.ask("XLEN", "s") == b":300\r\n"
    assert (server.directory / REPLACED_DIRECTORY / STATE_DIRECTORY / DATA_NAME).exists()
    assert server.stop() == 0


def test_a_start_that_may_not_mend_says_what_does(start_riverbed: StartRiverbed) -> None:
    server = with_tail_on_damage(start_riverbed)
    before = files_of(server.directory)
    server.options["auto-repair"] = "no"
    with pytest.raises(StartError, match=r"damaged data: .*`riverbed check .* --repair` makes the tables again"):
        server.start()
    assert files_of(server.directory) == before
    server.options["auto-repair"] = "yes"
    server.start()
    assert server.stop() == 0


def test_a_start_with_a_damaged_log_as_well_changes_nothing(start_riverbed: StartRiverbed) -> None:
    server = with_tail_on_damage(start_riverbed)
    (log,) = (server.directory / LOG_DIRECTORY).glob("*.incr.aof")
    sound = log.read_bytes()
    data = bytearray(sound)
    data[len(unpadded(sound)) // 3] ^= 1
    log.write_bytes(data)
    before = files_of(server.directory)
    with pytest.raises(StartError, match="damaged data: "):
        server.start()
    assert files_of(server.directory) == before
    assert not (server.directory / REPLACED_DIRECTORY).exists()
    log.write_bytes(sound)
    server.start()
    assert server.stop() == 0


@pytest.mark.parametrize("how", ["cut", "no tables", "garbage"])
def test_a_start_with_tables_that_do_not_open_makes_them_again(start_riverbed: StartRiverbed, how: str) -> None:
    server = start_riverbed(options=MENDING)
    with server.client() as client:
        fill(client, "s", 2000)
    server.stop()
    path = server.directory / STATE_DIRECTORY / DATA_NAME
    data = path.read_bytes()
    changed = {
        "cut": data[: len(data) // 2],
        "no tables": data.replace(b"entries", b"EntrieS"),
        "garbage": b"x" * 99_999,
    }
    path.write_bytes(changed[how])
    server.start()
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":2000\r\n"
    assert server.stop() == 0


# -- a command that meets a broken page --------------------------------------------------------------------------------


def test_a_broken_page_is_mended_like_a_damaged_row(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options=MENDING)
    with server.client() as client:
        fill(client, "s", 20_000, 100)
        client.ask("XADD", "s", "9999999999999-7", "field", VALUE)
        client.ask("SAVE")
        path = server.directory / STATE_DIRECTORY / DATA_NAME
        data = path.read_bytes()
        with path.open("r+b") as file:
            at = data.find(VALUE)
            while at >= 0:
                page = at - at % PAGE_BYTES
                number, padding, flags = LEAF.unpack_from(data, page)
                assert flags & 2, "a leaf"
                file.seek(page)
                file.write(LEAF.pack(number, padding, 0x40))  # a page that is no leaf, no branch and no large value
                at = data.find(VALUE, page + PAGE_BYTES)
        answer = client.ask(*ASK)
        assert re.match(rb"-ERR .*damaged.*The tables are being made again\r", answer), answer
        assert "the tables are being made again of the log" in server.log_text()
        until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", "the repair")
        assert VALUE in client.ask(*ASK)
        assert client.ask("XLEN", "s") == b":20001\r\n"


# -- a process that meets damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("BGREWRITEAOF",), ("RIVERBED", "SNAPSHOT", "name")])
def test_a_rewrite_or_a_snapshot_that_meets_damage_has_it_mended(
    start_riverbed: StartRiverbed, words: tuple[str, ...]
) -> None:
    server = with_damage(start_riverbed, **{"auto-repair": "yes"})
    with server.client() as client:
        answer = client.ask(*words)
        assert answer.startswith(b"+Background") or b"does not fit its checksum" in answer
        until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", "the repair")
        assert VALUE in client.ask(*ASK)
        assert not client.ask("RIVERBED", "SNAPSHOT", "after").startswith(b"-")
    require_whole(server)


def test_damage_in_the_way_of_checkpoints_keeps_the_log_from_the_disk_no_longer_than_a_second(
    start_riverbed: StartRiverbed,
) -> None:
    """Else a repair, which goes by what is on the disk, never catches up; and `everysec` would be no second."""
    server = start_riverbed(options={**QUIET, "appendfsync": "everysec"})
    with server.client(timeout_s=600) as client:
        acknowledge_the_first_of_a_run(client)
        flip(server.directory, "pel")
        assert b"damaged" in client.ask("SAVE")
        client.pipeline([("XADD", "t", "*", "f", "x" * (1 << 18)) for _ in range(16)])
        until(lambda: info(server, "persistence")["riverbed_log_unsynced_bytes"] == "0", "the log on the disk")
        client.pipeline([("XADD", "t", "*", "f", "x" * (1 << 18)) for _ in range(16)])
        assert not client.ask("RIVERBED", "REPAIR").startswith(b"-")
        assert client.ask("SAVE") == b"+OK\r\n"
        assert client.ask("XPENDING", "s", "g").startswith(b"*4\r\n:99\r\n")


def test_replies_do_not_wait_for_rows_that_cannot_be_written_beside_damage(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, auto_repair="no")  # else a process would be started
        client, other = ticks.connect(), ticks.connect()
        met: list[None] = []
        ticks.executor.events.damaged.append(lambda: met.append(None))
        refusing = RefusingRows()
        ticks.engine.txn.dirty.append(refusing)
        keys = range(MAX_CHANGED + 1000)
        replies = await ticks.ask(client, *(f"XADD k{number} 1-1 f v" for number in keys))
        assert len(b"".join(replies).split(b"1-1")) == len(keys) + 1
        assert await ticks.ask(other, "PING") == [b"+PONG\r\n"]
        assert met
        # the others are written, as ever
        dirty = ticks.engine.txn.dirty
        assert refusing in dirty
        assert len(dirty) <= MAX_CHANGED + 1
        dirty.remove(refusing)
        ticks.close()

    in_loop(body())


async def deliver(ticks: Ticks, client: Client, count: int) -> None:
    """Have so many entries pending, in memory: rows of many are put into the tables before a checkpoint begins."""
    await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM", *(["XADD s * f v"] * count))
    await ticks.ask(client, f"XREADGROUP GROUP g c COUNT {count} STREAMS s >")


@pytest.mark.parametrize("delivered", [1, 2 * MAX_PART])
def test_a_checkpoint_that_damage_is_in_the_way_of_is_tried_again_once_a_second(tmp_path: Path, delivered: int) -> None:
    """Not by each tick, nor by each view that a long reply waits for, however many rows are to be put first."""

    async def body() -> None:
        ticks = Ticks(tmp_path, auto_repair="no")  # else a process would be started
        client, engine = ticks.connect(), ticks.engine
        tried: list[None] = []
        ticks.executor.events.damaged.append(lambda: tried.append(None))
        refusing = RefusingRows()
        engine.txn.dirty.append(refusing)
        await deliver(ticks, client, delivered)
        await ticks.ask(client, *("XADD big * f " + "x" * (1 << 18) for _ in range(6)))
        await until_true(lambda: bool(tried))
        before, begun_s = len(tried), time.monotonic()
        for number in range(30):
            await ticks.ask(client, "XADD big * f " + "x" * (1 << 16))
            replies = await ticks.ask(client, "XRANGE big - +")
            assert replies[0].startswith(b"*%d\r\n" % (7 + number))
        assert len(tried) - before <= 1 + (time.monotonic() - begun_s) / RETRY_S
        assert "rdb_last_bgsave_status:err" in (await ticks.ask(client, "INFO persistence"))[0].decode()
        engine.txn.dirty.remove(refusing)
        await until_true(lambda: engine.checkpoints.last_ok)
        assert (await ticks.ask(client, "XLEN big")) == [b":36\r\n"]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    "asked", [["SAVE", "CONFIG SET checkpoint-interval-ms 500000"], ["RIVERBED SNAPSHOT"], ["BGREWRITEAOF"]]
)
@pytest.mark.parametrize("delivered", [1, 2 * MAX_PART])
def test_a_checkpoint_that_has_failed_is_tried_again_before_its_interval_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], delivered: int
) -> None:
    async def body() -> None:
        settings = {"auto_repair": "no", "checkpoint_interval_ms": 600_000, "appendfsync": "always"}
        ticks = Ticks(tmp_path, **settings)
        client, engine = ticks.connect(), ticks.engine
        rewrite_here(monkeypatch, engine)
        refusing = RefusingRows()
        engine.txn.dirty.append(refusing)
        await deliver(ticks, client, delivered)
        client.send(*asked)
        await until_true(lambda: not engine.checkpoints.last_ok)
        engine.txn.dirty.remove(refusing)
        await until_true(lambda: engine.checkpoints.last_ok)
        ticks.close()

    in_loop(body())


def test_a_client_that_saves_all_the_time_puts_off_neither_the_repair_nor_the_sync_of_the_log(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, auto_repair="no", appendfsync="everysec")
        client, engine = ticks.connect(), ticks.engine
        met: list[None] = []
        ticks.executor.events.damaged.append(lambda: met.append(None))
        refusing = RefusingRows()
        engine.txn.dirty.append(refusing)
        await ticks.ask(client, "XADD s * f v")
        assert engine.log.unsynced_bytes
        deadline = time.monotonic() + 60
        while not met or engine.log.unsynced_bytes:
            assert (await ticks.ask(client, "SAVE"))[0].startswith(b"-ERR the checkpoint failed: ")
            assert time.monotonic() < deadline, "put off"
            await asyncio.sleep(0.1)
        engine.txn.dirty.remove(refusing)
        ticks.close()

    in_loop(body())


def test_repairs_one_after_the_other_end_well(start_riverbed: StartRiverbed) -> None:
    server = with_damage(start_riverbed)
    with server.client() as client:
        for number in range(1, 9):
            assert b"offset" in client.ask("RIVERBED", "REPAIR")
            assert info(server, "persistence")["riverbed_repairs"] == str(number)
    require_whole(server)


# -- a replica ---------------------------------------------------------------------------------------------------------


def test_a_replica_that_meets_damage_mends_it_by_its_own_log(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(options=QUIET), start_riverbed(options=MENDING)
    with primary.client() as client:
        follow(replica, primary.port)
        fill(client, "s", 2000)
        client.ask("XGROUP", "CREATE", "s", "g", "0")
        client.ask("XREADGROUP", "GROUP", "g", "Alice", "COUNT", "500", "STREAMS", "s", ">")
        first = client.ask("XRANGE", "s", "-", "+", "COUNT", "1").split(b"\r\n")[3].decode()
        until_level(primary, replica)
        replica.stop()
        flip(replica.directory, "pel")
        replica.start()
        follow(replica, primary.port)
        until_level(primary, replica)
        syncs = info(primary, "stats")["sync_full"]
        assert client.ask("XCLAIM", "s", "g", "Bob", "0", first, "JUSTID").startswith(b"*1")
        until(lambda: info(replica, "persistence")["riverbed_repairs"] == "1", f"the repair\n{replica.log_tail()}")
        until_level(primary, replica)
        assert info(primary, "stats")["sync_full"] == syncs, replica.log_text() + primary.log_text()
        ask = ("XPENDING", "s", "g")
        with replica.client() as other:
            assert other.ask(*ask) == client.ask(*ask)


def test_a_demand_for_everything_outlives_a_link_that_is_being_opened(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        following: Any = Follower(ticks.server.replication.needs, ticks.server.replication.primary, "127.0.0.1", 1)
        following.ask_for_everything()  # behind the words that ask for the rest alone
        with pytest.raises(LinkError, match="a full sync follows"):
            following.link_continues("0" * 40, "0" * 40)
        assert following._wants_all
        await asyncio.sleep(0)
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("follows", [True, False])
def test_tables_that_could_not_be_synced_are_mended_where_the_log_goes_on(tmp_path: Path, follows: bool) -> None:
    """A primary refuses writes instead, and waits for a person."""

    async def body() -> None:
        ticks = Ticks(tmp_path, auto_repair="no", checkpoint_interval_ms=10)  # else a process would be started
        client, engine = ticks.connect(), ticks.engine
        met: list[None] = []
        ticks.executor.events.damaged.append(lambda: met.append(None))
        engine.tables.distrust("the disk has failed")
        await ticks.ask(client, "XADD s 1-1 f v")
        engine.set_role(is_replica=follows)
        await until_true(lambda: engine.refusal is Refusal.TABLES_FAILED)
        assert bool(met) is follows
        ticks.close(save=False)

    in_loop(body())
