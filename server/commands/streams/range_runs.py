"""XRANGEs with COUNT 1 of one pipeline, executed together: what a client sends that looks up entry by entry.

One by one, half of the time goes into what is the same for all of them: the words, the calls, the looks at the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server.commands.streams.entries import NO_ENTRY, ONE_ENTRY
from riverbed.server.protocol.replies import FirstReplies
from riverbed.store.databases.first_entries import first_entries
from riverbed.store.ids import unpack_id
from riverbed.store.wire import Ranges

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request

# Of replies that are made together, as far as the size of an entry is bounded: what a client may have waiting for it
# while memory is short.
_MOST_BYTES: Final = 1 << 16
# Then others may have their turn: entries that must be read from the disk take a tenth of a millisecond each.
_MOST_SECONDS: Final = 0.001


def xrange_each(request: Request) -> tuple[bytes] | FirstReplies:
    """Execute ranges, in place of a request's words, until that was long or took long; -> the replies so far."""
    ranges = request.run
    assert isinstance(ranges, Ranges)
    db, now_ms = request.db, request.now_ms
    monotonic = request.context.clock.monotonic
    end = monotonic() + _MOST_SECONDS
    part = _MOST_BYTES // request.txn.largest_row
    if part == 0:
        return _measured(request, ranges, end)
    bounds = ranges.bounds()
    replies: list[bytes] = []
    size = 0
    while len(replies) < len(bounds) and size < _MOST_BYTES and monotonic() < end:
        at = len(replies)
        entries, absent = first_entries(db, bounds[at : at + part], now_ms)
        request.count_lookup(True, len(entries) - absent)
        request.count_lookup(False, absent)
        made = [NO_ENTRY if entry is None else ONE_ENTRY + entry for entry in entries]
        replies += made
        size += sum(map(len, made))
    return _replies(ranges, replies)


def _measured(request: Request, ranges: Ranges, end: float) -> tuple[bytes] | FirstReplies:
    """The same where entries may be large: one that is, is sent by itself."""
    replies: list[bytes] = []
    left = _MOST_BYTES
    for key, low, high in ranges.bounds():
        if request.context.clock.monotonic() >= end:
            break
        stream = request.db.readable(key, request.now_ms)
        rows = [] if stream is None else stream.entries_within(unpack_id(low), unpack_id(high), 1, left)
        if rows is None:
            break
        request.count_lookup(stream is not None)
        replies.append(ONE_ENTRY + rows[0] if rows else NO_ENTRY)
        left = max(left - len(replies[-1]), 0)
    return _replies(ranges, replies)


def _replies(ranges: Ranges, replies: list[bytes]) -> tuple[bytes] | FirstReplies:
    wire = b"".join(replies)
    return (wire,) if len(replies) == len(ranges) else FirstReplies(wire, len(replies))
