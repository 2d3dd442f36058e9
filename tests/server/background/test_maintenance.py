"""What the server does by itself: purges, idle clients, and looking at the disk."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from riverbed.server.background import maintenance
from riverbed.server.execution.control import departures
from riverbed.store.engine import Engine
from riverbed.store.errors import Refusal
from riverbed.store.running.checkpoint import Durability
from tests.conftest import StartRiverbed
from tests.support.raw import encode
from tests.support.read_log import LogTail
from tests.support.servers import RiverbedServer
from tests.support.ticks import Client, Ticks, in_loop
from tests.support.waiting import until, until_blocked, until_true

OK = b"+OK\r\n"
NEARLY_FULL = (
    b"-MISCONF The disk is nearly full. Commands that need space are refused until there is some again; reading, "
    b"deleting and trimming go on.\r\n"
)


# -- purges ------------------------------------------------------------------------------------------------------------


def rows(ticks: Ticks) -> int:
    txn = ticks.engine.txn
    txn.write_back()  # appended entries may be in no table yet
    return int(txn.lmdb.stat(txn.handles["entries"])["entries"])


@pytest.mark.parametrize(
    "line", ["DEL s", "XTRIM s MAXLEN 10", "FLUSHALL", "RENAME other s", "XADD s MAXLEN ~ 1 9999999-0 f v"]
)
def test_what_was_dropped_is_purged_in_the_background(tmp_path: Path, line: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD other 1-1 f v", *(f"XADD s {number}-0 f v" for number in range(1, 3001)))
        assert rows(ticks) == 3001
        loaded = len(ticks.batches())
        await ticks.ask(client, line)
        (digest,) = await ticks.ask(client, "DEBUG DIGEST")
        await until_true(lambda: rows(ticks) <= 100 and not ticks.engine.txn.dead_rows.notes)
        assert await ticks.ask(client, "DEBUG DIGEST") == [digest]
        # and nothing of it is in the log twice
        assert len(ticks.batches()) == loaded + 1
        ticks.close()

    in_loop(body())


def test_a_purge_goes_on_after_a_start(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD s {number}-0 f v" for number in range(1, 3001)))
        client.send("DEL s")
        ticks.executor._tick()
        ticks.close()
        again = Ticks(tmp_path, files=ticks.files)
        again.server.maintenance.start()
        await until_true(lambda: rows(again) == 0)
        again.close()

    in_loop(body())


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_a_transaction_of_which_a_part_is_refused_does_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-0 f v", "MULTI", "DEL s", "XADD s 2-0 f v")
        ticks.engine.refusals.reason = Refusal.DISK_NEARLY_FULL
        because = b"-EXECABORT Transaction discarded because of: " + NEARLY_FULL[1:]
        assert await ticks.ask(client, "EXEC", "XLEN s", "EXEC") == [because, b":1\r\n", b"-ERR EXEC without MULTI\r\n"]
        ticks.engine.refusals.reason = None
        ticks.close()

    in_loop(body())


def test_a_disk_that_gets_full_refuses_what_needs_space_and_frees_itself(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD s {number}-0 f v" for number in range(1, 11)))
        ticks.server.maintenance.start()
        ticks.files.free = 100_000  # the reserve of these tests is 1 MB
        await until_true(lambda: ticks.engine.refusal is Refusal.DISK_NEARLY_FULL)
        assert await ticks.ask(client, "XADD s * f v", "xadd s * f v", "XGROUP CREATE s g 0") == [NEARLY_FULL] * 3
        # reading, deleting and trimming go on
        assert await ticks.ask(client, "XLEN s", "XDEL s 1-0", "XTRIM s MAXLEN 5", "PEXPIRE s 100000") == [
            *(b":10\r\n", b":1\r\n", b":4\r\n", b":1\r\n")
        ]
        assert (await ticks.ask(client, "MULTI", "XADD s * f v", "XDEL s 9-0", "EXEC"))[1] == NEARLY_FULL
        late = ticks.connect()
        assert await ticks.ask(late, "XADD s * f v", "XLEN s") == [NEARLY_FULL, b":5\r\n"]
        ticks.files.free = None
        await until_true(lambda: ticks.engine.refusal is None)
        assert await ticks.ask(client, "XADD s 50-0 f v", "XLEN s") == [b"$4\r\n50-0\r\n", b":6\r\n"]
        assert client.session.is_plain and ticks.executor.fast_path.commands
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("noticed_by", ["a commit", "the check"])
def test_the_log_says_that_writes_are_refused_and_that_they_are_taken_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, noticed_by: str
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        ticks.server.maintenance.start()
        ticks.files.free = 100_000
        if noticed_by == "a commit":
            ticks.engine.check_space()
        await until_true(lambda: "the disk is nearly full: writes are refused" in caplog.messages)
        ticks.files.free = None
        await until_true(lambda: "there is space again: writes are taken" in caplog.messages)
        ticks.close()

    with caplog.at_level("INFO", "riverbed"):
        in_loop(body())
    assert caplog.messages.count("the disk is nearly full: writes are refused") == 1


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (Refusal.DISK_FULL, "there is space again: writes are taken"),
        (Refusal.MAP_FULL, "there is space again: writes are taken"),
        (Refusal.TABLES_UNWRITTEN, "writes are taken again"),
        (Refusal.LOG_UNWRITTEN, "writes are taken again"),
    ],
)
def test_the_log_speaks_of_space_only_where_it_was_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refusal: Refusal, line: str
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        ticks.engine.refusals.reason = refusal
        ticks.server.maintenance._report_refusal()
        ticks.engine.check_space()
        ticks.server.maintenance._report_refusal()
        ticks.close()

    with caplog.at_level("INFO", "riverbed"):
        in_loop(body())
    assert caplog.messages[-2:] == [f"{refusal.value}: writes are refused", line]


@pytest.mark.parametrize("refusal", [Refusal.LOG_UNWRITTEN, Refusal.TABLES_UNWRITTEN])
def test_neither_the_log_nor_info_says_that_writes_are_taken_before_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: Refusal
) -> None:
    """They are only tried again, every second for as long as the disk fails."""

    def refuse(engine: Engine, *, divides_log: bool = False) -> Durability:
        raise engine.checkpoints.refused(lmdb.DiskError(os.strerror(errno.EIO)))

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()

        async def status() -> bytes:
            ticks.engine.check_space()
            assert ticks.engine.refusal is None
            ticks.executor.gate.refresh()
            ticks.server.maintenance._report_refusal()
            (text,) = await ticks.ask(client, "INFO persistence")
            name = b"aof_last_write_status:" if refusal is Refusal.LOG_UNWRITTEN else b"rdb_last_bgsave_status:"
            return text.partition(name)[2].partition(b"\r\n")[0]

        with monkeypatch.context() as patch:
            for _ in range(2):
                if refusal is Refusal.LOG_UNWRITTEN:
                    ticks.files.fail("write", errno.EIO)
                    await ticks.ask(client, "XADD s * f v")
                else:
                    patch.setattr(Engine, "begin_checkpoint", refuse)
                    await ticks.ask(client, "XADD s * f v", "SAVE")
                assert ticks.engine.refusal is refusal
                ticks.server.maintenance._report_refusal()
                assert await status() == b"err"
        assert caplog.messages.count(f"{refusal.value}: writes are refused") == 1
        assert "writes are taken again" not in caplog.messages
        await ticks.ask(client, "XADD s * f v", "SAVE")
        assert await status() == b"ok"
        assert caplog.messages.count("writes are taken again") == 1
        ticks.close()

    with caplog.at_level("INFO", "riverbed"):
        in_loop(body())


def test_a_log_that_cannot_begin_its_next_file_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "CYCLE_S", 0.001)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        looks: list[str | None] = []
        monkeypatch.setattr(ticks.engine, "check_space", lambda: looks.append(ticks.engine.log.rotate_error))
        ticks.server.maintenance.start()
        for error in ("no space left", "too many files"):
            ticks.engine.log.rotate_error = error
            await until_true(lambda error=error: looks.count(error) >= 3)
        ticks.close()

    in_loop(body())
    assert [record.getMessage() for record in caplog.records] == [
        "no space left; it goes on in the present one",
        "too many files; it goes on in the present one",
    ]


# -- idle clients ------------------------------------------------------------------------------------------------------


def test_clients_idle_for_too_long_are_cut_off_unless_they_wait(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, timeout=10)
        idle, busy, blocked, monitor, subscriber = (ticks.connect() for _ in range(5))
        await ticks.ask(blocked, "XREAD BLOCK 0 STREAMS s $")
        await ticks.ask(monitor, "MONITOR")
        await ticks.ask(subscriber, "PSUBSCRIBE *")
        ticks.server.maintenance.start()
        ticks.clock.now_ms += 9_000
        await ticks.ask(busy, "PING")
        ticks.clock.now_ms += 2_000
        await until_true(lambda: idle.is_closed)
        assert [client.is_closed for client in (busy, blocked, monitor, subscriber)] == [False] * 4
        ticks.close()

    in_loop(body())


def test_the_time_of_a_client_that_has_waited_begins_with_its_reply(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, timeout=60)
        client, worker = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "XGROUP CREATE s g $")
        assert await ticks.ask(worker, "XREADGROUP GROUP g c BLOCK 0 STREAMS s >") == []
        maintenance = ticks.server.maintenance

        async def wait(ms: int) -> None:
            ticks.clock.now_ms += ms
            await ticks.ask(client, "PING")
            maintenance._check_clients(int(ticks.clock.now_ms))
            await ticks.settle()

        for _ in range(5):
            await wait(50_000)
        await ticks.ask(client, "XADD s 2-1 f v")
        assert len(worker.replies()) == 1
        await wait(1_000)
        assert not worker.is_closed
        await wait(59_000)
        assert not worker.is_closed
        await wait(1_001)
        assert worker.is_closed
        ticks.close()

    in_loop(body())


class Leaver(Client):
    """A client that tells when it is cut off."""

    def __init__(self, ticks: Ticks) -> None:
        self.has_left = asyncio.Event()
        super().__init__(ticks)

    def abort(self) -> None:
        super().abort()
        self.has_left.set()


def test_many_idle_clients_are_cut_off_in_several_turns_and_one_that_speaks_by_then_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departures, "_TURN_S", 0.0)  # one in each turn

    async def body() -> None:
        ticks = Ticks(tmp_path, timeout=10)
        first = Leaver(ticks)
        clients = [first, *(ticks.connect() for _ in range(99))]
        ticks.clock.now_ms += 11_000
        ticks.server.maintenance.start()
        await first.has_left.wait()
        assert not clients[50].is_closed
        assert await ticks.ask(clients[-1], "PING") == [b"+PONG\r\n"]
        await until_true(lambda: clients[-2].is_closed)
        assert not clients[-1].is_closed
        ticks.close()

    in_loop(body())


def test_no_timeout_cuts_off_nobody(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        idle = ticks.connect()
        ticks.server.maintenance.start()
        ticks.clock.now_ms += 10**9
        await asyncio.sleep(maintenance.CYCLE_S * (maintenance.CYCLES_A_SPACE_CHECK + 2))
        assert not idle.is_closed
        ticks.close()

    in_loop(body())


# -- in a server -------------------------------------------------------------------------------------------------------


def test_a_server_expires_purges_and_checkpoints_by_itself(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.pipeline([("XADD", "s", f"{number}-0", "f", "v") for number in range(1, 2001)])
        tail = LogTail(riverbed.directory)
        client.ask("PEXPIRE", "s", 20)
        until(lambda: client.ask("DBSIZE") == b":0\r\n", "the end of the key")
        until(lambda: client.info("persistence")["rdb_changes_since_last_save"] == "0", "a checkpoint")
        assert tail.lines()[-1] == b"DEL s"
        assert b"expired_keys:1\r\n" in client.ask("INFO", "stats")


def test_timeout_is_a_setting_of_the_running_server(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    with server.client() as client, server.client() as idle:
        idle.ask("PING")
        assert client.ask("CONFIG", "SET", "timeout", 1) == OK
        assert idle.rest_until_closed() == b""


@pytest.mark.parametrize("how", ["end", "reset"])
def test_clients_that_are_not_read_and_hang_up_while_they_wait_are_given_nothing(
    riverbed: RiverbedServer, how: str
) -> None:
    with riverbed.client() as client, riverbed.client() as patient:
        client.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        behind = encode(("PING",)) * 6000  # more than is read of a client that waits
        gone = riverbed.client()
        for count, (waiting, name) in enumerate(((patient, "patient"), (gone, "gone")), 1):
            waiting.socket.sendall(encode(("XREADGROUP", "GROUP", "g", name, "BLOCK", 0, "STREAMS", "s", ">")) + behind)
            until_blocked(client, count)
        if how == "reset":
            gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        until_blocked(client, 1)
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("XADD", "s", "2-1", "f", "v")
        assert b"1-1" in patient.reply()
        pending = client.ask("XPENDING", "s", "g")
        assert b"patient" in pending
        assert b"gone" not in pending


def test_a_reader_that_was_killed_is_forgotten(riverbed: RiverbedServer) -> None:
    program = (
        "import sys; from pathlib import Path; from riverbed.store.tables.environment import Tables; "
        "tables = Tables(Path(sys.argv[1]), 1 << 30, readonly=True); "
        "txn = tables.env.begin(); print('reading', flush=True); sys.stdin.read()"
    )
    with riverbed.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        assert client.ask("SAVE") == OK
        words = [sys.executable, "-c", program, str(riverbed.directory)]
        reader = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        assert b"riverbed_lmdb_readers:1\r\n" in client.ask("INFO", "persistence")
        reader.kill()
        reader.communicate()
        until(lambda: client.info("persistence")["riverbed_lmdb_readers"] == "0", "the reader's end")
