"""States that are worth looking at, and all that a server shows of them: two servers must show the same."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.support.raw import RawClient, parse
from tests.support.scripts import group_differences
from tests.support.scripts.differences import IDMP_FIELDS
from tests.support.scripts.generators import KEYSPACE, Command, Family, Generator, KeyCommands
from tests.support.scripts.group_commands import NEWER_FAMILY, LastingCommands, NewerCommands
from tests.support.servers import Server

# Small nodes, and none of them closed by its bytes, which the two servers count differently.
NODES: dict[str, object] = {"stream-node-max-entries": 5, "stream-node-max-bytes": 0}
# The same for a server of ours, and no idempotence record goes by itself while a slow machine is looked at.
OURS: dict[str, object] = {**NODES, "stream-idmp-duration": 86_400}
# Entries that nobody owns are another consumer's for Redis 7.
SHARED: Family = [(weight, maker) for weight, maker in NEWER_FAMILY if maker is not NewerCommands.xnack]
# What has piled up is what is looked at.
LASTING: Family = [(weight, maker) for weight, maker in KEYSPACE if maker is not KeyCommands.flush]
# Nodes are made again, without tombstones.
OF_NODES = frozenset((b"radix-tree-keys", b"radix-tree-nodes"))
UNKNOWN_TO_REDIS = (
    group_differences.NEWER_FIELDS | IDMP_FIELDS | OF_NODES | {b"lag", b"seen-time"}  # made when it loads
)
# A server that loads a log made the consumers just now, and has no marks of newer releases.
UNKNOWN_FROM_A_LOG = (
    group_differences.NEWER_FIELDS | group_differences.COUNTERS | IDMP_FIELDS | {b"seen-time", b"radix-tree-nodes"}
)


class Scripts(LastingCommands, Generator):
    """Scripts of every family."""

    def spoil(self, words: Command) -> Command:
        """As everywhere, but no CONSUMERTTL changes places with a small number: it would be over soon."""
        if b"CONSUMERTTL" in (word.upper() for word in words):
            return words
        return super().spoil(words)


def every_stream(client: RawClient) -> Iterator[tuple[int, bytes]]:
    """Database and key of each; its database is selected meanwhile."""
    for database in range(3):
        client.ask("SELECT", database)
        for key in client.tree("KEYS", "*").children or ():
            yield database, key.text


def leave_pending(client: RawClient, chance: random.Random) -> None:
    """Have groups read every stream, and delete or trim some of what is pending then."""
    for _, key in every_stream(client):
        for number in range(20):
            client.ask("XADD", key, "*", "f", number)
        for group in ("late", "later"):
            client.ask("XGROUP", "CREATE", key, group, chance.choice(("0", "5-0")))
            for consumer in ("Alice", "Bob", "Alice"):
                read = ("XREADGROUP", "GROUP", group, consumer, "COUNT", chance.randrange(1, 9))
                client.ask(*read, "STREAMS", key, ">")
        ids = [entry.children[0].text for entry in client.tree("XRANGE", key, "-", "+").children or ()]
        if not ids:
            continue  # it has had the last ID there is
        client.ask("XCLAIM", key, "late", "Carol", 0, *chance.choices(ids, k=3), "IDLE", 77, "RETRYCOUNT", 5)
        client.ask("XDEL", key, *chance.choices(ids, k=5))
        if chance.random() < 0.3:
            client.ask("XTRIM", key, "MAXLEN", "=", chance.randrange(10))
    client.ask("SELECT", 0)


# By database and key: XINFO STREAM FULL, the deadline, and XPENDING of each group.
State = dict[tuple[int, bytes], tuple[str, bytes, list[bytes]]]


def state_of(server: Server, without: frozenset[bytes]) -> State:
    found: State = {}
    with server.client() as client:
        for database, key in every_stream(client):
            shown = _full(client, key, without)
            groups = client.tree("XINFO", "GROUPS", key).children or ()
            summaries = [client.ask("XPENDING", key, group.pairs()[0][1].text) for group in groups]
            found[database, key] = shown, client.ask("PEXPIRETIME", key), summaries
    return found


def groups_of(server: Server, hidden: frozenset[bytes] = frozenset()) -> dict[tuple[int, bytes], str]:
    """XINFO STREAM FULL of every stream, without what a log does not say, and without `hidden`."""
    without = UNKNOWN_FROM_A_LOG | hidden
    with server.client() as client:
        return {(database, key): _full(client, key, without) for database, key in every_stream(client)}


def _full(client: RawClient, key: bytes, without: frozenset[bytes]) -> str:
    full = parse(client.ask("XINFO", "STREAM", key, "FULL", "COUNT", 0))
    return str(group_differences.without(without)((b"XINFO",), full))
