"""What streams and the write transaction know of a database, and how they say that a key of it has changed."""

from __future__ import annotations

from collections.abc import Callable

from riverbed.store.model import Change


class Namespace:
    """All that a stream knows of its database.  SWAPDB and FLUSHDB change `keyspace_no` and the counts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.keyspace_no = number
        self.size = 0  # keys
        self.expiring = 0  # keys with a deadline
        # Keys that clients wait for or watch, with the number of these clients.  The server maintains it.
        self.interest: dict[bytes, int] = {}


Notify = Callable[[Change, Namespace, bytes], None]


def ignore_change(change: Change, namespace: Namespace, key: bytes) -> None:
    """Ignore all changes: for offline tools and recovery."""
