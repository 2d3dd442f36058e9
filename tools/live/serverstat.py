"""The streams of a running server, read with commands that every Redis since 7 has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from riverbed.store.progress import Progress
from riverbed.tools.console.console import Failure, counted
from riverbed.tools.live.redisclient import RedisClient, ReplyError, Word, fields, number
from riverbed.tools.stream_stat import READING, GroupStat, StreamStat

PAGE: Final = 500
# A Redis passes 5,000 empty places of its table in a call, and keys are added meanwhile.
_SPARE_CALLS: Final = 100_000
# Pending entries that are looked at in each group, those with the smallest IDs.
_PENDING_PAGE: Final = 100
# The search for the longest idle time ends within a 16th of it, and after so many steps whatever a server replies.
_CLOSE: Final = 16
_MAX_STEPS: Final = 100
_Place = tuple[bytes, bytes]  # of a group: key and name
_KEYS = re.compile(rb"^db(\d{1,9}):keys=(\d{1,18})\b", re.MULTILINE)


def server_stats(client: RedisClient, is_wanted: Callable[[bytes], bool], progress: Progress) -> Iterator[StreamStat]:
    """Every stream whose key is wanted, of the database that the address names or of all; keys may come and go.

    A key that SCAN returns twice is reported once.  Raises Failure when the connection fails, ReplyError.
    """
    counts = databases(client, client.call("INFO", "keyspace"))
    total = sum(counts.values())
    done = 0
    for db, count in counts.items():
        client.call("SELECT", db)
        for keys in scan(client, count, "TYPE", "stream"):
            yield from describe(client, db, [key for key in keys if is_wanted(key)])
            done += len(keys)
            progress(READING, done, max(total, done))


def databases(client: RedisClient, info: bytes) -> dict[int, int]:
    """The number of keys by database, from INFO: of the one that the client's address names, or of all with keys.

    Raises Failure for a server that does not count its keys, as a Sentinel: it would be taken for an empty one.
    """
    if b"# Keyspace" not in info:
        raise Failure(f"{client.address} has no keyspace: if it is a Sentinel, name a server that it watches")
    found = {int(db): int(keys) for db, keys in _KEYS.findall(info)}
    only = client.address.database
    return found if only is None else {only: found.get(only, 0)}


def scan(client: RedisClient, count: int, *options: Word) -> Iterator[list[bytes]]:
    """The keys of the selected database, which counts so many, each once, a page at a time.

    Raises Failure for a server that goes on for ever.
    """
    seen: set[bytes] = set()
    cursor = b"0"
    for _ in range(_SPARE_CALLS + count):
        cursor, keys = client.call("SCAN", cursor, "COUNT", PAGE, *options)
        new = [key for key in dict.fromkeys(keys) if key not in seen]
        seen.update(new)
        yield new
        if cursor == b"0":
            return
    raise Failure(f"{client.address} does not end SCAN: it counted {counted(count, 'key')} at its beginning")


def describe(client: RedisClient, db: int, keys: Sequence[bytes]) -> Iterator[StreamStat]:
    """The streams of `keys` that exist; database `db` is selected.  Raises Failure, ReplyError."""
    streams = ask_all(client, [("XINFO", "STREAM", key) for key in keys])
    sizes = ask_all(client, [("MEMORY", "USAGE", key) for key in keys], optional=True)
    with_groups = [key for key, stream in zip(keys, streams, strict=True) if stream and fields(stream)[b"groups"]]
    groups = dict(zip(with_groups, ask_all(client, [("XINFO", "GROUPS", key) for key in with_groups]), strict=True))
    places = [
        (key, group[b"name"])
        for key, found in groups.items()
        for group in map(fields, found or [])
        if group[b"pending"]
    ]
    waiting = _longest_waiting(client, places)
    unread = _count_unread(client, groups)
    for key, stream, size in zip(keys, streams, sizes, strict=True):
        if stream is not None:  # None: the stream is gone by now
            found = sorted(map(fields, groups.get(key) or []), key=lambda group: bytes(group[b"name"]))
            stats = tuple(
                _group(group, waiting.get((key, group[b"name"])), unread.get((key, group[b"name"]))) for group in found
            )
            facts = fields(stream)
            length, added = number(facts[b"length"]), _number_or_none(facts.get(b"entries-added"))
            yield StreamStat(db, key, length, added, _number_or_none(size), stats)


@dataclass(slots=True)
class _Waiting:
    """The longest idle time that was found in a group, -1 for none, and the largest delivery count."""

    idle_ms: int = -1
    tries: int = 0
    above_ms: int | None = None  # no entry has been idle for so long

    def look_at(self, page: Any) -> None:
        """Take entries of XPENDING into account; None when the group is gone."""
        for _, _, idle_ms, deliveries in page or ():
            self.idle_ms, self.tries = max(self.idle_ms, number(idle_ms)), max(self.tries, number(deliveries))


def _longest_waiting(client: RedisClient, places: Sequence[_Place]) -> dict[_Place, _Waiting]:
    """Look for the pending entry of each group that has been idle longest.

    The first entries by ID are looked at.  The entry may be behind them; Riverbed has an index of idle times, so a few
    questions find it there.  In Redis each of these questions may walk the whole list, so they are not asked.
    """
    found: dict[_Place, _Waiting] = {}
    pages = ask_all(client, [("XPENDING", *place, "-", "+", _PENDING_PAGE) for place in places])
    for place, page in zip(places, pages, strict=True):
        found[place] = _Waiting()
        found[place].look_at(page)
        if len(page or ()) < _PENDING_PAGE:
            found[place].above_ms = 0
    for _ in range(_MAX_STEPS if client.is_riverbed else 0):
        asked = [(place, _next_idle_ms(each)) for place, each in found.items()]
        open_places = [(place, idle_ms) for place, idle_ms in asked if idle_ms is not None]
        if not open_places:
            break
        words = [("XPENDING", *place, "IDLE", idle_ms, "-", "+", _PENDING_PAGE) for place, idle_ms in open_places]
        for (place, idle_ms), page in zip(open_places, ask_all(client, words), strict=True):
            found[place].look_at(page)
            if found[place].idle_ms < idle_ms:  # entries without an owner, whose idle time is -1, are in each reply
                found[place].above_ms = idle_ms
    return found


def _next_idle_ms(waiting: _Waiting) -> int | None:
    """The idle time to ask for next: twice the known one until none has it, then the middle; None at the end."""
    low, high = waiting.idle_ms, waiting.above_ms
    if high is None:
        return 2 * max(low, 0) + 1
    return (low + high) // 2 if high - low > max(low // _CLOSE, 1) else None


def _count_unread(client: RedisClient, groups: Mapping[bytes, Any]) -> dict[_Place, int | None]:
    """The lag of the groups for which XINFO has none, as Redis does not know it; Riverbed counts it when asked."""
    if not client.is_riverbed:
        return {}
    places = [
        (key, group[b"name"])
        for key, found in groups.items()
        for group in map(fields, found or [])
        if group.get(b"lag") is None
    ]
    counts = ask_all(client, [("RIVERBED", "LAG", *place) for place in places], optional=True)
    return dict(zip(places, map(_number_or_none, counts), strict=True))


def _group(group: dict[bytes, Any], waiting: _Waiting | None, unread: int | None) -> GroupStat:
    idle_ms = waiting.idle_ms if waiting else -1
    lag = _number_or_none(group.get(b"lag"))
    return GroupStat(
        name=bytes(group[b"name"]),
        consumers=number(group[b"consumers"]),
        pending=number(group[b"pending"]),
        oldest_ms=idle_ms if idle_ms >= 0 else None,
        tries=waiting.tries if waiting else 0,
        lag=unread if lag is None else lag,
        last_id=group[b"last-delivered-id"].decode(),
        entries_read=_number_or_none(group.get(b"entries-read")),
    )


def _number_or_none(value: Any) -> int | None:
    return None if value is None else number(value)


def ask_all(client: RedisClient, commands: Sequence[Sequence[Word]], *, optional: bool = False) -> list[Any]:
    """The reply to each command, None where the key or its group is gone meanwhile, or its data is damaged.

    Raises Failure, and ReplyError for the first other error, when all replies of its batch have come; a user that may
    not run an `optional` command has None for it as well.
    """
    replies: list[Any] = []
    for batch in _batches(commands):
        client.send(batch)
        refusal: ReplyError | None = None
        for _ in batch:
            try:
                replies.append(client.receive())
            except ReplyError as error:
                replies.append(None)
                is_damaged = error.code == "ERR" and "is damaged" in str(error)  # which INFO tells
                if not (error.is_gone or is_damaged or (optional and error.code == "NOPERM")):
                    refusal = refusal or error
        if refusal is not None:
            raise refusal
    return replies


def _batches(commands: Sequence[Sequence[Word]]) -> Iterator[Sequence[Sequence[Word]]]:
    for at in range(0, len(commands), PAGE):
        yield commands[at : at + PAGE]
