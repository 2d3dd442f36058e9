"""BGREWRITEAOF, the growth rule, and what becomes of a rewrite that is disturbed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.background.log_rewrite import RewriteError, Rewriting
from riverbed.store.disk import removal
from riverbed.store.disk.removal import PIECE_BYTES
from riverbed.store.errors import Refusal
from riverbed.store.layout import STATE_DIRECTORY
from riverbed.store.log.append_log import Log
from riverbed.store.log.appending.replacement import Replacement
from riverbed.store.log.home import TEMPORARY_PREFIX, Base
from riverbed.store.log.manifest import FileType
from riverbed.store.tables.data_file.power_loss import MARK_NAME
from tests.conftest import StartRiverbed
from tests.support.faults.gate import Gate, child_of
from tests.support.raw import RawClient
from tests.support.rewriter import rewrite_here
from tests.support.servers import RiverbedServer
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import process_ended, rewrite_ended, rewritten, until, until_true

LOG = "appendonlydir"
STARTED = b"+Background append only file rewriting started\r\n"
SCHEDULED = b"+Background append only file rewriting scheduled\r\n"
IN_PROGRESS = b"-ERR Background append only file rewriting already in progress\r\n"


def names(server: RiverbedServer) -> list[str]:
    """The files of the log."""
    return sorted(path.name for path in (server.directory / LOG).iterdir())


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Where rewrites wait.  To be asked for before the server is."""
    place = tmp_path / "gate"
    place.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(place))
    return Gate(place, "riverbed.server.background.rewrite_worker")


def fill(client: RawClient, count: int = 2_000) -> None:
    """Many entries, of which few are left: a rewrite is worth it."""
    client.pipeline([("XADD", "s", "MAXLEN", "=", 10, f"{number}-1", "f", "v" * 50) for number in range(1, count + 1)])


# -- what it does ------------------------------------------------------------------------------------------------------


