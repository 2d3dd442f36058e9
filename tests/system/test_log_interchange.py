"""The log is the whole truth, and a reader of Redis's logs can read it.

After random scripts the log directory alone rebuilds the same state (the tables are thrown away), and a real
redis-server that is given a copy of the log directory shows the same streams and deadlines.  The other way round, we
replay a log that redis-server wrote.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import StartRedis, StartRiverbed, base_seed
from tests.support import waiting
from tests.support.raw import Node, RawClient, parse
from tests.support.replays import replay
from tests.support.scripts.differences import IDMP_FIELDS
from tests.support.scripts.generators import CONNECTION, KEYSPACE, STREAMS, Generator, Step
from tests.support.servers import RiverbedServer, Server

DATABASES = range(3)
LOG = "appendonlydir"

# Small nodes, and none of them closed by its bytes, which the two servers count differently.
NODES: dict[str, object] = {"stream-node-max-entries": 5, "stream-node-max-bytes": 0}

# About how the tree is built in memory, not about what is in it.
INTERNAL = frozenset((b"radix-tree-nodes",))

State = dict[tuple[int, bytes], tuple[dict[bytes, Node], bytes]]


def state_of(server: Server, without: frozenset[bytes] = frozenset()) -> State:
    """Everything stored: XINFO STREAM FULL and the deadline of every key in every database."""
    state: State = {}
    with server.client() as client:
        for database in DATABASES:
            assert client.ask("SELECT", database) == b"+OK\r\n"
            for key in client.tree("KEYS", "*").children or ():
                full = client.tree("XINFO", "STREAM", key.text, "FULL", "COUNT", 0)
                fields = {name.text: value for name, value in full.pairs() if name.text not in without}
                state[database, key.text] = fields, client.ask("PEXPIRETIME", key.text)
    return state


def assert_same(one: State, other: State, what: str) -> None:
    assert sorted(one) == sorted(other), f"{what}: other keys"
    for place, (fields, deadline) in one.items():
        other_fields, other_deadline = other[place]
        for name in fields.keys() | other_fields.keys():
            assert str(fields.get(name)) == str(other_fields.get(name)), f"{what}: {place}: {name.decode()}"
        assert deadline == other_deadline, f"{what}: {place}: deadline"


def run_script(server: Server, script: Sequence[Step]) -> None:
    """Run a script for its effect; what it answers is another test's business."""
    clients: dict[int, RawClient] = {}
    try:
        for step in script:
            if step.connection not in clients:
                clients[step.connection] = server.client()
            clients[step.connection].ask(*step.words)
    finally:
        for client in clients.values():
            client.close()


def add_what_only_newer_servers_know(server: Server) -> None:
    """Idempotent production, whose marks must survive in our log and must not disturb an older reader."""
    with server.client() as client:
        for number in range(30):
            assert parse(client.ask("XADD", "idempotent", "IDMP", "p", number % 20, "*", "n", number)).kind == "$"
        client.ask("XADD", "idempotent", "IDMPAUTO", "q", "*", "n", 1)
        client.ask("XADD", "idempotent", "KEEPREF", "MAXLEN", "=", 10, "*", "n", 1)
        client.ask("XTRIM", "idempotent", "MAXLEN", "=", 8, "DELREF")


def random_state(server: Server, seed: int, *, extended: bool) -> State:
    generator = Generator(random.Random(seed), (STREAMS, KEYSPACE, CONNECTION), wrong=0.05)
    run_script(server, generator.script(1_500))
    while len(state := state_of(server)) < 4:  # the last FLUSHALL was not long ago
        run_script(server, generator.script(100))
    if extended:
        add_what_only_newer_servers_know(server)
        state = state_of(server)
    return state


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_the_log_alone_rebuilds_the_same_state(start_riverbed: StartRiverbed, number: int, ending: str) -> None:
    options = {**NODES, "log-segment-bytes": 1 << 16, "checkpoint-interval-ms": 20, "stream-idmp-duration": 86_400}
    server = start_riverbed(options=options)
    before = random_state(server, base_seed() + number, extended=True)
    if ending == "killed":
        server.kill()
    else:
        assert server.stop() == 0
    server.start()
    assert_same(before, state_of(server), f"{ending}, tables and the log's tail")
    server.kill()
    shutil.rmtree(server.directory / "state")
    server.start()
    assert_same(before, state_of(server), f"{ending}, the log alone")


