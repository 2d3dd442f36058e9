"""CLIENT KILL, PAUSE, UNPAUSE and UNBLOCK: how one client closes, pauses and wakes others.

Chooses clients by their sessions, and asks `context.control` and `context.pauses` to act: sees no socket, and does not
know how a client is paused or blocked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import Args, parse_int, parse_timeout_ms
from riverbed.server.commands.clients.client import ADMIN_FLAGS
from riverbed.server.commands.clients.client_list import kind_of, parse_kind
from riverbed.server.commands.slices import in_slices
from riverbed.server.commands.table import command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply

# About a millisecond.
_WORDS_A_SLICE: Final = 500

NO_SUCH_CLIENT: Final = "ERR No such client"
CLIENT_ID_TOO_LOW: Final = "ERR client-id should be greater than 0"
MAXAGE_NOT_INTEGER: Final = "ERR maxage is not an integer or out of range"
MAXAGE_TOO_LOW: Final = "ERR maxage should be greater than 0"
BAD_PAUSE_MODE: Final = "ERR CLIENT PAUSE mode must be WRITE or ALL"
BAD_UNBLOCK_REASON: Final = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"


@command(
    "CLIENT KILL <ip:port | <[ID client-id] [TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [USER username] [ADDR ip:port] "
    "[LADDR ip:port] [SKIPME <YES | NO>] [MAXAGE maxage]>>",
    ADMIN_FLAGS,
    summary="Closes connections.",
    arity=-3,
)
def client_kill(request: Request) -> Reply:
    """CLIENT KILL ip:port -> OK, or an error if there is none; CLIENT KILL filter value ... -> how many were closed.

    All filters must fit.  The client that asks is spared unless SKIPME is NO, and is answered before it is closed.
    """
    if len(request.argv) == 3:
        address = request.argv[2]
        for session in list(request.context.sessions.values()):
            if os.fsencode(session.peer.address) == address:
                request.kill(session)
                return OK
        raise CommandError(NO_SUCH_CLIENT)
    return in_slices(request, _kill_all, is_short=len(request.argv) <= _WORDS_A_SLICE)


def _kill_all(request: Request) -> Work:
    args = Args(request.argv, 2)
    filters: dict[bytes, Callable[[Session], bool]] = {}
    skip_me = True
    slice_end = _WORDS_A_SLICE
    while args:
        name, value = args.take_option(), args.take()
        if name == b"SKIPME":
            if value.upper() not in (b"YES", b"NO"):
                raise CommandError(errors.SYNTAX)
            skip_me = value.upper() == b"YES"
        else:
            filters[name] = _filter(request, name, value)
        if args.position >= slice_end:
            yield
            slice_end = args.position + _WORDS_A_SLICE
    killed = 0
    for session in list(request.context.sessions.values()):
        if skip_me and session is request.session:
            continue
        if all(fits(session) for fits in filters.values()):
            request.kill(session)
            killed += 1
    return killed


def _filter(request: Request, name: bytes, value: bytes) -> Callable[[Session], bool]:
    """The test of a session that a filter of CLIENT KILL stands for."""
    match name:
        case b"ID":
            client_id = parse_int(value, CLIENT_ID_TOO_LOW)
            if client_id < 1:
                raise CommandError(CLIENT_ID_TOO_LOW)
            return lambda session: session.id == client_id
        case b"TYPE":
            kind = parse_kind(value)
            return lambda session: kind_of(session) == kind
        case b"USER":
            user = request.context.users.get(value)
            if user is None:
                raise CommandError(b"ERR No such user '%b'" % value)
            return lambda session: session.user is user
        case b"ADDR":
            return lambda session: os.fsencode(session.peer.address) == value
        case b"LADDR":
            return lambda session: os.fsencode(session.peer.local_address) == value
        case b"MAXAGE":
            seconds = parse_int(value, MAXAGE_NOT_INTEGER)
            if seconds < 1:
                raise CommandError(MAXAGE_TOO_LOW)
            return lambda session: (request.now_ms - session.created_ms) // 1000 >= seconds
    raise CommandError(errors.SYNTAX)


@command(
    "CLIENT PAUSE timeout [WRITE | ALL]",
    ADMIN_FLAGS,
    since="3.0.0",
    summary="Holds the commands of all clients back for a while.",
)
def client_pause(request: Request) -> Reply:
    """CLIENT PAUSE timeout [WRITE | ALL] -> OK.  `timeout` is in milliseconds; ALL is the default."""
    words = request.argv[2:]
    if len(words) > 2:
        raise errors.subcommand_syntax(request.argv)
    mode = words[1].upper() if len(words) == 2 else b"ALL"
    if mode not in (b"WRITE", b"ALL"):
        raise CommandError(BAD_PAUSE_MODE)
    timeout_ms = parse_timeout_ms(words[0], request.now_ms)
    request.context.pauses.pause(request.now_ms + timeout_ms, writes_only=mode == b"WRITE")
    return OK


@command("CLIENT UNPAUSE", ADMIN_FLAGS, since="6.2.0", summary="Ends a pause.")
def client_unpause(request: Request) -> Reply:
    """CLIENT UNPAUSE -> OK."""
    request.context.pauses.unpause()
    return OK


@command(
    "CLIENT UNBLOCK client-id [TIMEOUT | ERROR]",
    ADMIN_FLAGS,
    since="5.0.0",
    summary="Ends the wait of a blocked client.",
)
def client_unblock(request: Request) -> int:
    """CLIENT UNBLOCK client-id [TIMEOUT | ERROR] -> 1 if it was waiting, else 0.

    The other client sees its wait time out, or an error.
    """
    words = request.argv[2:]
    if len(words) > 2:
        raise errors.subcommand_syntax(request.argv)
    reason = words[1].upper() if len(words) == 2 else b"TIMEOUT"
    if reason not in (b"TIMEOUT", b"ERROR"):
        raise CommandError(BAD_UNBLOCK_REASON)
    session = request.context.sessions.get(parse_int(words[0]))
    if session is None:
        return 0
    return int(request.context.control.unblock(session, error=reason == b"ERROR"))
