"""What the server keeps for its clients: bytes read and not answered, replies not read yet, of each and of all.

    bytes not looked at -> unfinished request -> taken, could not run -> queued by MULTI -> replies, late or unread

A chunk that comes, runs in the next tick and is answered at once is never counted: an account is settled when something
is left over, and whenever that changes.  So counting costs the usual request nothing; for what arrives in one turn of
the loop there is `Accounts.alarm`.

Three things follow from an account:

- Above a bound of its own a client's socket is not read, until half of the bound has been worked off.
- Accounts are added up in two pools.  While a pool is under pressure each client's bound is far smaller, its socket is
  read in small pieces, and its requests make less output in a tick.  So the clients that owe most are the ones that
  wait, and a client that asks for one thing at a time notices nothing.  Strangers, clients that have not
  authenticated, are always read like that, and their pool takes nothing from that of the others.
- All clients together may hold no more than `maxmemory-clients`: see `eviction.py`.

Names that a client has the server remember (WATCH, SUBSCRIBE, CLIENT SETNAME ...) are `kept`, apart from what it is
owed: not reading its socket would not make them fewer, so they count for eviction alone, and not for pressure.
Replicas are in a pool of their own, and never evicted.

What a client can only end by sending more (the rest of a request, EXEC) is counted, but keeps its socket from being
read only while its pool is full; then these clients go on one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from riverbed.server.limits.holders import Holders

if TYPE_CHECKING:
    from collections.abc import Callable

_MB: Final = 1 << 20

# Of all clients, and of all strangers, together.
CLIENTS_BYTES: Final = 64 * _MB
STRANGERS_BYTES: Final = 8 * _MB
# A client with so many bytes of replies in one tick waits for the next with the rest of its requests.
MAX_OUTPUT_A_TICK: Final = 1 * _MB
# A stranger that leaves more unread is disconnected, as by Redis.
MAX_STRANGERS_OUTPUT: Final = 1024
# What one client may have waiting to be executed before its socket is not read.
MAX_WAITING_BYTES: Final = 64 << 10
_PRESSED_WAITING: Final = 4 << 10
_PRESSED_OUTPUT_A_TICK: Final = 64 << 10
# For so long a client may leave the rest of a large request unsent while others wait for room for theirs.
STUCK_S: Final = 10.0


class Socket(Protocol):
    """What an account may do to the client's connection."""

    address: str

    def set_reading(self, on: bool) -> None:
        """Read from the client, or stop reading."""

    def abort(self) -> None:
        """Close now, dropping what was not sent."""


class Pool:
    """Clients that are bounded together: under pressure from half of `most_bytes` on, until a quarter of it."""

    def __init__(
        self, holders: Holders[Account], most_bytes: int, most_growing: int, *, is_always_pressed: bool = False
    ) -> None:
        self.holders = holders
        self.bytes = 0
        self.most_bytes = most_bytes
        self.most_growing = most_growing  # what each client may have of an unfinished request in a full pool
        self.on_pressure: Callable[[bool], None] = lambda on: None
        self._is_always_pressed = is_always_pressed
        self._growing: Account | None = None  # the one that may go on although the pool is full
        self._waiting: dict[Account, None] = {}  # those that may not go on yet
        self._grown: tuple[Account | None, int] = (None, 0)  # how far it was at `_grown_s`
        self._grown_s = 0.0
        self._set_bounds(is_always_pressed)

    def _set_bounds(self, is_pressed: bool) -> None:
        self.is_pressed = is_pressed
        self.most_waiting = _PRESSED_WAITING if is_pressed else MAX_WAITING_BYTES
        self.most_output = _PRESSED_OUTPUT_A_TICK if is_pressed else MAX_OUTPUT_A_TICK

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
        """End the pressure, if what is kept allows it."""
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
        """The client has ended its request, or there is room for all: let the next one grow if it was its turn."""
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
            account.socket.abort()


