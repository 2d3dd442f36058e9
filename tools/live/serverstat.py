"""The streams of a running server, read with commands that every Redis since 7 has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from riverbed.store.progress import Progress
from riverbed.tools.live.redisclient import RedisClient, ReplyError, Word, fields
from riverbed.tools.stream_stat import READING, GroupStat, StreamStat

PAGE: Final = 500
_KEYS = re.compile(rb"^db(\d{1,9}):keys=(\d{1,18})\b", re.MULTILINE)


def server_stats(client: RedisClient, is_wanted: Callable[[bytes], bool], progress: Progress) -> Iterator[StreamStat]:
    """Every stream whose key is wanted, of the database that the address names or of all; keys may come and go.

    A key that SCAN returns twice is reported once.  Raises Failure when the connection fails, ReplyError.
    """
    counts = databases(client, client.call("INFO", "keyspace"))
    total = sum(counts.values())
    done = 0
    for db in counts:
        client.call("SELECT", db)
        for keys in scan(client, "TYPE", "stream"):
            yield from describe(client, db, [key for key in keys if is_wanted(key)])
            done += len(keys)
            progress(READING, done, max(total, done))


def databases(client: RedisClient, info: bytes) -> dict[int, int]:
    """The number of keys by database, from INFO: of the one that the client's address names, or of all with keys."""
    found = {int(db): int(keys) for db, keys in _KEYS.findall(info)}
    only = client.address.database
    return found if only is None else {only: found.get(only, 0)}


def scan(client: RedisClient, *options: Word) -> Iterator[list[bytes]]:
    """The keys of the selected database, each once, a page at a time."""
    seen: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, keys = client.call("SCAN", cursor, "COUNT", PAGE, *options)
        new = [key for key in dict.fromkeys(keys) if key not in seen]
        seen.update(new)
        yield new
        if cursor == b"0":
            return


def describe(client: RedisClient, db: int, keys: Sequence[bytes]) -> Iterator[StreamStat]:
    """The streams of `keys` that exist; database `db` is selected.  Raises Failure."""
    streams = ask_all(client, [("XINFO", "STREAM", key) for key in keys])
    sizes = ask_all(client, [("MEMORY", "USAGE", key) for key in keys])
    with_groups = [key for key, stream in zip(keys, streams, strict=True) if stream and fields(stream)[b"groups"]]
    groups = dict(zip(with_groups, ask_all(client, [("XINFO", "GROUPS", key) for key in with_groups]), strict=True))
    waiting = [
        (key, group[b"name"])
        for key, found in groups.items()
        for group in map(fields, found or [])
        if group[b"pending"]
    ]
    first = dict(zip(waiting, ask_all(client, [("XPENDING", *place, "-", "+", 1) for place in waiting]), strict=True))
    for key, stream, size in zip(keys, streams, sizes, strict=True):
        if stream is not None:  # None: the stream is gone by now
            found = sorted(map(fields, groups.get(key) or []), key=lambda group: bytes(group[b"name"]))
            stats = tuple(_group(group, first.get((key, group[b"name"]))) for group in found)
            facts = fields(stream)
            yield StreamStat(db, key, facts[b"length"], facts.get(b"entries-added"), size, stats)


def _group(group: dict[bytes, Any], first: Any) -> GroupStat:
    idle_ms = first[0][2] if first else -1
    return GroupStat(
        name=group[b"name"],
        consumers=group[b"consumers"],
        pending=group[b"pending"],
        oldest_ms=idle_ms if idle_ms >= 0 else None,  # -1 for an entry of no consumer
        lag=group.get(b"lag"),
        last_id=group[b"last-delivered-id"].decode(),
        entries_read=group.get(b"entries-read"),
    )


def ask_all(client: RedisClient, commands: Sequence[Sequence[Word]]) -> list[Any]:
    """The reply to each command, None for an error: the key or its group is gone meanwhile.  Raises Failure."""
    replies: list[Any] = []
    for batch in _batches(commands):
        client.send(batch)
        for _ in batch:
            try:
                replies.append(client.receive())
            except ReplyError:
                replies.append(None)
    return replies


def _batches(commands: Sequence[Sequence[Word]]) -> Iterator[Sequence[Sequence[Word]]]:
    for at in range(0, len(commands), PAGE):
        yield commands[at : at + PAGE]
