"""The state that the oracle keeps: dicts and lists, and what follows from them alone (counters, order, trims).

IDs are integers of 128 bits here too, because nothing else orders as plainly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Words = list[bytes]

NEVER = -1


@dataclass
class Pending:
    """One element of a PEL.  `owner` is None for an entry that XNACK released; `turn` is when it got here."""

    owner: bytes | None
    time: int
    count: int
    turn: int


@dataclass
class Consumer:
    seen: int
    active: int = NEVER


@dataclass
class Policy:
    max_deliveries: int = 0
    dead_letter: bytes | None = None
    consumer_ttl: int = 0


@dataclass
class Group:
    last_id: int
    entries_read: int | None
    pel: dict[int, Pending] = field(default_factory=dict)
    consumers: dict[bytes, Consumer] = field(default_factory=dict)
    turns: int = 0
    policy: Policy = field(default_factory=Policy)

    def owned(self, consumer: bytes | None) -> list[int]:
        return sorted(entry_id for entry_id, pending in self.pel.items() if pending.owner == consumer)

    def assign(self, entry_id: int, owner: bytes | None, time: int, count: int) -> None:
        self.turns += 1
        self.pel[entry_id] = Pending(owner, time, count, self.turns)

    def by_time(self) -> list[int]:
        """Released entries in the order of their release, then the others, longest idle first, then by their turn."""

        def key(entry_id: int) -> tuple[bool, int, int]:
            pending = self.pel[entry_id]
            return pending.owner is not None, pending.time, pending.turn

        return sorted(self.pel, key=key)


@dataclass
class Stream:
    """`entries` is in ID order; a node lists every ID it was given, the deleted ones too, until none of them lives."""

    entries: dict[int, Words] = field(default_factory=dict)
    nodes: list[list[int]] = field(default_factory=list)
    last_id: int = 0
    max_deleted: int = 0
    added: int = 0
    groups: dict[bytes, Group] = field(default_factory=dict)
    idmp_duration: int = 100
    idmp_maxsize: int = 100
    producers: dict[bytes, dict[Any, int]] = field(default_factory=dict)
    iids_added: int = 0
    iids_duplicates: int = 0

    @property
    def first_id(self) -> int:
        return next(iter(self.entries), 0)

    @property
    def last_live(self) -> int:
        return next(reversed(self.entries), 0)

    def append(self, entry_id: int, fields: Words, node_max_entries: int) -> None:
        if not self.nodes or 0 < node_max_entries <= len(self.nodes[-1]):
            self.nodes.append([])
        self.nodes[-1].append(entry_id)
        self.entries[entry_id] = fields
        self.last_id = entry_id
        self.added += 1

    def delete(self, entry_id: int) -> bool:
        if self.entries.pop(entry_id, None) is None:
            return False
        self.drop_dead(next(node for node in self.nodes if entry_id in node))
        self.max_deleted = max(self.max_deleted, entry_id)
        return True

    def drop_dead(self, node: list[int]) -> None:
        if not any(entry_id in self.entries for entry_id in node):
            self.nodes.remove(node)

    def is_referenced(self, entry_id: int) -> bool:
        groups = self.groups.values()
        return any(group.last_id < entry_id or entry_id in group.pel for group in groups)

    def forget(self, entry_id: int) -> None:
        for group in self.groups.values():
            group.pel.pop(entry_id, None)

    def remember(self, producer: bytes, iid: Any, entry_id: int) -> None:
        records = self.producers.setdefault(producer, {})
        records[iid] = entry_id
        self.iids_added += 1
        if len(records) > self.idmp_maxsize:
            del records[next(iter(records))]

    # -- counters of groups --

    def tombstone_ahead(self, start: int) -> bool:
        return bool(self.entries) and self.max_deleted != 0 and start <= self.max_deleted

    def tombstone_above(self, entry_id: int) -> bool:
        return entry_id != 0 and entry_id < self.max_deleted

    def estimate(self, entry_id: int) -> int | None:
        """How many entries had been added when `entry_id` was the newest; None when that is not known."""
        if self.added == 0:
            return 0
        if not self.entries and entry_id <= self.last_id:
            return self.added
        if self.tombstone_above(entry_id):
            return None
        if entry_id == self.last_id:
            return self.added
        if entry_id > self.last_id:
            return None
        if self.max_deleted == 0 or self.max_deleted < self.first_id:
            if entry_id < self.first_id:
                return self.added - len(self.entries)
            if entry_id == self.first_id:
                return self.added - len(self.entries) + 1
        return None

    def counts_on(self, group: Group, entry_id: int) -> bool:
        """May the delivery of `entry_id` simply add one to `entries_read`?"""
        return not self.tombstone_ahead(group.last_id) and group.last_id >= self.first_id

    def lag(self, group: Group) -> int | None:
        if self.added == 0 or not self.entries:
            return 0
        if group.last_id < self.first_id and self.max_deleted < self.first_id:
            return len(self.entries)
        if group.entries_read is not None and not self.tombstone_ahead(group.last_id):
            return self.added - group.entries_read
        estimate = self.estimate(group.last_id)
        return None if estimate is None else self.added - estimate

    def advance(self, group: Group, entry_id: int) -> None:
        """The group is given `entry_id`."""
        if entry_id > group.last_id:
            if group.entries_read is not None and self.counts_on(group, entry_id):
                group.entries_read += 1
            elif self.added > 0:
                group.entries_read = self.estimate(entry_id)
            group.last_id = entry_id


@dataclass
class Trim:
    strategy: bytes = b""
    threshold: int = 0
    approximate: bool = False
    limit: int = 0
    references: bytes = b"KEEPREF"


def trim_stream(stream: Stream, trim: Trim) -> int:
    """`~` ends at the first node that the threshold does not cover, except with DELREF and ACKED."""
    before, ids = len(stream.entries), set(stream.entries)
    references = trim.references if stream.groups else b"KEEPREF"
    for node in list(stream.nodes):
        if trim.strategy == b"MAXLEN" and len(stream.entries) <= trim.threshold:
            break
        live = [entry_id for entry_id in node if entry_id in stream.entries]
        if trim.limit and before - len(stream.entries) + len(live) > trim.limit:
            break
        if trim.strategy == b"MAXLEN":
            is_whole = len(stream.entries) - len(live) >= trim.threshold
        else:
            is_whole = node[-1] < trim.threshold
        if trim.approximate and not is_whole and trim.references == b"KEEPREF":
            break
        for entry_id in live:
            if trim.strategy == b"MAXLEN" and len(stream.entries) <= trim.threshold:
                break
            if trim.strategy == b"MINID" and entry_id >= trim.threshold:
                break
            if references == b"ACKED" and stream.is_referenced(entry_id):
                continue
            del stream.entries[entry_id]
        # A node that an exact trim empties entry by entry stays until the next trim: its tombstones reach further.
        if live if references == b"ACKED" else is_whole:
            stream.drop_dead(node)
        if not is_whole:
            break
    if references == b"DELREF":
        removed = ids - set(stream.entries)
        for group in stream.groups.values():
            group.pel = {at: pending for at, pending in group.pel.items() if at not in removed}
    return before - len(stream.entries)
