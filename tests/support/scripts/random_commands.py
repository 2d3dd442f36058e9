"""Commands at random on a few keys: how a store comes into states that nobody would think of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from random import Random
from typing import Final

from riverbed.server.errors import CommandError
from tests.support.scripts.generators import STREAMS, Command, Generator, StreamCommands
from tests.support.scripts.group_commands import GROUP_FAMILY, NEWER_FAMILY, GroupCommands, NewerCommands
from tests.support.store.stores import Store

KEYS: Final = (b"a", b"a", b"a", b"b", b"none")


class FewKeys(Generator):
    """Scripts of few keys, so that groups find something to share."""

    def key(self) -> bytes:
        return self.one_of(KEYS)

    def rename(self) -> Command:
        return [b"RENAME", self.key(), self.key()]

    def copy(self) -> Command:
        return [b"COPY", self.key(), self.key(), *([self.option(b"REPLACE")] if self.chance(0.5) else [])]

    def delete(self) -> Command:
        return [b"DEL", self.key()]


class Commands(NewerCommands, FewKeys):
    """Of every release."""


# Whose replies are data: help is in other words than those of Redis.
STREAM_COMMANDS: Final = [(weight, maker) for weight, maker in STREAMS if maker is not StreamCommands.xinfo_help]
GROUP_COMMANDS: Final = [(weight, maker) for weight, maker in GROUP_FAMILY if maker is not GroupCommands.xgroup_help]
KEY_COMMANDS: Final = [(1, FewKeys.rename), (1, FewKeys.copy), (1, FewKeys.delete)]
FAMILIES: Final = (STREAM_COMMANDS, GROUP_COMMANDS, NEWER_FAMILY, KEY_COMMANDS)


def run_at_random(store: Store, seed: int, ticks: Iterable[int]) -> Iterator[Commands]:
    """Give `store` commands, for each of `ticks` as many; yields what chooses them behind the commit of each."""
    commands = Commands(Random(seed), FAMILIES)
    for length in ticks:
        for _ in range(length):
            with contextlib.suppress(CommandError):
                store.run(*commands.command(), db=commands.random.choice((0, 0, 1)))
        store.clock.now_ms += commands.random.choice((0, 1, 100_000))
        store.commit()
        yield commands
