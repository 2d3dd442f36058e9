"""How far a group has come in its stream, by counting: entries_read and lag.

Works on a stream's counters alone, so that readers of frozen tables say the same as the server.
Source: streamEstimateDistanceFromFirstEverEntry and the lag of XINFO GROUPS, as redis.io describes them.
"""

from __future__ import annotations

from typing import Protocol

from riverbed.store.ids import MIN_ID, StreamID


class StreamCounters(Protocol):
    """What must be known of a stream."""

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
    """How many entries a group has still to be given that has come to `last_id`; None when that is not known."""
    if not stream.entries_added or not stream.length:
        return 0
    if last_id < stream.first_id and stream.max_deleted_id < stream.first_id:
        return stream.length
    if entries_read is not None and not is_tombstone_ahead(stream, last_id):
        return stream.entries_added - entries_read
    read = estimate_read(stream, last_id)
    return None if read is None else stream.entries_added - read


def is_tombstone_ahead(stream: StreamCounters, last_id: StreamID) -> bool:
    """Whether an entry that the group has not come to yet may have been deleted."""
    return bool(stream.length) and bool(stream.max_deleted_id) and last_id <= stream.max_deleted_id


def estimate_read(stream: StreamCounters, entry_id: StreamID) -> int | None:
    """How many entries had been added when `entry_id` was the newest; None when tombstones make that unknowable."""
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
