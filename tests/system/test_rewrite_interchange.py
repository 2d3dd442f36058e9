"""A rewritten log says what was there: to us and to a real redis-server, which show it field by field as it was.

The states are those of random scripts over every family of commands, entries among them that were deleted while they
were pending.  What a server makes of a rewrite it rewrites to the same bytes again.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.conftest import StartRedis, StartRiverbed, base_seed
from tests.support.read_log import manifest_of
from tests.support.replays import replay
from tests.support.scripts.generators import CONNECTION, STREAMS, Family
from tests.support.scripts.group_commands import GROUP_FAMILY, NEWER_FAMILY
from tests.support.scripts.states import (
    LASTING,
    NODES,
    OF_NODES,
    OURS,
    SHARED,
    UNKNOWN_TO_REDIS,
    Scripts,
    State,
    leave_pending,
    state_of,
)
from tests.support.servers import RiverbedServer, Server
from tests.support.waiting import rewritten

LOG = "appendonlydir"


def run(server: Server, seed: int, newer: Family) -> None:
    generator = Scripts(random.Random(seed), (STREAMS, GROUP_FAMILY, newer, LASTING, CONNECTION), wrong=0.05)
    with server.client() as client:
        for step in generator.script(1_500):
            client.ask(*step.words)
        client.ask("DISCARD")
        leave_pending(client, random.Random(seed))


def pending_of(state: State) -> int:
    """In how many groups anything is pending."""
    return sum(not summary.startswith(b"*4\r\n:0\r\n") for _, _, summaries in state.values() for summary in summaries)


def base_of(server: RiverbedServer) -> bytes:
    """The commands of the base, without the annotations, which tell offset and time."""
    base = manifest_of(server.directory).base
    assert base is not None
    return b"".join(
        line
        for line in (server.directory / LOG / base.name).read_bytes().splitlines(keepends=True)
        if not line.startswith(b"#CK:")
    )


def copied(server: RiverbedServer, place: Path) -> Path:
    """The log alone, in a directory of its own."""
    shutil.copytree(server.directory / LOG, place / LOG)
    return place


@pytest.mark.parametrize("number", range(4))
def test_a_fresh_server_shows_the_same_from_a_rewrite(
    start_riverbed: StartRiverbed, tmp_path: Path, number: int
) -> None:
    server = start_riverbed(options=OURS)
    run(server, base_seed() + number, NEWER_FAMILY)
    rewritten(server)
    expected = state_of(server, OF_NODES)
    assert server.stop() == 0
    fresh = start_riverbed(copied(server, tmp_path / "copy"), options=OURS)
    assert state_of(fresh, OF_NODES) == expected
    rewritten(fresh)
    assert base_of(fresh) == base_of(server)


@pytest.mark.parametrize("number", range(6))
def test_redis_shows_the_same_from_a_rewrite(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path, number: int
) -> None:
    server = start_riverbed(options=OURS)
    run(server, base_seed() + 10 + number, SHARED)
    rewritten(server)
    expected = state_of(server, UNKNOWN_TO_REDIS)
    assert pending_of(expected), "nothing is pending: nothing is shown by this"
    assert server.stop() == 0
    redis = start_redis(copied(server, tmp_path / "copy"), options=NODES)
    assert state_of(redis, UNKNOWN_TO_REDIS) == expected


def test_what_redis_makes_of_a_rewrite_and_rewrites_itself_is_replayed_here(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    """There and back: but for what Redis 7 loses, records of entries that are gone among it."""
    server = start_riverbed(options=OURS)
    with server.client() as client:
        for number in range(1, 40):
            client.ask("XADD", "s", f"{number}-1", "f", number)
        client.ask("XGROUP", "CREATE", "s", "g", 0)
        client.ask("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 10, "STREAMS", "s", ">")
        client.ask("XREADGROUP", "GROUP", "g", "Bob", "COUNT", 10, "STREAMS", "s", ">")
        client.ask("XACK", "s", "g", "3-1", "14-1")
        client.ask("XGROUP", "CREATECONSUMER", "s", "g", "Idle")
        client.ask("PEXPIREAT", "s", 4_102_444_800_000)
    rewritten(server)
    expected = state_of(server, UNKNOWN_TO_REDIS)
    assert server.stop() == 0
    redis = start_redis(copied(server, tmp_path / "there"), options=NODES)
    rewritten(redis)
    assert redis.stop() == 0
    replay(redis.directory, tmp_path / "back")
    back = start_riverbed(tmp_path / "back", options=OURS)
    assert state_of(back, UNKNOWN_TO_REDIS) == expected


def test_redis_has_entries_that_nobody_owns_for_whoever_claims_next(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    server = start_riverbed()
    with server.client() as client:
        for number in range(1, 4):
            client.ask("XADD", "s", f"{number}-1", "f", number)
        client.ask("XGROUP", "CREATE", "s", "g", 0)
        client.ask("XREADGROUP", "GROUP", "g", "Bob", "COUNT", 3, "STREAMS", "s", ">")
        client.ask("XGROUP", "CREATECONSUMER", "s", "g", "Alice")
        client.ask("XNACK", "s", "g", "FAIL", "IDS", 2, "2-1", "1-1")
        client.ask("XDEL", "s", "1-1")
    rewritten(server)
    assert server.stop() == 0
    redis = start_redis(copied(server, tmp_path / "copy"))
    with redis.client() as client:
        owned = client.tree("XPENDING", "s", "g").children or ()
        assert str(owned[0]) == ":'3'"
        claimed = client.tree("XAUTOCLAIM", "s", "g", "Carol", 10**12, 0).children or ()
        assert str(claimed[1]) == "*[*[$'2-1' *[$'f' $'2']]]"
        assert str(claimed[2]) == "*[$'1-1']"
