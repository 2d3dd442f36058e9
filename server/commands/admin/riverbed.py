"""RIVERBED: the commands that Redis does not have, in one container, so that no new command of Redis clashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import CommandError

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Block


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
        case [word]:
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
