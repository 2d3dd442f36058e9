"""What producers asked a server for and what it told them, and whether a store found later keeps to that.

Every write has one of three fates: acknowledged (the reply said so), failed (the reply was an error) or unknown (the
connection ended first, so the server may or may not have done it).  A store keeps its word when

- every acknowledged entry is there once, under the id that was told, unless something may have removed it;
- no failed entry is there, and no entry is there twice, acknowledged or not;
- the entries of one producer stand in the order in which it sent them;
- what was deleted or trimmed with acknowledgement stays away, and nothing else is missing;
- both halves of a transaction are there, or neither;
- whatever a reader has been shown is still there: nobody sees what a crash can take back.

When it is not the process that ends but the disk, the server lives on for a moment, and what it says then needs judging
by time: see `lost_disk`.  Times are those of `time.monotonic`.

The ledger never asks a server: `verify` is given the contents.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

EntryID = tuple[int, int]


class Fate(enum.Enum):
    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"


def read_id(text: bytes) -> EntryID:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


@dataclass(slots=True)
class Add:
    """One XADD.  `max_length` when it carried MAXLEN = n; `pair` names the transaction it is half of."""

    stream: bytes
    payload: bytes
    max_length: int | None = None
    pair: bytes | None = None
    fate: Fate = Fate.UNKNOWN
    entry_id: EntryID | None = None
    asked_at: float = 0.0
    told_at: float = 0.0


@dataclass(slots=True)
class Delete:
    """One XDEL of one entry."""

    stream: bytes
    entry_id: EntryID
    fate: Fate = Fate.UNKNOWN
    asked_at: float = 0.0
    told_at: float = 0.0
    found_none: bool = False  # it had nothing to remove, so it wrote nothing


@dataclass(slots=True)
class TrimBelow:
    """One XTRIM MINID."""

    stream: bytes
    entry_id: EntryID
    fate: Fate = Fate.UNKNOWN
    asked_at: float = 0.0
    told_at: float = 0.0
    found_none: bool = False  # it had nothing to remove, so it wrote nothing


@dataclass(slots=True)
class Sight:
    """An entry that a reader was shown."""

    stream: bytes
    entry_id: EntryID
    payload: bytes
    told_at: float = 0.0


@dataclass
class Account:
    """What one producer did, in the order in which it sent it.  One thread writes it."""

    name: bytes
    adds: list[Add] = field(default_factory=list)
    deletes: list[Delete] = field(default_factory=list)
    trims: list[TrimBelow] = field(default_factory=list)
    seen: list[Sight] = field(default_factory=list)


@dataclass(frozen=True)
class Contents:
    """One stream as a server shows it: entries in the order of XRANGE, and XINFO's entries-added."""

    entries: Sequence[tuple[EntryID, bytes]]
    entries_added: int


