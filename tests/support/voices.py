"""One consumer, spoken by raw sockets and by redis-py, in both protocols: what is asked is the same, and what is said.

A `Voice` works on stream `s` and group `g`.  The raw one takes replies apart by itself, so that a library which
forgives cannot hide a reply that is not as documented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import redis

from tests.support.raw import Node, RawClient, Word, parse

KEY: Final = "s"
GROUP: Final = "g"

Entry = tuple[str, dict[str, str] | None]


class Row(NamedTuple):
    """One pending entry as XPENDING lists it."""

    entry_id: str
    consumer: str
    idle_ms: int
    count: int


class Summary(NamedTuple):
    """XPENDING without a range."""

    total: int
    first: str | None
    last: str | None
    consumers: dict[str, int]


class Scan(NamedTuple):
    """What XAUTOCLAIM says."""

    cursor: str
    claimed: list[Entry]
    deleted: list[str]


class Voice(Protocol):
    """What a consumer says; `claim_ids` and `autoclaim_ids` say it with JUSTID."""

    def create_group(self) -> None: ...
    def add(self, job: str) -> str: ...
    def delete(self, *entry_ids: str) -> int: ...
    def read(self, consumer: str, start: str = ">", count: int = 1000) -> list[Entry]: ...
    def ack(self, *entry_ids: str) -> int: ...
    def summary(self) -> Summary: ...
    def rows(self, min_idle_ms: int = 0, count: int = 1000) -> list[Row]: ...
    def claim(
        self, consumer: str, min_idle_ms: int, entry_ids: Sequence[str], *, force: bool = False
    ) -> list[Entry]: ...
    def claim_ids(self, consumer: str, min_idle_ms: int, entry_ids: Sequence[str]) -> list[str]: ...
    def age(self, consumer: str, idle_ms: int, entry_ids: Sequence[str]) -> None:
        """Have `consumer` hold them as if it had been given them once, so long ago."""

    def autoclaim(self, consumer: str, min_idle_ms: int, start: str = "0-0", count: int | None = None) -> Scan: ...
    def autoclaim_ids(self, consumer: str, min_idle_ms: int) -> list[str]: ...
    def consumers(self) -> dict[str, int]: ...
    def close(self) -> None: ...


class RawVoice:
    """Bytes on a socket."""

    def __init__(self, client: RawClient, protocol: int) -> None:
        self._client = client
        client.ask("HELLO", protocol)

    def _ask(self, *words: Word) -> Node:
        node = parse(self._client.ask(*words))
        assert node.kind != "-", f"{words}: {node}"
        return node

    def create_group(self) -> None:
        assert self._ask("XGROUP", "CREATE", KEY, GROUP, "$", "MKSTREAM").text == b"OK"

    def add(self, job: str) -> str:
        return self._ask("XADD", KEY, "*", "job", job).text.decode()

    def delete(self, *entry_ids: str) -> int:
        return int(self._ask("XDEL", KEY, *entry_ids).text)

    def read(self, consumer: str, start: str = ">", count: int = 1000) -> list[Entry]:
        reply = self._ask("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, "STREAMS", KEY, start)
        if not reply.children:
            return []
        # a map of streams in RESP3, an array of pairs in RESP2
        pair = reply.children if reply.kind == "%" else reply.children[0].children
        assert pair is not None and pair[0].text.decode() == KEY
        return _entries(pair[1])

    def ack(self, *entry_ids: str) -> int:
        return int(self._ask("XACK", KEY, GROUP, *entry_ids).text)

    def summary(self) -> Summary:
        total, first, last, consumers = self._ask("XPENDING", KEY, GROUP).children or ()
        counts = {name.text.decode(): int(count.text) for name, count in map(_children, consumers.children or ())}
        return Summary(int(total.text), _text_or_none(first), _text_or_none(last), counts)

    def rows(self, min_idle_ms: int = 0, count: int = 1000) -> list[Row]:
        rows = self._ask("XPENDING", KEY, GROUP, "IDLE", min_idle_ms, "-", "+", count).children or ()
        return [
            Row(entry_id.text.decode(), consumer.text.decode(), int(idle.text), int(times.text))
            for entry_id, consumer, idle, times in map(_children, rows)
        ]

    def claim(self, consumer: str, min_idle_ms: int, entry_ids: Sequence[str], *, force: bool = False) -> list[Entry]:
        options = ("FORCE",) if force else ()
        return _entries(self._ask("XCLAIM", KEY, GROUP, consumer, min_idle_ms, *entry_ids, *options))

    def claim_ids(self, consumer: str, min_idle_ms: int, entry_ids: Sequence[str]) -> list[str]:
        return _texts(self._ask("XCLAIM", KEY, GROUP, consumer, min_idle_ms, *entry_ids, "JUSTID"))

    def age(self, consumer: str, idle_ms: int, entry_ids: Sequence[str]) -> None:
        options = ("IDLE", idle_ms, "RETRYCOUNT", 1, "JUSTID")
        assert _texts(self._ask("XCLAIM", KEY, GROUP, consumer, 0, *entry_ids, *options)) == list(entry_ids)

    def autoclaim(self, consumer: str, min_idle_ms: int, start: str = "0-0", count: int | None = None) -> Scan:
        options = () if count is None else ("COUNT", count)
        reply = self._ask("XAUTOCLAIM", KEY, GROUP, consumer, min_idle_ms, start, *options)
        cursor, claimed, deleted = _children(reply)
        return Scan(cursor.text.decode(), _entries(claimed), _texts(deleted))

    def autoclaim_ids(self, consumer: str, min_idle_ms: int) -> list[str]:
        reply = self._ask("XAUTOCLAIM", KEY, GROUP, consumer, min_idle_ms, "0-0", "JUSTID")
        cursor, claimed, deleted = _children(reply)
        assert (cursor.text, deleted.children) == (b"0-0", ())
        return _texts(claimed)

    def consumers(self) -> dict[str, int]:
        rows = self._ask("XINFO", "CONSUMERS", KEY, GROUP).children or ()
        maps = [{name.text: value.text for name, value in row.pairs()} for row in rows]
        return {row[b"name"].decode(): int(row[b"pending"]) for row in maps}

    def close(self) -> None:
        self._client.close()


class LibraryVoice:
    """redis-py."""

    def __init__(self, port: int, protocol: int) -> None:
        self._redis: Any = redis.Redis(port=port, protocol=protocol, decode_responses=True)

    def create_group(self) -> None:
        assert self._redis.xgroup_create(KEY, GROUP, id="$", mkstream=True)

    def add(self, job: str) -> str:
        return str(self._redis.xadd(KEY, {"job": job}))

    def delete(self, *entry_ids: str) -> int:
        return int(self._redis.xdel(KEY, *entry_ids))

    def read(self, consumer: str, start: str = ">", count: int = 1000) -> list[Entry]:
        reply = self._redis.xreadgroup(GROUP, consumer, {KEY: start}, count=count)
        if not reply:
            return []
        if isinstance(reply, dict):  # in RESP3, with a list around the entries
            (entries,) = reply[KEY]
        else:
            ((key, entries),) = reply
            assert key == KEY
        return [(entry_id, fields or None) for entry_id, fields in entries]

    def ack(self, *entry_ids: str) -> int:
        return int(self._redis.xack(KEY, GROUP, *entry_ids))

    def summary(self) -> Summary:
        told = self._redis.xpending(KEY, GROUP)
        consumers = {row["name"]: row["pending"] for row in told["consumers"]}
        return Summary(told["pending"], told["min"], told["max"], consumers)

    def rows(self, min_idle_ms: int = 0, count: int = 1000) -> list[Row]:
        rows = self._redis.xpending_range(KEY, GROUP, min="-", max="+", count=count, idle=min_idle_ms)
        return [
            Row(row["message_id"], row["consumer"], row["time_since_delivered"], row["times_delivered"]) for row in rows
        ]

    def claim(self, consumer: str, min_idle_ms: int, entry_ids: Sequence[str], *, force: bool = False) -> list[Entry]:
        return list(self._redis.xclaim(KEY, GROUP, consumer, min_idle_ms, list(entry_ids), force=force))

    def claim_ids(self, consumer: str, min_idle_ms: int, entry_ids: Sequence[str]) -> list[str]:
        return list(self._redis.xclaim(KEY, GROUP, consumer, min_idle_ms, list(entry_ids), justid=True))

    def age(self, consumer: str, idle_ms: int, entry_ids: Sequence[str]) -> None:
        ids = list(entry_ids)
        assert self._redis.xclaim(KEY, GROUP, consumer, 0, ids, idle=idle_ms, retrycount=1, justid=True) == ids

    def autoclaim(self, consumer: str, min_idle_ms: int, start: str = "0-0", count: int | None = None) -> Scan:
        cursor, claimed, deleted = self._redis.xautoclaim(
            KEY, GROUP, consumer, min_idle_ms, start_id=start, count=count
        )
        return Scan(cursor, [tuple(entry) for entry in claimed], deleted)

    def autoclaim_ids(self, consumer: str, min_idle_ms: int) -> list[str]:
        return list(self._redis.xautoclaim(KEY, GROUP, consumer, min_idle_ms, justid=True))

    def consumers(self) -> dict[str, int]:
        return {row["name"]: row["pending"] for row in self._redis.xinfo_consumers(KEY, GROUP)}

    def close(self) -> None:
        self._redis.close()


def _children(node: Node) -> tuple[Node, ...]:
    assert node.children is not None, node
    return node.children


def _texts(node: Node) -> list[str]:
    assert all(child.kind == "$" for child in _children(node)), node
    return [child.text.decode() for child in _children(node)]


def _text_or_none(node: Node) -> str | None:
    assert node.kind in ("$", "nil$", "_"), node
    return node.text.decode() if node.kind == "$" else None


def _entries(node: Node) -> list[Entry]:
    """[[id, [field, value, ...]], ...]; the fields of a deleted entry are a null."""
    entries: list[Entry] = []
    for entry_id, fields in map(_children, _children(node)):
        words = None if fields.children is None else _texts(fields)
        entries.append((entry_id.text.decode(), words and dict(zip(words[::2], words[1::2], strict=True))))
    return entries
