"""What all parts of one server share: settings, store, clients, channels and counters.

It is data and does nothing; the parts act on it.
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING

from riverbed.server.commands.access.denials import Denials
from riverbed.server.commands.channels import PubSub
from riverbed.server.limits.accounts import Accounts
from riverbed.server.limits.rare_lines import RareLine
from riverbed.server.loading import Loading
from riverbed.server.stats.repair_status import RepairStatus
from riverbed.server.stats.rewrite_status import RewriteStatus
from riverbed.server.stats.scrub_status import ScrubStatus
from riverbed.server.stats.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.commands.access.interface import Logins
    from riverbed.server.commands.session import Session
    from riverbed.server.config.config import Config
    from riverbed.store.engine import Engine
    from riverbed.store.options import Clock


class Core:
    """One server."""

    def __init__(self, config: Config, engine: Engine, clock: Clock) -> None:
        self.config = config
        self.engine = engine
        self.txn = engine.txn
        self.clock = clock
        self.stats = Stats()
        self.accounts = Accounts()
        self.wrong_passwords = RareLine("%d wrong passwords since the last such line; the last one from %s")
        self.tls_to_plain_port = RareLine(
            "%d clients spoke TLS to a port without TLS since the last such line, and were cut off; the last one was %s"
        )
        self.tls_handshakes: Callable[[], int] = int  # how many are under way; the assembly sets it
        self.rewrite = RewriteStatus()
        self.scrub = ScrubStatus()
        self.repair = RepairStatus()
        self.pubsub = PubSub()
        self.users: Logins  # the assembly sets them
        self.denials = Denials()
        self.sessions: dict[int, Session] = {}
        self.started_ms = self.now_ms()
        self.loading = None if engine.is_loaded else Loading(clock)  # None once the store is loaded
        self.run_id = secrets.token_hex(20)

    def now_ms(self) -> int:
        return int(self.clock.time() * 1000)

    def monotonic_ahead_ms(self) -> int:
        """How far the monotonic clock is ahead of the clock that commands read; rounded up."""
        return math.ceil(self.clock.monotonic() * 1000) - self.now_ms()
