"""A server that is stopped under load, in every way there is: nothing is half done, and nothing acknowledged is lost.

Clients pipeline transactions (`transactors.py`) or other writes (`flooders.py`), and the server ends amid these.  It
is started again, or its replica is promoted, and is held to what it had acknowledged.  `RIVERBED_SEED=n` or
`RIVERBED_SEED=random` runs other rounds than CI does.
"""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from tests.conftest import StartRedis, StartRiverbed, base_seed
from tests.support.faults import flooders, transactors
from tests.support.faults.client_threads import complaints, finish, until_acknowledged
from tests.support.faults.crashes import options_for
from tests.support.faults.stops import GRACEFUL, WAYS, end
from tests.support.replicas import follow, info, until_level
from tests.support.servers import RiverbedServer, Server
from tests.support.waiting import until

CLIENTS = 12
ROUNDS = 3  # of each way
FEWEST, MOST = 20, 2_000
MAX_FLOODED = 20_000  # entries
LONG_BYTES = 16_000  # few entries for many bytes: they are read back one by one
# More than the kernel holds for a replica that does not read: the rest is still with the primary.
LAG_BYTES = 24 << 20
LAG_S = 0.3
# A machine that is busy with other things takes longer than the ten seconds that a stop waits for replicas else.
PATIENT: dict[str, object] = {"shutdown-timeout": 600}
# What does not wait for replicas promises nothing about these.
FSYNCS = ("always", "everysec", "no")
WAITING = tuple(way for way in GRACEFUL if "NOW" not in way)


def stop_amid_transactions(server: Server, way: str, seed: int, clients: int = CLIENTS) -> list[transactors.Transactor]:
    """Let clients commit some units, few or many, and end the server."""
    chance = random.Random(seed)
    workers = transactors.start(server, clients, chance.choice((5, 25, 100)), seed, f"{seed}")
    until_acknowledged(workers, chance.randint(FEWEST, MOST))
    end(server, way)
    finish(workers)
    return workers


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_leaves_no_transaction_half_done_and_none_that_a_watch_forbade(
    start_riverbed: StartRiverbed, way: str
) -> None:
    seed = base_seed() * 1_000 + WAYS.index(way) * 100
    server = start_riverbed(options=options_for(random.Random(seed)))
    unanswered = 0
    for number in range(ROUNDS):
        chance = random.Random(seed + number)
        workers = stop_amid_transactions(server, way, seed + number)
        server.options = options_for(chance) | {"appendfsync": chance.choice(FSYNCS)}
        server.start()
        found = complaints(server, workers)
        assert found == [], f"seed {seed + number}: {len(found)} complaints"
        unanswered += sum(worker.unanswered() for worker in workers)
    assert unanswered > 0, "no stop met a transaction"


def promote(replica: Server) -> None:
    with replica.client() as client:
        assert client.ask("REPLICAOF", "NO", "ONE") == b"+OK\r\n"


def stop_and_promote(primary: RiverbedServer, replica: Server, ways: tuple[str, ...], seed: int) -> int:
    """Stop the primary amid writes, promote the replica, and hold both to what had been acknowledged.

    In every other round the replica does nothing for a while, and so is far behind when the primary is told to stop.
    -> how many writes had not been answered.
    """
    unanswered = 0
    for number, way in enumerate(ways):
        chance = random.Random(seed * 1_000 + number)
        follow(replica, primary.port)
        until_level(primary, replica)
        clients, depth, prefix = chance.choice((2, 8)), chance.choice((100, 1_000)), f"{seed}.{number}"
        if number % 2:
            writers = flooders.start(primary, clients, depth, chance.choice((10, 300)), prefix)
            until_acknowledged(writers, chance.randint(1, MAX_FLOODED))
        else:
            os.kill(replica.pid, signal.SIGSTOP)
            writers = flooders.start(primary, clients, depth // 8, LONG_BYTES, prefix)
            until_acknowledged(writers, LAG_BYTES // LONG_BYTES)
            threading.Timer(LAG_S, os.kill, (replica.pid, signal.SIGCONT)).start()
        end(primary, way)
        finish(writers)
        promote(replica)
        primary.options = options_for(chance) | PATIENT | {"appendfsync": FSYNCS[number % len(FSYNCS)]}
        primary.start()
        for server in (replica, primary):
            assert complaints(server, writers) == [], f"{server.name}, seed {seed}, round {number}, {way}"
        unanswered += sum(writer.sent - writer.acknowledged for writer in writers)
    return unanswered


def test_a_replica_that_is_promoted_after_a_stop_has_everything(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(options=PATIENT), start_riverbed()
    assert stop_and_promote(primary, replica, WAITING, base_seed()) > 0, "no stop met a write"


def test_a_redis_that_is_sent_everything_when_a_stop_begins_is_waited_for(
    start_riverbed: StartRiverbed, start_redis: StartRedis
) -> None:
    """Its link is cut once, between the base and what follows; the stop waits until it has come back."""
    primary, replica = start_riverbed(options=PATIENT), start_redis()
    with primary.client(timeout_s=60) as client:
        for number in range(1, 301):
            assert client.ask("XADD", "s", f"{number}-0", "f", b"x" * 100_000).startswith(b"$")
        assert client.ask("BGREWRITEAOF").startswith(b"+")
        until(lambda: info(primary, "persistence")["aof_rewrite_in_progress"] == "0", "the end of the rewrite")
        with replica.client() as asked:
            assert asked.ask("REPLICAOF", "127.0.0.1", primary.port) == b"+OK\r\n"
        until(lambda: info(primary)["connected_slaves"] == "1", "the replica at its primary")
        os.kill(replica.pid, signal.SIGSTOP)
        assert client.ask("XADD", "s", "301-0", "f", "v") == b"$5\r\n301-0\r\n"
    threading.Timer(LAG_S, os.kill, (replica.pid, signal.SIGCONT)).start()
    end(primary, "TERM")
    promote(replica)
    with replica.client(timeout_s=60) as client:
        assert client.ask("XLEN", "s") == b":301\r\n"


def test_a_redis_that_is_promoted_after_a_stop_has_everything(
    start_riverbed: StartRiverbed, start_redis: StartRedis
) -> None:
    primary, replica = start_riverbed(options=PATIENT), start_redis()
    assert stop_and_promote(primary, replica, WAITING, base_seed() + 500) > 0, "no stop met a write"