@pytest.mark.parametrize("number", range(4))
def test_redis_shows_the_same_state_from_a_copy_of_the_log(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path, number: int
) -> None:
    ours = start_riverbed(options=NODES)
    random_state(ours, base_seed() + 100 + number, extended=False)
    expected = state_of(ours, IDMP_FIELDS | INTERNAL)
    assert ours.stop() == 0
    directory = tmp_path / "copy"
    shutil.copytree(ours.directory / LOG, directory / LOG)
    redis = start_redis(directory, options=NODES)
    assert_same(expected, state_of(redis, INTERNAL), "redis-server on a copy of our log")


def test_redis_loads_the_log_of_a_killed_server(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    ours = start_riverbed(options=NODES)
    random_state(ours, base_seed() + 200, extended=False)
    expected = state_of(ours, IDMP_FIELDS | INTERNAL)
    ours.kill()
    directory = tmp_path / "copy"
    shutil.copytree(ours.directory / LOG, directory / LOG)
    redis = start_redis(directory, options=NODES)
    assert_same(expected, state_of(redis, INTERNAL), "redis-server on a copy of our log")


@pytest.mark.parametrize("rewritten", [False, True])
def test_we_replay_a_log_that_redis_wrote(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path, rewritten: bool
) -> None:
    redis = start_redis(options=NODES)
    random_state(redis, base_seed() + 300 + rewritten, extended=False)
    if rewritten:
        waiting.rewritten(redis)
        with redis.client() as client:
            assert client.ask("XADD", "late", "1-1", "f", "v").startswith(b"$")
    expected = state_of(redis, INTERNAL)
    assert redis.stop() == 0
    replay(redis.directory, tmp_path / "new")
    ours = start_riverbed(tmp_path / "new", options=NODES)
    hidden = INTERNAL | {b"radix-tree-keys"}  # nodes are as large as usual in what a replay makes
    expected = {
        place: ({n: v for n, v in fields.items() if n not in hidden}, at) for place, (fields, at) in expected.items()
    }
    assert_same(expected, state_of(ours, IDMP_FIELDS | hidden), "our server on the replay of a log by Redis")
    assert_goes_on(ours)


def test_what_redis_does_to_several_databases_at_once_selects_none(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    redis = start_redis(options=NODES)
    with redis.client() as client:
        for number, words in enumerate(
            (("FLUSHALL",), ("COPY", "t", "u", "DB", 1), ("MOVE", "t", 1), ("SWAPDB", 0, 2))
        ):
            for database in (2, 1, 0):
                client.ask("SELECT", database)
                client.ask("XADD", "s", f"{number + 1}-{database}", "f", "v")
            client.ask("XADD", "t", f"{number + 1}-1", "f", "v")
            assert not client.ask(*words).startswith(b"-")
            client.ask("XADD", "after", f"{number + 1}-1", "f", "v")
    expected = state_of(redis, INTERNAL)
    assert redis.stop() == 0
    replay(redis.directory, tmp_path / "new")
    ours = start_riverbed(tmp_path / "new", options=NODES)
    assert_same(expected, state_of(ours, IDMP_FIELDS | INTERNAL), "our server on the replay of a log by Redis")


def assert_goes_on(server: RiverbedServer) -> None:
    """A loaded directory is an ordinary one: writes survive a kill."""
    with server.client() as client:
        assert client.ask("XADD", "after", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
    before = state_of(server)
    server.kill()
    server.start()
    assert_same(before, state_of(server), "after the first own write and a kill")
