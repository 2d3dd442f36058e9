"""MULTI, EXEC, DISCARD, WATCH, UNWATCH.

The executor queues: while `session.transaction.queued` is a list, it appends every command that is not IMMEDIATE.
These handlers begin and end that state, and ask the executor to run what was queued.
MULTI is not called for a transaction that the executor need not queue, and EXEC is given its commands as `request.run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server.commands.redaction import all_but_the_name
from riverbed.server.commands.slices import in_slices
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK, SETTLED_OK

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply

NESTED_MULTI: Final = "ERR MULTI calls can not be nested"
WATCH_IN_MULTI: Final = "ERR WATCH inside MULTI is not allowed"
EXEC_WITHOUT_MULTI: Final = "ERR EXEC without MULTI"
DISCARD_WITHOUT_MULTI: Final = "ERR DISCARD without MULTI"

# One to two milliseconds: 2 us each.
_KEYS_A_SLICE = 500

_FLAGS: Final = Flag.NOSCRIPT | Flag.LOADING | Flag.STALE


@command("MULTI", _FLAGS | Flag.FAST | Flag.IMMEDIATE, since="1.2.0", summary="Begins a transaction.")
def multi(request: Request) -> Reply:
    """MULTI -> OK.  The commands that follow are queued until EXEC."""
    session = request.session
    if session.transaction.queued is not None:
        raise CommandError(NESTED_MULTI)
    session.transaction.begin()
    session.refresh()
    return OK


@command(
    "EXEC",
    _FLAGS | Flag.SKIP_SLOWLOG | Flag.IMMEDIATE | Flag.SHOWS_TABLES,
    since="1.2.0",
    summary="Runs the transaction.",
    redact=all_but_the_name,  # there is none behind it, unless a line is mistyped
)
def exec_(request: Request) -> Reply:
    """EXEC -> the replies of the queued commands; null when a watched key has changed."""
    if request.session.transaction.queued is None and request.run is None:
        raise CommandError(EXEC_WITHOUT_MULTI)
    return request.context.transactions.execute(request)


@command("DISCARD", _FLAGS | Flag.FAST | Flag.IMMEDIATE, since="2.0.0", summary="Gives the transaction up.")
def discard(request: Request) -> Reply:
    """DISCARD -> OK.  Forgets the queued commands and the watched keys."""
    session = request.session
    if session.transaction.queued is None:
        raise CommandError(DISCARD_WITHOUT_MULTI)
    request.context.transactions.unwatch(session)
    session.end_transaction()
    return OK


@command(
    "WATCH key [key ...]",
    _FLAGS | Flag.FAST | Flag.IMMEDIATE,
    since="2.2.0",
    summary="Has the next transaction run only if these keys do not change before.",
)
def watch(request: Request) -> Reply:
    """WATCH key [key ...] -> OK."""
    if request.session.transaction.queued is not None:
        raise CommandError(WATCH_IN_MULTI)
    return in_slices(request, _watch, is_short=len(request.argv) <= _KEYS_A_SLICE)


def _watch(request: Request) -> Work:
    """Watch the keys.  One that changes between slices breaks the transaction if it is watched by then."""
    session, watch_one = request.session, request.context.transactions.watch
    for at in range(1, len(request.argv), _KEYS_A_SLICE):
        if at > 1:
            yield
        for key in request.argv[at : at + _KEYS_A_SLICE]:
            # A key whose deadline has passed is deleted now, or hidden: its deletion does not break the transaction.
            stream = request.db.stream(key, request.now_ms)
            if stream is None:
                watch_one(session, key, 0, is_hidden=request.db.hides(key))
            else:
                watch_one(session, key, stream.expire_ms, is_hidden=False)
    return OK


@command("UNWATCH", _FLAGS | Flag.FAST, since="2.2.0", summary="Forgets all watched keys.")
def unwatch(request: Request) -> Reply:
    """UNWATCH -> OK."""
    request.context.transactions.unwatch(request.session)
    return SETTLED_OK
