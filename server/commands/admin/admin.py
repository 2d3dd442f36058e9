"""Commands for the operator of the server: its time, saving, shutting down, watching what it runs.

They ask the parts of `context` to act on the server as a whole, and know neither its event loop nor its files.
SLOWLOG, LATENCY, MEMORY and DEBUG have modules of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import CommandError, require_sound_disk
from riverbed.server.protocol.encode import encode, integer
from riverbed.server.protocol.replies import OK, Settled

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply

REWRITE_IN_PROGRESS: Final = "ERR Background append only file rewriting already in progress"
NO_SHUTDOWN: Final = "ERR No shutdown in progress."
_SHUTDOWN_WORDS: Final = frozenset((b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"))
MONITOR_DENIED: Final = "ERR MONITOR isn't allowed for DENY BLOCKING client"


@command(
    "TIME",
    Flag.LOADING | Flag.STALE | Flag.FAST,
    since="2.6.0",
    summary="Returns the server's time.",
    tips=("nondeterministic_output",),
)
def time(request: Request) -> Reply:
    """TIME -> unix seconds, microseconds of the second."""
    now_us = int(request.context.clock.time() * 1_000_000)
    request.now_ms = now_us // 1000  # what follows in a pipeline must not be older
    return (Settled(encode([b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)], 2)),)


@command(
    "LASTSAVE",
    Flag.LOADING | Flag.STALE | Flag.FAST,
    summary="Returns the time of the last checkpoint.",
    categories=("admin", "dangerous"),
    tips=("nondeterministic_output",),
)
def lastsave(request: Request) -> Reply:
    """LASTSAVE -> unix seconds of the last checkpoint."""
    return (Settled(integer(request.context.engine.checkpoints.last_ms // 1000)),)


@command("SAVE", Flag.ADMIN | Flag.NOSCRIPT | Flag.NO_MULTI, summary="Makes a checkpoint.")
def save(request: Request) -> Reply:
    """SAVE -> OK once everything up to here is in a checkpoint.

    No client needs it: the log is durable as appendfsync says, and the server checkpoints at intervals.
    """
    request.context.checkpoints.checkpoint()
    return OK


@command("BGSAVE [SCHEDULE]", Flag.ADMIN | Flag.NOSCRIPT, summary="Makes a checkpoint.")
def bgsave(request: Request) -> str:
    """BGSAVE [SCHEDULE] -> a status.  The checkpoint begins behind this tick, and clients are served meanwhile."""
    words = request.argv[1:]
    if words and (len(words) > 1 or words[0].upper() != b"SCHEDULE"):
        raise CommandError(errors.SYNTAX)
    require_sound_disk(request.context.engine.refusal, "checkpoint")
    request.context.checkpoints.checkpoint_later()
    return "Background saving started"


@command("BGREWRITEAOF", Flag.ADMIN | Flag.NOSCRIPT, summary="Makes the log as short as it can be.")
def bgrewriteaof(request: Request) -> str:
    """BGREWRITEAOF -> a status.  A child process writes the state while the server goes on."""
    context = request.context
    if context.rewrite.in_progress:
        raise CommandError(REWRITE_IN_PROGRESS)
    require_sound_disk(context.engine.refusal, "rewrite of the log")
    if request.in_transaction or context.rewrite.is_held:
        context.rewriting.schedule()
        return "Background append only file rewriting scheduled"
    context.rewriting.start()
    return "Background append only file rewriting started"


@command(
    "SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [ABORT]",
    Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.NO_MULTI,
    summary="Stops the server.",
)
def shutdown(request: Request) -> Reply:
    """SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [ABORT] -> no reply, the connection closes; or an error.

    Without NOW the server waits for its replicas first, up to `shutdown-timeout`; ABORT ends the wait and the stop.
    NOSAVE skips the checkpoint; the log has everything anyway.  With SAVE a checkpoint that fails keeps the server from
    stopping, unless FORCE is given as well.
    """
    words = {word.upper() for word in request.argv[1:]}
    if not words <= _SHUTDOWN_WORDS or words > {b"ABORT"} or words >= {b"SAVE", b"NOSAVE"}:
        raise CommandError(errors.SYNTAX)
    stopping = request.context.stopping
    if b"ABORT" in words:
        if not stopping.abort():
            raise CommandError(NO_SHUTDOWN)
        return OK
    save = True if b"SAVE" in words else False if b"NOSAVE" in words else None
    return stopping.ask(request, save=save, now=b"NOW" in words, force=b"FORCE" in words)


@command(
    "MONITOR",
    Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE,
    summary="Shows every command the server runs, as it runs.",
)
def monitor(request: Request) -> Reply:
    """MONITOR -> OK, then a line for each command of every client, until this client leaves or sends RESET."""
    if not request.may_block:
        raise CommandError(MONITOR_DENIED)
    request.context.monitors.add(request.session)
    return OK


container("MODULE", group="server", since="4.0.0", summary="Container of the commands about modules.")


@command(
    "MODULE LIST",
    Flag.ADMIN | Flag.NOSCRIPT,
    summary="Lists no modules: there are none.",
    tips=("nondeterministic_output_order",),
)
def module_list(request: Request) -> Reply:
    """MODULE LIST -> nothing.  Programs that show a server ask for it when they connect."""
    return []


declare_help("MODULE", "LIST", "    Return a list of loaded modules.", since="5.0.0")
