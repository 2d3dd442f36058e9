"""The consumer groups of one stream: finds, creates, copies and destroys them.

A group's consumers and position are in `consumers.py`, its pending entries in `pending_reads.py`, `acks.py` and
`group.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.groups import GroupRow, group_key, group_name_key, group_name_prefix, name_row
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.groups.consumers import UNKNOWN
from riverbed.store.groups.group import Group
from riverbed.store.groups.recent_deliveries import RecentDeliveries
from riverbed.store.ids import MIN_ID, StreamID, id_text, pack_id
from riverbed.store.model import Change
from riverbed.store.streams.stream import Stream
from riverbed.store.tables.groups import group_rows, numbers_named

# Pending records that a slice looks for, or removes, in the lists of all groups: 1 to 5 us each.
RECORDS_A_SLICE: Final = 4000


class Groups:
    """All groups of one stream; those in use are in memory."""

    def __init__(self, stream: Stream, recent_deliveries: RecentDeliveries) -> None:
        self.stream = stream
        self._recent_deliveries = recent_deliveries
        self.acked_trim_start = MIN_ID  # where the next approximate ACKED trim begins; see sliced_trim.py
        self._by_name: dict[bytes, Group] = {}

    def get(self, name: bytes) -> Group | None:
        return self._by_name.get(name) or self._find(name)

    def _find(self, name: bytes) -> Group | None:
        """`get`, for a name that is not in memory.  Raises DamagedRowError."""
        stream = self.stream
        if self.are_in_memory:
            return None
        for group_no in numbers_named(stream.txn.cursor("groups"), group_name_prefix(stream.stream_no, name)):
            key = group_key(stream.stream_no, group_no)
            row = stream.txn.lmdb.get(key, db=stream.txn.handles["groups"])
            if row is None:
                if any(group.group_no == group_no for group in self._by_name.values()):
                    continue  # of another name, and not written yet
                raise self._damage()
            try:
                found = GroupRow.unpack(key, row)
            except DECODE_ERRORS:
                raise self._damage() from None
            if found.name == name:
                return self._keep(group_no, found)
        return None

    def _keep(self, group_no: int, row: GroupRow) -> Group:
        group = self._by_name[row.name] = Group.of_row(self.stream, group_no, row, self._recent_deliveries)
        self.stream.txn.group_objects += 1
        return group

    def _damage(self) -> DamagedRowError:
        return DamagedRowError("the row of a group", self.stream.stream_no)

    def let_go(self) -> None:
        """Have the groups freed later, whose rows are written, as very many objects slow down everything.

        A group whose consumers are being swept stays: the sweep would begin again.
        """
        kept = {name: group for name, group in self._by_name.items() if group.sweep_place is not None}
        for name, group in self._by_name.items():
            if name not in kept:
                group.consumers.let_go()
        self.stream.txn.leave(self._by_name)
        self._by_name = kept

    def leave(self) -> None:
        """Have what is in memory freed later: the stream is gone, or its rows are written."""
        for group in self._by_name.values():
            group.consumers.let_go()
        self.stream.txn.leave(self._by_name)
        self._by_name = {}

    def in_memory(self) -> Iterable[Group]:
        """The groups that were read."""
        return self._by_name.values()

    @property
    def are_in_memory(self) -> bool:
        """Whether all groups are."""
        return len(self._by_name) == self.stream.group_count

    def _all(self) -> dict[bytes, Group]:
        """All groups by name; takes a kilobyte of memory for each."""
        if not self.are_in_memory:
            held = {group.group_no for group in self._by_name.values()}
            try:
                for group_no, row in group_rows(self.stream.txn.cursor("groups"), self.stream.stream_no):
                    if group_no not in held:
                        self._keep(group_no, row)
            except DECODE_ERRORS:
                raise self._damage() from None
            if not self.are_in_memory:
                raise self._damage()
        return self._by_name

    def __len__(self) -> int:
        return self.stream.group_count

    def __iter__(self) -> Iterator[Group]:
        """The groups in byte order of their names."""
        return iter([group for _, group in sorted(self._all().items())])

    def entries_a_slice(self, most: int) -> int:
        """How many entries, up to `most` and one at least, a slice may look for in all pending lists."""
        if most * len(self) <= RECORDS_A_SLICE:
            return most  # as for most commands, which need not look at each group
        busy = sum(1 for group in self._all().values() if group.pel_count)
        return max(min(most, RECORDS_A_SLICE // busy), 1) if busy else most

    def referenced(self, packed_ids: list[bytes]) -> set[bytes]:
        """The IDs of the ascending `packed_ids` that some group has not read yet, or has pending."""
        referenced: set[bytes] = set()
        for group in self._all().values():
            unread = bisect_right(packed_ids, pack_id(group.last_id))
            referenced.update(packed_ids[unread:])
            referenced.update(group.find_many(packed_ids))
        return referenced

    def write_back(self) -> None:
        for group in self._by_name.values():
            group.write_back()

    # -- mutators ------------------------------------------------------------------------------------------------------

    def create(self, name: bytes, last_id: StreamID, entries_read: int | None, *, is_first: bool) -> Group:
        """Create a group; the name must be free.

        Logs XGROUP CREATE, with MKSTREAM when the stream is new (`is_first`).
        """
        stream = self.stream
        txn = stream.txn
        group = Group(stream, txn.next_group_no, name, last_id, entries_read, self._recent_deliveries)
        txn.next_group_no += 1
        self._by_name[name] = group
        txn.group_objects += 1
        name_key = group_name_key(stream.stream_no, name, group.group_no)
        txn.cursor("groups").put(name_key, name_row(name_key))
        group.touch()
        stream.group_count += 1
        stream.touch()
        read = UNKNOWN if entries_read is None else entries_read
        words = [b"XGROUP", b"CREATE", stream.key, name, id_text(last_id), b"ENTRIESREAD", b"%d" % read]
        if is_first:
            words.append(b"MKSTREAM")
        txn.log_command(stream.namespace.number, words)
        if is_first:
            txn.notify_interest(Change.CREATED, stream.namespace, stream.key)
        return group

    def destroy(self, group: Group) -> None:
        """Delete a group; the purge deletes its rows.  Logs XGROUP DESTROY."""
        stream = self.stream
        txn = stream.txn
        for key in (
            group_key(stream.stream_no, group.group_no),
            group_name_key(stream.stream_no, group.name, group.group_no),
        ):
            txn.lmdb.delete(key, db=txn.handles["groups"])
        txn.dead_rows.add_group(group.group_no, stream.stream_no)
        group.unlist()
        group.forget()
        group.consumers.let_go()
        del self._by_name[group.name]
        stream.group_count -= 1
        stream.touch()
        txn.log_command(stream.namespace.number, [b"XGROUP", b"DESTROY", stream.key, group.name])
        txn.notify_interest(Change.GROUP_REMOVED, stream.namespace, stream.key)

    def forget(self, packed_ids: list[bytes]) -> None:
        """Remove entries from the pending list of every group (DELREF).  Logs XACK for each group that had any."""
        for group in self:
            if group.pel_count:
                group.remove(packed_ids)
