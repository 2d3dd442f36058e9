"""Calls commands: runs a handler, counts its time, and makes one reply and one entry of the log."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.request import Context, Request
from riverbed.server.commands.slices import SlicedCommand
from riverbed.server.commands.table import Command, Flag
from riverbed.server.errors import CommandError
from riverbed.server.execution.control.logged_lines import make_atomic
from riverbed.server.protocol.replies import Block, LongReply
from riverbed.server.stats.stats import SLOWLOG_WORDS, shortened
from riverbed.store.errors import StateLostError
from riverbed.store.tables.writing.commands import Mark

if TYPE_CHECKING:
    from riverbed.server.commands.dispatch import FastCommand
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.table import Handler
    from riverbed.server.config.config import Config
    from riverbed.server.execution.failures import Failures
    from riverbed.server.protocol.replies import Reply
    from riverbed.server.stats.stats import Stats
    from riverbed.store.options import Clock
    from riverbed.store.wire import Neighbours


# Replies of a command that is not over: it waits, runs in slices, or makes its reply while that is sent.
GOES_ON: Final = frozenset((Block, LongReply, SlicedCommand))


def shown_words(command: Command, argv: list[bytes]) -> list[bytes]:
    """The words of a command as the slow log shows them."""
    return shortened(command.shown(argv[:SLOWLOG_WORDS]) + argv[SLOWLOG_WORDS:])  # it only counts the latter


class Calls:
    """Calls the commands of one server, except on the fast path."""

    def __init__(self, context: Context, no_session: Session, failures: Failures) -> None:
        self.failures = failures
        self.timing = Timing(context.config, context.stats, context.clock)
        self._core = context
        self._txn = context.txn
        self._stats = context.stats
        self._request = Request(no_session, context.txn, context)  # reused for every client

    def call(self, session: Session, command: Command, argv: list[bytes], run: Neighbours | None = None) -> Reply:
        """Run the command for the client, and account for it; one that waits or runs in slices is one call, at its end.

        `run` is for an EXEC whose commands were not queued.
        """
        request = self._request
        request.session = session
        request.db = session.db
        request.argv, request.run = argv, run
        request.now_ms = self._core.now_ms()
        begun = time.perf_counter_ns()
        reply = self.attempt(request, command, command.handler)
        nanoseconds = time.perf_counter_ns() - begun
        request.argv, request.run = [], None  # or the words would stay in memory until the next call
        if session.blocked is not None:
            nanoseconds += session.attempts_ns
        if reply.__class__ in GOES_ON:
            self.account_later(session, command, argv, reply, nanoseconds)
        else:
            self.account(session, command, argv, nanoseconds)
        return reply

    def account_later(
        self, session: Session, command: Command, argv: list[bytes], reply: Reply, nanoseconds: int
    ) -> None:
        """Have a command that goes on accounted for at its end; it has taken so long until now."""
        if reply.__class__ is Block:
            session.attempts_ns = nanoseconds
            return
        reply.nanoseconds = nanoseconds
        if reply.__class__ is LongReply:
            reply.on_close = partial(self._account_shown, session, command, shown_words(command, argv))

    def _account_shown(self, session: Session, command: Command, words: list[bytes], nanoseconds: int) -> None:
        """As `account`, with the words as the slow log shows them."""
        self._stats.counters(command.full_name).record(nanoseconds)
        if nanoseconds >= self.timing.slow_ns:
            self.timing.add_slow(session, command, words, nanoseconds // 1000)

    def wait_over(self, session: Session, block: Block, reply: Reply) -> None:
        """Account for a command that has waited, when its reply does not come from running it again."""
        command = client_command(block.argv)
        if isinstance(reply, CommandError):
            self.failures.refused(command, reply)
        self.account(session, command, block.argv, session.attempts_ns)

    def account(self, session: Session, command: Command, argv: list[bytes], nanoseconds: int) -> None:
        """Count a call, and remember one that was slow."""
        self._stats.counters(command.full_name).record(nanoseconds)
        self.timing.note(session, command, argv, nanoseconds)

    def attempt(self, request: Request, command: Command, handler: Handler) -> Reply:
        """Run the handler; an error becomes the reply.  After an unexpected exception, what it logged is undone."""
        txn = self._txn
        mark, extension_bytes, changes = len(txn.log), txn.extension_bytes, txn.changes  # `txn.mark`, without an object
        try:
            reply = handler(request)
        except CommandError as error:
            reply = self.failures.refused(command, error)
        except StateLostError:
            raise
        except Exception as error:
            reply = self.failures.fault(command, error, Mark(mark, extension_bytes, changes))
        if reply.__class__ is SlicedCommand and reply.is_alone:
            return reply  # a part of a transaction, which ends itself
        self.end_command(mark)
        return reply

    def end_command(self, mark: int) -> None:
        """Log all that the command did; its first line is number `mark` of the tick."""
        self._txn.end_command()
        if len(self._txn.log) - mark > 1:
            make_atomic(self._txn.log, mark)


class Timing:
    """Counts how long commands take, and remembers each command that takes `slow_ns` or more."""

    def __init__(self, config: Config, stats: Stats, clock: Clock) -> None:
        self.slow_ns = 1 << 62
        self._config = config
        self._stats = stats
        self._clock = clock

    def record(self, request: Request, entry: FastCommand, count: int, seconds: float) -> None:
        """Count a run of `count` calls of one command; `request` still holds the last of them."""
        nanoseconds = max(int(seconds * 1e9), 0)  # the clock may have been set back
        entry.counters.record_run(count, nanoseconds)
        if nanoseconds >= self.slow_ns * count:
            argv = request.argv or (request.run.request(len(request.run) - 1) if request.run is not None else [])
            words = shown_words(entry.command, argv)
            self.add_slow(request.session, entry.command, words, nanoseconds // count // 1000)

    def note(self, session: Session, command: Command, argv: list[bytes], nanoseconds: int) -> None:
        """Remember a command that was slow."""
        if nanoseconds >= self.slow_ns:
            self.add_slow(session, command, shown_words(command, argv), nanoseconds // 1000)

    def add_slow(self, session: Session, command: Command, words: list[bytes], usec: int) -> None:
        """Remember a command that was slow; `words` are as the slow log shows them."""
        config = self._config
        now = int(self._clock.time())
        slower_than = config.slowlog_log_slower_than
        if 0 <= slower_than <= usec and not command.flags & Flag.SKIP_SLOWLOG:
            address = os.fsencode(session.peer.address)
            self._stats.slowlog.add(words, usec, now, address, session.names.client, config.slowlog_max_len)
        event = b"fast-command" if command.flags & Flag.FAST else b"command"
        self._stats.latency.add(event, now, usec // 1000, config.latency_monitor_threshold)
