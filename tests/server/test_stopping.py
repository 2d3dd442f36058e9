"""How a server stops: what it waits for, what it tells meanwhile, what averts it, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.server.config.config import Config
from riverbed.server.limits.accounts import MAX_WAITING_BYTES
from riverbed.server.network.addresses import Addresses
from riverbed.server.network.listener import Listener
from riverbed.store.engine import Engine
from riverbed.store.errors import DamagedRowError, LogWriteError, StateLostError
from riverbed.store.running.checkpoint import Durability
from tests.conftest import StartRedis, StartRiverbed
from tests.support.raw import RawClient, encode
from tests.support.replicas import follow, info, until_level
from tests.support.servers import RiverbedServer, Server, free_port
from tests.support.ticks import Client, Ticks, in_loop
from tests.support.waiting import until

OK = b"+OK\r\n"
NOT_STOPPED = b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n"
NO_SHUTDOWN = b"-ERR No shutdown in progress.\r\n"
NEVER_S = 1_000_000  # far longer than any test
LONG = {"shutdown-timeout": NEVER_S, "repl-timeout": NEVER_S}


@contextlib.contextmanager
def silent_replica(server: Server) -> Iterator[RawClient]:
    """A replica that takes what it is sent and acknowledges nothing.  It says that it listens on port 1."""
    with server.client() as replica:
        assert replica.ask("REPLCONF", "listening-port", 1) == OK
        replica.send("PSYNC", "?", -1)
        until(lambda: "slave0" in info(server), "a replica")
        with server.client() as client:
            client.ask("XADD", "lacking", "*", "f", "v")
        yield replica


@pytest.fixture(params=["riverbed", "redis"])
def server(request: pytest.FixtureRequest, start_riverbed: StartRiverbed, start_redis: StartRedis) -> Server:
    """Each test is held to what Redis does by Redis itself."""
    started: Server = start_riverbed(options=LONG) if request.param == "riverbed" else start_redis(options=LONG)
    with started.client() as client:
        client.ask("XADD", "s", "*", "f", "v")
    return started


def is_waiting(server: Server) -> bool:
    return "shutdown_in_milliseconds" in info(server, "server")


def until_waiting(server: Server) -> None:
    until(lambda: is_waiting(server), f"a server that waits for its replicas\n{server.log_tail()}")


# -- waiting for replicas ----------------------------------------------------------------------------------------------


def test_a_stop_that_waits_serves_reads_and_is_averted_as_in_redis(server: Server) -> None:
    with silent_replica(server), server.client() as asker, server.client() as client, server.client() as writer:
        asker.send("SHUTDOWN")
        until_waiting(server)
        assert 0 < int(info(server, "server")["shutdown_in_milliseconds"]) <= 1000 * NEVER_S
        assert info(server, "clients")["blocked_clients"] == "1"
        writer.send("XADD", "s", "*", "f", "v")
        assert client.ask("CLIENT", "UNPAUSE") == OK, "which is about other pauses"
        assert client.ask("XLEN", "s") == b":1\r\n"
        with server.client() as late:
            assert late.ask("PING") == b"+PONG\r\n"
            late.send("SHUTDOWN", "NOW")  # one stop is under way, and ABORT alone can change it
            until(
                lambda: client.ask("CLIENT", "LIST").count(b"cmd=shutdown") == 2, "two clients that wait for the stop"
            )
            assert client.ask("SHUTDOWN", "ABORT") == OK
            assert late.reply() == asker.reply() == NOT_STOPPED
        assert writer.reply().startswith(b"$")
        assert not is_waiting(server)
        assert client.ask("SHUTDOWN", "ABORT") == NO_SHUTDOWN
        assert client.ask("XLEN", "s") == b":2\r\n"
    assert "Shutdown manually aborted." in server.log_text()


def test_a_signal_to_stop_is_averted_as_in_redis(server: Server) -> None:
    def received() -> int:
        return server.log_path.read_bytes().count(b"scheduling shutdown...")

    with silent_replica(server), server.client() as client:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(server.pid, number)
            until_waiting(server)
            before = received()
            os.kill(server.pid, signal.SIGTERM)  # a second one changes nothing
            until(lambda before=before: received() > before, "the second signal, which behind ABORT would be a first")
            assert client.ask("PING") == b"+PONG\r\n"
            assert client.ask("SHUTDOWN", "ABORT") == OK
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")


def test_a_second_interrupt_ends_the_wait_with_status_1(server: Server) -> None:
    with silent_replica(server):
        os.kill(server.pid, signal.SIGTERM)
        until_waiting(server)
        os.kill(server.pid, signal.SIGINT)
        assert server.wait_ended() == 1
    assert "You insist... exiting now." in server.log_text()
    server.start()
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":1\r\n"


@pytest.mark.parametrize("how", ["timeout 0", "SHUTDOWN NOW", "SHUTDOWN NOSAVE NOW FORCE"])
def test_a_stop_need_not_wait(server: Server, how: str) -> None:
    with silent_replica(server), server.client() as client:
        if how == "timeout 0":
            assert client.ask("CONFIG", "SET", "shutdown-timeout", 0) == OK
            os.kill(server.pid, signal.SIGTERM)
        else:
            client.send(*how.split())
            assert client.rest_until_closed() == b""
        assert server.wait_ended() == 0


def test_replicas_that_did_not_come_level_in_time_are_logged(server: Server) -> None:
    with silent_replica(server), server.client() as client:
        assert client.ask("CONFIG", "SET", "shutdown-timeout", 1) == OK
        client.send("SHUTDOWN")
        assert client.rest_until_closed() == b""
        assert server.wait_ended() == 0
    tail = server.log_tail(2000)
    assert "Waiting for replicas before shutting down." in tail
    lagging = r"Lagging replica 127\.0\.0\.1:1 reported offset \d+ behind master, lag=\d, state=(\w+)\."
    assert re.search(lagging, tail), tail
    assert "0 of 1 replicas are in sync when shutting down." in tail


def test_a_replica_that_leaves_is_waited_for_no_longer(server: Server) -> None:
    with silent_replica(server):
        os.kill(server.pid, signal.SIGTERM)
        until_waiting(server)
    assert server.wait_ended() == 0


def test_the_client_that_asked_may_leave(server: Server) -> None:
    with silent_replica(server) as replica:
        with server.client() as client:
            client.send("SHUTDOWN")
            until_waiting(server)
        assert is_waiting(server)
        replica.close()
    assert server.wait_ended() == 0


def test_a_redis_and_a_riverbed_that_follow_are_waited_for(
    start_riverbed: StartRiverbed, start_redis: StartRedis
) -> None:
    primary = start_riverbed(options=LONG)
    replicas: list[Server] = [start_riverbed(), start_redis()]
    for replica in replicas:
        follow(replica, primary.port)
    until_level(primary, *replicas)
    for replica in replicas:
        os.kill(replica.pid, signal.SIGSTOP)
    with primary.client() as client:
        client.pipeline([("XADD", "s", "*", "f", b"x" * 1_000)] * 3_000)
    os.kill(primary.pid, signal.SIGTERM)
    until_waiting(primary)
    for replica in replicas:
        os.kill(replica.pid, signal.SIGCONT)
    assert primary.wait_ended() == 0
    for replica in replicas:
        with replica.client() as client:
            assert client.ask("XLEN", "s") == b":3000\r\n"
    assert "2 of 2 replicas are in sync when shutting down." in primary.log_text()


def test_a_replica_that_stops_waits_for_those_that_follow_it(start_riverbed: StartRiverbed) -> None:
    primary, middle, below = start_riverbed(), start_riverbed(options=LONG), start_riverbed()
    follow(middle, primary.port)
    follow(below, middle.port)
    until_level(primary, middle, below)
    os.kill(below.pid, signal.SIGSTOP)
    with primary.client() as client:
        client.pipeline([("XADD", "s", "*", "f", "v")] * 1_000)
    until_level(primary, middle)
    os.kill(middle.pid, signal.SIGTERM)
    until_waiting(middle)
    with primary.client() as client:  # what comes behind the order does not prolong the stop
        client.ask("XADD", "s", "*", "f", "v")
    os.kill(below.pid, signal.SIGCONT)
    assert middle.wait_ended() == 0
    with below.client() as client:
        assert int(client.ask("XLEN", "s")[1:]) >= 1_000


def test_keys_do_not_expire_while_replicas_are_waited_for(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options=LONG)
    with server.client() as client, silent_replica(server):
        client.ask("XADD", "s", "*", "f", "v")
        client.ask("PEXPIRE", "s", 500)
        os.kill(server.pid, signal.SIGTERM)
        until_waiting(server)
        assert info(server, "keyspace")["db0"].startswith("keys=2,")
        before = info(server)["master_repl_offset"]
        begun = int(info(server, "server")["uptime_in_seconds"])
        until(lambda: int(info(server, "server")["uptime_in_seconds"]) >= begun + 2, "two seconds")
        assert info(server)["master_repl_offset"] == before
        assert info(server, "stats")["expired_keys"] == "0"
        assert client.ask("SHUTDOWN", "ABORT") == OK
        until(lambda: info(server, "stats")["expired_keys"] == "1", "the end of the key")


# -- what has not run --------------------------------------------------------------------------------------------------


def test_what_waits_to_run_when_the_server_ends_never_runs(tmp_path: Path) -> None:
    """The fast path is shut in the same step: were it not, the XADDs would run without MULTI, SELECT and EXEC."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        inside, outside = ticks.connect(), ticks.connect()
        assert await ticks.ask(inside, "WATCH s", "MULTI", "XADD s 1-1 f v") == [OK, OK, b"+QUEUED\r\n"]
        inside.send("XGROUP CREATE s g $", "EXEC", "XADD s 1-2 f v")
        outside.send("SELECT 1", "XADD s 2-1 f v")
        ticks.executor.let_go()
        for client in (inside, outside):
            client.send("XADD s 3-1 f v", "MULTI", "XADD s 3-2 f v", "EXEC")
        await ticks.settle()
        for client in (inside, outside):
            assert not client.session.is_plain
            assert client.is_closed
            assert client.replies() == []
        assert ticks.batches() == []
        ticks.close()

    in_loop(body())


