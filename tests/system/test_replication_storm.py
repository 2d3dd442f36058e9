"""Random commands on a primary while its replicas lose their links, are killed, and start again.

In the end, and in between, every replica that is at the primary's offset shows the same: all streams with their groups
and pending entries, field by field.  What a replica missed comes from the log; nothing of it is sent twice.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.conftest import StartRedis, StartRiverbed, base_seed, broken_invariants
from tests.support.faults.proxy import Proxy
from tests.support.faults.silence import SilentLink, best_link, proxied_link
from tests.support.faults.stops import GRACEFUL, KILL, end
from tests.support.raw import RawClient
from tests.support.replicas import follow, info, syncs, until_down, until_level, until_linked
from tests.support.scripts.generators import CONNECTION, KEYSPACE, STREAMS
from tests.support.scripts.group_commands import GROUP_FAMILY, NEWER_FAMILY
from tests.support.scripts.states import (
    LASTING,
    NODES,
    OURS,
    SHARED,
    UNKNOWN_TO_REDIS,
    Scripts,
    leave_pending,
    state_of,
)
from tests.support.servers import RiverbedServer, Server
from tests.support.waiting import until

NOTHING: frozenset[bytes] = frozenset()
OPTIONS: dict[str, object] = {**OURS, "appendfsync": "no", "log-segment-bytes": 65536}


class Storm(threading.Thread):
    """Sends random commands until told to stop; a server that goes away is waited for.

    A server that does not answer is a failure: it could execute what it was sent while states are compared.
    """

    def __init__(self, server: Server, seed: int, families: tuple[object, ...]) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._generator = Scripts(random.Random(seed), families, wrong=0.02)
        self._ending = threading.Event()
        self.commands = 0

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                with self._server.client(timeout_s=120) as client:
                    while not self._ending.is_set():
                        self._send(client)
            except ConnectionError:
                self._ending.wait(0.01)

    def _send(self, client: RawClient) -> None:
        words = [step.words for step in self._generator.script(20)]
        client.pipeline(words)
        client.pipeline([("DISCARD",), ("RESET",)])
        self.commands += len(words)

    def __enter__(self) -> Storm:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()


@pytest.fixture
def proxies() -> Iterator[list[Proxy]]:
    found: list[Proxy] = []
    yield found
    for proxy in found:
        proxy.close()


def through(proxies: list[Proxy], server: Server) -> Proxy:
    proxies.append(Proxy(lambda: server.port))
    return proxies[-1]


def follower(start: StartRiverbed, port: int) -> RiverbedServer:
    return start(options={**OPTIONS, "replicaof": f"127.0.0.1 {port}"})


def test_replicas_that_lose_their_links_again_and_again_show_what_the_primary_shows(
    start_riverbed: StartRiverbed, proxies: list[Proxy]
) -> None:
    chance = random.Random(base_seed())
    primary = start_riverbed(options=OPTIONS)
    proxy = through(proxies, primary)
    first = follower(start_riverbed, proxy.port)
    between = through(proxies, first)
    second = follower(start_riverbed, between.port)
    until_linked(first)
    until_linked(second)
    full = syncs(primary)[0]
    families = (STREAMS, GROUP_FAMILY, NEWER_FAMILY, LASTING, CONNECTION)
    for round_number in range(4):
        with Storm(primary, base_seed() + round_number, families) as storm:
            for _ in range(6):
                before = storm.commands
                while storm.commands < before + 40:
                    threading.Event().wait(0.005)
                chance.choice((proxy, between)).cut()
        with primary.client() as client:
            leave_pending(client, chance)
        until_level(primary, first, second)
        expected = state_of(primary, NOTHING)
        assert expected
        assert state_of(first, NOTHING) == expected
        assert state_of(second, NOTHING) == expected
    assert syncs(primary)[0] == full
    assert syncs(primary)[1] > 3


@pytest.mark.parametrize("link_of", [proxied_link, best_link])
def test_a_link_that_falls_silent_is_given_up_and_what_was_missed_comes_from_the_log(
    tmp_path: Path, link_of: Callable[[Path, dict[str, object]], AbstractContextManager[SilentLink]]
) -> None:
    """As a cable that is pulled: what is sent goes nowhere, and no connection ends by itself."""
    options = {**OPTIONS, "repl-timeout": 2, "repl-ping-replica-period": 1}
    with link_of(tmp_path, options) as link:
        primary, replica = link.primary, link.replica
        with replica.client() as client:
            client.ask("REPLICAOF", link.host, link.port)
        until_linked(replica)
        full, partial, _ = syncs(primary)
        with Storm(primary, base_seed() + 400, (STREAMS, GROUP_FAMILY, NEWER_FAMILY, LASTING, CONNECTION)) as storm:
            link.silence()
            until_down(replica)
            until(lambda: "no byte came for 2 s" in replica.log_text(), "the reason")
            until(lambda: info(primary)["connected_slaves"] == "0", "the end of a silent replica")
            before = storm.commands
            until(lambda: storm.commands > before, "some writes that the replica misses")
            link.restore()
            until_linked(replica)
        until_level(primary, replica)
        assert state_of(replica, NOTHING) == state_of(primary, NOTHING)
        assert syncs(primary)[0] == full
        assert syncs(primary)[1] > partial
    assert broken_invariants(tmp_path / "replica") == []


def test_either_side_may_end_in_any_way_at_any_moment(start_riverbed: StartRiverbed, proxies: list[Proxy]) -> None:
    chance = random.Random(base_seed() + 1)
    primary = start_riverbed(options=OPTIONS)
    proxy = through(proxies, primary)
    replica = follower(start_riverbed, proxy.port)
    until_linked(replica)
    families = (STREAMS, GROUP_FAMILY, NEWER_FAMILY, KEYSPACE, CONNECTION)
    for round_number, way in enumerate([KILL] * 6 + chance.sample(GRACEFUL, 6)):
        victim = (replica, primary)[round_number % 2]
        with Storm(primary, base_seed() + 100 + round_number, families) as storm:
            while storm.commands < 100:
                threading.Event().wait(0.005)
            threading.Event().wait(chance.random() / 10)
            end(victim, way)
            victim.start()
        until_level(primary, replica)
        assert state_of(replica, NOTHING) == state_of(primary, NOTHING)
    assert syncs(primary)[0] == 0, "what was missed is in the log"


def test_a_full_sync_that_is_cut_or_killed_leaves_what_was_there(
    start_riverbed: StartRiverbed, proxies: list[Proxy]
) -> None:
    chance = random.Random(base_seed() + 2)
    primary = start_riverbed(options=OPTIONS)
    proxy = through(proxies, primary)
    with primary.client() as client:
        client.ask("XADD", "s", "1-1", "f", "old")
    replica = follower(start_riverbed, proxy.port)
    until_linked(replica)
    with primary.client() as client:
        client.pipeline([("XADD", "t", "*", "f", "x" * 1000) for _ in range(3000)])
    with Storm(primary, base_seed() + 200, (STREAMS, GROUP_FAMILY, CONNECTION)):
        for round_number in range(5):
            with replica.client() as client:
                client.ask("REPLICAOF", "NO", "ONE")  # and so on a line of its own
                client.ask("XADD", "own", "*", "f", "v")
                client.ask("REPLICAOF", "127.0.0.1", proxy.port)
            threading.Event().wait(chance.random() / 2)
            if round_number % 2:
                replica.kill()
                replica.start()
            else:
                proxy.cut()
            with replica.client() as client:
                assert (
                    client.ask("XRANGE", "s", "1-1", "1-1")
                    == b"*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$3\r\nold\r\n"
                )
        until_linked(replica)
    until_level(primary, replica)
    assert state_of(replica, NOTHING) == state_of(primary, NOTHING)
    until(lambda: not list(replica.directory.glob("sync-*")), "the end of what syncs have left")


def test_a_real_redis_shows_the_same_through_cuts_and_rewrites(
    start_riverbed: StartRiverbed, start_redis: StartRedis, proxies: list[Proxy]
) -> None:
    chance = random.Random(base_seed() + 3)
    primary = start_riverbed(options=OPTIONS)
    proxy = through(proxies, primary)
    replica = start_redis(options={**NODES, "repl-timeout": 10})
    follow(replica, proxy.port)
    families = (STREAMS, GROUP_FAMILY, SHARED, LASTING, CONNECTION)
    for round_number in range(3):
        with Storm(primary, base_seed() + 300 + round_number, families) as storm:
            for _ in range(3):
                before = storm.commands
                while storm.commands < before + 60:
                    threading.Event().wait(0.005)
                proxy.cut()
        with primary.client() as client:
            leave_pending(client, chance)
            client.ask("BGREWRITEAOF")
        until_level(primary, replica)
        assert state_of(replica, UNKNOWN_TO_REDIS) == state_of(primary, UNKNOWN_TO_REDIS)
    late = start_redis(options=NODES)
    follow(late, proxy.port)
    until_level(primary, late)
    assert state_of(late, UNKNOWN_TO_REDIS) == state_of(primary, UNKNOWN_TO_REDIS)
