"""RIVERBED: the commands that Redis does not have, in one container, so that no new command of Redis clashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.groups.groups import need_group
from riverbed.server.commands.slices import in_slices, wait_for_view
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import CommandError
from riverbed.store.ids import MAX_ID, StreamID
from riverbed.store.streams.view import StreamView

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Block, Reply


container("RIVERBED", group="server", since="8.8.0", summary="Container of the commands that only Riverbed has.")


declare_help("RIVERBED", since="8.8.0")


@command(
    "RIVERBED SNAPSHOT [name | KEEP count]",
    Flag.ADMIN | Flag.NOSCRIPT | Flag.BLOCKING | Flag.NO_MULTI,
    summary="Writes a snapshot below <dir>/snapshots; KEEP deletes older ones that were given no name.",
    tips=("nondeterministic_output",),
)
def riverbed_snapshot(request: Request) -> Block:
    """RIVERBED SNAPSHOT [name | KEEP count] -> a map with name, path, offset, ..., once it is complete.

    The snapshot holds the log up to its offset and nothing else, and so everything that ran before this command.
    """
    name: str | None = None
    keep: int | None = None
    match request.argv[2:]:
        case []:
            pass
        case [word] if word.upper() != b"KEEP":  # without its number it would be the name of one that is kept for good
            name = word.decode("ascii", errors="replace")
        case [word, count] if word.upper() == b"KEEP":
            keep = parse_int(count)
            if not 0 < keep < 1 << 31:
                raise CommandError("ERR KEEP takes a number of snapshots, at least 1")
        case _:
            raise errors.subcommand_syntax(request.argv)
    return request.context.snapshots.begin(request, name, keep)


@command(
    "RIVERBED SNAPSHOTS",
    Flag.ADMIN | Flag.NOSCRIPT | Flag.BLOCKING | Flag.NO_MULTI,
    summary="Lists the snapshots in the data directory.",
    tips=("nondeterministic_output",),
)
def riverbed_snapshots(request: Request) -> Block:
    """RIVERBED SNAPSHOTS -> a list of maps, the oldest first."""
    return request.context.snapshots.list(request)


@command(
    "RIVERBED REPAIR",
    Flag.ADMIN | Flag.NOSCRIPT | Flag.BLOCKING | Flag.NO_MULTI,
    summary="Makes the tables again of the log, when rows of them are damaged.",
    tips=("nondeterministic_output",),
)
def riverbed_repair(request: Request) -> Block:
    """RIVERBED REPAIR -> a map with the offset up to which the log was executed, and the seconds, once it is done."""
    return request.context.repairs.begin(request)


@command(
    "RIVERBED LAG key group",
    Flag.READONLY,
    summary="Counts the entries that a group has not been given yet.",
)
def riverbed_lag(request: Request) -> Reply:
    """RIVERBED LAG key group -> how many entries there are behind the group's last ID.

    XINFO GROUPS has a null, as in Redis, when a group began in the middle of its stream or entries were deleted.
    """
    need_group(request, *request.argv[2:])
    return in_slices(request, _count_unread)


def _count_unread(request: Request) -> Work:
    view = yield from wait_for_view()
    stream, group = need_group(request, *request.argv[2:])
    if group.last_id == MAX_ID:
        return 0
    return (yield from StreamView(view, stream).count(StreamID(group.last_id + 1), MAX_ID))
