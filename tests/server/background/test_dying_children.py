"""Each kind of process that a server starts dies, is stopped, or loses its server, at any moment.

Whatever happens, INFO says so, the next attempt succeeds, no task ends by a defect, and no process outlives its server.
The moments are random, the same in every run; `RIVERBED_SEED=random` tries others.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import StartRiverbed, base_seed
from tests.support.faults.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.replicas import fill, info, is_linked, syncs, until_level
from tests.support.servers import RiverbedServer
from tests.support.waiting import process_ended, rewrite_ended, until

pytestmark = pytest.mark.slow

ROUNDS = 6
# Longer than any of these processes takes for so little data, so that some moments are behind its end.
LONGEST_S = 0.6
SNAPSHOT_SERVERS = 3
ENTRIES = 20_000


def first_child(server: RiverbedServer, is_over: Callable[[], bool] = lambda: False) -> int | None:
    """None if the work `is_over` before the test, on a busy machine, has seen the process that does it."""
    found: list[int] = []

    def was_seen_or_over() -> bool:
        found[:] = server.children()
        return bool(found) or is_over()

    until(was_seen_or_over, "a process that the server has started")
    return found[0] if found else None


def is_rewritten(client: RawClient) -> bool:
    """Whether a rewrite that had begun is over."""
    return client.info("persistence")["aof_rewrite_in_progress"] == "0"


def has_reply(client: RawClient) -> bool:
    return bool(select.select([client.socket], [], [], 0)[0])


def hit(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def assert_nothing_ended_unnoticed(server: RiverbedServer) -> None:
    until(lambda: not server.children(), "the end of every process that the server has started")
    stats = info(server, "stats")
    assert stats["riverbed_background_failures"] == "0", stats["riverbed_background_last_failure"]


def rounds(what: str) -> Iterator[tuple[random.Random, signal.Signals, float]]:
    """A signal and a moment for each round."""
    for number in range(ROUNDS):
        chance = random.Random(f"{what} {base_seed()} {number}")
        yield chance, chance.choice((signal.SIGKILL, signal.SIGTERM)), chance.uniform(0, LONGEST_S)


def at_once(body: Callable[..., None], each: Iterable[tuple[object, ...]]) -> None:
    """Call `body` with each of these at the same time: rounds that have servers of their own, and mostly wait."""
    with ThreadPoolExecutor(ROUNDS) as pool:
        for ended in [pool.submit(body, *arguments) for arguments in each]:
            ended.result()


# -- the process dies --------------------------------------------------------------------------------------------------


def test_a_rewrite_whose_process_dies_at_any_moment_fails_or_is_complete(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        fill(client, "s", ENTRIES)
        for _, number, delay_s in rounds("rewrite"):
            assert client.ask("BGREWRITEAOF").startswith(b"+")
            child = first_child(riverbed, lambda: is_rewritten(client))
            time.sleep(delay_s)
            hit(child, number)
            found = rewrite_ended(client)
            is_ok = found["aof_rewrites_consecutive_failures"] == "0"
            assert found["aof_last_bgrewrite_status"] == ("ok" if is_ok else "err")
            assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
        assert client.ask("BGREWRITEAOF").startswith(b"+")
        assert rewrite_ended(client)["aof_last_bgrewrite_status"] == "ok"
    assert_nothing_ended_unnoticed(riverbed)
    # the manifest is written once more when what the rewrite replaces is deleted
    until(lambda: not list(riverbed.directory.glob("appendonlydir/temp-*")), "the end of all temporary files")


def test_a_snapshot_whose_process_dies_at_any_moment_fails_or_is_complete(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        fill(client, "s", ENTRIES)
        for _, number, delay_s in rounds("snapshot"):
            client.send("RIVERBED", "SNAPSHOT")
            child = first_child(riverbed, lambda: has_reply(client))
            time.sleep(delay_s)
            hit(child, number)
            reply = client.reply()
            assert reply.startswith((b"*", b"%")) or b"its process was killed" in reply or b"status 1" in reply, reply
            assert client.info("persistence")["riverbed_snapshot_in_progress"] == "0"
        assert client.ask("RIVERBED", "SNAPSHOT", "whole").startswith(b"*")
        until(lambda: client.info("persistence")["riverbed_lmdb_readers"] == "0", "the last reader's end")
    assert_nothing_ended_unnoticed(riverbed)
    assert not list(riverbed.directory.glob("snapshots/.temp-*"))


def threads(pid: int | None) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("how", ["SIGTERM", "SIGTERM of the server", "SIGKILL of the server"])
def test_a_snapshot_that_is_ended_as_lmdb_begins_to_copy_ends(start_riverbed: StartRiverbed, how: str) -> None:

    def rounds_of(server: RiverbedServer) -> None:
        with server.client() as client:
            fill(client, "s", 3 * ENTRIES, 100)
        for _ in range(ROUNDS // SNAPSHOT_SERVERS):
            with server.client() as client:
                client.send("RIVERBED", "SNAPSHOT")
                child = first_child(server, lambda client=client: has_reply(client))
                # `child.py` has four threads; then come the one that copies, and LMDB's own
                until(lambda child=child: threads(child) >= 6 or not server.children(), "LMDB's thread")
                match how:
                    case "SIGTERM":
                        hit(child, signal.SIGTERM)
                        assert client.reply()
                    case "SIGTERM of the server":
                        assert server.stop() == 0
                    case _:
                        server.kill()
            if child is not None:
                process_ended(child)
            if server.process is None:
                server.start()
        with server.client() as client:
            assert client.ask("RIVERBED", "SNAPSHOT", "whole").startswith(b"*")
            until(
                lambda client=client: client.info("persistence")["riverbed_lmdb_readers"] == "0",
                "the last reader's end",
            )
        assert_nothing_ended_unnoticed(server)

    at_once(rounds_of, [(start_riverbed(),) for _ in range(SNAPSHOT_SERVERS)])


def slowly(data: bytes, passed: int) -> bytes:
    time.sleep(0.02)
    return data


@pytest.mark.parametrize("link", ["goes on", "pauses"])
def test_a_full_sync_whose_process_dies_at_any_moment_is_begun_again(start_riverbed: StartRiverbed, link: str) -> None:
    primary = start_riverbed()
    with primary.client() as client:
        fill(client, "s", ENTRIES)

    def one_round(replica: RiverbedServer, chance: random.Random, number: signal.Signals, delay_s: float) -> None:
        with Proxy(lambda: primary.port) as proxy:
            proxy.alter = slowly  # so that the process has to wait for what comes
            with replica.client() as client:
                assert client.ask("REPLICAOF", "127.0.0.1", proxy.port).startswith(b"+OK")
            child = first_child(replica, lambda: is_linked(replica))
            time.sleep(delay_s)
            if link == "pauses":
                proxy.passes.clear()
            hit(child, number)
            if link == "pauses":
                time.sleep(chance.uniform(0, 0.5))
                proxy.passes.set()
            until_level(primary, replica)
        assert_nothing_ended_unnoticed(replica)

    at_once(one_round, [(start_riverbed(), *one) for one in rounds(f"full sync {link}")])


def test_a_full_sync_reports_that_it_fails_again_and_again(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    with primary.client() as client:
        fill(client, "s", 1_000)
    with replica.client() as client, Proxy(lambda: primary.port) as proxy:
        # the process waits for more, and only its own end can tell that it is no use
        proxy.alter = lambda data, passed: data[: max(5_000 - passed, 0)]
        assert client.ask("REPLICAOF", "127.0.0.1", proxy.port).startswith(b"+OK")
        for number in range(1, 3):
            until(lambda: bool(list(replica.directory.glob("sync-*/state/data.mdb"))), "tables of a full sync")
            time.sleep(1)  # it replays what there is, and waits; sooner, this proves less
            hit(first_child(replica), signal.SIGKILL)
            until(
                lambda number=number: int(info(replica).get("riverbed_full_sync_failures", 0)) >= number,
                "the end of a full sync",
            )
        found = info(replica)
        assert found["riverbed_full_sync_last_failure"] == "its process was killed by signal 9"
        proxy.alter = None
        proxy.cut()
        until_level(primary, replica)
        assert "riverbed_full_sync_failures" not in info(replica)


def test_a_full_sync_that_was_given_up_leaves_the_next_one_alone(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    with primary.client() as client:
        fill(client, "s", ENTRIES)
    goes_on = threading.Event()

    def hold(port: int, passed: int) -> None:
        if passed > 5_000:
            goes_on.wait()

    with Proxy(lambda: primary.port) as proxy:
        proxy.hold = hold
        with replica.client() as client:
            assert client.ask("REPLICAOF", "127.0.0.1", proxy.port).startswith(b"+OK")
        until(lambda: bool(list(replica.directory.glob("sync-*/state/data.mdb"))), "tables of a full sync")
        (given_up,) = replica.directory.glob("sync-*")
        hit(first_child(replica), signal.SIGSTOP)  # it takes seconds to end it
        proxy.cut()
        until(lambda: len(list(replica.directory.glob("sync-*"))) == 2, "the next full sync")
        until(lambda: not given_up.exists(), "the end of the first full sync")
        goes_on.set()
        until_level(primary, replica)
    assert syncs(primary)[0] == 2
    assert_nothing_ended_unnoticed(replica)


def test_a_rewrite_that_a_replica_waits_for_may_die(start_riverbed: StartRiverbed) -> None:
    def one_round(primary: RiverbedServer, replica: RiverbedServer, number: signal.Signals, delay_s: float) -> None:
        with primary.client() as client:
            fill(client, "s", ENTRIES)
            assert client.ask("BGREWRITEAOF").startswith(b"+")
            child = first_child(primary, lambda: is_rewritten(client))
        with replica.client() as client:
            assert client.ask("REPLICAOF", "127.0.0.1", primary.port).startswith(b"+OK")
        time.sleep(delay_s)
        hit(child, number)
        until_level(primary, replica)
        assert_nothing_ended_unnoticed(primary)
        assert_nothing_ended_unnoticed(replica)

    at_once(one_round, [(start_riverbed(), start_riverbed(), *one) for _, *one in rounds("rewrite for a replica")])


# -- the server dies ---------------------------------------------------------------------------------------------------


def begin(what: str, server: RiverbedServer, primary: RiverbedServer) -> int | None:
    """-> the process that does it"""
    with server.client() as client:
        match what:
            case "rewrite":
                assert client.ask("BGREWRITEAOF").startswith(b"+")
                return first_child(server, lambda: is_rewritten(client))
            case "snapshot":
                client.send("RIVERBED", "SNAPSHOT")
                return first_child(server, lambda: has_reply(client))
            case _:
                assert client.ask("REPLICAOF", "127.0.0.1", primary.port).startswith(b"+OK")
                return first_child(server, lambda: is_linked(server))


@pytest.mark.parametrize("what", ["rewrite", "snapshot", "full sync"])
def test_no_process_outlives_its_server(start_riverbed: StartRiverbed, what: str) -> None:
    primary = start_riverbed()
    with primary.client() as client:
        fill(client, "s", ENTRIES)

    def one_round(server: RiverbedServer, chance: random.Random, delay_s: float) -> None:
        with server.client() as client:
            fill(client, "s", ENTRIES)
        child = begin(what, server, primary)
        time.sleep(delay_s / 2)
        if chance.random() < 0.3:
            hit(child, signal.SIGSTOP)
        if chance.random() < 0.5:
            server.kill()
        else:
            assert server.stop() == 0
        hit(child, signal.SIGCONT)  # one that is stopped can do nothing, not even end
        if child is not None:
            process_ended(child)
        server.start()
        with server.client() as client:
            client.ask("REPLICAOF", "NO", "ONE")
            until(lambda: b"master_link" not in client.ask("INFO", "replication"), "the end of the link")
