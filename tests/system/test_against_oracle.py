"""Streams and groups against the oracle, under Hypothesis: commands of every release, restarts, kills, log replays.

redis-server 7.0.15 cannot say what CLAIM, XNACK, XDELEX, XACKDEL and idempotent production should answer; the oracle
can (`test_oracle.py` holds it to redis-server where that is possible).  Whatever happens to the process in between,
the oracle goes on as if nothing had.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from riverbed.store.check import check
from riverbed.store.databases.consumer_ttl import LOOK_AGAIN_MS
from tests.support.in_process import HandClock, Product, answer
from tests.support.oracle.oracle import Oracle
from tests.support.oracle.replies import flat, without_tree
from tests.support.scripts.generators import Command, Family, StreamCommands
from tests.support.scripts.group_commands import GroupCommands, NewerCommands
from tests.support.scripts.random_commands import FAMILIES, GROUP_COMMANDS, STREAM_COMMANDS, Commands

NODE_MAX_ENTRIES: Final = 4
# All groups have very many consumers, and let go of them after each command.
CROWD_BOUNDS: Final = {
    "groups.known_consumers.FEW": 0,
    "groups.known_consumers.PART": 2,
    "format.groups.DIGEST_BYTES": 1,
    "groups.view._SLICE_ROWS": 2,
    "databases.transaction.CACHED_CONSUMER_BYTES": 0,
}
CROWD_COMMANDS: Final = (
    *(b"XADD", b"XGROUP", b"XREADGROUP", b"XACK", b"XCLAIM", b"XAUTOCLAIM", b"XNACK", b"XACKDEL", b"XDELEX", b"XTRIM"),
    *(b"DEL", b"COPY", b"RENAME"),
)


class PolicyCommands(Commands):
    """Mostly one group, which delivers again and again."""

    def key(self) -> bytes:
        return self.one_of((b"a", b"b", b"dead")) if self.chance(0.2) else b"a"

    def group(self) -> bytes:
        return b"g" if self.chance(0.95) else b"h"

    def policy(self) -> Command:
        return [b"XGROUP", b"POLICY", self.key(), b"g", b"MAXDELIVERIES", self.number(1, 3), b"DEADLETTER", b"dead"]


POLICY_FAMILIES: Final = (
    [(4, maker) for _, maker in STREAM_COMMANDS if maker is StreamCommands.xadd],
    GROUP_COMMANDS,
    [
        (20, PolicyCommands.policy),
        (15, NewerCommands.xgroup_policy),
        (15, NewerCommands.xnack),
        (15, GroupCommands.xreadgroup),
        (2, Commands.rename),
        (2, Commands.copy),
        (1, Commands.delete),
    ],
)
LOOK: Final = [
    words
    for key in (b"a", b"b")
    for words in (
        [b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"],
        [b"XINFO", b"STREAM", key],
        [b"XINFO", b"GROUPS", key],
        [b"XPENDING", key, b"g"],
        [b"XGROUP", b"POLICY", key, b"g"],
    )
] + [[b"XRANGE", b"dead", b"-", b"+"]]


class Subject:
    """The product and the oracle, side by side under one clock."""

    def __init__(self, directory: Path) -> None:
        self.clock = HandClock()
        self.product = Product(directory, self.clock, node_max_entries=NODE_MAX_ENTRIES)
        self.oracle = Oracle(node_max_entries=NODE_MAX_ENTRIES)
        self.recent: list[Command] = []

    def check(self, words: Command) -> None:
        self.recent.append(words)
        ours = answer(lambda: self.product.execute(words))
        theirs = answer(lambda: flat(self.oracle.execute(words, self.clock.now_ms)))
        assert without_tree(ours) == without_tree(theirs), "\n".join(map(repr, self.recent[-12:]))

    def look(self) -> None:
        for words in LOOK:
            self.check(words)


class GroupMachine(RuleBasedStateMachine):
    """Runs of commands with accidents in between."""

    vocabulary: type[Commands] = Commands
    families: tuple[Family, ...] = FAMILIES

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.home = tempfile.TemporaryDirectory(prefix="riverbed-oracle-")
        self.subject = Subject(Path(self.home.name))
        self.commands = self.vocabulary(Random(seed), self.families, wrong=0.05)

    @rule(length=st.integers(1, 60))
    def run_commands(self, length: int) -> None:
        for _ in range(length):
            words = self.commands.command()
            if words[0].startswith(b"X") and self.commands.chance(self.commands.wrong):
                words = self.commands.spoil(words)
            self.subject.check(words)
            self.after_each()
        self.subject.look()

    def after_each(self) -> None:
        """What happens between two commands."""

    @rule(milliseconds=st.sampled_from([0, 1, 49_000, 100_000, 1_000_000]))
    def let_time_pass(self, milliseconds: int) -> None:
        self.subject.clock.now_ms += milliseconds

    @rule()
    def let_consumers_go(self) -> None:
        self.subject.clock.now_ms += LOOK_AGAIN_MS
        self.subject.product.sweep()
        self.subject.oracle.expire_consumers(self.subject.clock.now_ms)
        self.subject.look()

    @rule()
    def checkpoint(self) -> None:
        self.subject.product.checkpoint()

    @rule()
    def purge(self) -> None:
        self.subject.product.purge()

    @rule()
    def restart(self) -> None:
        self.subject.product.restart()
        self.subject.look()

    @rule()
    def kill(self) -> None:
        self.subject.product.kill()
        self.subject.look()

    @rule()
    def replay(self) -> None:
        self.subject.product.replay()
        self.subject.look()

    def teardown(self) -> None:
        if hasattr(self, "subject"):
            self.subject.product.checkpoint()
            self.subject.product.abandon()
            violations = [str(violation) for violation in check(self.subject.product.directory)]
            self.home.cleanup()
            assert violations == []


class PolicyMachine(GroupMachine):
    """The same with a vocabulary in which delivery policies have more to do."""

    vocabulary = PolicyCommands
    families = POLICY_FAMILIES


class CrowdMachine(GroupMachine):
    """The same with groups that hold as few of their consumers in memory as they can, whose names are hard to find.

    Commands are taken back as well: nothing of these is left in memory.
    """

    @initialize()
    def make_bounds_tiny(self) -> None:
        self.patches = pytest.MonkeyPatch()
        for bound, value in CROWD_BOUNDS.items():
            self.patches.setattr(f"riverbed.store.{bound}", value)

    def after_each(self) -> None:
        self.subject.product.engine.txn.bound_caches()

    @rule()
    def take_back(self) -> None:
        words = self.commands.command()
        if words[0].upper() in CROWD_COMMANDS:
            self.subject.product.undo(words)
            self.subject.look()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "patches"):
            self.patches.undo()


class CrowdPolicyMachine(CrowdMachine):
    """The same with delivery policies."""

    vocabulary = PolicyCommands
    families = POLICY_FAMILIES


TestGroups = GroupMachine.TestCase
TestPolicies = PolicyMachine.TestCase
TestCrowds = CrowdMachine.TestCase
TestCrowdsWithPolicies = CrowdPolicyMachine.TestCase
TestGroups.settings = TestPolicies.settings = TestCrowds.settings = TestCrowdsWithPolicies.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