def test_what_ran_before_the_end_is_answered(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        client.send("XADD s 1-1 f v")
        ticks.executor.fast_path.run(ticks.clock.time())
        assert ticks.engine.txn.log
        ticks.executor.let_go()
        assert client.replies() == [b"$3\r\n1-1\r\n"]
        assert client.is_closed
        assert ticks.batches() == [[b"XADD s 1-1 f v"]]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("how", ["SHUTDOWN", "SHUTDOWN NOW"])
def test_a_long_command_under_way_is_done_whole(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, shutdown_timeout=NEVER_S)
        client, asker = ticks.connect(), ticks.connect()
        ids = [f"{number}-1" for number in range(1, 50_001)]
        await ticks.ask(client, *(f"XADD s {entry_id} f v" for entry_id in ids))
        client.send(f"XDEL s {' '.join(ids)}", "XADD s * f behind")
        await asyncio.sleep(0)
        assert ticks.executor.sliced_commands.is_writing()
        asker.send(how)
        await asyncio.wait_for(ticks.server.stopping.begun_to_end.wait(), 60)
        assert client.is_closed
        assert client.replies() == [b":50000\r\n"]
        stream = ticks.engine.txn.databases[0].stream(b"s", 0)
        assert stream is not None and stream.length == 0
        ticks.close()

    in_loop(body())


def test_a_long_write_that_a_pause_holds_is_done_whole_without_a_wait(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, shutdown_timeout=NEVER_S)
        client, asker = ticks.connect(), ticks.connect()
        ids = [f"{number}-1" for number in range(1, 50_001)]
        await ticks.ask(client, *(f"XADD s {entry_id} f v" for entry_id in ids))
        client.send(f"XDEL s {' '.join(ids)}")
        await asyncio.sleep(0)
        assert ticks.executor.sliced_commands.is_writing()
        await ticks.ask(asker, "CLIENT PAUSE 100000 WRITE")
        assert client.replies() == []
        ticks.server.stopping.terminate()
        await asyncio.wait_for(ticks.server.stopping.begun_to_end.wait(), 60)
        assert client.replies() == [b":50000\r\n"]
        ticks.close()

    in_loop(body())


async def claim_at_length(ticks: Ticks) -> Client:
    """XCLAIM of 400 entries that has claimed the first 250; with the others its reply is too long for memory."""
    client = ticks.connect()
    small, large = ([f"{number}-1" for number in numbers] for numbers in (range(1, 301), range(301, 401)))
    await ticks.ask(client, *(f"XADD s {entry_id} f v" for entry_id in small), "XGROUP CREATE s g 0")
    await ticks.ask(client, *(f"XADD s {entry_id} f {'x' * 20_000}" for entry_id in large))
    client.send(f"XCLAIM s g c 0 {' '.join(small + large)} FORCE")
    for _ in range(1000):
        await asyncio.sleep(0)
        if ticks.executor.sliced_commands.count_waiting_for_view:
            return client
    raise AssertionError("it never waited for a view")


def pending_count(ticks: Ticks) -> int:
    db = ticks.engine.txn.databases[0]
    stream = db.stream(b"s", 0)
    assert stream is not None
    group = db.groups(stream).get(b"g")
    assert group is not None
    return sum(1 for _ in group.pending())


def test_a_long_claim_that_waits_for_a_view_is_done_whole(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, shutdown_timeout=NEVER_S)
        await claim_at_length(ticks)
        ticks.connect().send("SHUTDOWN")
        await asyncio.wait_for(ticks.server.stopping.begun_to_end.wait(), 60)
        assert pending_count(ticks) == 400
        ticks.close()

    in_loop(body())


def test_a_long_claim_that_waits_for_a_view_at_a_sudden_end_is_told_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverbed.server.limits.views.MAX_VIEWS", 0)  # or it might have one before the end

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = await claim_at_length(ticks)
        ticks.connect().send("SHUTDOWN NOW")
        await asyncio.wait_for(ticks.server.stopping.begun_to_end.wait(), 60)
        (reply,) = client.replies()
        assert reply.startswith(b"-PARTIAL XCLAIM was done in part, which stays: the first 250 of 400 IDs. ")
        assert reply.endswith(b"The rest was not done: ERR the server is stopping\r\n")
        assert pending_count(ticks) == 250
        ticks.close()

    in_loop(body())


def test_a_client_that_comes_as_the_listener_closes_is_not_served(tmp_path: Path) -> None:
    """The system accepts it in the same turn of the loop, and its connection begins behind the end."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        config = Config.load(["--port", str(free_port()), "--bind", "127.0.0.1"])
        listener = Listener(config, ticks.server, Addresses(config))
        await listener.listen()
        ticks.server.stopping.begin(now=True)  # nobody has told it of the listener
        await ticks.server.stopping.begun_to_end.wait()
        with socket.create_connection(("127.0.0.1", config.port)) as client, contextlib.suppress(OSError):
            client.sendall(b"XADD s 1-1 f v\r\n")
            client.settimeout(5)
            await asyncio.to_thread(client.recv, 100)
        await ticks.settle()
        listener.close()
        assert not ticks.executor.context.sessions
        assert ticks.engine.txn.databases[0].size == 0
        ticks.close()

    in_loop(body())


# -- the checkpoint ----------------------------------------------------------------------------------------------------


def test_reads_that_wait_for_a_view_end_with_the_connections(tmp_path: Path) -> None:
    """Nothing runs behind the end, or it would want a checkpoint of what is about to be closed."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, writer = ticks.connect(), ticks.connect()
        await ticks.ask(writer, *[f"XADD s {number}-1 f {'x' * 300_000}" for number in range(1, 10)])
        await ticks.ask(writer, "XADD s 10-1 f v")  # not in a checkpoint yet
        reader.send("XRANGE s - +")
        await asyncio.sleep(0)
        assert ticks.executor.sliced_commands.count_waiting_for_view == 1
        ticks.executor.let_go()
        ticks.server.maintenance.stop()
        ticks.server.checkpoints.stop()
        await ticks.settle()
        assert not ticks.executor.sliced_commands
        assert ticks.executor.stats.background.failures == 0, ticks.executor.stats.background.last_failure
        assert not reader.replies()
        ticks.close()

    in_loop(body())


def test_a_checkpoint_that_has_just_begun_is_no_failure_of_the_stop(tmp_path: Path) -> None:
    """Its task has not come to the disk's thread yet."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        await ticks.ask(ticks.connect(), "XADD s 1-1 f v")
        assert ticks.server.checkpoints.checkpoint_soon()
        ticks.server.maintenance.stop()
        ticks.server.checkpoints.stop()
        await ticks.settle()
        assert ticks.executor.stats.background.failures == 0, ticks.executor.stats.background.last_failure
        ticks.close()

    in_loop(body())


def test_a_checkpoint_that_fails_keeps_a_server_from_a_stop_that_insists_on_it(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="no")
        client, asker = ticks.connect(), ticks.connect()
        stopping = ticks.server.stopping
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.files.fail("sync", errno.EIO)
        assert await ticks.ask(asker, "SHUTDOWN SAVE") == [NOT_STOPPED]
        assert not stopping.begun_to_end.is_set()
        assert await ticks.ask(client, "XLEN s", "SHUTDOWN ABORT") == [b":1\r\n", NO_SHUTDOWN]
        assert await ticks.ask(asker, "SHUTDOWN SAVE FORCE") == []
        assert stopping.begun_to_end.is_set()
        assert client.is_closed and asker.is_closed
        ticks.close(save=False)

    in_loop(body())


def test_damage_that_a_checkpoint_meets_is_a_failure_as_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SHUTDOWN SAVE waited for ever, and all writes with it."""

    def meet_damage(_: Engine) -> Durability:
        raise DamagedRowError("a row")

    async def body() -> None:
        ticks = Ticks(tmp_path, auto_repair="no")
        client, asker = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        monkeypatch.setattr(Engine, "begin_checkpoint", meet_damage)
        assert await ticks.ask(asker, "SHUTDOWN SAVE") == [NOT_STOPPED]
        assert await ticks.ask(client, "XADD s 2-1 f v") == [b"$3\r\n2-1\r\n"]
        ticks.server.stopping.terminate()
        await ticks.server.stopping.begun_to_end.wait()
        assert await ticks.server.finish() == 1

    in_loop(body())


def test_a_checkpoint_that_finds_no_memory_is_a_failure_as_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes waited for ever, and no signal ended the server."""

    def find_no_memory(_: Engine) -> Durability:
        raise MemoryError

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, asker = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "begin_checkpoint", find_no_memory)
            assert await ticks.ask(asker, "SHUTDOWN SAVE") == [NOT_STOPPED]
            assert await ticks.ask(client, "XADD s 2-1 f v") == [b"$3\r\n2-1\r\n"]
            assert await ticks.ask(asker, "SHUTDOWN SAVE FORCE") == []
        assert ticks.server.stopping.begun_to_end.is_set()
        assert await ticks.server.finish() == 0

    in_loop(body())


@pytest.mark.parametrize("error", [StateLostError("planted"), DamagedRowError("a row"), LogWriteError("planted")])
def test_a_stop_whose_last_checkpoint_fails_says_so_whatever_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Lost state was taken for a store that cannot be opened."""

    def fail(_: Engine) -> Durability:
        raise error

    async def body() -> None:
        ticks = Ticks(tmp_path)
        await ticks.ask(ticks.connect(), "XADD s 1-1 f v")
        monkeypatch.setattr(Engine, "begin_checkpoint", fail)
        ticks.server.stopping.terminate()
        await ticks.server.stopping.begun_to_end.wait()
        assert await ticks.server.finish() == 1
        assert "the last checkpoint failed; the next start replays the log" in caplog.text

    in_loop(body())


def test_a_stop_without_save_does_not_depend_on_a_checkpoint(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="no")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.files.fail("sync", errno.EIO)
        assert await ticks.ask(client, "SHUTDOWN") == []
        assert ticks.server.stopping.begun_to_end.is_set()
        assert await ticks.server.finish() == 1, "the log could not be synced"

    in_loop(body())


# -- signals -----------------------------------------------------------------------------------------------------------


def test_a_hangup_is_ignored(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        os.kill(riverbed.pid, signal.SIGHUP)
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
    assert riverbed.stop() == 0


def test_clients_that_pipeline_far_more_than_a_tick_runs_do_not_delay_a_stop(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client, riverbed.client() as asker:
        client.send_bytes(encode(("XADD", "s", "*", "f", b"x" * 100)) * (MAX_WAITING_BYTES // 100 * 20))
        asker.send("SHUTDOWN")
        assert asker.rest_until_closed() == b""
        answered = client.rest_until_closed()
        assert riverbed.wait_ended() == 0
    riverbed.start()
    with riverbed.client() as client:
        assert int(client.ask("XLEN", "s")[1:]) >= answered.count(b"\r\n$")
