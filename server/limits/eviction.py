"""Which clients lose their connections when all together have the server keep more than `maxmemory-clients`.

    bytes kept    < 1 kB     1 to 2 kB    2 to 4 kB    4 to 8 kB   ...
                  nowhere    [. . . .]    [. .]        [.]

Clients go from the fullest bucket down, in each the one first that has been in it longest, as in Redis, until the rest
is below the limit.  So nothing looks through all clients: a client is moved when its size doubles or halves.  One that
holds less than 1 kB is in no bucket and stays: a connection alone costs more, and `maxclients` bounds those.

A client goes between two ticks.  What it wrote is in the log by then, whole, and it has its reply or hears the end of
the connection instead.
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverbed.server.execution.executor import Executor
    from riverbed.server.limits.accounts import Account

log = logging.getLogger("riverbed")

# A lower limit would leave no room to ask for another one, says Redis.
MIN_LIMIT_BYTES: Final = 128 << 10
_SMALL_BITS: Final = 10
_BUCKETS: Final = 64 - _SMALL_BITS


class Holders:
    """Clients by how much the server keeps for them."""

    def __init__(self) -> None:
        self.bytes = 0  # of all of them, the small ones as well
        self.limit_bytes = sys.maxsize
        self.on_excess: Callable[[], None] = lambda: None
        # a dict would find its first key only behind all those that have been taken off the front
        self._buckets: list[OrderedDict[Account, None]] = [OrderedDict() for _ in range(_BUCKETS)]

    def set_limit(self, limit_bytes: int) -> None:
        """Bound all of them together; 0 is no bound."""
        self.limit_bytes = max(limit_bytes, MIN_LIMIT_BYTES) if limit_bytes else sys.maxsize
        if self.is_over:
            self.on_excess()

    @property
    def is_over(self) -> bool:
        return self.bytes >= self.limit_bytes

    def change(self, account: Account, difference: int) -> None:
        """The server keeps so much more, or less, for a client; the account says so already."""
        self.bytes += difference
        self.place(account)
        if difference > 0 and self.bytes >= self.limit_bytes:
            self.on_excess()

    def place(self, account: Account) -> None:
        """Put the client into the bucket where it belongs, if that is another one."""
        number = 0 if account.is_spared else (account.bytes >> _SMALL_BITS).bit_length()
        if number != account.bucket:
            if account.bucket:
                del self._buckets[account.bucket][account]
            if number:
                self._buckets[number][account] = None
            account.bucket = number

    def enter(self, account: Account) -> None:
        self.change(account, account.bytes)

    def leave(self, account: Account) -> None:
        self.bytes -= account.bytes
        if account.bucket:
            del self._buckets[account.bucket][account]
            account.bucket = 0

    def largest(self) -> Iterator[Account]:
        """Those in buckets, in the order in which they go; each must have left before the next is asked for."""
        for bucket in reversed(self._buckets):
            while bucket:
                account = next(iter(bucket))
                yield account
                assert account not in bucket, "a client that has gone still holds something"


class Evictor:
    """Ends connections of one executor's clients while they hold too much, and tells the server's log of it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._holders = executor.accounts.holders
        self._holders.on_excess = self._evict_soon
        self._is_due = False
        # since the last report
        self._count = 0
        self._bytes = 0
        self._largest = ""
        self._largest_bytes = 0

    def _evict_soon(self) -> None:
        """Between two ticks, for there may be a command of the client under way."""
        if not self._is_due:
            self._is_due = True
            self._executor.loop.call_soon(self._evict)

    def _evict(self) -> None:
        self._is_due = False
        for account in self._holders.largest():
            if not self._holders.is_over:
                break
            self._note(account)
            self._executor.stats.evicted_clients += 1
            self._executor.cut_off(account.session)

    def _note(self, account: Account) -> None:
        self._count += 1
        self._bytes += account.bytes
        if account.bytes > self._largest_bytes:
            self._largest_bytes = account.bytes
            self._largest = f"client {account.session.id} at {account.peer.address}"

    def report(self) -> None:
        """Tell of the clients that went since the last report: one line, for there may be thousands of them."""
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
