"""The progress of a group in its stream, as counts: entries_read and lag.

Uses a stream's counters alone, so that readers of frozen tables report the same numbers as the server.
Source: streamEstimateDistanceFromFirstEverEntry and the lag of XINFO GROUPS, as redis.io describes them.
"""

from __future__ import annotations

from typing import Protocol

from riverbed.store.ids import MIN_ID, StreamID


class StreamCounters(Protocol):
    """The counters of a stream that `lag` needs."""

    @property
    def length(self) -> int: ...
    @property
    def entries_added(self) -> int: ...
    @property
    def first_id(self) -> StreamID: ...
    @property
    def last_id(self) -> StreamID: ...
    @property
    def max_deleted_id(self) -> StreamID: ...


def lag(stream: StreamCounters, last_id: StreamID, entries_read: int | None) -> int | None:
    """The number of entries still to be delivered to a group at position `last_id`; None when it is not known."""
    if not stream.entries_added or not stream.length:
        return 0
    if last_id < stream.first_id and stream.max_deleted_id < stream.first_id:
        return stream.length
    if entries_read is not None and not is_tombstone_ahead(stream, last_id):
        return stream.entries_added - entries_read
    read = estimate_read(stream, last_id)
    return None if read is None else stream.entries_added - read


def is_tombstone_ahead(stream: StreamCounters, last_id: StreamID) -> bool:
    """Whether an entry that the group has not read yet may have been deleted."""
    return bool(stream.length) and bool(stream.max_deleted_id) and last_id <= stream.max_deleted_id


def estimate_read(stream: StreamCounters, entry_id: StreamID) -> int | None:
    """How many entries had been added when `entry_id` was the newest; None when tombstones make this unknown."""
    if not stream.entries_added:
        return 0
    if not stream.length and entry_id <= stream.last_id:
        return stream.entries_added
    if MIN_ID < entry_id < stream.max_deleted_id:
        return None
    if entry_id == stream.last_id:
        return stream.entries_added
    if entry_id > stream.last_id:
        return None
    if stream.max_deleted_id == MIN_ID or stream.max_deleted_id < stream.first_id:
        if entry_id < stream.first_id:
            return stream.entries_added - stream.length
        if entry_id == stream.first_id:
            return stream.entries_added - stream.length + 1
    return None
