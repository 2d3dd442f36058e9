"""Is the oracle right?  Random scripts on it and on redis-server 7.0.15 must give the same replies.

What newer releases changed, and the oracle therefore does otherwise, is `Redis70`: every difference has a name and
a line there, and nothing else is allowed to differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import NULL_ARRAY
from tests.support.in_process import value_of
from tests.support.oracle.model import Group, Stream
from tests.support.oracle.oracle import SMALLER_THAN_TOP, Oracle
from tests.support.oracle.replies import flat
from tests.support.oracle.words import plain_id
from tests.support.raw import RawClient, parse
from tests.support.scripts.generators import Command
from tests.support.scripts.group_commands import IDLE_STEP_MS, GroupCommands
from tests.support.scripts.random_commands import GROUP_COMMANDS, KEY_COMMANDS, STREAM_COMMANDS, FewKeys
from tests.support.servers import RedisServer

NODE_MAX_ENTRIES: Final = 4
NEWER_FIELDS: Final = frozenset(
    b"idmp-duration idmp-maxsize pids-tracked iids-tracked iids-added iids-duplicates "
    b"nacked-count active-time inactive".split()
)


# What 7.0 says, now and then, to `ms-*` in a millisecond without a sequence number left: it looks at a stale errno.
NO_MORE_IN_THIS_MS: Final = "-ERR Elements are too large to be stored"


class Stream70(Stream):
    """Counters of groups as 7.0 computed them."""

    def counts_on(self, group: Group, entry_id: int) -> bool:
        """Only tombstones above the delivered entry count, and it may be the first one ever read (until 8.0)."""
        return not self.tombstone_ahead(entry_id)

    def tombstone_ahead(self, start: int) -> bool:
        """A tombstone below the first entry is in nobody's way (until 7.2)."""
        return super().tombstone_ahead(start) and self.first_id <= self.max_deleted

    def tombstone_above(self, entry_id: int) -> bool:
        """The estimate minds no tombstones between an ID before the first entry and that entry (until 7.2)."""
        return False

    def lag(self, group: Group) -> int | None:
        """A group before the first entry, and an empty stream, have no rule of their own (7.2)."""
        if self.added == 0:
            return 0
        if group.entries_read is not None and not self.tombstone_ahead(group.last_id):
            return self.added - group.entries_read
        estimate = self.estimate(group.last_id)
        return None if estimate is None else self.added - estimate


class Redis70(Oracle):
    """The oracle as redis-server 7.0.15: each method takes back one change."""

    new_stream = Stream70

    # "Unbalanced" names the command, and `+`, since 7.4.
    unbalanced_read = unbalanced_group_read = (
        "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified."
    )

    def execute(self, words: Command, now: int) -> Any:
        """A read or claim that gives nothing leaves no new consumer behind (until 7.2)."""
        before = {
            (key, name): set(group.consumers)
            for key, stream in self.streams.items()
            for name, group in stream.groups.items()
        }
        reply = super().execute(words, now)
        name = words[0].upper()
        idle: list[tuple[bytes, bytes, bytes]] = []
        if name == b"XREADGROUP":
            upper = [word.upper() for word in words]
            group_at = max(at for at, word in enumerate(upper[: upper.index(b"STREAMS")]) if word == b"GROUP")
            given = [] if reply is NULL_ARRAY else [key for key, _ in reply]
            pairs = words[upper.index(b"STREAMS") + 1 :]
            keys = pairs[: len(pairs) // 2]
            idle = [(key, words[group_at + 1], words[group_at + 2]) for key in keys if key not in given]
        elif (name == b"XCLAIM" and not reply) or (name == b"XAUTOCLAIM" and not reply[1]):
            idle = [(words[1], words[2], words[3])]
        for key, group_name, consumer in idle:
            if consumer not in before[key, group_name]:
                self.streams[key].groups[group_name].consumers.pop(consumer, None)
        return reply

    def read_start(self, word: bytes, stream: Stream) -> int:
        """`+` is no ID, in XREADGROUP neither (until 7.4)."""
        return plain_id(word) if word == b"+" else super().read_start(word, stream)

    meaningless = (b"$",)

    def clamp(self, entries_read: int | None, stream: Stream) -> int | None:
        """ENTRIESREAD may be more than was ever added (until 8.2.2)."""
        return entries_read

    def check_xsetid(self, stream: Stream, last_id: int) -> None:
        """XSETID may go below the highest deleted ID."""


class OracleCommands(GroupCommands, FewKeys):
    """Of 7.0, for one connection and one database, with keys that error texts repeat unchanged."""


def masked(words: Command, reply: Any, now: int) -> Any:
    """The reply with moments as whole steps before `now`, so that a few seconds of difference do not show."""

    def step(duration_ms: int) -> int:
        return (duration_ms + IDLE_STEP_MS // 2) // IDLE_STEP_MS

    def mask(item: Any) -> Any:
        if isinstance(item, list):
            items = [mask(inner) for inner in item]
            for name in (b"idle", b"radix-tree-nodes"):
                if name in items and isinstance(items[items.index(name) + 1], int):
                    at = items.index(name) + 1
                    items[at] = step(items[at]) if name == b"idle" else 0
            return items
        if isinstance(item, int) and 1_000_000_000 < item < 1 << 60:
            return ("moment", step(now - item))
        return item

    if reply == NO_MORE_IN_THIS_MS:
        return "-" + SMALLER_THAN_TOP
    if words[0].upper() == b"XPENDING" and isinstance(reply, list) and reply[:1] and isinstance(reply[0], list):
        return [[*row[:2], step(row[2]), *row[3:]] for row in reply]
    return mask(reply)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    directory: Path = tmp_path_factory.mktemp("redis")
    options = {"stream-node-max-entries": NODE_MAX_ENTRIES, "appendonly": "no"}
    with RedisServer(directory, directory, options) as server, server.client() as client:
        yield client


def compare(redis: RawClient, oracle: Oracle, commands: list[Command]) -> None:
    now = time.time_ns() // 1_000_000
    replies = redis.pipeline(commands)
    for at, (words, raw) in enumerate(zip(commands, replies, strict=True)):
        theirs = value_of(parse(raw))
        clock = now
        if words[0].upper() == b"XADD" and b"*" in words and isinstance(theirs, bytes):
            clock = int(theirs.split(b"-")[0])  # the moment at which the real one took it
        try:
            ours = flat(oracle.execute(words, clock), NEWER_FIELDS)
        except CommandError as error:
            ours = "-" + error.text.decode().replace("\r", " ").replace("\n", " ")
        before = "\n".join(map(repr, commands[max(0, at - 12) : at + 1]))
        assert masked(words, ours, now) == masked(words, theirs, now), f"reply {at}, after\n{before}"


LOOK: Final[list[Command]] = [
    words
    for key in (b"a", b"b")
    for words in ([b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"], [b"XINFO", b"GROUPS", key])
]


@pytest.mark.parametrize("seed", range(60))
def test_a_random_script_gets_the_replies_of_redis_7_0(redis: RawClient, seed: int) -> None:
    words = OracleCommands(Random(seed), (STREAM_COMMANDS, GROUP_COMMANDS, KEY_COMMANDS), wrong=0.05)
    redis.ask("FLUSHALL")
    oracle = Redis70(node_max_entries=NODE_MAX_ENTRIES)
    commands: list[Command] = []
    for _ in range(250):
        command = words.command()
        commands.append(words.spoil(command) if command[0].startswith(b"X") and words.chance(words.wrong) else command)
        if words.chance(0.1):
            commands += LOOK
    compare(redis, oracle, commands + LOOK)
