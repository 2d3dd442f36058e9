"""Entries as replies.  They are stored as the array that clients are sent, so a reply is joined, never encoded."""

from __future__ import annotations

from typing import Final

from riverbed.store.format.resp import array_head

PAIR: Final = b"*2\r\n"
NO_ENTRY: Final = b"*0\r\n"
ONE_ENTRY: Final = b"*1\r\n" + PAIR  # in front of its row


def entry_wire(row: bytes) -> bytes:
    """`[id [field value ...]]` of a stored entry."""
    return PAIR + row


def id_wire(row: bytes) -> bytes:
    """The ID of a stored entry as a bulk string: what its row begins with."""
    return row[: row.index(b"*")]


def entries_wire(rows: list[bytes]) -> bytes:
    """The array of stored entries.  Changes `rows`, which are not needed any more."""
    return entries_part(rows, array_head(len(rows)))


def entries_part(rows: list[bytes], head: bytes = b"") -> bytes:
    """As `entries_wire`, with `head` instead of the array's."""
    if not rows:
        return head
    # A row holds its ID as text for this: 0.05 us an entry instead of 0.31 with the ID made from the key.
    rows[0] = head + PAIR + rows[0]  # nothing is to be put in front of what may be a megabyte
    return PAIR.join(rows)
