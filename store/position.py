"""A position in the log: what a checkpoint, a replica and a snapshot say of how far they are."""

from __future__ import annotations

from typing import NamedTuple


class LogPosition(NamedTuple):
    """A place between two batches.  Later places compare greater.

    `file_seq` is the incr file's number, or minus the number of the base while in the base; `position` counts the
    file's bytes, `offset` the bytes of plain commands since the log began (what replicas count).
    """

    file_seq: int
    position: int
    offset: int
