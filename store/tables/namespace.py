"""What a stream knows of its database: the number in commands, the number in keys, and the keys that clients await."""

from __future__ import annotations


class Namespace:
    """The keys of one database, as numbers.  SWAPDB and FLUSHDB change `keyspace_no` and the counts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.keyspace_no = number
        self.size = 0  # keys
        self.expiring = 0  # keys with a deadline
        # Keys that clients wait for or watch, with the number of these clients.  The server maintains it.
        self.interest: dict[bytes, int] = {}
