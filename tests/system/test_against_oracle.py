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
from tests.support.store.stores import claim_order

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


class OrderCommands(Commands):
    """One group, whose few entries are delivered again and again, mostly in one of few milliseconds."""

    def few(self) -> list[bytes]:
        return [b"%d-0" % self.random.randint(1, 12) for _ in range(self.random.choice((1, 1, 2, 4)))]

    def create(self) -> Command:
        return [b"XGROUP", b"CREATE", b"a", b"g", b"0", b"MKSTREAM"]

    def add(self) -> Command:
        return [b"XADD", b"a", *self.few()[:1], b"f", b"v"]

    def read(self) -> Command:
        claim = [b"CLAIM", self.one_of((b"0", b"2", b"1000"))] if self.chance(0.3) else []
        after = b"0" if not claim and self.chance(0.2) else b">"
        head = [b"XREADGROUP", b"GROUP", b"g", self.consumer(), b"COUNT", self.number(1, 3)]
        return [*head, *claim, b"STREAMS", b"a", after]

    def claim(self) -> Command:
        how = self.one_of(([], [], [b"IDLE", b"2"], [b"IDLE", b"3"], [b"TIME", b"1699999999999"]))
        again = [b"RETRYCOUNT", self.number(0, 1)] if self.chance(0.2) else []
        force = [b"FORCE"] if self.chance(0.5) else []
        just_id = [b"JUSTID"] if self.chance(0.5) else []
        return [b"XCLAIM", b"a", b"g", self.consumer(), b"0", *self.few(), *how, *again, *force, *just_id]

    def claim_in_order(self) -> Command:
        return [b"XAUTOCLAIM", b"a", b"g", self.consumer(), b"0", *self.few()[:1], b"COUNT", self.number(1, 5)]

    def acknowledge(self) -> Command:
        return [b"XACK", b"a", b"g", *self.few()]

    def release(self) -> Command:
        ids = self.few()
        return [b"XNACK", b"a", b"g", b"FAIL", b"IDS", b"%d" % len(ids), *ids]


ORDER_FAMILIES: Final = (
    [
        (6, OrderCommands.create),
        (15, OrderCommands.add),
        (12, OrderCommands.read),
        (20, OrderCommands.claim),
        (1, OrderCommands.claim_in_order),
        (2, OrderCommands.acknowledge),
        (2, OrderCommands.release),
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
        for key, stream in self.oracle.streams.items():
            for name, group in stream.groups.items():
                assert claim_order(self.product.session.db, key, name) == group.by_time(), (key, name)


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


class OrderMachine(GroupMachine):
    """The same with a vocabulary in which the order of deliveries differs from that of IDs."""

    vocabulary = OrderCommands
    families = ORDER_FAMILIES

    @rule()
    def take_back(self) -> None:
        self.subject.product.undo(self.commands.command())
        self.subject.look()


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
TestOrder = OrderMachine.TestCase
TestCrowds = CrowdMachine.TestCase
TestCrowdsWithPolicies = CrowdPolicyMachine.TestCase
TestGroups.settings = TestPolicies.settings = TestOrder.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCrowds.settings = TestCrowdsWithPolicies.settings = TestGroups.settings
