"""The replication ids of a log: the id of its history, and the id of the history it branched off from.

An offset means the same byte on two servers only if both have the same replication id.  A server that writes data which
other servers may not have (a promoted replica, a server after a restart) begins a new history with a new id, and
remembers up to which offset it shares the previous history:

    previous history   ----------------------+-----------
    new history                              '---------->      previous_id is valid up to `branch_offset`

Redis calls these values master_replid, master_replid2 and second_repl_offset.  The log's manifest and every checkpoint
hold the server's ids.  The manifest also holds the ids of the histories before the previous one, so that a replica that
was away during several starts does not need everything.

The replication id changes with every start.  The store's id stays: it is the first replication id of the store.
Everything that continues the store's streams has the same store id: replicas, snapshots, restored and replayed stores
(see FORMAT.md).
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

ID_LENGTH: Final = 40
NO_ID: Final = "0" * ID_LENGTH
# How many histories before the previous one are remembered.
MAX_OLDER: Final = 32
_ID = re.compile(f"[0-9a-f]{{{ID_LENGTH}}}", re.ASCII)


class Branch(NamedTuple):
    """A history that the log shares up to `offset`."""

    replication_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class ReplicationIds:
    """The ids of a log.

    `branch_offset` is the last offset of `previous_id` that the log shares, -1 when there is no previous id.
    `older` are the histories before that, the latest first.
    `store_id` is empty if an older version has written the ids.
    """

    replication_id: str
    previous_id: str = NO_ID
    branch_offset: int = -1
    store_id: str = ""
    older: tuple[Branch, ...] = ()

    def __post_init__(self) -> None:
        if not (_ID.fullmatch(self.replication_id) and _ID.fullmatch(self.previous_id)):
            raise ValueError("a replication id is 40 hexadecimal digits")
        if self.store_id and not _ID.fullmatch(self.store_id):
            raise ValueError("a store id is 40 hexadecimal digits")

    @classmethod
    def new(cls, store_id: str = "") -> Self:
        """A replication id that no other server knows, of the store `store_id`, or of a new store."""
        first = secrets.token_hex(ID_LENGTH // 2)
        return cls(first, store_id=store_id or first)

    def with_store(self, known: ReplicationIds | None = None) -> ReplicationIds:
        """The same ids with a store id: if it is empty, that of `known`, or else the replication id.

        The store's replicas and its readers choose the same store id.
        """
        known_id = "" if known is None else known.store_id
        return self if self.store_id else replace(self, store_id=known_id or self.replication_id)

    def branch(self, offset: int) -> ReplicationIds:
        """Ids of a new history that branches off at `offset`, the end of the log.

        If nothing was written since the last branch, the previous id stays: other servers know it, but no server knows
        the present id.
        """
        known = self._known(offset)
        past = known.pop(1 if self.branch_offset == offset else 0)
        older = tuple(known[:MAX_OLDER])  # with the present id if it stays: a foreign replica may know it all the same
        return ReplicationIds(ReplicationIds.new().replication_id, past.replication_id, offset, self.store_id, older)

    def _known(self, end: int) -> list[Branch]:
        """All histories as far as a log shares them that ends at `end`, the latest first: a crash may cut it."""
        known = (Branch(self.replication_id, end), Branch(self.previous_id, self.branch_offset), *self.older)
        return [Branch(past_id, min(offset, end)) for past_id, offset in known if past_id != NO_ID]

    def follow(self, replication_id: str, offset: int, store_id: str = "") -> ReplicationIds:
        """The ids after following the primary, whose replication id is `replication_id`, at `offset`.

        There is no previous id then, so that other servers are sent the primary's id, which is the latest that they can
        know.  `store_id` is the primary's store id, empty if it sends none.
        """
        store_id = store_id or self.store_id
        if replication_id != self.replication_id:
            older = [past for past in self._known(offset) if past.replication_id != replication_id][:MAX_OLDER]
            return ReplicationIds(replication_id, store_id=store_id, older=tuple(older))
        return self if store_id == self.store_id else replace(self, store_id=store_id)

    def holds(self, replication_id: str, offset: int) -> bool:
        """Whether the log shares `offset` of `replication_id`, judged by the ids alone."""
        if replication_id == self.replication_id:
            return True
        past = (Branch(self.previous_id, self.branch_offset), *self.older)
        return replication_id != NO_ID and any(replication_id == its and offset <= end for its, end in past)

    def id_to_send(self, offset: int) -> str:
        """The id to send to other servers at `offset`, the end of the log: the previous id until data is added."""
        return self.previous_id if offset == self.branch_offset else self.replication_id
