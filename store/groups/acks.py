"""How pending entries leave the list of a group, by acknowledgement, or their owners, and the lines that this logs.

Source: the pages of XACK and XNACK.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from riverbed.store.format.pending import UNOWNED
from riverbed.store.format.resp import decode_entry, encode_words, id_bulk
from riverbed.store.groups.pending_reads import Found, PendingReads
from riverbed.store.ids import StreamID, id_text, pack_id, unpack_id
from riverbed.store.model import Change

if TYPE_CHECKING:
    from riverbed.store.groups.known_consumers import Consumer
    from riverbed.store.streams.stream import Stream

# The fields that a dead letter has after its own fields.  Clients read these names: never rename them.
ORIGIN_FIELDS: Final = (
    b"riverbed-origin-key",
    b"riverbed-origin-id",
    b"riverbed-group",
    b"riverbed-consumer",  # the last owner; empty after XNACK
    b"riverbed-deliveries",
)


class Acks(PendingReads):
    """The pending entries of a group, to be acknowledged or released."""

    _pel_end: StreamID | None = None  # no entry above this ID is pending; None when that is not known
    _ack_head: tuple[bytes, bytes] | None = None  # (key, the first words of XACK)

    def ack(self, packed_ids: list[bytes], texts: list[bytes] | None = None, bulks: bytes | None = None) -> int:
        """Remove entries from the list; -> how many were pending.  Logs XACK of these.

        `texts` are the IDs as the client wrote them, if a client did.  `bulks` are the same IDs as RESP, if known.
        """
        count = len(self.remove(packed_ids, texts, bulks))
        self.stream.txn.changes += count
        return count

    def ack_each(self, packed_ids: list[bytes], bulks: bytes) -> bytes:
        """As `ack`; -> a byte for each ID in turn: 1 if the entry was pending, else 0."""
        removed = self.remove(packed_ids, None, bulks)
        self.stream.txn.changes += len(removed)
        if len(removed) == len(packed_ids):
            return b"\1" * len(removed)
        left = iter(removed)
        following = next(left, b"")
        acked = bytearray(len(packed_ids))
        for at, packed in enumerate(packed_ids):
            if packed == following:
                acked[at] = 1
                following = next(left, b"")
        return bytes(acked)

    def remove(
        self, packed_ids: list[bytes], texts: list[bytes] | None = None, bulks: bytes | None = None
    ) -> list[bytes]:
        """As `ack`, without counting changes; -> the IDs of those that were pending, in the order given."""
        if not self.pel_count:
            return []
        removed, by_owner = self.pel.remove(packed_ids)
        if not removed:
            return []
        for consumer_no, count in by_owner.items():
            if consumer_no == UNOWNED:
                self.released_count -= count
            else:
                self._move_count(self.consumers.numbered(consumer_no), -count)
        self.pel_count -= len(removed)
        self.touch()
        if len(removed) < len(packed_ids):
            texts = bulks = None
        if bulks is None:
            bulks = encode_words(texts) if texts else bulks_of(removed)
        self._log_wire(b"*%d\r\n%b%b" % (3 + len(removed), self._first_words_of_xack(), bulks))
        return removed

    def ack_one(self, packed: bytes, text: bytes) -> int:
        """`ack` one entry, whose canonical ID is `text`.  Logs XACK."""
        owner_no = self.pel.take_one(packed) if self.pel_count else None
        if owner_no is None:
            return 0
        self.pel_count -= 1
        if owner_no == UNOWNED:
            self.released_count -= 1
            self.touch()
        else:
            consumer = self.consumers.numbered(owner_no)
            consumer.pel_count -= 1
            self._mark(consumer)
        self._log_wire(b"*4\r\n%b$%d\r\n%b\r\n" % (self._first_words_of_xack(), len(text), text))
        self.stream.txn.changes += 1
        return 1

    def _first_words_of_xack(self) -> bytes:
        key = self.stream.key
        if self._ack_head is None or self._ack_head[0] != key:
            self._ack_head = (key, encode_words([b"XACK", key, self.name]))
        return self._ack_head[1]

    def move_out(self, over_limit: list[Found], target: Stream, first_id: StreamID) -> None:
        """Move pending entries to the dead-letter stream `target`, whose last ID is below `first_id`.

        The new entries get consecutive IDs from `first_id` on.  The ORIGIN_FIELDS follow their own fields.  The group
        acknowledges the entries.  Logs XADD for each entry, and one XACK.
        """
        if not over_limit:
            return
        for number, (entry, row) in enumerate(over_limit, first_id):
            values = (
                self.stream.key,
                id_text(entry.entry_id),
                self.name,
                b"" if entry.owner is None else entry.owner.name,
                b"%d" % entry.delivery_count,
            )
            origin = [word for pair in zip(ORIGIN_FIELDS, values, strict=True) for word in pair]
            target.append_entry(StreamID(number), decode_entry(row)[1] + origin)
        self.ack([pack_id(entry.entry_id) for entry, _ in over_limit])

    def release(self, counts: list[tuple[StreamID, int]]) -> None:
        """Take entries from their owners, in the order given, and release them with the given delivery counts.

        Logs one XNACK, hidden from Redis 7, for each run of equal counts.
        """
        if not counts:
            return
        first_no = self.next_release_no
        self.next_release_no += len(counts)
        # if an entry occurs twice, its last release counts
        numbered = enumerate(counts, first_no)
        wanted = {pack_id(entry_id): (UNOWNED, no, count) for no, (entry_id, count) in numbered}
        self._pel_end = None
        released = self._left_owners(self.pel.release(wanted))
        self.released_count += released
        self.touch()
        txn = self.stream.txn
        for count, entry_ids in _runs(counts):
            ids = [id_text(entry_id) for entry_id in entry_ids]
            words = [b"XNACK", self.stream.key, self.name, b"FAIL", b"IDS", b"%d" % len(ids), *ids]
            txn.log_extension(self.stream.namespace.number, [*words, b"RETRYCOUNT", b"%d" % count, b"FORCE"])
        txn.notify_interest(Change.RELEASED, self.stream.namespace, self.stream.key)

    def _left_owners(self, former: dict[int | None, int]) -> int:
        """Count what owners have lost, None those entries that were not pending; -> how many entries these are."""
        total = 0
        for consumer_no, count in former.items():
            total += count
            if consumer_no is None:
                self.pel_count += count
            elif consumer_no == UNOWNED:
                self.released_count -= count
            else:
                self._move_count(self.consumers.numbered(consumer_no), -count)
        return total

    def _move_count(self, consumer: Consumer, difference: int) -> None:
        consumer.pel_count += difference
        self._dirty_consumers.add(consumer)


def bulks_of(packed_ids: list[bytes]) -> bytes:
    """These IDs as bulk strings."""
    return b"".join([id_bulk(unpack_id(packed)) for packed in packed_ids])


def _runs(counts: list[tuple[StreamID, int]]) -> Iterator[tuple[int, list[StreamID]]]:
    """(count, IDs) of each run of neighbours with equal counts."""
    run: list[StreamID] = []
    for index, (entry_id, count) in enumerate(counts):
        run.append(entry_id)
        if index + 1 == len(counts) or counts[index + 1][1] != count:
            yield count, run
            run = []
