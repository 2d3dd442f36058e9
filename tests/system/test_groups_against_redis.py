"""Group commands among all others, in transactions, with wrong words: equal replies from redis-server 7.0.15 and ours.

As `test_against_redis.py`, which explains a failure by the shortest script that shows it.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.conftest import StartRedis, StartRiverbed, base_seed
from tests.support.replays import replay
from tests.support.scripts import differences, group_differences
from tests.support.scripts.differential import KILL_STEP, Pair
from tests.support.scripts.generators import CONNECTION, KEYSPACE, STREAMS, Generator
from tests.support.scripts.group_commands import GROUP_FAMILY, GroupCommands
from tests.support.scripts.shrinking import run_and_explain, script_of
from tests.support.scripts.states import groups_of
from tests.support.servers import Server

FAMILIES = (STREAMS, GROUP_FAMILY, KEYSPACE, CONNECTION)
MASKS = {**differences.MASKS, **group_differences.MASKS}
DIFFERENCES = {**differences.DIFFERENCES, **group_differences.DIFFERENCES}


class GroupScripts(GroupCommands, Generator):
    """Scripts of every family."""


def pair_of(first: Server, second: Server) -> Pair:
    return Pair(first, second, rules=(*MASKS.values(), *DIFFERENCES.values()))


@pytest.fixture
def pair(start_redis: StartRedis, start_riverbed: StartRiverbed) -> Pair:
    return pair_of(start_redis(), start_riverbed(options={"appendfsync": "no"}))


def test_two_copies_of_redis_agree_up_to_the_masks(start_redis: StartRedis) -> None:
    copies = Pair(start_redis(), start_redis(), rules=tuple(MASKS.values()))
    script = GroupScripts(random.Random(base_seed()), FAMILIES).script(1_500)
    run_and_explain(copies, script, 5, f"seed {base_seed()}")


def test_long_random_scripts_get_the_same_replies(pair: Pair) -> None:
    for number in range(20):
        seed = base_seed() + number
        script = GroupScripts(random.Random(seed), FAMILIES).script(1_000)
        run_and_explain(pair, script, (1, 2, 3, 5, 100)[number % 5], f"seed {seed}")
    assert pair.commands_run > 20_000


def test_a_server_that_is_killed_again_and_again_answers_like_one_that_never_was(pair: Pair) -> None:
    source = random.Random(base_seed())
    script = GroupScripts(source, FAMILIES).script(1_000)
    for _ in range(8):
        script.insert(source.randrange(len(script)), KILL_STEP)
    run_and_explain(pair, script, 4, "killed in between")


@pytest.mark.parametrize("name", group_differences.DIFFERENCES)
def test_each_named_difference_is_still_there(pair: Pair, name: str) -> None:
    script = script_of(*DIFFERENCES[name].demonstration)
    others = tuple(rule for other, rule in DIFFERENCES.items() if other != name)
    without = Pair(*pair.servers, rules=(*MASKS.values(), *others)).run(script)
    assert without is not None, f"both servers answer the same: {name}"
    assert without.number == len(script) - 1
    assert pair.run(script) is None


@pytest.mark.parametrize("number", range(3))
def test_redis_shows_the_same_groups_from_a_copy_of_the_log(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path, number: int
) -> None:
    options: dict[str, object] = {"stream-node-max-entries": 5, "stream-node-max-bytes": 0}
    ours = start_riverbed(options=options)
    generator = GroupScripts(random.Random(base_seed() + 50 + number), FAMILIES, wrong=0.05)
    with ours.client() as client:
        for step in generator.script(1_500):
            client.ask(*step.words)
        client.ask("DISCARD")
    expected = groups_of(ours)
    ours.kill()
    shutil.copytree(ours.directory / "appendonlydir", tmp_path / "copy" / "appendonlydir")
    assert groups_of(start_redis(tmp_path / "copy", options=options)) == expected


def test_a_replay_makes_the_same_of_a_log_that_redis_wrote_as_redis_does(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    options: dict[str, object] = {"stream-node-max-entries": 5, "stream-node-max-bytes": 0}
    redis = start_redis(options=options)
    generator = GroupScripts(random.Random(base_seed() + 60), FAMILIES, wrong=0.05)
    with redis.client() as client:
        for step in generator.script(1_500):
            client.ask(*step.words)
        client.ask("DISCARD")
    assert redis.stop() == 0
    replay(redis.directory, tmp_path / "new")
    redis.start()
    ours = start_riverbed(tmp_path / "new", options=options)
    hidden = frozenset((b"radix-tree-keys",))  # nodes are as large as usual in what a replay makes
    assert groups_of(ours, hidden) == groups_of(redis, hidden)
