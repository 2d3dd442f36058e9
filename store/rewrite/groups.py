"""The consumer groups of one stream as canonical commands; a part of the rewrite, see `state.py`.

    XGROUP CREATE group last-id ENTRIESREAD n
    XGROUP CREATECONSUMER             for consumers that have nothing pending; XCLAIM makes the others
    XCLAIM id id ... TIME RETRYCOUNT  a run: neighbours in ID order with the same owner, time and count
    XNACK id id ...                   entries that no consumer owns, in order of release; hidden from Redis 7
    XSEEN                             when each consumer was seen and active; hidden from Redis 7
    XGROUP POLICY                     when the group gives up on entries and consumers; hidden from Redis 7

Redis 7 has no entries without an owner.  For Redis 7 an XCLAIM gives them to the first consumer of the group with time
0, so that the next consumer to claim takes them; our own XNACK comes after that.  A group without consumers has no
consumer to name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final

from riverbed.store.format.pending import UNOWNED, Run, group_prefix, release_prefix
from riverbed.store.format.resp import bulk, encode_words, id_bulk, unpack_id_texts
from riverbed.store.format.streams import StreamRow
from riverbed.store.groups.consumers import policy_words
from riverbed.store.ids import ID_BYTES, id_text, unpack_id
from riverbed.store.log.commands import Composer, Piece
from riverbed.store.tables.entries import StreamEntries
from riverbed.store.tables.groups import LiveGroup, counted_groups
from riverbed.store.tables.reader import TableReader

UNKNOWN: Final = b"-1"
# IDs of one XCLAIM, and of one XNACK.
MAX_CLAIMED: Final = 500
MAX_RELEASED: Final = 64
_CLAIM_END: Final = b"$4\r\nTIME\r\n$%d\r\n%b\r\n$10\r\nRETRYCOUNT\r\n$%d\r\n%b\r\n$6\r\nJUSTID\r\n$5\r\nFORCE\r\n"


class GroupsRewrite:
    """All groups of the stream with this row."""

    def __init__(self, reader: TableReader, out: Composer, key: bytes, row: StreamRow) -> None:
        self._reader = reader
        self._out = out
        self._key = key
        self._row = row
        self._groups = counted_groups(reader, row)
        self._missing: set[int] = set()  # the numbers of groups that have pending records without an entry

    @property
    def most_read(self) -> int:
        """The largest `entries_read` of the groups, 0 when all are unknown."""
        return max((group.row.entries_read or 0 for group in self._groups), default=0)

    # -- pending records without an entry ------------------------------------------------------------------------------

    def any_missing(self) -> bool:
        """Whether there are pending records without an entry.  Call this before any other method."""
        pending = [group for group in self._groups if group.row.pel_count]
        self._missing = {group.group_no for group in pending if any(self._parted(group, missing=True))}
        return bool(self._missing)

    def placeholders(self) -> Iterator[Piece]:
        """XADD of an entry for each ID that is pending without one."""
        out = self._out
        begin = b"*5\r\n$4\r\nXADD\r\n" + bulk(self._key)
        end = b"$1\r\nx\r\n$1\r\ny\r\n"
        last = b""
        ids = [self._missing_ids(group) for group in self._groups if group.group_no in self._missing]
        for packed in merge(*ids):
            if packed != last:
                last = packed
                out.wire(begin + id_bulk(unpack_id(packed)) + end)
                if out.is_full:
                    yield out.take()

    def _missing_ids(self, group: LiveGroup) -> Iterator[bytes]:
        for run in self._parted(group, missing=True):
            yield from run.ids()

    def claim_placeholders(self) -> Iterator[Piece]:
        """Have the groups that need placeholders claim them; the groups' positions come with `pieces`."""
        for group in self._groups:
            if group.group_no in self._missing:
                self._out.command(b"XGROUP", b"CREATE", self._key, group.row.name, b"0-0")
                yield from self._claims(group, self._parted(group, missing=True))
                if _stand_in(group) is None:
                    # no consumer can own them: release them at once, in any order
                    for count, packed in _counted(_released_by_id(self._parted(group, missing=True))):
                        self._nack(group, count, packed)

    # -- groups --------------------------------------------------------------------------------------------------------

    def pieces(self) -> Iterator[Piece]:
        """All commands of the groups but the claims of placeholders."""
        out = self._out
        for group in self._groups:
            read = UNKNOWN if group.row.entries_read is None else b"%d" % group.row.entries_read
            how = b"SETID" if group.group_no in self._missing else b"CREATE"
            out.command(b"XGROUP", how, self._key, group.row.name, id_text(group.row.last_id), b"ENTRIESREAD", read)
            members = sorted(group.consumers.values())
            for member in members:
                if not member.pel_count:
                    out.command(b"XGROUP", b"CREATECONSUMER", self._key, group.row.name, member.name)
            if group.row.pel_count:
                is_parted = group.group_no in self._missing
                runs = self._parted(group, missing=False) if is_parted else group.runs(self._reader)
                yield from self._claims(group, runs)
            if group.row.released_count:
                for count, packed in _counted(self._released(group)):
                    self._nack(group, count, packed)
                    if out.is_full:
                        yield out.take()
            for member in members:
                times = b"%d" % member.seen_ms, b"%d" % member.active_ms
                out.extension(b"XSEEN", self._key, group.row.name, member.name, *times)
                if out.is_full:
                    yield out.take()
            if group.row.policy is not None:
                out.extension(*policy_words(self._key, group.row.name, group.row.policy))

    def _claims(self, group: LiveGroup, runs: Iterable[Run]) -> Iterator[Piece]:
        """XCLAIM of `runs`; neighbours with the same owner, time and count become one, however they were cut."""
        stand_in = _stand_in(group)
        head = b""
        owner = time_ms = count = -1
        packed = bytearray()
        most = MAX_CLAIMED * ID_BYTES
        for run in runs:
            run_owner, run_time_ms = run.consumer_no, run.time_ms
            if run_owner == UNOWNED:
                if stand_in is None:
                    continue
                run_owner, run_time_ms = stand_in, 0
            if run_owner != owner or run_time_ms != time_ms or run.delivery_count != count:
                if packed:
                    self._claim(head, bytes(packed), time_ms, count)
                    packed.clear()
                if run_owner != owner:
                    words = [b"XCLAIM", self._key, group.row.name, group.consumers[run_owner].name, b"0"]
                    head = encode_words(words)
                owner, time_ms, count = run_owner, run_time_ms, run.delivery_count
            packed += run.packed
            while len(packed) >= most:
                self._claim(head, bytes(packed[:most]), time_ms, count)
                del packed[:most]
            if self._out.is_full:
                yield self._out.take()
        if packed:
            self._claim(head, bytes(packed), time_ms, count)

    def _claim(self, head: bytes, packed: bytes, time_ms: int, count: int) -> None:
        texts = unpack_id_texts(packed)
        time_text, count_text = b"%d" % time_ms, b"%d" % count
        how = _CLAIM_END % (len(time_text), time_text, len(count_text), count_text)
        self._out.wire(b"*%d\r\n%b%b%b" % (len(texts) + 11, head, encode_words(texts), how))

    def _released(self, group: LiveGroup) -> Iterator[tuple[int, bytes]]:
        """(delivery count, ID) of entries that no consumer owns, in order of release."""
        cursor = self._reader.cursor("pel")
        prefix = group_prefix(group.group_no)
        for _, last_id in self._reader.rows("pel_by_time", release_prefix(group.group_no)):
            if cursor.set_key(prefix + last_id):
                run = Run.under(*cursor.item())
                yield run.delivery_count, run.packed

    def _nack(self, group: LiveGroup, count: int, packed: bytes) -> None:
        texts = unpack_id_texts(packed)
        words = [b"XNACK", self._key, group.row.name, b"FAIL", b"IDS", b"%d" % len(texts), *texts]
        self._out.extension(*words, b"RETRYCOUNT", b"%d" % count, b"FORCE")

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _parted(self, group: LiveGroup, *, missing: bool) -> Iterator[Run]:
        """The runs of a group, each with only the IDs that have no entry any more (`missing`), or that have one."""
        entries = StreamEntries(self._reader, self._row)
        for run in group.runs(self._reader):
            if entries.has_run(run.packed):  # as in most runs
                if not missing:
                    yield run
                continue
            ids = [packed for packed in run.ids() if entries.has(packed) is not missing]
            if ids:
                yield Run(run.consumer_no, run.moment, run.delivery_count, b"".join(ids))


def _stand_in(group: LiveGroup) -> int | None:
    """The number of the consumer that is named for entries that no consumer owns."""
    return min(group.consumers, key=lambda number: group.consumers[number].name, default=None)


def _released_by_id(runs: Iterable[Run]) -> Iterator[tuple[int, bytes]]:
    return ((run.delivery_count, run.packed) for run in runs if run.consumer_no == UNOWNED)


def _counted(released: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """(delivery count, packed IDs) of neighbours with the same count, as many as one XNACK takes."""
    last = -1
    packed = bytearray()
    for count, packed_id in released:
        if packed and (count != last or len(packed) >= MAX_RELEASED * ID_BYTES):
            yield last, bytes(packed)
            packed.clear()
        last = count
        packed += packed_id
    if packed:
        yield last, bytes(packed)
