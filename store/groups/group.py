"""Consumer groups: what deliveries and claims change, and the lines that they log.

    stream ── db.groups(stream) ── Group "workers"                     last_delivered_id, entries_read
                                     ├── Consumer "Alice"              seen, active, pel_count
                                     ├── Consumer "Bob"
                                     └── Pel                           the rows; see pending/pel.py

A `Group` has the methods of four files, each on top of the next: this one; `acks.py`, how entries leave the list;
`pending_reads.py`, what is read of it; `consumers.py`, the group's own row, its consumers and its position.  Source:
the pages of the group commands.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from riverbed.store.format.pending import UNOWNED, time_of
from riverbed.store.format.resp import bulk, encode_words, id_bulks
from riverbed.store.format.streams import add_counts, packed_ids_of
from riverbed.store.groups.acks import Acks, bulks_of
from riverbed.store.groups.known_consumers import Consumer
from riverbed.store.groups.pending_reads import PendingEntry
from riverbed.store.ids import ID_BYTES, StreamID, id_text, pack_id, unpack_id

if TYPE_CHECKING:
    from riverbed.store.groups.pending.young import Delivery
    from riverbed.store.model import Row

_CLAIM_END: Final = (
    b"$4\r\nTIME\r\n$%d\r\n%b\r\n$10\r\nRETRYCOUNT\r\n%b$5\r\nFORCE\r\n$6\r\nJUSTID\r\n$6\r\nLASTID\r\n$%d\r\n%b\r\n"
)

# The most entries of a claim that are given one by one, and of a logged one: they are written together with what else
# changes until then.
_FEW: Final = 10
_FEW_LOGGED: Final = 256
# What a consumer keeps of the first words of its lines without counting them.
_SHORT_HEAD: Final = 1024
# The line of a delivery of one entry, and the one of the position that follows it, around their IDs.
_MULTI_XCLAIM: Final = b"*1\r\n$5\r\nMULTI\r\n*14\r\n"
_CLAIM_TAIL: Final = (
    b"$4\r\nTIME\r\n$%d\r\n%d\r\n$10\r\nRETRYCOUNT\r\n$1\r\n1\r\n$5\r\nFORCE\r\n$6\r\nJUSTID\r\n$6\r\nLASTID\r\n"
)
_ENTRIESREAD: Final = b"$11\r\nENTRIESREAD\r\n$%d\r\n%b\r\n*1\r\n$4\r\nEXEC\r\n"


class Group(Acks):
    """A consumer group of a stream."""

    # (time, delivery count and position; what follows the ID in the line of a claim of one)
    _claim_tail: tuple[tuple[int, int, int], bytes] = ((-1, 0, 0), b"")
    _delivery_tail: tuple[int, bytes] = (-1, b"")  # (time, what follows the ID in the line of a delivery)

    def deliver(self, consumer: Consumer, rows: list[Row], now_ms: int, *, to_pel: bool) -> None:
        """Deliver the entries in `rows`, which follow the group's position, to a consumer.

        Logs the new position and, if the entries become pending, one XCLAIM for all of them.
        """
        before = self.last_id
        self._advance(rows)
        self.touch(consumer)
        if to_pel:
            packed_ids = packed_ids_of(rows)
            is_past_all = self._pel_end is not None and before >= self._pel_end
            # a group without pending entries may have dead runs, whose keys a new run must not take
            if not is_past_all and self.pel.holds_any_from(StreamID(before + 1)):
                # the position was set back: some entries may be pending already, and their counts start again at 1
                self._give(consumer, dict.fromkeys(packed_ids, 1), now_ms)
            else:
                self.pel.add_new(packed_ids, consumer.consumer_no, now_ms)
                self.pel_count += len(rows)
                consumer.pel_count += len(rows)
                self._pel_end = self.last_id
            consumer.active_ms = now_ms
            bulks = id_bulks(rows)
            self._recent_deliveries.note(packed_ids, bulks)
            self._log_claims(consumer, [(1, len(rows), bulks)], now_ms)

    def deliver_one(self, consumer: Consumer, row_key: bytes, row: bytes, now_ms: int, *, in_transaction: bool) -> None:
        """`deliver` one entry, which becomes pending, in a third of the time: most reads of groups are for one.

        Logs the same as one piece: MULTI, XCLAIM, XGROUP SETID, EXEC.  A transaction has a MULTI of its own.
        """
        stream, before, read = self.stream, self.last_id, self.entries_read
        end = self._pel_end
        if read is None or end is None or before < end or before < stream.first_id or in_transaction:
            return self.deliver(consumer, [(row_key, row)], now_ms, to_pel=True)
        if stream.max_deleted_id and before <= stream.max_deleted_id:
            return self.deliver(consumer, [(row_key, row)], now_ms, to_pel=True)
        packed = row_key[-ID_BYTES:]
        self.last_id = self._pel_end = last_id = unpack_id(packed)
        self.entries_read = read = add_counts(read, 1)
        self.pel.add_one(packed, consumer.consumer_no, now_ms)
        self.pel_count += 1
        consumer.pel_count += 1
        consumer.active_ms = now_ms
        self._mark(consumer)
        id_wire = row[: row.index(b"*")]
        read_text = b"%d" % read
        if consumer.delivery_head[0] != stream.key:
            consumer.delivery_head = (stream.key, _MULTI_XCLAIM + self._claim_head(consumer))
            self._count_head(consumer.delivery_head[1])
        if self._delivery_tail[0] != now_ms:
            self._delivery_tail = (now_ms, _CLAIM_TAIL % (len(b"%d" % now_ms), now_ms))
        if self._position_head is None or self._position_head[0] != stream.key:
            self._position_head = (stream.key, encode_words([b"XGROUP", b"SETID", stream.key, self.name]))
        pieces = (
            *(consumer.delivery_head[1], id_wire, self._delivery_tail[1], id_wire),
            *(b"*7\r\n", self._position_head[1], id_wire, _ENTRIESREAD % (len(read_text), read_text)),
        )
        self._log_wire(b"".join(pieces))
        self._logged_position = (last_id, read)
        consumer.is_logged = True
        consumer.logged_times = (now_ms, now_ms)
        return None

    def claim(self, consumer: Consumer, counts: dict[bytes, int], time_ms: int, now_ms: int) -> None:
        """Make `consumer` the owner of entries, delivered at `time_ms`; `counts` has delivery counts by packed ID.

        They are delivered in the order of `counts`.  Logs one XCLAIM for each run of equal counts.
        """
        if counts:
            self._give(consumer, counts, time_ms)
            consumer.active_ms = now_ms
            self.touch(consumer)
            self._log_claims(consumer, _equal_counts(counts), time_ms)

    def claim_one(
        self, consumer: Consumer, packed: bytes, id_wire: bytes, owner_no: int, count: int, now_ms: int
    ) -> None:
        """`claim` an entry from the owner that `pel.standing` has found.  Logs XCLAIM.

        `id_wire` is its canonical ID as a bulk string.
        """
        self._move_one(packed, consumer, now_ms, count, owner_no)
        consumer.active_ms = now_ms
        self._mark(consumer)
        how = (now_ms, count, self.last_id)
        if self._claim_tail[0] != how:
            time_text, last_id = b"%d" % now_ms, id_text(self.last_id)
            tail = _CLAIM_END % (len(time_text), time_text, bulk(b"%d" % count), len(last_id), last_id)
            self._claim_tail = (how, tail)
        self._log_wire(b"".join((b"*14\r\n", self._claim_head(consumer), id_wire, self._claim_tail[1])))
        if self._logged_position[0] < self.last_id:
            self._logged_position = (self.last_id, self._logged_position[1])
        consumer.is_logged = True
        consumer.logged_times = (now_ms, now_ms)

    def claim_each(
        self, name: bytes, packed_ids: list[bytes], id_wires: list[bytes], min_idle_ms: int, now_ms: int
    ) -> bytes:
        """`claim` entries one after the other, if they are idle for so long; their delivery counts stay.

        -> a byte for each: 1 if it was claimed.  Ends before the first entry that occurs again, or is pending but not
        in the stream.  `id_wires` are the canonical IDs as bulk strings.  Logs one XCLAIM for each run of equal counts.
        """
        standings = self._plain_standings(packed_ids)
        if not standings:
            return b""
        consumer = self.get_or_create(name, now_ms)
        consumer_no = consumer.consumer_no
        pel = self.pel
        claimed = bytearray(len(standings))
        former: dict[int | None, int] = {}
        claims: list[tuple[int, int, bytes]] = []
        run: list[bytes] = []
        run_count = 0
        for at, standing in enumerate(standings):
            if standing is None:
                continue
            owner_no, moment, count = standing
            if min_idle_ms > 0 and owner_no != UNOWNED and now_ms - time_of(owner_no, moment) < min_idle_ms:
                continue
            if count != run_count and run:
                claims.append((run_count, len(run), b"".join(run)))
                run = []
            run_count = count
            run.append(id_wires[at])
            pel.move_one(packed_ids[at], consumer_no, now_ms, count)
            former[owner_no] = former.get(owner_no, 0) + 1
            claimed[at] = 1
        if run:
            claims.append((run_count, len(run), b"".join(run)))
            moved = self._left_owners(former)  # it may be one of them itself
            self._move_count(consumer, moved)
            consumer.active_ms = now_ms
            self._mark(consumer)
            self._log_claims(consumer, claims, now_ms)
        return bytes(claimed)

    def _plain_standings(self, packed_ids: list[bytes]) -> list[Delivery | None]:
        """What `pel.standings` says of the entries before the first one that `claim_each` leaves to others."""
        stream = self.stream
        standings = self.pel.standings(packed_ids)
        certain = stream.certain(packed_ids)
        seen: set[bytes] = set()
        for at, standing in enumerate(standings):
            if standing is not None:
                packed = packed_ids[at]
                if packed in seen or not (certain[at] or stream.has_packed(packed)):
                    return standings[:at]
                seen.add(packed)
        return standings

    def load_claim(
        self,
        name: bytes,
        packed_ids: list[bytes],
        time_ms: int,
        count: int,
        last_id: StreamID,
        *,
        ascend: bool,
    ) -> None:
        """Replay an XCLAIM of a log: `claim` different IDs for the consumer `name`, without logging."""
        consumer = self.get_or_create(name, time_ms)
        self.stream.txn.changes += len(packed_ids)
        self.raise_position(last_id)
        is_past_all = ascend and self._pel_end is not None and packed_ids[0] > pack_id(self._pel_end)
        counts = {} if is_past_all else dict.fromkeys(packed_ids, count)
        is_given = 0 < len(counts) <= _FEW_LOGGED and self._give_each(consumer, counts, time_ms)
        if not is_given:
            if ascend and (is_past_all or not self.pel.holds_any_from(unpack_id(packed_ids[0]))):
                self.pel.add_new(packed_ids, consumer.consumer_no, time_ms, count)
                self.pel_count += len(packed_ids)
                consumer.pel_count += len(packed_ids)
                self._pel_end = unpack_id(packed_ids[-1])
            else:
                self._give_at_once(consumer, counts, time_ms)
        consumer.active_ms = time_ms
        self.touch(consumer)
        self._logged_position = (self.last_id, self.entries_read)
        consumer.is_logged = True
        consumer.logged_times = (time_ms, time_ms)

    def take_over(self, consumer: Consumer, entries: list[PendingEntry], now_ms: int) -> None:
        """`claim` the entries that `overdue` found; each delivery count rises by one."""
        self.claim(consumer, _once_more(entries), now_ms, now_ms)

    def redeliver(self, consumer: Consumer, entries: list[PendingEntry], now_ms: int) -> None:
        """Deliver entries again to their owner: each count rises by one; `active_ms` stays.  Logs XCLAIM."""
        counts = _once_more(entries)
        if counts:
            self._give(consumer, counts, now_ms)
            self.touch(consumer)
            self._log_claims(consumer, _equal_counts(counts), now_ms)

    def _give(self, consumer: Consumer, counts: dict[bytes, int], time_ms: int) -> None:
        """Give entries to a consumer, as `claim`; they may have had another owner or none."""
        if len(counts) > _FEW or not self._give_each(consumer, counts, time_ms):
            self._give_at_once(consumer, counts, time_ms)

    def _give_at_once(self, consumer: Consumer, counts: dict[bytes, int], time_ms: int) -> None:
        """`_give` entries by writing them."""
        self._pel_end = None
        given = self._left_owners(self.pel.give(counts, consumer.consumer_no, time_ms))
        self._move_count(consumer, given)

    def _give_each(self, consumer: Consumer, counts: dict[bytes, int], time_ms: int) -> bool:
        """`_give` entries without writing them; -> whether it did, which it does not where one has no owner."""
        owners: list[int] = []
        for packed in counts:
            standing = self.pel.standing(packed)
            if standing is None or standing[0] == UNOWNED:
                return False
            owners.append(standing[0])
        for (packed, count), owner_no in zip(counts.items(), owners, strict=True):
            self._move_one(packed, consumer, time_ms, count, owner_no)
        return True

    def _move_one(self, packed: bytes, consumer: Consumer, time_ms: int, count: int, owner_no: int) -> None:
        """`_give` an entry of the owner `owner_no`, without writing it."""
        self.pel.move_one(packed, consumer.consumer_no, time_ms, count)
        self._move_count(self.consumers.numbered(owner_no), -1)
        consumer.pel_count += 1

    def _claim_head(self, consumer: Consumer) -> bytes:
        """The first words of the XCLAIMs that the log has for a consumer."""
        key = self.stream.key
        if consumer.claim_head is None or consumer.claim_head[0] != key:
            consumer.claim_head = (key, encode_words([b"XCLAIM", key, self.name, consumer.name, b"0"]))
            self._count_head(consumer.claim_head[1])
        return consumer.claim_head[1]

    def _count_head(self, head: bytes) -> None:
        """Count words that a consumer keeps of a long key: each of its consumers has them in memory."""
        self.stream.txn.cached_bytes += max(len(head) - _SHORT_HEAD, 0)

    def _log_claims(self, consumer: Consumer, claims: list[tuple[int, int, bytes]], time_ms: int) -> None:
        """Log XCLAIMs; Redis writes one for each entry.

        One for each of `claims`: (delivery count, how many IDs, their bulk strings).
        """
        head = self._claim_head(consumer)
        time_text, last_id = b"%d" % time_ms, id_text(self.last_id)
        for count, size, bulks in claims:
            how = _CLAIM_END % (len(time_text), time_text, bulk(b"%d" % count), len(last_id), last_id)
            self._log_wire(b"*%d\r\n%b%b%b" % (13 + size, head, bulks, how))
        self._logged_position = (max(self.last_id, self._logged_position[0]), self._logged_position[1])
        consumer.is_logged = True
        consumer.logged_times = (time_ms, time_ms)


def _once_more(entries: list[PendingEntry]) -> dict[bytes, int]:
    """The delivery counts of entries after one more delivery, by packed ID."""
    return {pack_id(entry.entry_id): add_counts(entry.delivery_count, 1) for entry in entries}


def _equal_counts(counts: dict[bytes, int]) -> list[tuple[int, int, bytes]]:
    """For each run of equal delivery counts: the count, how many IDs it has, and their bulk strings.

    The log must have them in their order: it is the order in which they are claimed again, if they come at one time.
    """
    found = []
    for count, pairs in groupby(counts.items(), itemgetter(1)):
        those = [packed for packed, _ in pairs]
        found.append((count, len(those), bulks_of(those)))
    return found
