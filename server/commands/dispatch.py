"""From a request's words to the row of the table that serves it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from riverbed.server.commands import load_commands
from riverbed.server.commands.groups.claim_runs import claim_each
from riverbed.server.commands.groups.mixes import add_and_ack
from riverbed.server.commands.streams.range_runs import xrange_each
from riverbed.server.commands.streams.streams import xadd_run
from riverbed.server.commands.table import COMMANDS, Command, Flag
from riverbed.server.errors import CommandError, unknown_subcommand
from riverbed.server.stats.stats import MixCounters
from riverbed.store.wire import Claims, Mix, Ranges, Run

if TYPE_CHECKING:
    from riverbed.server.commands.table import Handler
    from riverbed.server.stats.stats import CommandCounters, Stats

_SHOWN_BYTES = 128  # of a name or of all arguments in an error text
# Commands that may be refused, run out of turn or act on the connection take the slow path.
_SLOW = Flag.IMMEDIATE | Flag.NO_AUTH | Flag.LOG_ONLY | Flag.ADMIN | Flag.PUBSUB


# More words take the slow path.  Python compares numbers of up to 30 bits much faster than others.
_VERY_MANY = (1 << 30) - 1
# FAST in Redis's table, but each may take a millisecond, unless it has no more words than these: a claim of one, say.
_FAST_WORDS = {b"XCLAIM": 7, b"XAUTOCLAIM": 0, b"XNACK": 0} | dict.fromkeys(
    (b"EXISTS", b"TOUCH", b"UNLINK", b"XACK", b"XACKDEL", b"XDEL", b"XDELEX"), 32
)


class FastCommand:
    """A command that the fast path may run at once: it has no subcommands, none of the `_SLOW` flags, and is not INFO.

    `is_compound`: it may log several commands, or be several.  `fast_words`: it takes microseconds only if it has no
    more words.
    """

    __slots__ = ("command", "counters", "fast_words", "handler", "is_compound", "least_words", "most_words", "name")

    def __init__(self, command: Command, counters: CommandCounters, *, run_handler: Handler | None = None) -> None:
        """With a `run_handler` it is several of the command, or a mix that begins with it."""
        self.command = command
        self.counters = counters
        self.handler: Handler = run_handler or command.handler
        self.name = command.full_name
        self.is_compound = run_handler is not None or (bool(command.flags & Flag.WRITE) and command.name != b"XADD")
        self.fast_words = _FAST_WORDS.get(command.name, _VERY_MANY) if command.flags & Flag.FAST else 0
        self.least_words = abs(command.arity) if run_handler is None else 1
        self.most_words = command.arity if command.arity >= 0 else _VERY_MANY


# What stands in the place of a request's name -> its command.
FastCommands = dict[bytes | type[Run] | type[Mix] | type[Claims] | type[Ranges], FastCommand]


def append_commands(stats: Stats) -> FastCommands:
    """The commands for runs of XADD and mixes with XACK, under their class, which stands in the place of a name."""
    load_commands()
    xadd = COMMANDS[b"XADD"]
    of_xadd = stats.counters(xadd.full_name)
    of_mixes = MixCounters(of_xadd, stats.counters(COMMANDS[b"XACK"].full_name))
    return {
        Run: FastCommand(xadd, of_xadd, run_handler=xadd_run),
        Mix: FastCommand(xadd, of_mixes, run_handler=partial(add_and_ack, of_mixes)),
    }


def fast_commands(stats: Stats) -> FastCommands:
    """The fast path's table, with upper-case and lower-case names; other spellings take the slow path.

    Runs of XADD, mixes with XACK, claims, and ranges are under their class.
    """
    plain = append_commands(stats)
    xclaim, xrange = COMMANDS[b"XCLAIM"], COMMANDS[b"XRANGE"]
    plain[Claims] = FastCommand(xclaim, stats.counters(xclaim.full_name), run_handler=claim_each)
    plain[Ranges] = FastCommand(xrange, stats.counters(xrange.full_name), run_handler=xrange_each)
    for name, command in COMMANDS.items():
        if not command.subcommands and not command.flags & _SLOW and name != b"INFO":  # it counts what ran before it
            plain[name] = plain[name.lower()] = FastCommand(command, stats.counters(command.full_name))
    return plain


def find_command(words: list[bytes]) -> Command | None:
    """The row for a request, a subcommand's own where there is one; None for an unknown command."""
    command = COMMANDS.get(words[0].upper())
    if command is not None and command.subcommands and len(words) > 1:
        command = command.subcommands.get(words[1].upper(), command)
        return command.bare if command.bare is not None and len(words) == -command.arity else command
    return command


def client_command(words: list[bytes]) -> Command:
    """As `find_command`, for a client.  Raises CommandError for what is unknown to clients."""
    command = find_command(words)
    if command is None or not command.is_for_clients:
        raise unknown_command(words)
    if command.subcommands and len(words) > 1:
        raise unknown_subcommand(words)
    return command


def unknown_command(words: list[bytes]) -> CommandError:
    """The error with the name and the first arguments, each up to its first NUL byte, as in Redis."""
    shown = b""
    for word in words[1:]:
        if len(shown) >= _SHOWN_BYTES:
            break
        shown += b"'%b' " % word[: _SHOWN_BYTES - len(shown)].partition(b"\0")[0]
    name = words[0][:_SHOWN_BYTES].partition(b"\0")[0]
    return CommandError(b"ERR unknown command '%b', with args beginning with: %b" % (name, shown))
