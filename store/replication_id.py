"""Whose line of offsets a log continues: the replication id, and the one it branched off from.

An offset names the same byte on two servers as long as both speak of the same line.  A line has an id; who begins to
write something that others may not have (a promoted replica, a server that starts again) begins a line of its own and
remembers up to where the old one is its past as well:

    old line   ------------------------------+-----------
    ours                                     '---------->      previous_id is valid up to `branch_offset`

That is what Redis calls master_replid, master_replid2 and second_repl_offset.  Which line a server is on stands in the
log's manifest and in every checkpoint.

Lines come and go with every start; the store stays the same, and so does its id: that of its first line.  It goes with
everything that continues the store's streams: replicas, snapshots, what is restored or replayed (see FORMAT.md).
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import Final, Self

ID_LENGTH: Final = 40
NO_ID: Final = "0" * ID_LENGTH
_ID = re.compile(f"[0-9a-f]{{{ID_LENGTH}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReplicationIds:
    """`branch_offset` is the last offset of `previous_id` that is our past, -1 when there is no previous line.

    `store_id` is empty where an older version has written all that is known of the line.
    """

    replication_id: str
    previous_id: str = NO_ID
    branch_offset: int = -1
    store_id: str = ""

    def __post_init__(self) -> None:
        if not (_ID.fullmatch(self.replication_id) and _ID.fullmatch(self.previous_id)):
            raise ValueError("a replication id is 40 hexadecimal digits")
        if self.store_id and not _ID.fullmatch(self.store_id):
            raise ValueError("a store id is 40 hexadecimal digits")

    @classmethod
    def new(cls, store_id: str = "") -> Self:
        """A line that no other server knows, of that store or of a new one."""
        first = secrets.token_hex(ID_LENGTH // 2)
        return cls(first, store_id=store_id or first)

    def with_store(self, known: ReplicationIds | None = None) -> ReplicationIds:
        """The same line, of a store that has an id: one without gets that of `known`, or of its present line.

        Its replicas do the same, and what has read it knows this id as well.
        """
        known_id = "" if known is None else known.store_id
        return self if self.store_id else replace(self, store_id=known_id or self.replication_id)

    def branch(self, offset: int) -> ReplicationIds:
        """A new line that branches off at `offset`, the end of our log.

        When we have written nothing since the last branch, the line before it stays the one we come from: others
        know that one, and no server the one in between.
        """
        past = self.previous_id if self.branch_offset == offset else self.replication_id
        return ReplicationIds(ReplicationIds.new().replication_id, past, offset, self.store_id)

    def follow(self, replication_id: str, offset: int, store_id: str = "") -> ReplicationIds:
        """We have found to be on the line `replication_id` at `offset`, which its owner calls so now.

        `store_id` is what the owner calls the store, empty if it says nothing of that.
        """
        store_id = store_id or self.store_id
        if replication_id != self.replication_id:
            return ReplicationIds(replication_id, self.replication_id, offset, store_id)
        return self if store_id == self.store_id else replace(self, store_id=store_id)

    def holds(self, replication_id: str, offset: int) -> bool:
        """Whether `offset` of the line `replication_id` lies in our past, as far as ids tell."""
        if replication_id == self.replication_id:
            return True
        return replication_id == self.previous_id != NO_ID and offset <= self.branch_offset

    def known_as(self, offset: int) -> str:
        """The id to ask others with at `offset`, the end of our log: the old one while we have added nothing to it."""
        return self.previous_id if offset == self.branch_offset else self.replication_id
