"""Copy one stream of a live server as canonical commands: the shortest list that makes the stream again elsewhere.

    XADD ...          each entry, and a placeholder for each deleted entry that is still pending, in order
    XGROUP CREATE     each group, XCLAIM and XNACK for its pending entries, XGROUP SEEN for its consumers
    XDEL              the placeholders
    XSETID            the last ID and the counters, then each group's position, and its policy between Riverbeds
    PEXPIREAT         the deadline

The stream may change meanwhile.  Appended entries are left out: the copy is the stream as it was when the copying
began.  After any other change the stream is copied again, a few times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, id_text
from riverbed.tools.console.console import ProgressBar
from riverbed.tools.live.livestream import (
    DEFAULT_IDEMPOTENCE,
    UNOWNED,
    LiveGroup,
    LivePending,
    LiveStream,
    deadline_ms,
    delivery_policy,
    describe,
    read_entries,
    read_pending,
)
from riverbed.tools.live.redisclient import RedisClient, ReplyError
from riverbed.tools.loading.sinks import Sink

_TRIES: Final = 3
# A longer stream is not copied again.
_LONG: Final = 200_000
_IDS_A_COMMAND: Final = 100
_PLACEHOLDER: Final = (b"deleted", b"")

Words = list[bytes]


@dataclass(slots=True)
class Copied:
    """The report of one stream's copy.

    `moved`: the stream kept changing, so parts of the copy are of different moments.  `is_left`: it changed so much
    that there is no copy, as when its groups were deleted each time.  `unmarked`: the producers' idempotence records
    were not copied, because no command shows them.  `may_expire`: it has a deadline.
    """

    entries: int = 0
    groups: int = 0
    pending: int = 0
    moved: bool = False
    is_left: bool = False
    unmarked: bool = False
    may_expire: bool = False


def copy_stream(client: RedisClient, sink: Sink, key: bytes, target: bytes, bar: ProgressBar) -> Copied | None:
    """Copy `key` to `target`, which `sink` must not have -> what was copied, None when the key is gone.

    Raises Failure, ReplyError.
    """
    for attempt in range(1, _TRIES + 1):
        before = describe(client, key)
        if before is None:
            return None
        is_last = attempt == _TRIES or before.length + before.pending > _LONG
        try:
            copied = _Copy(client, sink, key, target, before, bar).run()
        except ReplyError as error:
            if not error.is_gone:
                raise
            sink.drop(target)  # a group, or the whole stream, was deleted meanwhile
            continue
        after = describe(client, key)
        copied.moved = after is None or not before.grew_to(after)
        if not copied.moved or is_last:
            return copied
        sink.drop(target)
    return Copied(is_left=True)


class _Copy:
    """One attempt to copy a stream."""

    def __init__(
        self, client: RedisClient, sink: Sink, key: bytes, target: bytes, live: LiveStream, bar: ProgressBar
    ) -> None:
        self._client = client
        self._sink = sink
        self._key = key
        self._target = target
        self._live = live
        self._bar = bar
        self._placeholders: list[StreamID] = []
        self._first_id: StreamID | None = None  # of the entries

    def run(self) -> Copied:
        key, target, live, sink = self._key, self._target, self._live, self._sink
        # Read pending entries first: an entry that is deleted after that is still pending, and gets a placeholder.
        # Entries that were appended since are left out, and so are their deliveries.
        pending = [
            read_pending(self._client, key, group.name, max(live.last_id, group.last_id)) for group in live.groups
        ]
        groups = self._covering(pending)
        entries = self._add_entries(pending)
        for group, its_pending in zip(groups, pending, strict=True):
            sink.run([b"XGROUP", b"CREATE", target, group.name, id_text(group.last_id)])
            self._add_members(group, its_pending)
        self._remove_placeholders()
        # Redis 8 lets no group have read more than was added, but keeps one that has
        most_read = max((group.entries_read or 0 for group in groups), default=0)
        self._set_counters(max(live.entries_added, most_read))
        for group in groups:
            if group.entries_read is not None:
                place = [id_text(group.last_id), b"ENTRIESREAD", b"%d" % group.entries_read]
                sink.run([b"XGROUP", b"SETID", target, group.name, *place])
            policy = delivery_policy(self._client, key, group.name) if sink.takes_policies else []
            if policy:
                sink.run([b"XGROUP", b"POLICY", target, group.name, *policy])
        if most_read > live.entries_added:
            self._set_counters(live.entries_added)
        is_unmarked = live.has_idempotence
        if live.idempotence != DEFAULT_IDEMPOTENCE:
            duration_s, most = live.idempotence
            settings = [b"IDMP-DURATION", b"%d" % duration_s, b"IDMP-MAXSIZE", b"%d" % most]
            is_unmarked |= not sink.configure([b"XCFGSET", target, *settings])
        deadline = deadline_ms(self._client, key)
        if deadline is not None:
            sink.run([b"PEXPIREAT", target, b"%d" % deadline])
        count = sum(map(len, pending))
        return Copied(entries, len(live.groups), count, unmarked=is_unmarked, may_expire=deadline is not None)

    def _covering(self, pending: list[LivePending]) -> list[LiveGroup]:
        """The groups, each with a last ID that covers what was delivered since it was described.

        It would be delivered again otherwise, as are the pending entries of a group that was set back before.  How many
        entries such a group has read is unknown.
        """
        now = describe(self._client, self._key)
        places = {} if now is None else {group.name: group.last_id for group in now.groups}
        return [
            group
            if its.last_id <= group.last_id or places.get(group.name) == group.last_id
            else replace(group, last_id=its.last_id, entries_read=None)
            for group, its in zip(self._live.groups, pending, strict=True)
        ]

    def _set_counters(self, entries_added: int) -> None:
        target, live, sink = self._target, self._live, self._sink
        top = max(live.last_id, live.max_deleted_id)
        counters = [b"ENTRIESADDED", b"%d" % entries_added, b"MAXDELETEDID", id_text(live.max_deleted_id)]
        sink.run([b"XSETID", target, id_text(top), *counters])
        if top != live.last_id:
            # Redis before 8 accepts an XSETID below MAXDELETEDID, but not in the same command
            sink.run([b"XSETID", target, id_text(live.last_id)])

    def _add_entries(self, pending: list[LivePending]) -> int:
        """XADD all entries, and a placeholder for each pending entry that is missing -> the number of entries."""
        target, sink, bar = self._target, self._sink, self._bar
        wanted = _distinct(heapq.merge(*(of_group.ids() for of_group in pending)))
        next_wanted = next(wanted, None)
        received = self._client.bytes_received
        count = 0
        for entry_id, words in chain(read_entries(self._client, self._key, self._live.last_id), [(None, _PLACEHOLDER)]):
            limit = MAX_ID + 1 if entry_id is None else entry_id
            while next_wanted is not None and next_wanted < limit:
                sink.run([b"XADD", target, id_text(next_wanted), *_PLACEHOLDER])
                self._placeholders.append(next_wanted)
                next_wanted = next(wanted, None)
            if entry_id is None:
                break
            if next_wanted == entry_id:
                next_wanted = next(wanted, None)
            sink.run([b"XADD", target, id_text(entry_id), *words])
            count += 1
            self._first_id = self._first_id or entry_id
            bar.advance(self._client.bytes_received - received, 1)
            received = self._client.bytes_received
        if not count and not self._placeholders:
            sink.run([b"XADD", target, b"MAXLEN", b"0", b"0-1", *_PLACEHOLDER])
        return count

    def _remove_placeholders(self) -> None:
        target, sink, placeholders = self._target, self._sink, self._placeholders
        if placeholders and self._live.max_deleted_id == MIN_ID:
            # XDEL would set MAXDELETEDID, and XSETID cannot set it back to 0-0.  Nothing was deleted by XDEL in the
            # source, so trims removed the missing entries, and one trim here removes exactly the placeholders.
            first = self._first_id
            placeholders = [] if first is None else [entry_id for entry_id in placeholders if entry_id > first]
            how = [b"MAXLEN", b"=", b"0"] if first is None else [b"MINID", b"=", id_text(first)]
            sink.run([b"XTRIM", target, *how])
        for at in range(0, len(placeholders), _IDS_A_COMMAND):
            sink.run([b"XDEL", target, *map(id_text, placeholders[at : at + _IDS_A_COMMAND])])

    def _add_members(self, group: LiveGroup, pending: LivePending) -> None:
        """Create the group's consumers and pending entries."""
        target, sink = self._target, self._sink
        for consumer in group.consumers:
            sink.run([b"XGROUP", b"CREATECONSUMER", target, group.name, consumer.name])
        for consumer_no, time_ms, count, ids in _alike(pending):
            if consumer_no == UNOWNED:
                how_many = [b"IDS", b"%d" % len(ids), *map(id_text, ids)]
                sink.run([b"XNACK", target, group.name, b"FAIL", *how_many, b"RETRYCOUNT", b"%d" % count, b"FORCE"])
                continue
            how = [b"TIME", b"%d" % time_ms, b"RETRYCOUNT", b"%d" % count, b"JUSTID", b"FORCE"]
            sink.run([b"XCLAIM", target, group.name, pending.consumers[consumer_no], b"0", *map(id_text, ids), *how])
        if sink.keeps_times:
            for consumer in group.consumers:
                times = [b"%d" % consumer.seen_ms, b"%d" % consumer.active_ms]
                sink.run([b"XGROUP", b"SEEN", target, group.name, consumer.name, *times])


def _distinct(ids: Iterator[StreamID]) -> Iterator[StreamID]:
    """Ascending `ids`, without duplicates."""
    last: StreamID | None = None
    for entry_id in ids:
        if entry_id != last:
            last = entry_id
            yield entry_id


def _alike(pending: LivePending) -> Iterator[tuple[int, int, int, list[StreamID]]]:
    """Group neighbours with the same consumer, delivery time and count: -> these three, and the IDs."""
    like: tuple[int, int, int] | None = None
    ids: list[StreamID] = []
    for entry_id, *rest in pending.rows():
        its = (rest[0], rest[1], rest[2])
        if its != like or len(ids) == _IDS_A_COMMAND:
            if like is not None:
                yield *like, ids
            like, ids = its, []
        ids.append(entry_id)
    if like is not None:
        yield *like, ids
