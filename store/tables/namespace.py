"""What a stream knows of the database it is in: its number in commands and in keys, and which keys are awaited."""

from __future__ import annotations


class Namespace:
    """The keys of one database, as numbers.  SWAPDB and FLUSHDB change `keyspace_no` and the counts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.keyspace_no = number
        self.size = 0  # keys
        self.expiring = 0  # keys with a deadline
        # Keys that clients wait for or watch, and how many clients do; the server keeps it.
        self.interest: dict[bytes, int] = {}
