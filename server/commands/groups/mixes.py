"""XADDs and XACKs of one pipeline, executed together: what a worker sends that passes entries on.

    XADD out * f v    XACK in g 1-0    XADD out * f v    XACK in g 2-0    ->    two XADDs, then an XACK of two entries

One by one, each of these commands takes Python two to three times as long, in pipelines of 64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.server.protocol.replies import FirstReplies
from riverbed.store.wire import Mix

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.stats.stats import MixCounters


def add_and_ack(counters: MixCounters, request: Request) -> tuple[bytes] | FirstReplies:
    """Execute a mix, in place of a request's words, up to the first XADD that is not simple; -> the replies so far."""
    mix = request.run
    assert isinstance(mix, Mix)
    adds = mix.adds
    added, ids = (0, b"") if adds is None else request.db.append_run(adds, request.now_ms)
    count = mix.acks_before(added)
    acked = bytes(count)
    if count:
        group = request.db.group_to_ack(mix.key, mix.group, request.now_ms)
        if group is not None:
            acked = group.ack_each(*mix.acks(count))
        request.count_lookup(group is not None or request.db.holds(mix.key, request.now_ms), count)
    counters.others += count
    replies = mix.replies(ids, acked)
    return (replies,) if added + count == len(mix) else FirstReplies(replies, added + count)