class Account:
    """What the server keeps for one client: `owed` bytes, as they were counted last, and `kept` bytes of names."""

    __slots__ = (
        "_accounts",
        "bucket",
        "client_id",
        "growing",
        "is_read",
        "is_spared",
        "kept",
        "owed",
        "pool",
        "socket",
        "waiting",
    )

    def __init__(self, accounts: Accounts, client_id: int, socket: Socket, *, is_trusted: bool) -> None:
        self.client_id = client_id
        self.socket = socket
        self._accounts = accounts
        self.pool = accounts.clients if is_trusted else accounts.strangers
        self.owed = 0
        self.kept = 0
        self.waiting = 0
        self.growing = 0
        self.bucket = 0  # `Holders` keeps it
        self.is_spared = False  # not to be evicted
        self.is_read = True

    @property
    def bytes(self) -> int:
        """All that the server keeps for the client."""
        return self.owed + self.kept

    def settle(self, *, waiting: int, growing: int, other: int) -> None:
        """Count, then read from the client or stop reading.

        `waiting` are bytes not looked at yet, `growing` are bytes of a request or transaction that the client has not
        ended, `other` is all the rest.
        """
        self.waiting = waiting
        self.growing = growing
        owed = waiting + growing + other
        if owed != self.owed:
            self.add(owed - self.owed)
        elif not owed and self.is_read:
            return  # as it was: nothing is owed
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
        self.pool.holders.change(self, difference)

    def keep(self, difference: int) -> None:
        """The client has the server remember more names, or fewer."""
        self.kept += difference
        self.pool.holders.change(self, difference)

    def spare(self, on: bool) -> None:
        """Never evict the client, or do as with any other."""
        self.is_spared = on
        self.pool.holders.place(self)

    def look_again(self) -> None:
        """Read from the client, or do not, as the bounds are now."""
        bound = self.pool.most_waiting
        is_read = self.pool.may_grow(self) and self.waiting <= (bound if self.is_read else bound >> 1)
        if is_read is not self.is_read:
            self.is_read = is_read
            self.socket.set_reading(is_read)

    def trust(self, on: bool) -> None:
        """Count with the clients that have authenticated from now on, or with the strangers."""
        if self.pool is not self._accounts.replicas:
            self._move(self._accounts.clients if on else self._accounts.strangers)

    def follow(self) -> None:
        """Count with the replicas from now on."""
        self._move(self._accounts.replicas)

    def _move(self, pool: Pool) -> None:
        if pool is not self.pool:
            self.pool.forget(self)
            self.pool.change(-self.owed)
            self.pool.holders.leave(self)
            self.pool = pool
            pool.change(self.owed)
            pool.holders.enter(self)
            self.look_again()

    def close(self) -> None:
        """Empty the account of a client that has gone."""
        self.settle(waiting=0, growing=0, other=0)
        if self.kept:
            self.keep(-self.kept)


class Accounts:
    """The pools of one server."""

    def __init__(self) -> None:
        self.holders: Holders[Account] = Holders()
        self.clients: Pool = Pool(self.holders, CLIENTS_BYTES, MAX_WAITING_BYTES)
        self.strangers: Pool = Pool(self.holders, STRANGERS_BYTES, _PRESSED_WAITING, is_always_pressed=True)
        self.replicas = Pool(Holders(), CLIENTS_BYTES, MAX_WAITING_BYTES)
        # When clients have sent so many bytes since the start, there is pressure before any of it has been counted.
        self.alarm = self.clients.headroom

    @property
    def total(self) -> int:
        """Bytes kept for all clients but replicas."""
        return self.holders.bytes

    @property
    def replicas_total(self) -> int:
        """Bytes kept for all replicas."""
        return self.replicas.holders.bytes

    def check_growing(self, now_s: float) -> None:
        """To be called now and then: large requests in full pools make progress, or are given up."""
        self.clients.check_growing(now_s)
        self.strangers.check_growing(now_s)
        self.replicas.check_growing(now_s)
