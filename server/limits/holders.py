"""Clients by how much the server keeps for them, the largest first.

    bytes kept    < 1 kB     1 to 2 kB    2 to 4 kB    4 to 8 kB   ...
                  nowhere    [. . . .]    [. .]        [.]

Clients are evicted from the last bucket down, in each bucket the one first that has been in it longest, as in Redis,
until the rest is below the limit.  So no loop looks through all clients: a client is moved when its size doubles or
halves.  A client that holds less than 1 kB is in no bucket and stays: a connection alone costs more, and `maxclients`
bounds the connections.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A lower limit would leave clients no room to ask for another one, as Redis says.
MIN_LIMIT_BYTES: Final = 128 << 10
_SMALL_BITS: Final = 10
_BUCKETS: Final = 64 - _SMALL_BITS


class Holder(Protocol):
    """A client, as far as its size matters."""

    bucket: int  # `Holders` keeps it
    is_spared: bool  # the client stays, however large it is

    @property
    def bytes(self) -> int:
        """All that the server keeps for the client."""


H = TypeVar("H", bound=Holder)


class Holders(Generic[H]):
    """Clients by how much the server keeps for them."""

    def __init__(self) -> None:
        self.bytes = 0  # of all of them, the small ones as well
        self.limit_bytes = sys.maxsize
        self.on_excess: Callable[[], None] = lambda: None
        # no dict: it finds its first key only after all keys that were taken off the front
        self._buckets: list[OrderedDict[H, None]] = [OrderedDict() for _ in range(_BUCKETS)]

    def set_limit(self, limit_bytes: int) -> None:
        """Bound all of them together; 0 is no bound."""
        self.limit_bytes = max(limit_bytes, MIN_LIMIT_BYTES) if limit_bytes else sys.maxsize
        if self.is_over:
            self.on_excess()

    @property
    def is_over(self) -> bool:
        return self.bytes >= self.limit_bytes

    def change(self, account: H, difference: int) -> None:
        """Count that the server keeps more, or less, for a client; the account has the new size already."""
        self.bytes += difference
        self.place(account)
        if difference > 0 and self.bytes >= self.limit_bytes:
            self.on_excess()

    def place(self, account: H) -> None:
        """Put the client into the bucket where it belongs, if that is another one."""
        number = 0 if account.is_spared else (account.bytes >> _SMALL_BITS).bit_length()
        if number != account.bucket:
            if account.bucket:
                del self._buckets[account.bucket][account]
            if number:
                self._buckets[number][account] = None
            account.bucket = number

    def enter(self, account: H) -> None:
        self.change(account, account.bytes)

    def leave(self, account: H) -> None:
        self.bytes -= account.bytes
        if account.bucket:
            del self._buckets[account.bucket][account]
            account.bucket = 0

    def largest(self) -> Iterator[H]:
        """The clients in buckets, in the order of eviction; each must have left before the next is asked for."""
        for bucket in reversed(self._buckets):
            while bucket:
                account = next(iter(bucket))
                yield account
                assert account not in bucket, "a client that has gone still holds something"
