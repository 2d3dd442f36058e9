"""MEMORY: what this process holds, what its clients have yet to read, and about how large a stream is.

Streams live in file pages and not in allocated memory, so much of what Redis reports has no meaning here.
`server.stats.process` has the system's page counts, the store the size of a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import Args
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK, Verbatim
from riverbed.server.stats import process

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply

_TIPS: Final = ("nondeterministic_output", "request_policy:all_shards", "response_policy:special")


container("MEMORY", group="server", since="4.0.0", summary="Container of the commands about memory.")


@command("MEMORY DOCTOR", Flag.SHOWS_TABLES, summary="Reports on the use of memory in words.", tips=_TIPS)
def memory_doctor(request: Request) -> Verbatim:
    """MEMORY DOCTOR -> text."""
    use = process.memory_use()
    output = sum(session.output_bytes for session in request.context.sessions.values())
    return Verbatim(
        b"%d bytes are private to this process; %d more are file pages, which the system takes back when it needs "
        b"them.\nClients have not read %d bytes of their replies yet.\n" % (use.private, use.mapped, output)
    )


declare_help(
    "MEMORY",
    "DOCTOR",
    "    Return memory problems reports.",
    "MALLOC-STATS",
    "    Return internal statistics report from the memory allocator.",
    "PURGE",
    "    Attempt to purge dirty pages for reclamation by the allocator.",
    "STATS",
    "    Return information about the memory usage of the server.",
    "USAGE <key> [SAMPLES <count>]",
    "    Return about how many bytes <key> and its value take up. SAMPLES is",
    "    accepted and changes nothing.",
    since="4.0.0",
)


@command("MEMORY MALLOC-STATS", summary="Shows the allocator's statistics, where it keeps any.", tips=_TIPS)
def memory_malloc_stats(request: Request) -> bytes:
    """MEMORY MALLOC-STATS -> text."""
    return b"Stats not supported for the current allocator"


@command(
    "MEMORY PURGE",
    summary="Asks the allocator to give memory back.",
    tips=("request_policy:all_shards", "response_policy:all_succeeded"),
)
def memory_purge(request: Request) -> Reply:
    """MEMORY PURGE -> OK.  There is nothing to give back: streams live in file pages."""
    return OK


@command("MEMORY STATS", Flag.SHOWS_TABLES, summary="Returns figures about the use of memory.", tips=_TIPS)
def memory_stats(request: Request) -> dict[bytes, Reply]:
    """MEMORY STATS -> name to figure, with the names of Redis where they mean something here.

    Allocated is what is private to the process; the streams are file pages and count in `riverbed.mapped`.
    """
    context = request.context
    use = process.memory_use()
    context.stats.note_memory(use.private)
    peak = context.stats.peak_memory
    keys = sum(db.size for db in request.txn.databases)
    return {
        b"peak.allocated": peak,
        b"total.allocated": use.private,
        b"replication.backlog": 0,
        b"clients.slaves": context.accounts.replicas_total,
        b"clients.normal": context.accounts.total,
        b"aof.buffer": sum(map(len, request.txn.log)),
        b"keys.count": keys,
        b"keys.bytes-per-key": use.private // keys if keys else 0,
        b"peak.percentage": 100.0 * use.private / peak,
        b"fragmentation": use.resident / use.private if use.private else 1.0,
        b"fragmentation.bytes": use.resident - use.private,
        b"riverbed.resident": use.resident,
        b"riverbed.mapped": use.mapped,
    }


@command(
    "MEMORY USAGE key [SAMPLES count]",
    Flag.READONLY,
    summary="Returns about how many bytes a key takes up; SAMPLES is accepted and changes nothing.",
)
def memory_usage(request: Request) -> int | None:
    """MEMORY USAGE key [SAMPLES count] -> an estimate of the bytes on disk, or null for a missing key."""
    args = Args(request.argv, 2)
    key = args.take()
    while args:
        if args.take_option() != b"SAMPLES" or args.take_int() < 0:
            raise CommandError(errors.SYNTAX)
    stream = request.db.stream(key, request.now_ms)
    return None if stream is None else stream.byte_size()
