"""Deadlines of keys: set them, ask for them, take them away.

A deadline is a unix time in milliseconds.  Relative times are resolved here, so that the log carries PEXPIREAT alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server.commands.arguments import INT64_MAX, INT64_MIN, parse_int
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request

NX_WITH_OTHERS: Final = "ERR NX and XX, GT or LT options at the same time are not compatible"
GT_WITH_LT: Final = "ERR GT and LT options at the same time are not compatible"
CONDITIONS: Final = frozenset((b"NX", b"XX", b"GT", b"LT"))

NO_KEY: Final = -2
NO_DEADLINE: Final = -1


# -- set ---------------------------------------------------------------------------------------------------------------


def _parse_conditions(words: list[bytes]) -> set[bytes]:
    """The option words after the time.  An unknown one is shown as typed; conflicts are reported after all are read."""
    conditions = set()
    for word in words:
        condition = word.upper()
        if condition not in CONDITIONS:
            raise CommandError(b"ERR Unsupported option %b" % word)
        conditions.add(condition)
    if b"NX" in conditions and len(conditions) > 1:
        raise CommandError(NX_WITH_OTHERS)
    if {b"GT", b"LT"} <= conditions:
        raise CommandError(GT_WITH_LT)
    return conditions


def _met(conditions: set[bytes], current_ms: int, deadline_ms: int) -> bool:
    """Whether the new deadline may replace the current one; 0 is none, which GT and LT treat as infinite."""
    if b"NX" in conditions and current_ms:
        return False
    if b"XX" in conditions and not current_ms:
        return False
    if b"GT" in conditions and (not current_ms or deadline_ms <= current_ms):
        return False
    return not (b"LT" in conditions and current_ms and deadline_ms >= current_ms)


def _set_deadline(request: Request, unit_ms: int, base_ms: int) -> int:
    argv = request.argv
    conditions = _parse_conditions(argv[3:])
    deadline_ms = parse_int(argv[2]) * unit_ms
    # Redis refuses to overflow in either step, and a sum can only do so upwards: the clock is positive.
    if not INT64_MIN <= deadline_ms <= INT64_MAX - base_ms:
        raise CommandError(b"ERR invalid expire time in '%b' command" % argv[0].lower())
    deadline_ms += base_ms
    stream = request.db.stream(argv[1], request.now_ms)
    if stream is None or not _met(conditions, stream.expire_ms, deadline_ms):
        return 0
    if deadline_ms <= request.now_ms and not request.from_log:
        # Already over: delete the key now, and log that.  A replayed deadline is kept as it was written, and the key
        # expires by it as it did the first time.
        request.db.delete(stream)
    else:
        request.db.set_expiry(stream, max(deadline_ms, 1))  # 0 is none, and rows have no sign
    request.txn.changes += 1
    return 1


@command(
    "EXPIRE key seconds [NX | XX | GT | LT]",
    Flag.WRITE | Flag.FAST,
    summary="Sets the deadline of a key, in seconds from now.",
)
def expire(request: Request) -> int:
    """EXPIRE key seconds [NX | XX | GT | LT] -> 1 when the deadline was set, or was over and the key deleted."""
    return _set_deadline(request, 1000, request.now_ms)


@command(
    "PEXPIRE key milliseconds [NX | XX | GT | LT]",
    Flag.WRITE | Flag.FAST,
    since="2.6.0",
    summary="Sets the deadline of a key, in milliseconds from now.",
)
def pexpire(request: Request) -> int:
    """PEXPIRE key milliseconds [NX | XX | GT | LT] -> as EXPIRE."""
    return _set_deadline(request, 1, request.now_ms)


@command(
    "EXPIREAT key unix-time-seconds [NX | XX | GT | LT]",
    Flag.WRITE | Flag.FAST,
    since="1.2.0",
    summary="Sets the deadline of a key as a unix time in seconds.",
)
def expireat(request: Request) -> int:
    """EXPIREAT key unix-time-seconds [NX | XX | GT | LT] -> as EXPIRE."""
    return _set_deadline(request, 1000, 0)


@command(
    "PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]",
    Flag.WRITE | Flag.FAST,
    since="2.6.0",
    summary="Sets the deadline of a key as a unix time in milliseconds.",
)
def pexpireat(request: Request) -> int:
    """PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT] -> as EXPIRE."""
    return _set_deadline(request, 1, 0)


@command("PERSIST key", Flag.WRITE | Flag.FAST, since="2.2.0", summary="Takes the deadline of a key away.")
def persist(request: Request) -> int:
    """PERSIST key -> 1, or 0 when there is no key or no deadline."""
    stream = request.db.stream(request.argv[1], request.now_ms)
    if stream is None or not stream.expire_ms:
        return 0
    request.db.set_expiry(stream, None)
    request.txn.changes += 1
    return 1


# -- ask ---------------------------------------------------------------------------------------------------------------


def _deadline(request: Request) -> int:
    """The deadline of the key in unix milliseconds, or NO_KEY, or NO_DEADLINE."""
    stream = request.lookup(request.argv[1])
    if stream is None:
        return NO_KEY
    return stream.expire_ms or NO_DEADLINE


def _left(request: Request, deadline_ms: int) -> int:
    # On a replica the log decides when keys expire, so a client may ask for a key after its time.
    return max(deadline_ms - request.now_ms, 0)


def _in_seconds(ms: int) -> int:
    return (ms + 500) // 1000


@command(
    "TTL key",
    Flag.READONLY | Flag.FAST,
    summary="Returns how many seconds a key has left.",
    tips=("nondeterministic_output",),
)
def ttl(request: Request) -> int:
    """TTL key -> seconds, rounded; -1 without a deadline, -2 without a key."""
    deadline_ms = _deadline(request)
    return deadline_ms if deadline_ms < 0 else _in_seconds(_left(request, deadline_ms))


@command(
    "PTTL key",
    Flag.READONLY | Flag.FAST,
    since="2.6.0",
    summary="Returns how many milliseconds a key has left.",
    tips=("nondeterministic_output",),
)
def pttl(request: Request) -> int:
    """PTTL key -> milliseconds; -1 without a deadline, -2 without a key."""
    deadline_ms = _deadline(request)
    return deadline_ms if deadline_ms < 0 else _left(request, deadline_ms)


@command(
    "EXPIRETIME key",
    Flag.READONLY | Flag.FAST,
    since="7.0.0",
    summary="Returns the deadline of a key as a unix time in seconds.",
)
def expiretime(request: Request) -> int:
    """EXPIRETIME key -> unix seconds, rounded; -1 without a deadline, -2 without a key."""
    deadline_ms = _deadline(request)
    return deadline_ms if deadline_ms < 0 else _in_seconds(deadline_ms)


@command(
    "PEXPIRETIME key",
    Flag.READONLY | Flag.FAST,
    since="7.0.0",
    summary="Returns the deadline of a key as a unix time in milliseconds.",
)
def pexpiretime(request: Request) -> int:
    """PEXPIRETIME key -> unix milliseconds; -1 without a deadline, -2 without a key."""
    return _deadline(request)
