"""What the server keeps for its clients: bytes read and not answered, replies not read yet, of each and of all.

    bytes not looked at -> unfinished request -> taken, could not run -> queued by MULTI -> replies, late or unread

A chunk that comes, runs in the next tick and is answered at once is never counted: an account is settled when something
is left over, and whenever that changes.  So counting costs the usual request nothing; for what arrives in one turn of
the loop there is `Accounts.alarm`.

Two things follow from an account:

- Above a bound of its own a client's socket is not read, until half of that has been worked off.
- Accounts are added up in two pools.  While a pool is under pressure each client's bound is far smaller, its socket is
  read in small pieces, and its requests make less output in a tick.  So the clients that owe most are the ones that
  wait, and a client that asks for one thing at a time notices nothing.  Strangers, who have not authenticated, are
  always read like that, and take nothing from what the others may have.

What a client can only end by sending more (the rest of a request, EXEC) is counted, but keeps its socket from being
read only while its pool is full; then these clients go on one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.session import Peer

_MB: Final = 1 << 20

# Of all clients, and of all strangers, together.
CLIENTS_BYTES: Final = 64 * _MB
STRANGERS_BYTES: Final = 8 * _MB
# A client with so many bytes of replies in one tick waits for the next with the rest of its requests.
MOST_OUTPUT_A_TICK: Final = 1 * _MB
# A stranger that leaves more unread is disconnected, as by Redis.
MOST_STRANGERS_OUTPUT: Final = 1024
# What one client may have waiting to be executed before its socket is left alone.
MOST_WAITING_BYTES: Final = 64 << 10
_PRESSED_WAITING: Final = 4 << 10
_PRESSED_OUTPUT_A_TICK: Final = 64 << 10
# For so long a client may leave the rest of a large request unsent while others wait for room for theirs.
STUCK_S: Final = 10.0


class Pool:
    """Clients that are bounded together: under pressure above half of `most_bytes`, and until a quarter of it."""

    def __init__(self, most_bytes: int, most_growing: int, *, is_always_pressed: bool = False) -> None:
        self.bytes = 0
        self.most_bytes = most_bytes
        self.most_growing = most_growing  # what each client may have of an unfinished request in a full pool
        self.on_pressure: Callable[[bool], None] = lambda on: None
        self._is_always_pressed = is_always_pressed
        self._growing: Account | None = None  # the one that may go on although the pool is full
        self._waiting: dict[Account, None] = {}  # those that may not
        self._grown: tuple[Account | None, int] = (None, 0)  # how far it was at `_grown_s`
        self._grown_s = 0.0
        self._set_bounds(is_always_pressed)

    def _set_bounds(self, is_pressed: bool) -> None:
        self.is_pressed = is_pressed
        self.most_waiting = _PRESSED_WAITING if is_pressed else MOST_WAITING_BYTES
        self.most_output = _PRESSED_OUTPUT_A_TICK if is_pressed else MOST_OUTPUT_A_TICK

    @property
    def headroom(self) -> int:
        """How many bytes more bring pressure."""
        return max(self.most_bytes // 2 - self.bytes, 0)

    def change(self, difference: int) -> None:
        self.bytes += difference
        if self._is_always_pressed:
            return
        if not self.is_pressed:
            if difference > 0 and self.bytes > self.most_bytes // 2:
                self.press()
        elif difference < 0:
            self.relax()

    def press(self) -> None:
        """Bound each client far more tightly."""
        if not self.is_pressed:
            self._set_bounds(True)
            self.on_pressure(True)

    def relax(self) -> None:
        """End that, if what is kept allows it."""
        if self.is_pressed and not self._is_always_pressed and self.bytes < self.most_bytes // 4:
            self._set_bounds(False)
            self.on_pressure(False)

    # -- unfinished requests -------------------------------------------------------------------------------------------

    def may_grow(self, account: Account) -> bool:
        """Whether a client may send more of what it has begun: always, but one at a time in a full pool."""
        if account.growing <= self.most_growing or self.bytes <= self.most_bytes:
            self.forget(account)
            return True
        if self._growing is None:
            self._waiting.pop(account, None)
            self._growing = account
        if self._growing is not account:
            self._waiting[account] = None
        return self._growing is account

    def forget(self, account: Account) -> None:
        """It has ended what it had begun, or there is room for all."""
        self._waiting.pop(account, None)
        if self._growing is account:
            self._growing = None
            self._let_next_grow()

    def _let_next_grow(self) -> None:
        for account in list(self._waiting):
            account.look_again()
            if self._growing is not None:
                break

    def check_growing(self, now_s: float) -> None:
        """Close the client that may go on if it sends nothing while others wait: it would block the pool for ever."""
        account = self._growing
        if account is None:
            self._let_next_grow()
        elif not self._waiting or (account, account.growing) != self._grown:
            self._grown = (account, account.growing)
            self._grown_s = now_s
        elif now_s - self._grown_s > STUCK_S:
            account.peer.abort()


class Account:
    """What the server keeps for one client: `owed` bytes, as of when they were counted last."""

    __slots__ = ("_accounts", "_is_read", "growing", "owed", "peer", "pool", "waiting")

    def __init__(self, accounts: Accounts, peer: Peer, *, is_trusted: bool) -> None:
        self._accounts = accounts
        self.pool = accounts.clients if is_trusted else accounts.strangers
        self.owed = 0
        self.waiting = 0
        self.growing = 0
        self.peer = peer
        self._is_read = True

    def settle(self, *, waiting: int, growing: int, other: int) -> None:
        """Count, then read from the client or leave its socket alone.

        `waiting` are bytes that nothing has looked at, `growing` those of a request or transaction that its client has
        not ended, `other` is all the rest.
        """
        self.waiting = waiting
        self.growing = growing
        difference = waiting + growing + other - self.owed
        self.owed += difference
        self.pool.change(difference)
        self.look_again()

    def grow(self, difference: int) -> None:
        """As `settle`, when nothing but `growing` has changed."""
        self.growing += difference
        self.add(difference)
        if self.growing > self.pool.most_growing or difference < 0:
            self.look_again()

    def add(self, difference: int) -> None:
        """As `settle`, when nothing but `other` has changed."""
        self.owed += difference
        self.pool.change(difference)

    def look_again(self) -> None:
        """Read from the client, or do not, as the bounds are now."""
        bound = self.pool.most_waiting
        is_read = self.pool.may_grow(self) and self.waiting <= (bound if self._is_read else bound >> 1)
        if is_read is not self._is_read:
            self._is_read = is_read
            self.peer.set_reading(is_read)

    def trust(self, on: bool) -> None:
        """Count with the clients that have authenticated from now on, or with the strangers."""
        pool = self._accounts.clients if on else self._accounts.strangers
        if pool is not self.pool:
            self.pool.forget(self)
            self.pool.change(-self.owed)
            self.pool = pool
            pool.change(self.owed)
            self.look_again()

    def close(self) -> None:
        """The client has gone."""
        self.settle(waiting=0, growing=0, other=0)


class Accounts:
    """The pools of one executor."""

    def __init__(self) -> None:
        self.clients = Pool(CLIENTS_BYTES, MOST_WAITING_BYTES)
        self.strangers = Pool(STRANGERS_BYTES, _PRESSED_WAITING, is_always_pressed=True)
        # When clients have sent so many bytes since the start, there is pressure before any of it has been counted.
        self.alarm = self.clients.headroom

    @property
    def total(self) -> int:
        """Bytes kept for all clients."""
        return self.clients.bytes + self.strangers.bytes

    def check_growing(self, now_s: float) -> None:
        """To be called now and then: large requests in full pools make progress, or are given up."""
        self.clients.check_growing(now_s)
        self.strangers.check_growing(now_s)
