"""Kill or stop the server in a storm of group commands: what it has shown of groups is there again, to the millisecond.

Groups are made and destroyed, consumers come and go, entries are read, acknowledged, claimed, given back, deleted and
trimmed away under those who have them pending, and policies move them to other streams.  After each kill the tables
with the log's tail, the log alone, and redis-server 7 on a copy of the log are looked at.  `group_storm.py` says what
must be found.  `RIVERBED_SEED=n` runs other rounds than CI does.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartRedis, StartRiverbed, base_seed
from tests.support.faults import crashes
from tests.support.faults.client_threads import finish
from tests.support.faults.group_storm import (
    NODES,
    POLICY,
    REFERENCES,
    RELEASE,
    SHARED_GROUP,
    STOCK,
    TRIMS,
    Look,
    Stormer,
    Worker,
    complaints_of_workers,
    look_at,
)
from tests.support.faults.stops import GRACEFUL, KILL, end
from tests.support.scripts.states import groups_of
from tests.support.servers import RiverbedServer, Server
from tests.support.waiting import until_counted

ROUNDS = 10
STORMERS = 4
# Of all of them in a round.  They are counted and not timed: how fast the machine is proves nothing.
MAX_LOOKS = 150


def options_for(chance: random.Random) -> dict[str, object]:
    return NODES | crashes.options_for(chance)


def storm(server: Server, seed: int, number: int, families: Sequence[Any], way: str = KILL) -> list[Stormer]:
    """Storm until there were some looks, few or many, and end the server in the middle."""
    stormers = [
        # half of them pause so long that a kill will hardly find them with anything under way
        Stormer(server, seed * 10 + n, b"%d:%d" % (number, n), families, longest_pause_s=(0.0, 0.03)[n % 2])
        for n in range(STORMERS)
    ]
    for stormer in stormers:
        stormer.start()
    looks = random.Random(seed).randint(STORMERS, MAX_LOOKS)
    until_counted(
        lambda: looks if any(one.error for one in stormers) else sum(one.looks for one in stormers),
        looks,
        f"{looks} looks",
    )
    end(server, way)
    finish(stormers)
    return stormers


def hold_to_its_word(server: Server, stormers: Sequence[Stormer], what: str) -> dict[bytes, Look]:
    """Compare with what was shown and asked for; -> what is there."""
    found = {stormer.key: look_at(server, stormer.key) for stormer in stormers}
    complaints = [line for stormer in stormers for line in stormer.complaints(found[stormer.key])]
    if complaints:
        pytest.fail(f"{what}: {complaints[0]}\n{server.log_tail()}", pytrace=False)
    return found


def start_from_the_log_alone(server: Server) -> None:
    server.kill()
    shutil.rmtree(server.directory / "state")
    server.start()


def test_groups_are_as_they_were_shown_after_kills_in_a_storm(start_riverbed: StartRiverbed) -> None:
    seed = base_seed()
    server = start_riverbed(options=options_for(random.Random(seed)))
    looks = 0
    for number in range(ROUNDS):
        chance = random.Random(seed * 1_000 + number)
        what = f"seed {seed}, round {number}"
        stormers = storm(server, seed * 1_000 + number, number, [*STOCK, *REFERENCES, *TRIMS, *RELEASE, *POLICY])
        looks += sum(stormer.looks for stormer in stormers)
        server.options = options_for(chance)
        while chance.random() < 0.2:  # killed again while it recovers
            server.spawn()
            time.sleep(chance.uniform(0, 0.5))
            server.kill()
        server.start()
        found = hold_to_its_word(server, stormers, what)
        if number % 3 == 0:
            start_from_the_log_alone(server)
            assert {key: look_at(server, key) for key in found} == found, f"{what}, the log alone"
    assert looks >= ROUNDS * STORMERS


def test_groups_are_as_they_were_shown_after_stops_in_a_storm(start_riverbed: StartRiverbed) -> None:
    seed = base_seed() + 300
    server = start_riverbed(options=options_for(random.Random(seed)))
    for number, way in enumerate(GRACEFUL):
        stormers = storm(server, seed * 1_000 + number, number, [*STOCK, *REFERENCES, *TRIMS, *RELEASE, *POLICY], way)
        assert sum(stormer.looks for stormer in stormers) >= STORMERS
        server.options = options_for(random.Random(seed * 1_000 + number))
        server.start()
        hold_to_its_word(server, stormers, f"seed {seed}, round {number}, {way}")


def test_redis_shows_the_groups_of_a_server_that_was_killed_in_a_storm(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    seed = base_seed() + 700
    server = start_riverbed(options=options_for(random.Random(seed)))
    for number in range(3):
        stormers = storm(server, seed * 1_000 + number, number, [*STOCK, *REFERENCES, *POLICY])
        server.start()  # what was torn is cut off
        hold_to_its_word(server, stormers, f"seed {seed}, round {number}")
        expected = groups_of(server)
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(server.directory / "appendonlydir", copy / "appendonlydir")
        redis = start_redis(copy, options=NODES)
        assert groups_of(redis) == expected, f"seed {seed}, round {number}"
        redis.kill()
    assert expected


def test_only_a_release_or_a_claim_under_way_may_have_set_a_delivery_to_0(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options=NODES)
    delivered = [
        [b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM"],
        [b"XADD", b"s", b"1-1", b"f", b"v"],
        [b"XREADGROUP", b"GROUP", b"g", b"ann", b"STREAMS", b"s", b">"],
    ]
    claim = [b"XCLAIM", b"s", b"g", b"ann", b"0", b"1-1", b"TIME", b"0", b"RETRYCOUNT", b"1"]
    release = [b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", b"1-1"]
    without_effect = [b"XACK", b"s", b"g", b"9-9"]
    for done, told, is_right in (
        (release, release, True),
        (claim, claim, True),
        (claim, without_effect, False),
    ):
        stormer = Stormer(server, 1, b"s", STOCK, longest_pause_s=0)
        with server.client() as client:
            stormer.ask(client, delivered)
            stormer.note_as_under_way([told])
            client.ask(*done)
            complaints = stormer.complaints(look_at(server, b"s"))
            client.ask("DEL", "s")
        assert (complaints == []) is is_right, complaints


def until_given(workers: Sequence[Worker], count: int) -> None:
    """Let them work until they were given so many entries and have acknowledged some; or until one has failed."""
    all_notes = [worker.notes for worker in workers]

    def told() -> int:
        given = sum(len(notes.given) for notes in all_notes)
        acknowledged = sum(len(notes.acknowledged) for notes in all_notes)
        return count + 5 if any(worker.error for worker in workers) else min(given, count) + min(acknowledged, 5)

    until_counted(told, count + 5, f"{count} entries that were given, and some acknowledged")


def test_consumers_that_share_a_group_lose_nothing_when_the_server_is_killed(start_riverbed: StartRiverbed) -> None:
    seed = base_seed()
    server: RiverbedServer = start_riverbed(options=options_for(random.Random(seed)))
    given = acknowledged = 0
    for number in range(6):
        key = f"jobs{number}"
        with server.client() as client:
            client.ask("XGROUP", "CREATE", key, SHARED_GROUP, 0, "MKSTREAM")
        workers = [Worker(server, seed * 100 + number * 10 + n, key, f"worker{n}") for n in range(5)]
        for worker in workers:
            worker.start()
        enough = random.Random(seed + number).randint(10, 200)
        until_given(workers, enough)
        server.kill()
        finish(workers)
        server.start()
        all_notes = [worker.notes for worker in workers]
        complaints = complaints_of_workers(server, key, all_notes)
        assert complaints == [], f"seed {seed}, round {number}"
        if number % 3 == 0:
            start_from_the_log_alone(server)
            assert complaints_of_workers(server, key, all_notes) == [], f"seed {seed}, round {number}, the log alone"
        given += sum(len(notes.given) for notes in all_notes)
        acknowledged += sum(len(notes.acknowledged) for notes in all_notes)
    assert given >= 60 and acknowledged >= 30
