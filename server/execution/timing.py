"""How long commands take: their counters, and the slow ones by name, for SLOWLOG and LATENCY."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.server.commands.table import Command, Flag
from riverbed.server.stats.stats import SLOWLOG_WORDS

if TYPE_CHECKING:
    from riverbed.server.commands.dispatch import Plain
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.config.config import Config
    from riverbed.server.stats.stats import Stats
    from riverbed.store.options import Clock


class Timing:
    """Of one executor.  What takes `slow_ns` and more is remembered."""

    def __init__(self, config: Config, stats: Stats, clock: Clock) -> None:
        self.slow_ns = 1 << 62
        self._config = config
        self._stats = stats
        self._clock = clock

    def record(self, request: Request, entry: Plain, count: int, seconds: float) -> None:
        """Account for a run of `count` calls of one command, the last of which `request` still holds."""
        nanoseconds = max(int(seconds * 1e9), 0)  # the clock may have been set back
        entry.counters.record_run(count, nanoseconds)
        if nanoseconds >= self.slow_ns * count:
            self._note_slow(request.session, entry.command, request.argv, nanoseconds // count // 1000)

    def note(self, session: Session, command: Command, argv: list[bytes], nanoseconds: int) -> None:
        """Remember a command that was slow."""
        if nanoseconds >= self.slow_ns:
            self._note_slow(session, command, argv, nanoseconds // 1000)

    def _note_slow(self, session: Session, command: Command, argv: list[bytes], usec: int) -> None:
        config = self._config
        now = int(self._clock.time())
        slower_than = config.slowlog_log_slower_than
        if 0 <= slower_than <= usec and not command.flags & Flag.SKIP_SLOWLOG:
            # the slow log counts those behind, and shows none of them
            words = command.shown(argv[:SLOWLOG_WORDS]) + argv[SLOWLOG_WORDS:]
            address = session.peer.address.encode()
            self._stats.slowlog.add(words, usec, now, address, session.name, config.slowlog_max_len)
        event = b"fast-command" if command.flags & Flag.FAST else b"command"
        self._stats.latency.add(event, now, usec // 1000, config.latency_monitor_threshold)
