"""Streams and groups against the oracle, under Hypothesis: commands of every release, restarts, kills, log replays.

redis-server 7.0.15 cannot say what CLAIM, XNACK, XDELEX, XACKDEL and idempotent production should answer; the oracle
can (`test_oracle.py` holds it to redis-server where that is possible).  Whatever happens to the process in between,
the oracle goes on as if nothing had.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from store.check import check
from store.consumerttl import LOOK_AGAIN_MS
from tests.generators import STREAMS, Command, Family, Generator, StreamCommands
from tests.group_commands import GROUP_FAMILY, NEWER_FAMILY, GroupCommands, NewerCommands
from tests.inprocess import HandClock, Product, answer
from tests.oracle import Oracle

NODE_MAX_ENTRIES: Final = 4
KEYS: Final = (b"a", b"a", b"a", b"b", b"none")


class Commands(NewerCommands, Generator):
    """Scripts of few keys, so that groups find something to share."""

    def key(self) -> bytes:
        return self.one_of(KEYS)

    def rename(self) -> Command:
        return [b"RENAME", self.key(), self.key()]

    def copy(self) -> Command:
        return [b"COPY", self.key(), self.key(), *([self.option(b"REPLACE")] if self.chance(0.5) else [])]

    def delete(self) -> Command:
        return [b"DEL", self.key()]


FAMILIES: Final = (
    [(weight, maker) for weight, maker in STREAMS if maker is not StreamCommands.xinfo_help],
    [(weight, maker) for weight, maker in GROUP_FAMILY if maker is not GroupCommands.xgroup_help],
    NEWER_FAMILY,
    [(1, Commands.rename), (1, Commands.copy), (1, Commands.delete)],
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
    [(4, maker) for _, maker in STREAMS if maker is StreamCommands.xadd],
    [(weight, maker) for weight, maker in GROUP_FAMILY if maker is not GroupCommands.xgroup_help],
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
# The tree that Redis keeps nodes in is not ours, and what the oracle says of it is a guess.
UNKNOWN_TO_ALL: Final = b"radix-tree-nodes"


def flat(reply: Any) -> Any:
    """The oracle's reply as RESP2 has it."""
    if isinstance(reply, dict):
        return [flat(item) for pair in reply.items() for item in pair]
    if isinstance(reply, list):
        return [flat(item) for item in reply]
    return reply


def without_tree(reply: Any) -> Any:
    if isinstance(reply, list) and UNKNOWN_TO_ALL in reply:
        at = reply.index(UNKNOWN_TO_ALL)
        return reply[:at] + reply[at + 2 :]
    return reply


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
        self.subject.look()

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


TestGroups = GroupMachine.TestCase
TestPolicies = PolicyMachine.TestCase
TestGroups.settings = TestPolicies.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