def test_a_rewrite_makes_the_log_short_and_leaves_the_state_alone(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.ask("CONFIG", "SET", "repl-backlog-size", 0)
        fill(client)
        before = client.ask("XINFO", "STREAM", "s", "FULL")
        size = int(client.info("persistence")["aof_current_size"])
        rewritten(riverbed)
        # the old file goes, and then the manifest is written once more
        files = ["appendonly.aof.1.base.aof", "appendonly.aof.2.incr.aof", "appendonly.aof.manifest"]
        until(lambda: names(riverbed) == files, "the end of the old file")
        now = int(client.info("persistence")["aof_current_size"])
        assert now < size // 10
        base = (riverbed.directory / LOG / files[0]).stat().st_size
        told = f"10 entries in {base} bytes, {now} bytes with what came since instead of "
        assert told in riverbed.log_text()
        assert client.ask("XINFO", "STREAM", "s", "FULL") == before
        client.ask("XADD", "s", "MAXLEN", "=", 10, "9999-1", "f", "v")
        after = client.ask("XINFO", "STREAM", "s", "FULL")
    riverbed.kill()
    riverbed.start()
    with riverbed.client() as client:
        assert client.ask("XINFO", "STREAM", "s", "FULL") == after


def test_another_rewrite_replaces_the_base(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.ask("CONFIG", "SET", "repl-backlog-size", 0)
        fill(client)
        rewritten(riverbed)
        client.ask("XADD", "t", "1-1", "f", "v")
        rewritten(riverbed)
        until(lambda: len(names(riverbed)) == 3, "the end of the old files")
        assert names(riverbed)[:2] == ["appendonly.aof.2.base.aof", "appendonly.aof.3.incr.aof"]
        assert client.ask("XLEN", "t") == b":1\r\n"


def test_the_tables_that_a_power_cut_goes_back_to_do_without_the_files_that_a_rewrite_deletes(
    riverbed: RiverbedServer,
) -> None:
    with riverbed.client() as client:
        client.ask("CONFIG", "SET", "repl-backlog-size", 0)
        client.pipeline([("XADD", "s", f"{number}-1", "f", "v") for number in range(1, 11)])
        rewritten(riverbed)
        until(lambda: len(names(riverbed)) == 3, "the end of the old file")
        before = client.ask("XINFO", "STREAM", "s", "FULL")
    riverbed.kill()
    state = riverbed.directory / STATE_DIRECTORY
    (state / MARK_NAME).write_text("another boot")
    (state / "lock.mdb").unlink()
    riverbed.start()
    with riverbed.client() as client:
        assert client.ask("XINFO", "STREAM", "s", "FULL") == before


def test_an_empty_store_is_rewritten(riverbed: RiverbedServer) -> None:
    rewritten(riverbed)
    rewritten(riverbed)
    assert riverbed.restart()
    with riverbed.client() as client:
        assert client.ask("DBSIZE") == b":0\r\n"
        assert client.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"


def test_every_database_and_what_is_written_meanwhile_survive(gate: Gate, riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        for database in (0, 3, 15):
            client.pipeline([("SELECT", database), ("XADD", "s", "1-1", "f", database)])
        assert client.ask("BGREWRITEAOF") == STARTED
        assert client.ask("XADD", "s", "2-1", "f", "v").startswith(b"$")
        gate.open()
        number = 2
        while client.info("persistence")["aof_rewrite_in_progress"] == "1":
            number += 1
            assert client.ask("XADD", "s", f"{number}-1", "f", "v").startswith(b"$")
    riverbed.kill()
    riverbed.start()
    with riverbed.client() as client:
        for database, length in ((0, 1), (3, 1), (15, number)):
            client.ask("SELECT", database)
            assert client.ask("XLEN", "s") == b":%d\r\n" % length


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_second_one_is_refused_while_the_first_runs(gate: Gate, riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        assert client.pipeline([("BGREWRITEAOF",), ("BGREWRITEAOF",)]) == [STARTED, IN_PROGRESS]
        assert client.pipeline([("MULTI",), ("BGREWRITEAOF",), ("EXEC",)])[-1] == b"*1\r\n" + IN_PROGRESS
        gate.open()
        assert rewrite_ended(client)["aof_rewrites"] == "1"


def test_in_a_transaction_it_is_scheduled(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        replies = client.pipeline([("MULTI",), ("XADD", "s", "1-1", "f", "v"), ("BGREWRITEAOF",), ("EXEC",)])
        assert replies[-1] == b"*2\r\n$3\r\n1-1\r\n" + SCHEDULED
        until(lambda: client.info("persistence")["aof_rewrites"] == "1", "the beginning of the rewrite")
        found = rewrite_ended(client)
        assert (found["aof_last_bgrewrite_status"], found["aof_rewrite_scheduled"]) == ("ok", "0")


def test_it_takes_no_arguments(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        assert client.ask("BGREWRITEAOF", "now") == b"-ERR wrong number of arguments for 'bgrewriteaof' command\r\n"


def test_info_tells_before_while_and_after(gate: Gate, riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        fill(client)
        found = client.info("persistence")
        assert (found["aof_last_rewrite_time_sec"], found["aof_current_rewrite_time_sec"]) == ("-1", "-1")
        assert (found["aof_base_size"], found["aof_rewrites"]) == ("0", "0")
        assert client.ask("BGREWRITEAOF") == STARTED
        found = client.info("persistence")
        assert found["aof_rewrite_in_progress"] == "1"
        assert int(found["aof_current_rewrite_time_sec"]) >= 0
        gate.open()
        found = rewrite_ended(client)
        base = riverbed.directory / LOG / "appendonly.aof.1.base.aof"
        assert int(found["aof_base_size"]) == base.stat().st_size == int(found["riverbed_rewrite_bytes"])
        assert int(found["riverbed_rewrite_entries"]) == 10
        assert int(found["aof_last_rewrite_time_sec"]) >= 0
        assert (found["aof_rewrites"], found["aof_rewrites_consecutive_failures"]) == ("1", "0")


def test_there_is_no_store_without_a_log(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        assert client.ask("CONFIG", "SET", "appendonly", "yes").startswith((b"+OK", b"-ERR"))
        assert client.ask("CONFIG", "SET", "appendonly", "no").startswith(b"-ERR")
        assert client.ask("CONFIG", "GET", "appendonly") == b"*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n"
    rewritten(riverbed)


# -- disturbed ---------------------------------------------------------------------------------------------------------


def test_a_killed_process_costs_nothing_but_the_time(gate: Gate, riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        fill(client)
        assert client.ask("BGREWRITEAOF") == STARTED
        os.kill(child_of(riverbed), signal.SIGKILL)
        found = rewrite_ended(client)
        assert (found["aof_last_bgrewrite_status"], found["aof_rewrites_consecutive_failures"]) == ("err", "1")
        assert client.ask("XADD", "s", "5000-1", "f", "v").startswith(b"$")
        assert not any(name.startswith("temp-") for name in names(riverbed))
        assert client.ask("BGREWRITEAOF") == STARTED
        gate.open()
        found = rewrite_ended(client)
        assert (found["aof_last_bgrewrite_status"], found["aof_rewrites_consecutive_failures"]) == ("ok", "0")


@pytest.mark.usefixtures("gate")  # which stays shut: the rewrite never ends
@pytest.mark.parametrize("how", ["SHUTDOWN", "SHUTDOWN NOSAVE", "SIGTERM"])
def test_a_server_that_stops_waits_for_no_rewrite(riverbed: RiverbedServer, how: str) -> None:
    with riverbed.client() as client:
        fill(client)
        before = client.ask("XINFO", "STREAM", "s", "FULL")
        assert client.ask("BGREWRITEAOF") == STARTED
        if how == "SIGTERM":
            os.kill(riverbed.pid, signal.SIGTERM)
        else:
            client.send(*how.split())
        assert riverbed.wait_ended() == 0
    assert names(riverbed)[0].startswith("appendonly.aof.1.incr"), "the rewrite was not what was interrupted"
    assert not any(name.startswith("temp-") for name in names(riverbed))
    riverbed.start()
    with riverbed.client() as client:
        assert client.ask("XINFO", "STREAM", "s", "FULL") == before


def test_a_stop_is_what_the_log_names_as_the_end_of_a_rewrite(gate: Gate, riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        assert client.ask("BGREWRITEAOF") == STARTED
        child_of(riverbed)
    riverbed.stop()
    assert "the log was not rewritten: the server is stopping" in riverbed.log_text()


def test_the_process_ends_with_a_server_that_is_killed(gate: Gate, riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        fill(client)
        assert client.ask("BGREWRITEAOF") == STARTED
        child = child_of(riverbed)
    riverbed.kill()
    gate.open()
    process_ended(child)
    riverbed.start()
    until(lambda: not any(name.startswith("temp-") for name in names(riverbed)), "the end of what it left")


def test_what_a_killed_server_left_is_deleted_by_the_next(riverbed: RiverbedServer) -> None:
    assert riverbed.stop() == 0
    left = riverbed.directory / LOG / "temp-rewrite-1-1.aof"
    left.write_bytes(b"x" * 1000)
    riverbed.start()
    until(lambda: not left.exists(), "the end of what was left behind")


# -- when it grows -----------------------------------------------------------------------------------------------------


def test_a_log_that_has_grown_is_rewritten_by_itself(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"auto-aof-rewrite-min-size": "64kb", "auto-aof-rewrite-percentage": 100})
    with server.client() as client:
        for number in range(1, 4):
            fill(client, 1_000 * number)
            client.ask("DEL", "s")
            until(lambda number=number: int(client.info("persistence")["aof_rewrites"]) >= number, "a rewrite")
            assert rewrite_ended(client)["aof_last_bgrewrite_status"] == "ok"

        def is_short() -> bool:
            """A rewrite that began early has left the rest to the next, which is due when the log has grown again."""
            found = client.info("persistence")
            if int(found["aof_current_size"]) >= 64 << 10 and found["aof_rewrite_in_progress"] == "0":
                fill(client, 100)
            return int(found["aof_current_size"]) < 64 << 10

        until(is_short, "a short log")


class Started(Rewriting):
    """Only notes that it would have begun."""

    count = 0

    def start(self) -> asyncio.Future[Base]:
        self.count += 1
        self.status.scheduled = False
        return asyncio.get_running_loop().create_future()


def test_the_rule_looks_at_size_and_growth_and_does_not_loop(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, auto_aof_rewrite_min_size=1_000, auto_aof_rewrite_percentage=50)
        client = ticks.connect()
        server = ticks.server
        rewriting = Started(server.context, ticks.executor, server.tasks, server.checkpoints, ticks.executor.failures)
        log = ticks.engine.log

        async def grow_to(size: int) -> None:
            while log.size_bytes <= size:
                await ticks.ask(client, "XADD s * f v")

        async def begins() -> bool:
            before = rewriting.count
            rewriting.begin_if_due()
            return rewriting.count > before

        assert not await begins()
        await grow_to(1_000)
        assert await begins()
        # as large after the rewrite as before it: nothing to be gained by another
        rewriting.status.grown_from = log.size_bytes
        assert not await begins()
        await grow_to(1_400)
        assert not await begins()
        await grow_to(1_600)
        assert await begins()
        ticks.config.set([("auto-aof-rewrite-percentage", "0")])
        assert not await begins()
        rewriting.schedule()
        assert await begins()
        assert not await begins()
        ticks.close()

    in_loop(body())


def test_a_full_disk_has_the_log_rewritten_when_much_of_it_is_dead(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)  # with a reserve of 1 MB
        client = ticks.connect()
        server = ticks.server
        rewriting = Started(server.context, ticks.executor, server.tasks, server.checkpoints, ticks.executor.failures)

        def begins(refusal: Refusal | None = Refusal.DISK_NEARLY_FULL) -> bool:
            while ticks.engine.purge(1):
                pass
            before = rewriting.count
            ticks.engine.refusals.reason = refusal
            rewriting.begin_if_due()
            ticks.engine.refusals.reason = None
            return rewriting.count > before

        for number in range(1, 31):
            client.send_words("XADD", "s", f"{number}-0", "f", "v" * 50_000)
            await ticks.settle()
        assert not begins()  # all of it is alive
        await ticks.ask(client, "XTRIM s MAXLEN 10")
        assert not begins(None)
        assert not begins(Refusal.TABLES_UNWRITTEN)
        ticks.config.set([("auto-aof-rewrite-percentage", "0")])
        assert not begins()
        ticks.config.set([("auto-aof-rewrite-percentage", "100")])
        assert begins()
        ticks.clock.now_ms += 60_000
        assert not begins()  # nothing has changed since
        await ticks.ask(client, "XTRIM s MAXLEN 5")
        assert begins()
        await ticks.ask(client, "XTRIM s MAXLEN 1")
        assert not begins()  # it was tried a moment ago
        ticks.clock.now_ms += 10_000
        assert begins()
        ticks.close()

    in_loop(body())


def test_after_a_failure_the_rule_waits_longer_and_longer(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, auto_aof_rewrite_min_size=0, auto_aof_rewrite_percentage=1)
        client = ticks.connect()
        await ticks.ask(client, "XADD s * f v")
        rewriting = ticks.server.rewriting
        waits = []
        for _ in range(12):
            # the log is in memory here, where the process cannot write
            with pytest.raises(RewriteError):
                await rewriting.start()
            failed_ms = ticks.clock.now_ms
            while not rewriting._has_grown():
                ticks.clock.now_ms += 1_000
            waits.append((ticks.clock.now_ms - failed_ms) // 1000)
        assert waits[:4] == [10, 20, 40, 80]
        assert waits[-1] == 3600
        assert ticks.executor.context.rewrite.failures == 12
        await rewriting.stop()
        ticks.close()

    in_loop(body())


def test_who_asks_while_one_runs_gets_its_base(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        first = ticks.server.rewriting.start()
        assert ticks.server.rewriting.start() is first
        with pytest.raises(RewriteError):
            await first
        assert ticks.server.rewriting.start() is not first
        await ticks.server.rewriting.stop()
        ticks.close()

    in_loop(body())


def test_the_file_of_a_rewrite_under_way_is_no_leftover(tmp_path: Path) -> None:
    async def end_of_removals() -> None:
        for task in [task for task in asyncio.all_tasks() if task.get_name().startswith("removing")]:
            await task

    async def body() -> None:
        ticks = Ticks(tmp_path)
        rewriting = ticks.server.rewriting
        rewrite = rewriting.start()
        path = ticks.engine.log.home.path / f"{TEMPORARY_PREFIX}1-1.aof"
        ticks.files.put(path, b"half")  # as the log sees it
        path.parent.mkdir()
        path.write_bytes(b"half")
        rewriting.remove_leftovers()  # as at the end of a full sync
        await end_of_removals()
        assert path.exists()
        with pytest.raises(RewriteError):
            await rewrite
        await ticks.settle()
        await end_of_removals()
        assert not path.exists(), "the rewrite has ended, and this file was not its own"
        ticks.close()

    in_loop(body())


def test_a_hold_ends_the_rewrite_under_way_and_none_begins_before_its_end(tmp_path: Path) -> None:
    class Process:
        is_killed = False

        def kill(self) -> None:
            self.is_killed = True

    async def body() -> None:
        ticks = Ticks(tmp_path)
        server = ticks.server
        rewriting: Any = Started(
            server.context, ticks.executor, server.tasks, server.checkpoints, ticks.executor.failures
        )
        rewriting._worker = process = Process()
        async with rewriting.held("the tables are being repaired"):
            assert process.is_killed
            rewriting.schedule()
            rewriting.begin_if_due()
            assert not rewriting.count
        rewriting.begin_if_due()
        assert rewriting.count == 1
        rewriting._worker = None
        ticks.close()

    in_loop(body())


def test_a_base_that_is_being_listed_counts_before_a_hold_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files before it are deleted then, and a repair that had read the list without it would miss them."""
    run, loop_thread = Replacement.run, threading.current_thread()
    begun, released = threading.Event(), threading.Event()

    def slowly(replacement: Replacement) -> None:
        if threading.current_thread() is not loop_thread and replacement.manifest.base is not None:
            begun.set()
            released.wait()
        run(replacement)

    monkeypatch.setattr(Replacement, "run", slowly)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, engine, rewriting = ticks.connect(), ticks.engine, ticks.server.rewriting
        rewrite_here(monkeypatch, engine)
        await ticks.ask(client, "XADD s 1-1 f v")
        adopted = rewriting.start()
        await until_true(begun.is_set)
        asyncio.get_running_loop().call_later(0.05, released.set)
        async with rewriting.held("the tables are being repaired"):
            assert engine.log.base is not None
        assert (await adopted, rewriting.status.last_ok) == (engine.log.base, True)
        await ticks.server.end_work()
        ticks.close()

    in_loop(body())


def test_a_server_that_stops_frees_files_without_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PAUSE_S", 20.0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        path = ticks.engine.log.home.path / f"{TEMPORARY_PREFIX}1-1.aof"
        ticks.files.put(path, b"half")  # as the log sees it
        path.parent.mkdir()
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * PIECE_BYTES + 1)
        ticks.server.rewriting.remove_leftovers()
        await until_true(lambda: not path.exists())  # the name goes first
        await asyncio.wait_for(ticks.server.end_work(), 15)
        ticks.close()

    in_loop(body())


def test_files_that_become_superseded_during_a_removal_go_right_after_it(tmp_path: Path) -> None:
    """A removal takes seconds; what the next rewrite has replaced meanwhile need not wait for ten more."""

    async def body() -> None:
        ticks = Ticks(tmp_path, repl_backlog_size=0)
        server, log = ticks.server, ticks.engine.log
        path = log.home.path / f"{TEMPORARY_PREFIX}1-1.aof"
        ticks.files.put(path, b"half")
        server.rewriting.remove_leftovers()
        ticks.files.remove(path)
        assert server.rewriting._removal is not None
        log.rotate()
        history = replace(log.home.manifest.incrs[0], type=FileType.HISTORY)
        log.home.put_manifest(replace(log.home.manifest, incrs=log.home.manifest.incrs[1:], history=(history,)))
        server.rewriting.remove_superseded()  # while the removal is under way
        await asyncio.wait([server.rewriting._removal])
        server.rewriting.remove_superseded()
        assert server.rewriting._removal is not None
        await server.end_work()
        ticks.close()

    in_loop(body())


def test_a_removal_that_a_full_sync_has_overtaken_writes_no_manifest_of_the_old_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the manifest, which is the new log's when its turn comes."""

    async def body() -> None:
        ticks = Ticks(tmp_path, repl_backlog_size=0)
        server, log = ticks.server, ticks.engine.log
        begun: list[object] = []

        async def overtaken(begin: Callable[[], object]) -> None:
            ticks.engine.keeper.log = Log.find(tmp_path / "another", ticks.files)
            begun.append(begin())
            ticks.engine.keeper.log = log

        log.rotate()
        history = replace(log.home.manifest.incrs[0], type=FileType.HISTORY)
        log.home.put_manifest(replace(log.home.manifest, incrs=log.home.manifest.incrs[1:], history=(history,)))
        monkeypatch.setattr(server.rewriting._manifest, "make", overtaken)
        before = log.home.manifest
        server.rewriting.remove_superseded()
        assert server.rewriting._removal is not None
        await asyncio.wait([server.rewriting._removal])
        assert begun == [None]
        assert log.home.manifest == before
        await server.end_work()
        ticks.close()

    in_loop(body())


def test_a_rewrite_does_not_write_to_what_an_earlier_process_of_the_same_number_left(tmp_path: Path) -> None:
    """In a container every server has the same number; what was left may be deleted only later."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        home = ticks.engine.log.home.path
        home.mkdir()
        left = {home / f"{TEMPORARY_PREFIX}{os.getpid()}-{number}.aof" for number in range(1, 4)}
        for path in left:
            path.write_bytes(b"half")
        with pytest.raises(RewriteError):
            await ticks.server.rewriting.start()
        assert set(home.iterdir()) == left
        await ticks.server.end_work()
        ticks.close()

    in_loop(body())
