"""Closes connections when the server keeps more than `maxmemory-clients` for all clients together.

The largest go first, see `holders.py`.  A client is evicted between two ticks.  Its writes are in the log by then,
whole, and it has its reply or sees the end of the connection instead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.limits.accounts import Account
    from riverbed.server.limits.holders import Holders
    from riverbed.server.stats.stats import Stats

log = logging.getLogger("riverbed")


class Evictor:
    """Ends connections of clients while they hold too much, and reports it in the server's log."""

    def __init__(self, holders: Holders[Account], stats: Stats, cut_off: Callable[[int], None]) -> None:
        """`cut_off` ends the connection of the client with this ID, and all that is kept for it."""
        self._loop = asyncio.get_running_loop()
        self._holders = holders
        self._stats = stats
        self._cut_off = cut_off
        self._holders.on_excess = self._evict_soon
        self._is_due = False
        # since the last report
        self._count = 0
        self._bytes = 0
        self._largest = ""
        self._largest_bytes = 0

    def _evict_soon(self) -> None:
        """Evict between two ticks, for there may be a command of the client under way."""
        if not self._is_due:
            self._loop.call_soon(self._evict)
            self._is_due = True

    def _evict(self) -> None:
        self._is_due = False
        for account in self._holders.largest():
            if not self._holders.is_over:
                break
            self._note(account)
            self._stats.evicted_clients += 1
            self._cut_off(account.client_id)

    def _note(self, account: Account) -> None:
        self._count += 1
        self._bytes += account.bytes
        if account.bytes > self._largest_bytes:
            self._largest_bytes = account.bytes
            self._largest = f"client {account.client_id} at {account.socket.address}"

    def report(self) -> None:
        """Log the clients that were evicted since the last report: one line, for there may be thousands of them."""
        if self._count:
            log.warning(
                "maxmemory-clients is %d bytes, and clients held more: evicted %d of them, which held %d bytes; most, "
                "%d bytes, was held by %s",
                self._holders.limit_bytes,
                self._count,
                self._bytes,
                self._largest_bytes,
                self._largest,
            )
            self._count = self._bytes = self._largest_bytes = 0
        if self._holders.is_over:
            log.warning(
                "clients hold %d bytes, more than maxmemory-clients, after the eviction of all that may be evicted",
                self._holders.bytes,
            )
