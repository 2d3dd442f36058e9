"""A position in the log, as checkpoints, replicas and snapshots record it."""

from __future__ import annotations

from typing import Final, NamedTuple

# Redis's protocol has replication offsets of 63 bits, and a server counts on from the one that it has read.
MAX_OFFSET: Final = (1 << 62) - 1


class LogPosition(NamedTuple):
    """A position between two batches.  Later positions compare greater.

    `file_seq` is the number of an incr file; in the base file it is minus the base's number.  `position` counts the
    bytes of the file.  `offset` counts the bytes of plain commands since the log began, as replicas count them.
    """

    file_seq: int
    position: int
    offset: int
