"""Commands for whoever runs the server: time, saving, shutting down, the slow log, latencies, memory, debugging.

What they do to the server as a whole they ask of `context.control`; they know neither its event loop nor its files.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from server import errors, process
from server.args import Args
from server.commands.table import Flag, KeySpec, command
from server.errors import CommandError
from server.replies import NO_REPLY, OK, Verbatim
from store.ids import ID_BYTES, StreamID, unpack_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.replies import Reply
    from server.session import Request
    from server.stats import CommandCounters
    from store.keyspace import Database

SLOWLOG_COUNT_TOO_LOW: Final = "ERR count should be greater than or equal to -1"
SLOWLOG_DEFAULT_COUNT: Final = 10
NO_SHUTDOWN: Final = "ERR No shutdown in progress."
MONITOR_DENIED: Final = "ERR MONITOR isn't allowed for DENY BLOCKING client"
DIGEST_SLICE: Final = 512

_SECOND_WORD: Final = KeySpec(2, 2, 1)
# What C's strtod makes of a word: the number it begins with, or nothing, which is 0.
_NUMBER = re.compile(rb"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


# -- time and saving ---------------------------------------------------------------------------------------------------


@command(
    b"TIME",
    arity=1,
    flags=Flag.LOADING | Flag.STALE | Flag.FAST,
    categories=("fast",),
    group="server",
    since="2.6.0",
    summary="Tells the server's time.",
    tips=("nondeterministic_output",),
)
def time(request: Request) -> list[bytes]:
    """TIME -> unix seconds, microseconds of the second."""
    now_us = int(request.context.clock.time() * 1_000_000)
    return [b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)]


@command(
    b"LASTSAVE",
    arity=1,
    flags=Flag.LOADING | Flag.STALE | Flag.FAST,
    categories=("admin", "fast", "dangerous"),
    group="server",
    summary="Tells when the last checkpoint was made.",
    tips=("nondeterministic_output",),
)
def lastsave(request: Request) -> int:
    """LASTSAVE -> unix seconds of the last checkpoint."""
    return request.context.engine.last_checkpoint_ms // 1000


@command(
    b"SAVE",
    arity=1,
    flags=Flag.ADMIN | Flag.NOSCRIPT | Flag.NO_MULTI,
    categories=("admin", "slow", "dangerous"),
    group="server",
    summary="Makes a checkpoint.",
)
def save(request: Request) -> Reply:
    """SAVE -> OK once everything up to here is in a checkpoint.

    Nothing needs it: the log is durable as appendfsync says, and checkpoints come by themselves.
    """
    request.context.control.checkpoint()
    return OK


@command(
    b"BGSAVE",
    arity=-1,
    flags=Flag.ADMIN | Flag.NOSCRIPT,
    categories=("admin", "slow", "dangerous"),
    group="server",
    summary="Makes a checkpoint.",
    syntax="[SCHEDULE]",
)
def bgsave(request: Request) -> str:
    """BGSAVE [SCHEDULE] -> a status.  The checkpoint is made at the end of this tick, which takes milliseconds."""
    words = request.argv[1:]
    if words and (len(words) > 1 or words[0].upper() != b"SCHEDULE"):
        raise CommandError(errors.SYNTAX)
    request.context.control.checkpoint()
    return "Background saving started"


@command(
    b"SHUTDOWN",
    arity=-1,
    flags=Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.NO_MULTI,
    categories=("admin", "slow", "dangerous"),
    group="server",
    summary="Stops the server.",
    syntax="[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]",
)
def shutdown(request: Request) -> Reply:
    """SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [ABORT] -> no reply, the connection closes.

    NOSAVE leaves the checkpoint out; the log has everything all the same.  NOW and FORCE change nothing, as nothing
    is waited for, and a shutdown is over before it could be aborted.
    """
    words = [word.upper() for word in request.argv[1:]]
    known = {b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"}
    if not known.issuperset(words) or (b"ABORT" in words and set(words) != {b"ABORT"}):
        raise CommandError(errors.SYNTAX)
    if b"SAVE" in words and b"NOSAVE" in words:
        raise CommandError(errors.SYNTAX)
    if b"ABORT" in words:
        raise CommandError(NO_SHUTDOWN)
    request.context.control.shutdown(save=b"NOSAVE" not in words)
    return NO_REPLY


@command(
    b"MONITOR",
    arity=1,
    flags=Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE,
    categories=("admin", "slow", "dangerous"),
    group="server",
    summary="Shows every command the server runs, as it runs.",
)
def monitor(request: Request) -> Reply:
    """MONITOR -> OK, then a line for each command of anybody, until the client leaves or says RESET."""
    if not request.may_block:
        raise CommandError(MONITOR_DENIED)
    request.context.control.monitor(request.session)
    return OK


# -- the slow log ------------------------------------------------------------------------------------------------------


@command(
    b"SLOWLOG",
    arity=-2,
    flags=Flag.NONE,
    categories=("slow",),
    group="server",
    since="2.2.12",
    summary="Container of the slow log's commands.",
)
def slowlog(request: Request) -> Reply:
    """Reached only with a subcommand that there is not."""
    raise errors.unknown_subcommand(request.argv)


@command(
    b"SLOWLOG GET",
    arity=-2,
    flags=Flag.ADMIN | Flag.LOADING | Flag.STALE,
    categories=("admin", "slow", "dangerous"),
    group="server",
    since="2.2.12",
    summary="Lists the latest slow commands.",
    syntax="[count]",
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
    count = SLOWLOG_DEFAULT_COUNT
    if args:
        count = args.take_int(SLOWLOG_COUNT_TOO_LOW)
        if count < -1:
            raise CommandError(SLOWLOG_COUNT_TOO_LOW)
    if count == -1:
        count = len(calls)
    return [
        [call.id, call.unix_seconds, call.usec, call.words, call.address, call.client_name]
        for call, _ in zip(calls, range(count), strict=False)
    ]


@command(
    b"SLOWLOG HELP",
    arity=2,
    flags=Flag.LOADING | Flag.STALE,
    categories=("slow",),
    group="server",
    since="6.2.0",
    summary="Explains the subcommands of SLOWLOG.",
)
def slowlog_help(request: Request) -> list[str]:
    """SLOWLOG HELP -> lines."""
    return [
        "SLOWLOG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "GET [<count>]",
        "    Return the latest <count> slow commands (default: 10, -1 means all): id, time,",
        "    duration in microseconds, words, client address, client name.",
        "LEN",
        "    Return how many slow commands are kept.",
        "RESET",
        "    Forget them.",
        "HELP",
        "    Print this help.",
    ]


@command(
    b"SLOWLOG LEN",
    arity=2,
    flags=Flag.ADMIN | Flag.LOADING | Flag.STALE,
    categories=("admin", "slow", "dangerous"),
    group="server",
    since="2.2.12",
    summary="Counts the slow commands that are kept.",
    tips=("request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"),
)
def slowlog_len(request: Request) -> int:
    """SLOWLOG LEN -> how many."""
    return len(request.context.stats.slowlog.calls)


@command(
    b"SLOWLOG RESET",
    arity=2,
    flags=Flag.ADMIN | Flag.LOADING | Flag.STALE,
    categories=("admin", "slow", "dangerous"),
    group="server",
    since="2.2.12",
    summary="Forgets the slow commands.",
    tips=("request_policy:all_nodes", "response_policy:all_succeeded"),
)
def slowlog_reset(request: Request) -> Reply:
    """SLOWLOG RESET -> OK.  The ids go on from where they were."""
    request.context.stats.slowlog.calls.clear()
    return OK


# -- latencies ---------------------------------------------------------------------------------------------------------

_LATENCY_FLAGS: Final = Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE
_LATENCY_TIPS: Final = ("nondeterministic_output", "request_policy:all_nodes", "response_policy:special")


@command(
    b"LATENCY",
    arity=-2,
    flags=Flag.NONE,
    categories=("slow",),
    group="server",
    since="2.8.13",
    summary="Container of the latency monitor's commands.",
)
def latency(request: Request) -> Reply:
    """Reached only with a subcommand that there is not."""
    raise errors.unknown_subcommand(request.argv)


@command(
    b"LATENCY DOCTOR",
    arity=2,
    flags=_LATENCY_FLAGS,
    categories=("admin", "slow", "dangerous"),
    group="server",
    since="2.8.13",
    summary="Reports on latency spikes in words.",
    tips=_LATENCY_TIPS,
)
def latency_doctor(request: Request) -> Verbatim:
    """LATENCY DOCTOR -> text: for each kind of spike how many, how high, how often."""
    context = request.context
    if not context.config.latency_monitor_threshold:
        return Verbatim(
            b"The latency monitor is off.  CONFIG SET latency-monitor-threshold MILLISECONDS turns it on; "
            b"INFO shows the longest tick, checkpoint and fsync in any case.\n"
        )
    events = context.stats.latency.events
    if not events:
        return Verbatim(b"No latency spike was seen.\n")
    lines = []
    now = request.now_ms // 1000
    for name, event in sorted(events.items()):
        heights = [ms for _, ms in event.samples]
        average = sum(heights) // len(heights)
        deviation = sum(abs(ms - average) for ms in heights) // len(heights)
        period = (now - event.samples[0][0]) / len(heights)
        lines.append(
            b"%b: %d spikes, average %d ms, mean deviation %d ms, one every %.1f s, highest ever %d ms.\n"
            % (name, len(heights), average, deviation, period, event.max_ms)
        )
    lines.append(b"SLOWLOG GET names the commands; CONFIG GET appendfsync tells how often the disk is waited for.\n")
    return Verbatim(b"".join(lines))


@command(
    b"LATENCY HELP",
    arity=2,
    flags=Flag.LOADING | Flag.STALE,
    categories=("slow",),
    group="server",
    since="2.8.13",
    summary="Explains the subcommands of LATENCY.",
)
def latency_help(request: Request) -> list[str]:
    """LATENCY HELP -> lines."""
    return [
        "LATENCY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "DOCTOR",
        "    Report on latency spikes in words.",
        "HISTOGRAM [COMMAND ...]",
        "    Return how many calls of the named commands, or of all, took at most how long.",
        "HISTORY <event>",
        "    Return the time and height of the latest spikes of one kind.",
        "LATEST",
        "    Return the latest and the highest spike of each kind.",
        "RESET [<event> ...]",
        "    Forget the spikes of the named kinds, or all.",
        "HELP",
        "    Print this help.",
    ]


@command(
    b"LATENCY HISTOGRAM",
    arity=-2,
    flags=_LATENCY_FLAGS,
    categories=("admin", "slow", "dangerous"),
    group="server",
    since="7.0.0",
    summary="Tells how long the calls of commands took.",
    syntax="[command [command ...]]",
    tips=_LATENCY_TIPS,
)
def latency_histogram(request: Request) -> dict[bytes, Reply]:
    """LATENCY HISTOGRAM [command ...] -> command to calls and histogram_usec, microseconds to calls within them.

    A container stands for all its subcommands.  Commands that were not called, or do not exist, are left out.
    """
    wanted = [name.lower() for name in request.argv[2:]]

    def is_wanted(name: bytes) -> bool:
        return not wanted or name in wanted or name.partition(b"|")[0] in wanted

    def histogram(counters: CommandCounters) -> dict[bytes, Reply]:
        return {b"calls": counters.calls, b"histogram_usec": dict(counters.histogram())}

    seen = request.context.stats.seen_commands()
    return {name: histogram(counters) for name, counters in seen if counters.calls and is_wanted(name)}


@command(
    b"LATENCY HISTORY",
    arity=3,
    flags=_LATENCY_FLAGS,
    categories=("admin", "slow", "dangerous"),
    group="server",
    since="2.8.13",
    summary="Lists the latest spikes of one kind.",
    syntax="event",
    tips=_LATENCY_TIPS,
)
def latency_history(request: Request) -> list[Reply]:
    """LATENCY HISTORY event -> oldest first: unix seconds, milliseconds.  Nothing for an unknown event."""
    event = request.context.stats.latency.events.get(request.argv[2])
    return [] if event is None else [list(sample) for sample in event.samples]


@command(
    b"LATENCY LATEST",
    arity=2,
    flags=_LATENCY_FLAGS,
    categories=("admin", "slow", "dangerous"),
    group="server",
    since="2.8.13",
    summary="Lists the latest spike of each kind.",
    tips=_LATENCY_TIPS,
)
def latency_latest(request: Request) -> list[Reply]:
    """LATENCY LATEST -> event, unix seconds and milliseconds of its latest spike, the highest ever."""
    events = request.context.stats.latency.events
    return [[name, *event.samples[-1], event.max_ms] for name, event in sorted(events.items())]


@command(
    b"LATENCY RESET",
    arity=-2,
    flags=_LATENCY_FLAGS,
    categories=("admin", "slow", "dangerous"),
    group="server",
    since="2.8.13",
    summary="Forgets spikes.",
    syntax="[event [event ...]]",
    tips=("request_policy:all_nodes", "response_policy:all_succeeded"),
)
def latency_reset(request: Request) -> int:
    """LATENCY RESET [event ...] -> how many kinds were forgotten."""
    return request.context.stats.latency.reset(request.argv[2:])


# -- memory ------------------------------------------------------------------------------------------------------------

_MEMORY_TIPS: Final = ("nondeterministic_output", "request_policy:all_shards", "response_policy:special")


@command(
    b"MEMORY",
    arity=-2,
    flags=Flag.NONE,
    categories=("slow",),
    group="server",
    since="4.0.0",
    summary="Container of the commands about memory.",
)
def memory(request: Request) -> Reply:
    """Reached only with a subcommand that there is not."""
    raise errors.unknown_subcommand(request.argv)


@command(
    b"MEMORY DOCTOR",
    arity=2,
    flags=Flag.NONE,
    categories=("slow",),
    group="server",
    since="4.0.0",
    summary="Reports on the use of memory in words.",
    tips=_MEMORY_TIPS,
)
def memory_doctor(request: Request) -> Verbatim:
    """MEMORY DOCTOR -> text."""
    use = process.memory_use()
    output = sum(session.peer.output_bytes() for session in request.context.sessions.values())
    return Verbatim(
        b"%d bytes are private to this process; %d more are file pages, which the system takes back when it needs "
        b"them.\nClients have not read %d bytes of their replies yet.\n" % (use.private, use.mapped, output)
    )


@command(
    b"MEMORY HELP",
    arity=2,
    flags=Flag.LOADING | Flag.STALE,
    categories=("slow",),
    group="server",
    since="4.0.0",
    summary="Explains the subcommands of MEMORY.",
)
def memory_help(request: Request) -> list[str]:
    """MEMORY HELP -> lines."""
    return [
        "MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "DOCTOR",
        "    Report on the use of memory in words.",
        "MALLOC-STATS",
        "    Say that the allocator keeps no statistics.",
        "PURGE",
        "    Do nothing: streams are not kept in allocated memory.",
        "STATS",
        "    Return figures about the use of memory.",
        "USAGE <key> [SAMPLES <count>]",
        "    Return about how many bytes <key> and its stream take up. SAMPLES is accepted and not",
        "    needed: the sizes are known without looking.",
        "HELP",
        "    Print this help.",
    ]


@command(
    b"MEMORY MALLOC-STATS",
    arity=2,
    flags=Flag.NONE,
    categories=("slow",),
    group="server",
    since="4.0.0",
    summary="Shows the allocator's statistics, where it keeps any.",
    tips=_MEMORY_TIPS,
)
def memory_malloc_stats(request: Request) -> bytes:
    """MEMORY MALLOC-STATS -> text."""
    return b"Stats not supported for the current allocator"


@command(
    b"MEMORY PURGE",
    arity=2,
    flags=Flag.NONE,
    categories=("slow",),
    group="server",
    since="4.0.0",
    summary="Asks the allocator to give memory back.",
    tips=("request_policy:all_shards", "response_policy:all_succeeded"),
)
def memory_purge(request: Request) -> Reply:
    """MEMORY PURGE -> OK.  There is nothing to give back: streams live in file pages."""
    return OK


@command(
    b"MEMORY STATS",
    arity=2,
    flags=Flag.NONE,
    categories=("slow",),
    group="server",
    since="4.0.0",
    summary="Returns figures about the use of memory.",
    tips=_MEMORY_TIPS,
)
def memory_stats(request: Request) -> dict[bytes, Reply]:
    """MEMORY STATS -> name to figure, with the names of Redis where they mean something here.

    What is allocated is what is private to the process; the streams are file pages, `riverbed.mapped` among them.
    """
    context = request.context
    use = process.memory_use()
    context.stats.note_memory(use.private)
    peak = context.stats.peak_memory
    keys = sum(db.size for db in request.txn.databases)
    normal = sum(session.peer.output_bytes() for session in context.sessions.values())
    return {
        b"peak.allocated": peak,
        b"total.allocated": use.private,
        b"replication.backlog": 0,
        b"clients.slaves": 0,
        b"clients.normal": normal,
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
    b"MEMORY USAGE",
    arity=-3,
    flags=Flag.READONLY,
    keys=_SECOND_WORD,
    categories=("read", "slow"),
    group="server",
    since="4.0.0",
    summary="Estimates how many bytes a key takes up.",
    syntax="key [SAMPLES count]",
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


# -- DEBUG -------------------------------------------------------------------------------------------------------------
#
# One command whose second word chooses, not a container: so it is in Redis, and errors and COMMAND tell the difference.


@command(
    b"DEBUG",
    arity=-2,
    flags=Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE,
    categories=("admin", "slow", "dangerous"),
    group="server",
    summary="Container of commands for testing servers and clients.",
    syntax="<DIGEST | ERROR message | HELP | PROTOCOL type | SLEEP seconds>",
)
def debug(request: Request) -> Reply:
    """DEBUG subcommand [argument] -> see DEBUG HELP."""
    found = _DEBUG.get(request.argv[1].upper())
    if found is None or len(request.argv) != found[0]:
        raise errors.subcommand_syntax(request.argv)
    return found[1](request)


def _debug_digest(request: Request) -> str:
    """A hash of all keys, entries and counters: equal for equal states, in whatever order they came about.

    Groups, idempotence records and where rows happen to be stored do not count.
    """
    digest = 0
    for database in request.txn.databases:
        for key in database.keys(request.now_ms):
            digest ^= int.from_bytes(_stream_digest(database, key, request.now_ms))
    return f"{digest:040x}"


def _stream_digest(database: Database, key: bytes, now_ms: int) -> bytes:
    stream = database.stream(key, now_ms)
    assert stream is not None, "listed a moment ago"
    state = (stream.length, stream.last_id, stream.max_deleted_id, stream.entries_added, stream.expire_ms)
    digest = hashlib.sha1(repr((database.number, key, state)).encode(), usedforsecurity=False)
    start = stream.first_id
    while rows := stream.rows(start, stream.last_id, DIGEST_SLICE):
        for row_key, fields in rows:
            # Only the ID of the row's key: where the stream is stored does not count.
            digest.update(row_key[-ID_BYTES:] + fields)
        start = StreamID(unpack_id(rows[-1][0][-ID_BYTES:]) + 1)
    return digest.digest()


def _debug_error(request: Request) -> Reply:
    raise CommandError(request.argv[2])


def _debug_help(request: Request) -> list[str]:
    return [
        "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "DIGEST",
        "    Return a hash of all keys and entries. Reads everything, and the server waits for it.",
        "ERROR <message>",
        "    Return <message> as an error.",
        "PROTOCOL <type>",
        "    Return a value of <type>: " + ", ".join(_PROTOCOL) + ".",
        "SLEEP <seconds>",
        "    Stop the server for <seconds>. Decimals allowed.",
        "HELP",
        "    Print this help.",
    ]


# One example of each type of reply, for tests of clients.
_PROTOCOL: Final[dict[str, Reply]] = {
    "string": b"Hello World",
    "integer": 12345,
    "double": 3.141,
    "null": None,
    "array": [0, 1, 2],
    "set": frozenset((0, 1, 2)),
    "map": {0: False, 1: True, 2: False},
    "verbatim": Verbatim(b"This is a verbatim\nstring"),
    "true": True,
    "false": False,
}


def _debug_protocol(request: Request) -> Reply:
    kind = request.argv[2].lower().decode("latin-1")
    if kind not in _PROTOCOL:
        raise CommandError("ERR Wrong protocol type name. Please use one of the following: " + "|".join(_PROTOCOL))
    return _PROTOCOL[kind]


def _debug_sleep(request: Request) -> Reply:
    number = _NUMBER.match(request.argv[2])
    request.context.control.sleep(max(float(number[0]), 0.0) if number else 0.0)
    return OK


_DEBUG: Final[dict[bytes, tuple[int, Callable[[Request], Reply]]]] = {
    b"DIGEST": (2, _debug_digest),
    b"ERROR": (3, _debug_error),
    b"HELP": (2, _debug_help),
    b"PROTOCOL": (3, _debug_protocol),
    b"SLEEP": (3, _debug_sleep),
}