class Ledger:
    """The accounts of some producers and readers."""

    def __init__(self, accounts: Iterable[Account] = ()) -> None:
        self.accounts = list(accounts)

    def account(self, name: bytes) -> Account:
        account = Account(name)
        self.accounts.append(account)
        return account

    def streams(self) -> set[bytes]:
        return {add.stream for account in self.accounts for add in account.adds}

    def count(self, fate: Fate) -> int:
        return sum(add.fate is fate for account in self.accounts for add in account.adds)

    def lost_disk(self, begun_at: float, gone_at: float) -> Iterator[str]:
        """The disk was taken away between these times: settle what was told since, and yield what never may be told.

        A write asked for when the disk was gone for certain must not be acknowledged; a removal that finds none is a
        read.  One that was under way may be: a sync that the kernel lets return in that very moment is one of which
        nobody would hear after a real power loss.  A refused one may have reached the disk all the same.  So both are
        unknown.
        """
        for account in self.accounts:
            account.seen = [sight for sight in account.seen if sight.told_at < begun_at]
            for one in (*account.adds, *account.deletes, *account.trims):
                wrote = isinstance(one, Add) or not one.found_none
                if one.fate is Fate.ACKNOWLEDGED and wrote and one.asked_at > gone_at:
                    yield f"{one.stream!r}: {one} was acknowledged without a disk"
                if one.told_at >= begun_at:
                    one.fate = Fate.UNKNOWN
                    if isinstance(one, Add):
                        one.entry_id = None

    def verify(self, stores: Mapping[bytes, Contents], streams: Iterable[bytes] | None = None) -> Iterator[str]:
        """Yield every way in which the streams found break the word given; `streams` limits what is judged."""
        judged = self.streams() if streams is None else set(streams)
        for stream in sorted(judged):
            contents = stores.get(stream, Contents((), 0))
            adds = [add for account in self.accounts for add in account.adds if add.stream == stream]
            yield from self._verify_stream(stream, contents, adds)
            yield from self._verify_order(stream, contents)
        yield from self._verify_pairs(stores, judged)

    def _verify_stream(self, stream: bytes, contents: Contents, adds: Sequence[Add]) -> Iterator[str]:
        ids = [entry_id for entry_id, _ in contents.entries]
        for earlier, later in itertools.pairwise(ids):
            if earlier >= later:
                yield f"{stream!r}: {earlier} stands before {later}"
        by_payload: dict[bytes, EntryID] = {}
        for entry_id, payload in contents.entries:
            if payload in by_payload:
                yield f"{stream!r}: {payload!r} is there twice, at {by_payload[payload]} and {entry_id}"
            by_payload[payload] = entry_id
        known = {add.payload: add for add in adds}
        for payload, entry_id in by_payload.items():
            add = known.get(payload)
            if add is None:
                yield f"{stream!r}: {payload!r} at {entry_id} was never sent"
            elif add.fate is Fate.FAILED:
                yield f"{stream!r}: {payload!r} at {entry_id} was refused, and is there"
            elif add.entry_id not in (None, entry_id):
                yield f"{stream!r}: {payload!r} is at {entry_id}, acknowledged at {add.entry_id}"
        yield from self._verify_removals(stream, contents, adds, by_payload)
        acknowledged = sum(add.fate is Fate.ACKNOWLEDGED for add in adds)
        unknown = sum(add.fate is Fate.UNKNOWN for add in adds)
        if not acknowledged <= contents.entries_added <= acknowledged + unknown:
            yield (
                f"{stream!r}: entries-added is {contents.entries_added}; "
                f"{acknowledged} acknowledged and {unknown} unknown"
            )

    def _verify_removals(
        self, stream: bytes, contents: Contents, adds: Sequence[Add], by_payload: Mapping[bytes, EntryID]
    ) -> Iterator[str]:
        """Missing entries must have been removed on request; what was removed must be missing."""
        deletes = [one for account in self.accounts for one in account.deletes if one.stream == stream]
        trims = [one for account in self.accounts for one in account.trims if one.stream == stream]
        surely_deleted = {one.entry_id for one in deletes if one.fate is Fate.ACKNOWLEDGED}
        perhaps_deleted = {one.entry_id for one in deletes if one.fate is not Fate.FAILED}
        surely_below = max((one.entry_id for one in trims if one.fate is Fate.ACKNOWLEDGED), default=(0, 0))
        perhaps_below = max((one.entry_id for one in trims if one.fate is not Fate.FAILED), default=(0, 0))
        for entry_id, payload in contents.entries:
            if entry_id in surely_deleted:
                yield f"{stream!r}: {payload!r} at {entry_id} was deleted, and is there again"
            if entry_id < surely_below:
                yield f"{stream!r}: {payload!r} at {entry_id} was trimmed below {surely_below}, and is there again"

        caps = {add.max_length for add in adds if add.max_length is not None}
        first = contents.entries[0][0] if contents.entries else None
        if caps:
            cap = max(caps)
            if len(contents.entries) > cap:
                yield f"{stream!r}: {len(contents.entries)} entries under MAXLEN {cap}"
            if contents.entries_added >= cap and len(contents.entries) < cap:
                yield f"{stream!r}: {len(contents.entries)} entries are left of {cap}"

        def may_be_missing(entry_id: EntryID) -> bool:
            trimmed = entry_id < perhaps_below or (bool(caps) and first is not None and entry_id < first)
            return entry_id in perhaps_deleted or trimmed

        for add in adds:
            missing = add.fate is Fate.ACKNOWLEDGED and add.payload not in by_payload
            if missing and add.entry_id is not None and not may_be_missing(add.entry_id):
                yield f"{stream!r}: {add.payload!r} was acknowledged at {add.entry_id}, and is lost"
        for account in self.accounts:
            for sight in account.seen:
                found = sight.stream != stream or by_payload.get(sight.payload) == sight.entry_id
                if not found and not may_be_missing(sight.entry_id):
                    yield f"{stream!r}: {sight.payload!r} was shown to a reader at {sight.entry_id}, and is not there"

    def _verify_order(self, stream: bytes, contents: Contents) -> Iterator[str]:
        position = {payload: number for number, (_, payload) in enumerate(contents.entries)}
        for account in self.accounts:
            last = -1
            for add in account.adds:
                number = position.get(add.payload) if add.stream == stream else None
                if number is None:
                    continue
                if number < last:
                    yield f"{stream!r}: {add.payload!r} of {account.name!r} stands before an earlier one"
                last = number

    def _verify_pairs(self, stores: Mapping[bytes, Contents], judged: set[bytes]) -> Iterator[str]:
        there = {(stream, payload) for stream, contents in stores.items() for _, payload in contents.entries}
        halves: dict[bytes, list[bool]] = {}
        for add in _all_adds(self.accounts):
            if add.pair is not None and add.stream in judged:
                halves.setdefault(add.pair, []).append((add.stream, add.payload) in there)
        for pair, found in halves.items():
            if any(found) != all(found):
                yield f"transaction {pair!r}: one half is there without the other"


def _all_adds(accounts: Iterable[Account]) -> Iterator[Add]:
    for account in accounts:
        yield from account.adds
