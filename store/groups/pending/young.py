"""What has been pending in one group since the last checkpoint, or has changed hands, and no table has yet.

Most entries are acknowledged within milliseconds, so most deliveries need never reach a table: three rows put and three
deleted, half of what a read of one entry and its acknowledgement cost.  Here they wait in memory, in the order of their
IDs, which are all above the IDs in the tables:

    tables    [1-0 2-0 3-0] [4-0] [6-0 7-0]        young    8-0   9-0 10-0 11-0   12-0
                                                            Bob   Alice           Bob

What happens to a few entries of the tables waits here as well, by ID: acknowledgements, and claims of one.  In the
tables, the one writes a run again without an ID, the other cuts it in three.  Written together, a run that was
acknowledged entry by entry is deleted once, and neighbours that went to one owner become one run again.

The checkpoint writes those that are left, so the tables are exact whenever they are durable; after a crash, or a tick
that is undone, the log brings them back.  An acknowledgement or a claim of one looks here and into the tables; every
other question or change needs all of this written first, and `pel.py` sees to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from riverbed.store.format.pending import Run
from riverbed.store.ids import ID_BYTES

if TYPE_CHECKING:
    from riverbed.store.tables.writing.transaction import Transaction

# Two runs of this length fit into a page of LMDB; a longer row would get pages of its own.
MAX_IN_RUN: Final = 100
# The most IDs in memory for all groups together: 250 bytes each if they were delivered one by one.
MAX_YOUNG: Final = 16_384
# The most of them that have changed in the tables: to write these takes some 5 us each if they are scattered, and any
# other question about the group waits for it.
MAX_CHANGED: Final = 3072
# Those beyond so many are written when the replies of a tick are sent, a run or two at once: a command that meets the
# bound writes a part, and its client waits for 0.3 ms.
FEW_CHANGED: Final = 2560
BEHIND_PART: Final = 128
# So many of them are written at once while clients wait: whole runs, if they are neighbours.
MAX_PART = 5 * MAX_IN_RUN

# (owner, moment, delivery count); `format/pending.py` says what a moment is.
Delivery = tuple[int, int, int]
# Owner, moment, delivery count, packed IDs: what a run is made of.
Batch = tuple[int, int, int, bytes]


class Young:
    """What is young in one group.  The IDs are counted in its transaction, together with those of others."""

    __slots__ = ("_order", "_txn", "batches", "changed")

    def __init__(self, txn: Transaction) -> None:
        self._txn = txn
        self.batches: dict[bytes, Batch] = {}  # by the first ID of each, ascending
        # What the tables have of these IDs is no longer true.  None: acknowledged.
        self.changed: dict[bytes, Delivery | None] = {}
        self._order: list[bytes] = []  # IDs of `changed` that parts are drained of, descending

    def add(self, packed_ids: list[bytes], consumer_no: int, moment: int, delivery_count: int) -> bool:
        """Add ascending IDs that are above all others of the group; -> whether there is room for more."""
        for at in range(0, len(packed_ids), MAX_IN_RUN):
            packed = b"".join(packed_ids[at : at + MAX_IN_RUN])
            self.batches[packed_ids[at]] = (consumer_no, moment, delivery_count, packed)
        txn = self._txn
        txn.young_ids += len(packed_ids)
        return txn.young_ids <= MAX_YOUNG

    def add_one(self, packed: bytes, consumer_no: int, moment: int) -> bool:
        """As `add`, for one ID that is delivered for the first time."""
        self.batches[packed] = (consumer_no, moment, 1, packed)
        txn = self._txn
        txn.young_ids += 1
        return txn.young_ids <= MAX_YOUNG

    def change(self, packed: bytes, delivery: Delivery | None) -> bool:
        """Note the new state of a pending entry of the tables, None when it is none now; -> whether there is room."""
        txn = self._txn
        if packed not in self.changed:
            txn.changed_ids += 1
        self.changed[packed] = delivery
        return txn.changed_ids <= MAX_CHANGED

    def drain_changed(self, most: int | None = None) -> dict[bytes, Delivery | None]:
        """Forget the changes; -> them, ascending.

        With `most` only so many are forgotten: neighbours, so that they change few runs of the tables.
        """
        if most is None or len(self.changed) <= most:
            drained = sorted(self.changed)
            self._order = []
        else:
            order = self._order = self._order or sorted(self.changed, reverse=True)
            drained = order[: -most - 1 : -1]
            del order[-most:]
        self._txn.changed_ids -= len(drained)
        return {packed: self.changed.pop(packed) for packed in drained}

    def put_back(self, changed: dict[bytes, Delivery | None]) -> None:
        """Note changes again that `drain_changed` has given."""
        self._txn.changed_ids += len(changed)
        self.changed.update(changed)
        self._order = []

    def take_one(self, packed: bytes) -> int | None:
        """Remove the batch of this ID alone; -> its owner, None when there is no such batch."""
        batch = self.batches.get(packed)
        if batch is None or len(batch[3]) != ID_BYTES:
            return None
        del self.batches[packed]
        self._txn.young_ids -= 1
        return batch[0]

    def take(self, packed_ids: list[bytes]) -> Iterator[tuple[int, int]]:
        """Remove the batches that `packed_ids` begins with, whole; yields (owner, how many IDs) for each."""
        batches = self.batches
        at, total = 0, len(packed_ids)
        while at < total:
            batch = batches.get(packed_ids[at])
            if batch is None:
                return
            packed = batch[3]
            size = len(packed) // ID_BYTES
            if size > 1 and b"".join(packed_ids[at : at + size]) != packed:
                return
            del batches[packed_ids[at]]
            self._txn.young_ids -= size
            at += size
            yield batch[0], size

    def is_above(self, packed_ids: list[bytes]) -> bool:
        """Whether all young deliveries are above these IDs."""
        return next(iter(self.batches), b"\xff" * ID_BYTES) > max(packed_ids)

    def drain(self, most: int | None = None) -> list[Run]:
        """Forget the first `most`, or all; -> them as runs.  Neighbours that differ in their IDs only become one."""
        runs: list[Run] = []
        for first in list(islice(self.batches, most)):
            run = Run(*self.batches.pop(first))
            self._txn.young_ids -= len(run)
            if runs and runs[-1].is_like(run) and len(runs[-1]) + len(run) <= MAX_IN_RUN:
                runs[-1].packed += run.packed
            else:
                runs.append(run)
        return runs
