"""The consumer groups of one stream: finds, creates, copies and destroys them.

A group's consumers and position are in `consumers.py`, its pending entries in `group.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.groups import GroupRow, group_key
from riverbed.store.groups.consumers import UNKNOWN
from riverbed.store.groups.group import Group
from riverbed.store.groups.recent_deliveries import RecentDeliveries
from riverbed.store.ids import MIN_ID, StreamID, id_text, pack_id
from riverbed.store.model import Change
from riverbed.store.streams.stream import Stream
from riverbed.store.tables.groups import group_rows


class Groups:
    """All groups of one stream."""

    def __init__(self, stream: Stream, recent_deliveries: RecentDeliveries) -> None:
        self.stream = stream
        self._recent_deliveries = recent_deliveries
        self.acked_trim_start = MIN_ID  # where the next approximate ACKED trim begins; see reference_trim.py
        self._by_name: dict[bytes, Group] = {}  # the groups that were asked for
        self._unread: dict[bytes, int] = {}  # the numbers of the others
        if stream.group_count:
            rows = group_rows(stream.txn.cursor("groups"), stream.stream_no)
            self._unread = {row.name: group_no for group_no, row in rows}

    def get(self, name: bytes) -> Group | None:
        return self._by_name.get(name) or self._read(name)

    def _read(self, name: bytes) -> Group | None:
        group_no = self._unread.pop(name, None)
        if group_no is None:
            return None
        txn = self.stream.txn
        key = group_key(self.stream.stream_no, group_no)
        row = txn.lmdb.get(key, db=txn.handles["groups"])
        if row is None:
            raise DamagedRowError("the row of a group", self.stream.stream_no)
        group = Group.of_row(self.stream, group_no, GroupRow.unpack(key, row), self._recent_deliveries)
        self._by_name[name] = group
        txn.group_objects += 1
        return group

    def let_go(self) -> None:
        """Keep the numbers alone of groups whose rows are written, as very many objects slow down everything.

        A group with many consumers stays: to read them again takes longer than all else about it.
        """
        for group in list(self._by_name.values()):
            if group.consumers.are_read_fast:
                self.let_go_of(group)

    def let_go_of(self, group: Group) -> None:
        """Keep the number alone of a group whose rows are written."""
        del self._by_name[group.name]
        self._unread[group.name] = group.group_no

    def release(self) -> int:
        """Let go of all groups, whose rows are written, for good; -> about what their consumers took."""
        return sum(group.consumers.byte_count for group in self._by_name.values())

    def leave(self) -> None:
        """Have what is in memory freed later: the stream is gone."""
        for group in self._by_name.values():
            if not group.consumers.are_read_fast:
                group.consumers.leave()
        for objects in (self._by_name, self._unread):
            self.stream.txn.leave(objects)

    def in_memory(self) -> Iterable[Group]:
        """The groups that were read."""
        return self._by_name.values()

    def _all(self) -> dict[bytes, Group]:
        """All groups by name; takes a kilobyte of memory for each."""
        for name in list(self._unread):
            self._read(name)
        return self._by_name

    def __len__(self) -> int:
        return len(self._by_name) + len(self._unread)

    def __iter__(self) -> Iterator[Group]:
        """The groups in byte order of their names."""
        return iter([group for _, group in sorted(self._all().items())])

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
        txn.lmdb.delete(group_key(stream.stream_no, group.group_no), db=txn.handles["groups"])
        txn.dead_rows.add_group(group.group_no, stream.stream_no)
        group.unlist()
        group.forget()
        group.consumers.leave()
        del self._by_name[group.name]
        stream.group_count -= 1
        stream.touch()
        txn.log_command(stream.namespace.number, [b"XGROUP", b"DESTROY", stream.key, group.name])
        txn.notify_interest(Change.GROUP_REMOVED, stream.namespace, stream.key)

    def forget(self, packed_ids: list[bytes]) -> None:
        """Remove entries from the pending list of every group (DELREF).  Logs XACK for each group that had any."""
        for group in self:
            if group.pel_count:
                group.ack(packed_ids)
