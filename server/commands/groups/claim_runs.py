"""XCLAIMs with JUSTID of one pipeline, executed together: what a client sends that takes over entry by entry.

    XCLAIM s g c 0 1-0 JUSTID    XCLAIM s g c 0 7-0 JUSTID    ->    one line of the log: XCLAIM s g c 0 1-0 7-0 TIME ...

One by one, most of the time goes into what is the same for all of them: the words, the group, the line of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.groups.groups import find_group
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import FirstReplies
from riverbed.store.wire import Claims

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request


def claim_each(request: Request) -> tuple[bytes] | FirstReplies:
    """Execute claims, in place of a request's words, up to the first that is no plain case; -> the replies so far."""
    claims = request.run
    assert isinstance(claims, Claims)
    key, group_name, consumer_name, min_idle = claims.names
    found = find_group(request, key, group_name)
    try:
        min_idle_ms = parse_int(min_idle)
    except CommandError:
        found = None
    if found is None:
        return FirstReplies(b"", 0)  # each is refused by itself
    claimed = found[1].claim_each(consumer_name, *claims.ids(), min_idle_ms, request.now_ms)
    request.count_lookup(True, len(claimed))
    txn = request.txn
    txn.changes += claimed.count(1)
    if txn.unlogged is not None:
        txn.end_command()
    replies = claims.replies(claimed)
    return (replies,) if len(claimed) == len(claims) else FirstReplies(replies, len(claimed))
