"""Requests at random of a user with few keys: whatever they are, the keys of others stay as they are, and unread."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from tests.conftest import base_seed
from tests.support.raw import RawClient
from tests.support.scripts.generators import (
    CONNECTION,
    KEYSPACE,
    STREAMS,
    Command,
    ConnectionCommands,
    Generator,
    KeyCommands,
)
from tests.support.scripts.group_commands import GROUP_FAMILY, NEWER_FAMILY, NewerCommands
from tests.support.servers import RiverbedServer

MINE: Final = (b"a", b"a", b"a", b"b")
# May be read, or not even that; names like those of the user's own keys with something more, or less.
SHOWN: Final = b"shown"
SECRETS: Final = (b"secret", b"a\0", b"", b"ab", b"A")
RULES: Final = ("resetchannels", "~a", "~b", f"%R~{SHOWN.decode()}", "+@all", "-flushall", "-flushdb", "-swapdb")
OTHERS: Final = (KeyCommands.flush, KeyCommands.swapdb, ConnectionCommands.unknown)
FAMILIES: Final = [
    [(weight, maker) for weight, maker in family if maker not in OTHERS]
    for family in (STREAMS, KEYSPACE, CONNECTION, GROUP_FAMILY, NEWER_FAMILY)
]


class Requests(NewerCommands, Generator):
    """Of every family, a part of them with wrong words, and with keys of others in any place."""

    def key(self) -> bytes:
        return self.one_of(MINE if self.chance(0.7) else (SHOWN, *SECRETS))

    def pipeline(self, length: int) -> list[Command]:
        made = [self.command() for _ in range(length)]
        made = [self.spoil(words) if self.chance(0.1) else words for words in made]
        if self.chance(0.3):
            made = [[b"MULTI"], *made, [b"EXEC"]]
        return made


@pytest.mark.parametrize("round_", range(4))
def test_no_request_reads_or_changes_keys_of_others(server: RiverbedServer, client: RawClient, round_: int) -> None:
    seed = base_seed() * 1000 + round_
    requests = Requests(Random(seed), FAMILIES)
    assert client.ask("ACL", "SETUSER", "few", "reset", "on", "nopass", *RULES) == b"+OK\r\n"
    for db in (0, 1):
        client.ask("SELECT", db)
        for key in (*SECRETS, SHOWN):
            for number in range(1, 6):
                client.ask("XADD", key, f"{number}-0", "f", "shown" if key == SHOWN else "hidden")
            for group in ("g", "h"):
                client.ask("XGROUP", "CREATE", key, group, "0")
                client.ask("XREADGROUP", "GROUP", group, "Alice", "COUNT", "3", "STREAMS", key, ">")
    before = state(client)
    refused = done = 0
    with server.client() as limited:
        limited.ask("AUTH", "few", "any")
        for _ in range(120):
            pipeline = requests.pipeline(requests.random.choice((1, 2, 10, 40)))
            replies = limited.pipeline(pipeline)
            for words, reply in zip(pipeline, replies, strict=True):
                assert b"hidden" not in reply, (seed, words)
                refused += reply.startswith(b"-NOPERM")
                done += not reply.startswith(b"-")
            assert state(client) == before, (seed, pipeline)
    assert min(refused, done) > 200
    client.ask("ACL", "DELUSER", "few")


def state(client: RawClient) -> list[bytes]:
    """All of the keys that are not the user's; the groups of a stream that it may read are its to read with."""
    found = []
    for db in (0, 1):
        client.ask("SELECT", db)
        lines = [("EXPIRETIME", key) for key in (*SECRETS, SHOWN)]
        found += client.pipeline([("XRANGE", SHOWN, "-", "+"), *lines])
        found += [client.ask("XINFO", "STREAM", key, "FULL", "COUNT", 0) for key in SECRETS]
    return found
