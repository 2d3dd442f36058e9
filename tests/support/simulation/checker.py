"""Judges one simulation: what clients were told against what is there in the end, in time linear in what happened.

    acknowledged entries are there, refused ones are not, pairs are whole            the ledger
    an entry acknowledged before another one was asked for has the smaller ID        `real_time`
    a reader sees what was acknowledged before it asked                              `fresh_reads`
    an entry added under WATCH stands behind the entry that its client had seen      `watches`
    no entry is given to two consumers of a group by `>`                             `deliveries`
    what was given is acknowledged, pending or moved, and nothing else is pending    `pending`
    an entry is moved once, after so many deliveries, and is pending no more         `moved`
    delivery counts never fall, and each delivery and claim raises them              `counts`
    no reader waits in vain while an entry comes                                     `waits`
    servers at one offset show the same                                              `differences`

An outcome that no client was told may have happened or not, also later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.support.faults.ledger import Account, Add, Contents, EntryID, Fate
from tests.support.simulation.records import Records

# Most entries that one XREADGROUP asks for.
READ_COUNT = 20


@dataclass
class GroupContents:
    """A group in the end: pending entries with their delivery counts, the last delivered, what a policy has moved."""

    pending: dict[EntryID, int]
    last_delivered: EntryID
    moved: list[tuple[EntryID, int]] = field(default_factory=list)  # with the deliveries that the dead letter names
    max_deliveries: int = 0


@dataclass
class Final:
    """What the judge found when everything had come to rest."""

    streams: dict[bytes, Contents]
    links: list[tuple[EntryID, bytes]] = field(default_factory=list)  # ID, the ID it was to stand behind
    queue: list[EntryID] = field(default_factory=list)
    groups: Mapping[bytes, GroupContents] = field(default_factory=dict)


def judge(records: Records, final: Final) -> Iterator[str]:
    """Every way in which the servers have broken their word."""
    _part_unknown_adds(records)
    yield from records.ledger.verify(final.streams)
    yield from real_time(records)
    yield from watches(final)
    yield from waits(records)
    for group, contents in final.groups.items():
        yield from deliveries(records, group)
        yield from pending(records, final, group, contents)
        yield from moved(records, group, contents)
        yield from counts(records, group, contents)


def _part_unknown_adds(records: Records) -> None:
    """Give each add of unknown outcome an account of its own: it may be done later than those that came after it."""
    parted: list[Account] = []
    for account in records.ledger.accounts:
        unknown = [add for add in account.adds if add.fate is Fate.UNKNOWN]
        account.adds = [add for add in account.adds if add.fate is not Fate.UNKNOWN]
        parted += [Account(account.name, [add]) for add in unknown]
    records.ledger.accounts += parted


def real_time(records: Records) -> Iterator[str]:
    """Adds of a stream are in the order of time, where one was answered before the other was asked for."""
    streams: dict[bytes, list[Add]] = {}
    for add in records.told:
        if add.fate is Fate.ACKNOWLEDGED:
            streams.setdefault(add.stream, []).append(add)
    for adds in streams.values():
        adds.sort(key=lambda add: add.entry_id or (0, 0))
        latest: Add | None = None
        for add in adds:
            if latest is not None and add.told_at < latest.asked_at:
                yield f"{add} was answered before {latest} was asked for, and has the greater ID"
            if latest is None or add.asked_at > latest.asked_at:
                latest = add


def watches(final: Final) -> Iterator[str]:
    before = b"0-0"
    for entry_id, behind in final.links:
        if behind and behind != before:
            yield f"WATCH: {entry_id} was added behind {behind!r}, and stands behind {before!r}"
        before = b"%d-%d" % entry_id


def waits(records: Records) -> Iterator[str]:
    """A reader that was told that there is nothing: no entry was there, and none came before its time was over."""
    added = {add.stream: [] for add in records.told} if records.waits else {}
    for add in records.told:
        if records.waits and add.fate is Fate.ACKNOWLEDGED:
            added[add.stream].append(add)
    for wait in records.waits:
        for add in added.get(wait.stream, ()):
            stamp = records.stamps.get(id(add))
            if stamp is None or wait.stamp is None or stamp.line != wait.stamp.line:
                continue
            is_before = stamp.offset <= wait.stamp.offset and add.told_at < wait.asked_at + wait.block_s
            if is_before and (add.entry_id or (0, 0)) > wait.after:
                yield f"a reader waited in vain behind {wait.after} from {wait.asked_at:.6f} on, and {add} was there"
                break


def deliveries(records: Records, group: bytes) -> Iterator[str]:
    given: dict[EntryID, bytes] = {}
    for delivery in records.deliveries:
        if delivery.group != group:
            continue
        if delivery.entry_id in given:
            yield (
                f"{group!r}: {delivery.entry_id} was given to {given[delivery.entry_id]!r} "
                f"and to {delivery.consumer!r} at {delivery.told_at:.6f}"
            )
        given[delivery.entry_id] = delivery.consumer


def pending(records: Records, final: Final, group: bytes, contents: GroupContents) -> Iterator[str]:
    given = {delivery.entry_id for delivery in records.deliveries if delivery.group == group}
    acks = [ack for ack in records.acks if ack.group == group]
    surely = {ack.entry_id for ack in acks if ack.fate is Fate.ACKNOWLEDGED}
    perhaps = {ack.entry_id for ack in acks if ack.fate is not Fate.FAILED}
    perhaps |= {entry_id for entry_id, _ in contents.moved}
    for entry_id in sorted(given):
        if entry_id in surely and entry_id in contents.pending:
            yield f"{group!r}: {entry_id} was acknowledged, and is pending"
        if entry_id not in perhaps and entry_id not in contents.pending:
            yield f"{group!r}: {entry_id} was given to a consumer and not acknowledged, and is not pending"
        if entry_id > contents.last_delivered:
            yield f"{group!r}: {entry_id} was given to a consumer, and the group stands at {contents.last_delivered}"
    for entry_id in sorted(set(contents.pending) & surely - given):
        yield f"{group!r}: {entry_id} was acknowledged, and is pending"
    unknown = [entry_id for entry_id in final.queue if entry_id <= contents.last_delivered and entry_id not in given]
    most = READ_COUNT * records.lost_reads.get(group, 0)
    if len(unknown) > most:
        yield f"{group!r}: {len(unknown)} entries were passed over, {unknown[:3]} ...; {most} may be"
    extra = [entry_id for entry_id in contents.pending if entry_id not in given]
    if len(extra) > most:
        yield f"{group!r}: {len(extra)} entries are pending that were not given, {extra[:3]} ...; {most} may be"


def moved(records: Records, group: bytes, contents: GroupContents) -> Iterator[str]:
    acks = [ack for ack in records.acks if ack.group == group]
    surely = {ack.entry_id for ack in acks if ack.fate is Fate.ACKNOWLEDGED}
    seen: set[EntryID] = set()
    for entry_id, deliveries_ in contents.moved:
        if entry_id in seen:
            yield f"{group!r}: {entry_id} was moved twice"
        if entry_id in surely:
            yield f"{group!r}: {entry_id} was acknowledged, and is moved"
        if entry_id in contents.pending:
            yield f"{group!r}: {entry_id} was moved, and is pending"
        if deliveries_ < contents.max_deliveries:
            yield f"{group!r}: {entry_id} was moved after {deliveries_} deliveries, not {contents.max_deliveries}"
        seen.add(entry_id)


def differences(shown: Mapping[str, list[str]]) -> Iterator[str]:
    """What servers show that have the same offset, by their names: the same answers, in the order of the questions."""
    first, *others = shown.items()
    for name, found in others:
        for one, other in zip(first[1], found, strict=True):
            if one != other:
                yield f"{first[0]} and {name} differ: {one[:300]} and {other[:300]}"


def counts(records: Records, group: bytes, contents: GroupContents) -> Iterator[str]:
    seen = [count for count in records.counts if count.group == group]
    by_end = sorted(seen, key=lambda count: count.told_at)
    most: dict[EntryID, int] = {}
    at = 0
    for count in sorted(seen, key=lambda count: count.asked_at):
        while at < len(by_end) and by_end[at].told_at <= count.asked_at:
            known = by_end[at]
            most[known.entry_id] = max(most.get(known.entry_id, 0), known.count)
            at += 1
        if count.count < most.get(count.entry_id, 0):
            yield f"{group!r}: {count.entry_id} had {most[count.entry_id]} deliveries, and {count.count} later"
    for known in by_end[at:]:
        most[known.entry_id] = max(most.get(known.entry_id, 0), known.count)
    times = Counter(one.entry_id for one in (*records.deliveries, *records.claims) if one.group == group)
    for entry_id, number in contents.pending.items():
        if number < times[entry_id]:
            yield f"{group!r}: {entry_id} was given {times[entry_id]} times, and has {number} deliveries in the end"
        if number < most.get(entry_id, 0):
            yield f"{group!r}: {entry_id} had {most[entry_id]} deliveries, and {number} in the end"
