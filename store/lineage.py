"""Whose line of offsets a log continues: the replication id, and the one it branched off from.

An offset names the same byte on two servers as long as both speak of the same line.  A line has an id; who begins to
write something that others may not have (a promoted replica, a server that starts again) begins a line of its own and
remembers up to where the old one is its past as well:

    old line   ------------------------------+-----------
    ours                                     '---------->      previous_id is valid up to `branch_offset`

That is what Redis calls master_replid, master_replid2 and second_repl_offset.  Which line a server is on stands in the
log's manifest and in every checkpoint.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final, Self

ID_LENGTH: Final = 40
NO_ID: Final = "0" * ID_LENGTH
_ID = re.compile(f"[0-9a-f]{{{ID_LENGTH}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lineage:
    """`branch_offset` is the last offset of `previous_id` that is our past, -1 when there is no previous line."""

    replication_id: str
    previous_id: str = NO_ID
    branch_offset: int = -1

    def __post_init__(self) -> None:
        if not (_ID.fullmatch(self.replication_id) and _ID.fullmatch(self.previous_id)):
            raise ValueError("a replication id is 40 hexadecimal digits")

    @classmethod
    def new(cls) -> Self:
        """A line that nobody knows."""
        return cls(secrets.token_hex(ID_LENGTH // 2))

    def branch(self, offset: int) -> Lineage:
        """A new line that branches off at `offset`, the end of our log.

        When we have written nothing since the last branch, the line before it stays the one we come from: others
        know that one, and nobody the one in between.
        """
        past = self.previous_id if self.branch_offset == offset else self.replication_id
        return Lineage(Lineage.new().replication_id, past, offset)

    def follow(self, replication_id: str, offset: int) -> Lineage:
        """We have found to be on the line `replication_id` at `offset`, which its owner calls so now."""
        if replication_id == self.replication_id:
            return self
        return Lineage(replication_id, self.replication_id, offset)

    def holds(self, replication_id: str, offset: int) -> bool:
        """Whether `offset` of the line `replication_id` lies in our past, as far as ids tell."""
        if replication_id == self.replication_id:
            return True
        return replication_id == self.previous_id != NO_ID and offset <= self.branch_offset

    def known_as(self, offset: int) -> str:
        """The id to ask others with at `offset`, the end of our log: the old one while we have added nothing to it."""
        return self.previous_id if offset == self.branch_offset else self.replication_id


def is_replication_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None
