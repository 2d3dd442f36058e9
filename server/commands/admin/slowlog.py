"""SLOWLOG: which commands took long.

Settings say what counts as slow and how many calls are kept; `server.stats.stats` keeps them.  Nothing here measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import Args
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply

COUNT_TOO_LOW: Final = "ERR count should be greater than or equal to -1"
DEFAULT_COUNT: Final = 10

_FLAGS: Final = Flag.ADMIN | Flag.LOADING | Flag.STALE


container("SLOWLOG", group="server", since="2.2.12", summary="Container of the slow log's commands.")


@command(
    "SLOWLOG GET [count]",
    _FLAGS,
    summary="Lists the latest slow commands.",
    tips=("request_policy:all_nodes", "nondeterministic_output"),
)
def slowlog_get(request: Request) -> list[Reply]:
    """SLOWLOG GET [count] -> newest first: id, unix seconds, microseconds, words, address, client name.

    Ten without a count, all with -1.
    """
    args = Args(request.argv, 2)
    if len(args) > 1:
        raise errors.subcommand_syntax(request.argv)
    calls = request.context.stats.slowlog.calls
    count = DEFAULT_COUNT
    if args:
        count = args.take_int(COUNT_TOO_LOW)
        if count < -1:
            raise CommandError(COUNT_TOO_LOW)
    if count == -1:
        count = len(calls)
    return [
        [call.id, call.unix_seconds, call.usec, call.words, call.address, call.client_name]
        for call, _ in zip(calls, range(count), strict=False)
    ]


declare_help(
    "SLOWLOG",
    "GET [<count>]",
    "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
    "    Entries are made of:",
    "    id, timestamp, time in microseconds, arguments array, client IP and port,",
    "    client name",
    "LEN",
    "    Return the length of the slowlog.",
    "RESET",
    "    Reset the slowlog.",
    since="6.2.0",
)


@command(
    "SLOWLOG LEN",
    _FLAGS,
    summary="Counts the slow commands that are kept.",
    tips=("request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"),
)
def slowlog_len(request: Request) -> int:
    """SLOWLOG LEN -> how many."""
    return len(request.context.stats.slowlog.calls)


@command(
    "SLOWLOG RESET",
    _FLAGS,
    summary="Forgets the slow commands.",
    tips=("request_policy:all_nodes", "response_policy:all_succeeded"),
)
def slowlog_reset(request: Request) -> Reply:
    """SLOWLOG RESET -> OK.  The ids go on from where they were."""
    request.context.stats.slowlog.calls.clear()
    return OK
