"""CLIENT: what a client may ask and change about itself and about the others.

Sees sessions and never a socket: to end, pause or wake somebody it asks `context.control`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from server import errors
from server.args import INT64_MAX, Args, parse_int
from server.commands.connection import BAD_CLIENT_NAME, DEFAULT_USER, is_printable
from server.commands.table import Flag, command
from server.errors import CommandError
from server.replies import NO_REPLY, OK, Verbatim

if TYPE_CHECKING:
    from server.replies import Reply
    from server.session import Request, Session

NO_SUCH_CLIENT: Final = "ERR No such client"
CLIENT_ID_TOO_LOW: Final = "ERR client-id should be greater than 0"
INVALID_CLIENT_ID: Final = "ERR Invalid client ID"
MAXAGE_NOT_INTEGER: Final = "ERR maxage is not an integer or out of range"
MAXAGE_TOO_LOW: Final = "ERR maxage should be greater than 0"
BAD_PAUSE_MODE: Final = "ERR CLIENT PAUSE mode must be WRITE or ALL"
BAD_UNBLOCK_REASON: Final = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"
NO_TRACKING: Final = "ERR Client side caching is not supported: this server does not track keys"
CACHING_NEEDS_TRACKING: Final = (
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled"
)

_FLAGS: Final = Flag.NOSCRIPT | Flag.LOADING | Flag.STALE
_ADMIN_FLAGS: Final = _FLAGS | Flag.ADMIN
_CATEGORIES: Final = ("slow", "connection")
_ADMIN_CATEGORIES: Final = ("admin", "slow", "dangerous", "connection")

# Masters and subscribers are kinds of clients that there are none of.
_KINDS: Final = {
    b"NORMAL": "normal",
    b"REPLICA": "replica",
    b"SLAVE": "replica",
    b"MASTER": "master",
    b"PUBSUB": "pubsub",
}


@command(
    b"CLIENT",
    arity=-2,
    flags=Flag.NONE,
    categories=("slow",),
    group="connection",
    since="2.4.0",
    summary="Container of commands about client connections.",
)
def client(request: Request) -> Reply:
    """Reached only with a subcommand that there is not."""
    raise errors.unknown_subcommand(request.argv)


# -- oneself -----------------------------------------------------------------------------------------------------------


@command(
    b"CLIENT ID",
    arity=2,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="5.0.0",
    summary="Tells the ID of the connection.",
)
def client_id(request: Request) -> int:
    """CLIENT ID -> a number that no other connection of this run of the server had."""
    return request.session.id


@command(
    b"CLIENT GETNAME",
    arity=2,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="2.6.9",
    summary="Tells the name of the connection.",
)
def client_getname(request: Request) -> bytes | None:
    """CLIENT GETNAME -> the name, null without one."""
    return request.session.name or None


@command(
    b"CLIENT SETNAME",
    arity=3,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="2.6.9",
    summary="Names the connection.",
    syntax="connection-name",
)
def client_setname(request: Request) -> Reply:
    """CLIENT SETNAME connection-name -> OK.  An empty name is none."""
    name = request.argv[2]
    if not is_printable(name):
        raise CommandError(BAD_CLIENT_NAME)
    request.session.name = name
    return OK


@command(
    b"CLIENT SETINFO",
    arity=4,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="7.2.0",
    summary="Tells the server which library the client uses.",
    syntax="<LIB-NAME libname | LIB-VER libver>",
)
def client_setinfo(request: Request) -> Reply:
    """CLIENT SETINFO LIB-NAME name | LIB-VER version -> OK."""
    option, text = request.argv[2:]
    attribute = option.upper()
    if attribute not in (b"LIB-NAME", b"LIB-VER"):
        raise CommandError(b"ERR Unrecognized option '%b'" % option)
    if not is_printable(text):
        raise CommandError(b"ERR %b cannot contain spaces, newlines or special characters." % option)
    if attribute == b"LIB-NAME":
        request.session.library_name = text
    else:
        request.session.library_version = text
    return OK


@command(
    b"CLIENT REPLY",
    arity=3,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="3.2.0",
    summary="Says whether the client wants replies.",
    syntax="<ON | OFF | SKIP>",
)
def client_reply(request: Request) -> Reply:
    """CLIENT REPLY ON -> OK; OFF and SKIP are not answered.  SKIP is for the next command alone.

    Inside a transaction they are, as EXEC's reply has an element for each command; for the same reason SKIP does
    nothing there.
    """
    session = request.session
    mode = request.argv[2].upper()
    if mode == b"ON":
        session.replies_off = False
        session.skip_replies = 0
    elif mode == b"OFF":
        session.replies_off = True
    elif mode == b"SKIP":
        if not session.replies_off and not request.in_transaction:
            session.skip_replies = 1
    else:
        raise CommandError(errors.SYNTAX)
    session.refresh_special()
    return OK if mode == b"ON" or request.in_transaction else NO_REPLY


@command(
    b"CLIENT NO-EVICT",
    arity=3,
    flags=_ADMIN_FLAGS,
    categories=_ADMIN_CATEGORIES,
    group="connection",
    since="7.0.0",
    summary="Marks the client as one not to evict.",
    syntax="<ON | OFF>",
)
def client_no_evict(request: Request) -> Reply:
    """CLIENT NO-EVICT ON | OFF -> OK.  Shown by CLIENT LIST; no client is evicted here anyway."""
    request.session.no_evict = _on_or_off(request.argv[2])
    return OK


@command(
    b"CLIENT NO-TOUCH",
    arity=3,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="7.2.0",
    summary="Has the client's commands leave no trace in the times of access.",
    syntax="<ON | OFF>",
)
def client_no_touch(request: Request) -> Reply:
    """CLIENT NO-TOUCH ON | OFF -> OK.  Shown by CLIENT LIST; times of access are not kept here anyway."""
    request.session.no_touch = _on_or_off(request.argv[2])
    return OK


def _on_or_off(word: bytes) -> bool:
    mode = word.upper()
    if mode not in (b"ON", b"OFF"):
        raise CommandError(errors.SYNTAX)
    return mode == b"ON"


# -- who is there ------------------------------------------------------------------------------------------------------


@command(
    b"CLIENT INFO",
    arity=2,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="6.2.0",
    summary="Describes the connection.",
    tips=("nondeterministic_output",),
)
def client_info(request: Request) -> Verbatim:
    """CLIENT INFO -> one line as of CLIENT LIST, about oneself."""
    return Verbatim(_describe(request, request.session))


@command(
    b"CLIENT LIST",
    arity=-2,
    flags=_ADMIN_FLAGS,
    categories=_ADMIN_CATEGORIES,
    group="connection",
    since="2.4.0",
    summary="Describes the connections.",
    syntax="[TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]]",
    tips=("nondeterministic_output", "request_policy:all_nodes"),
)
def client_list(request: Request) -> Verbatim:
    """CLIENT LIST [TYPE type] | [ID client-id ...] -> a line for each client, oldest first or in the order asked."""
    sessions = request.context.sessions
    words = request.argv[2:]
    option = words[0].upper() if words else b""
    if not words:
        chosen = list(sessions.values())
    elif option == b"TYPE" and len(words) == 2:
        kind = _kind(words[1])
        chosen = [session for session in sessions.values() if _kind_of(session) == kind]
    elif option == b"ID" and len(words) > 1:
        client_ids = [parse_int(word, INVALID_CLIENT_ID) for word in words[1:]]
        chosen = [sessions[client_id] for client_id in client_ids if client_id in sessions]
    else:
        raise CommandError(errors.SYNTAX)
    return Verbatim(b"".join([_describe(request, session) for session in chosen]))


def _kind(word: bytes) -> str:
    kind = _KINDS.get(word.upper())
    if kind is None:
        raise CommandError(b"ERR Unknown client type '%b'" % word)
    return kind


def _kind_of(session: Session) -> str:
    return "replica" if session.is_replica else "normal"


def _describe(request: Request, session: Session) -> bytes:
    """One line of CLIENT LIST.

    Fields are Redis's, in its order, because tools read them by name and by place; what has no meaning here (buffers
    of fixed size, subscriptions, threads) is 0.
    """
    peer = session.peer
    queued = session.queued
    query_bytes = peer.query_bytes()
    queued_bytes = sum(len(word) for words in queued or () for word in words)
    words_bytes = sum(map(len, request.argv)) if session is request.session else 0
    output_bytes = peer.output_bytes()
    last_command = session.last_command.lower() or b"NULL"
    in_transaction = request.in_transaction and session is request.session
    if session is request.session:
        last_command = b"|".join(request.argv[:2]).lower()
    fields = (
        (b"id", b"%d" % session.id),
        (b"addr", peer.address.encode()),
        (b"laddr", peer.local_address.encode()),
        (b"fd", b"%d" % peer.fd),
        (b"name", session.name),
        (b"age", _seconds_since(request, session.created_ms)),
        (b"idle", _seconds_since(request, session.last_interaction_ms)),
        (b"flags", _flags(session, in_transaction)),
        (b"db", b"%d" % session.db.number),
        (b"sub", b"0"),
        (b"psub", b"0"),
        (b"ssub", b"0"),
        (b"multi", b"%d" % (-1 if queued is None else len(queued))),
        (b"watch", b"%d" % len(session.watched)),
        (b"qbuf", b"%d" % query_bytes),
        (b"qbuf-free", b"0"),
        (b"argv-mem", b"%d" % words_bytes),
        (b"multi-mem", b"%d" % queued_bytes),
        (b"rbs", b"0"),
        (b"rbp", b"0"),
        (b"obl", b"0"),
        (b"oll", b"0"),
        (b"omem", b"%d" % output_bytes),
        (b"tot-mem", b"%d" % (query_bytes + queued_bytes + words_bytes + output_bytes)),
        (b"events", b"rw" if output_bytes else b"r"),
        (b"cmd", last_command),
        (b"user", DEFAULT_USER),
        (b"redir", b"-1"),
        (b"resp", b"%d" % session.resp),
        (b"lib-name", session.library_name),
        (b"lib-ver", session.library_version),
        (b"io-thread", b"0"),
        (b"tot-net-in", b"%d" % session.bytes_in),
        (b"tot-net-out", b"%d" % session.bytes_out),
        (b"tot-cmds", b"%d" % session.commands_processed),
    )
    return b" ".join([b"%b=%b" % field for field in fields]) + b"\n"


def _seconds_since(request: Request, ms: int) -> bytes:
    return b"%d" % (max(request.now_ms - ms, 0) // 1000)


def _flags(session: Session, in_transaction: bool) -> bytes:
    """One letter for each thing to know about a client, N for nothing."""
    letters = (
        (session.is_replica, b"S"),
        (session.is_monitor, b"O"),
        (in_transaction or session.queued is not None, b"x"),
        (session.parked is not None, b"b"),
        (session.watch_broken, b"d"),
        (session.closing, b"c"),
        (session.peer.address.startswith("/"), b"U"),
        (session.no_evict, b"e"),
        (session.no_touch, b"T"),
    )
    return b"".join([letter for holds, letter in letters if holds]) or b"N"


# -- ending, holding and waking others ---------------------------------------------------------------------------------


@command(
    b"CLIENT KILL",
    arity=-3,
    flags=_ADMIN_FLAGS,
    categories=_ADMIN_CATEGORIES,
    group="connection",
    since="2.4.0",
    summary="Closes connections.",
    syntax="<ip:port | <[ID client-id] [TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [USER username] [ADDR ip:port] "
    "[LADDR ip:port] [SKIPME <YES | NO>] [MAXAGE maxage]>>",
)
def client_kill(request: Request) -> Reply:
    """CLIENT KILL ip:port -> OK, or an error if there is none; CLIENT KILL filter value ... -> how many were closed.

    All filters must fit.  The client that asks is spared unless SKIPME is NO, and is answered before it is closed.
    """
    sessions = list(request.context.sessions.values())
    if len(request.argv) == 3:
        address = request.argv[2]
        for session in sessions:
            if session.peer.address.encode() == address:
                _kill(request, session)
                return OK
        raise CommandError(NO_SUCH_CLIENT)
    args = Args(request.argv, 2)
    filters: dict[bytes, Callable[[Session], bool]] = {}
    skip_me = True
    while args:
        name, value = args.take_option(), args.take()
        if name == b"SKIPME":
            if value.upper() not in (b"YES", b"NO"):
                raise CommandError(errors.SYNTAX)
            skip_me = value.upper() == b"YES"
        else:
            filters[name] = _filter(request, name, value)
    killed = 0
    for session in sessions:
        if skip_me and session is request.session:
            continue
        if all(fits(session) for fits in filters.values()):
            _kill(request, session)
            killed += 1
    return killed


def _filter(request: Request, name: bytes, value: bytes) -> Callable[[Session], bool]:
    """What a filter of CLIENT KILL asks of a session."""
    match name:
        case b"ID":
            client_id = parse_int(value, CLIENT_ID_TOO_LOW)
            if client_id < 1:
                raise CommandError(CLIENT_ID_TOO_LOW)
            return lambda session: session.id == client_id
        case b"TYPE":
            kind = _kind(value)
            return lambda session: _kind_of(session) == kind
        case b"USER":
            if value != DEFAULT_USER:
                raise CommandError(b"ERR No such user '%b'" % value)
            return lambda session: True
        case b"ADDR":
            return lambda session: session.peer.address.encode() == value
        case b"LADDR":
            return lambda session: session.peer.local_address.encode() == value
        case b"MAXAGE":
            seconds = parse_int(value, MAXAGE_NOT_INTEGER)
            if seconds < 1:
                raise CommandError(MAXAGE_TOO_LOW)
            return lambda session: (request.now_ms - session.created_ms) // 1000 >= seconds
    raise CommandError(errors.SYNTAX)


def _kill(request: Request, session: Session) -> None:
    if session is request.session:
        # the executor closes it behind the reply
        session.closing = True
        session.refresh_special()
    else:
        request.context.control.kill(session)


@command(
    b"CLIENT PAUSE",
    arity=-3,
    flags=_ADMIN_FLAGS,
    categories=_ADMIN_CATEGORIES,
    group="connection",
    since="3.0.0",
    summary="Holds the commands of all clients back for a while.",
    syntax="timeout [WRITE | ALL]",
)
def client_pause(request: Request) -> Reply:
    """CLIENT PAUSE timeout [WRITE | ALL] -> OK.  `timeout` is in milliseconds; ALL is the default."""
    words = request.argv[2:]
    if len(words) > 2:
        raise errors.subcommand_syntax(request.argv)
    mode = words[1].upper() if len(words) == 2 else b"ALL"
    if mode not in (b"WRITE", b"ALL"):
        raise CommandError(BAD_PAUSE_MODE)
    timeout_ms = parse_int(words[0], errors.TIMEOUT_NOT_INTEGER)
    if timeout_ms < 0:
        raise CommandError(errors.TIMEOUT_NEGATIVE)
    if timeout_ms > INT64_MAX - request.now_ms:
        raise CommandError(errors.TIMEOUT_OUT_OF_RANGE)
    request.context.control.pause(request.now_ms + timeout_ms, writes_only=mode == b"WRITE")
    return OK


@command(
    b"CLIENT UNPAUSE",
    arity=2,
    flags=_ADMIN_FLAGS,
    categories=_ADMIN_CATEGORIES,
    group="connection",
    since="6.2.0",
    summary="Ends a pause.",
)
def client_unpause(request: Request) -> Reply:
    """CLIENT UNPAUSE -> OK."""
    request.context.control.unpause()
    return OK


@command(
    b"CLIENT UNBLOCK",
    arity=-3,
    flags=_ADMIN_FLAGS,
    categories=_ADMIN_CATEGORIES,
    group="connection",
    since="5.0.0",
    summary="Ends the wait of a blocked client.",
    syntax="client-id [TIMEOUT | ERROR]",
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


# -- caching on the client's side: there is none -----------------------------------------------------------------------


@command(
    b"CLIENT TRACKING",
    arity=-3,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="6.0.0",
    summary="Refuses to track keys for a cache on the client's side.",
    syntax="<ON | OFF>",
)
def client_tracking(request: Request) -> Reply:
    """CLIENT TRACKING OFF -> OK; ON is refused, so that a library falls back to not caching."""
    if _on_or_off(request.argv[2]):
        raise CommandError(NO_TRACKING)
    return OK


@command(
    b"CLIENT TRACKINGINFO",
    arity=2,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="6.2.0",
    summary="Tells that no keys are tracked.",
)
def client_trackinginfo(request: Request) -> Reply:
    """CLIENT TRACKINGINFO -> flags, redirect, prefixes."""
    flags = [b"off"]
    return {b"flags": flags if request.session.resp == 2 else set(flags), b"redirect": -1, b"prefixes": []}


@command(
    b"CLIENT CACHING",
    arity=3,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="6.0.0",
    summary="Needs tracking, which there is none.",
    syntax="<YES | NO>",
)
def client_caching(request: Request) -> Reply:
    """CLIENT CACHING YES | NO -> an error."""
    raise CommandError(CACHING_NEEDS_TRACKING)


@command(
    b"CLIENT GETREDIR",
    arity=2,
    flags=_FLAGS,
    categories=_CATEGORIES,
    group="connection",
    since="6.0.0",
    summary="Tells that nothing is redirected.",
)
def client_getredir(request: Request) -> int:
    """CLIENT GETREDIR -> -1."""
    return -1


@command(
    b"CLIENT HELP",
    arity=2,
    flags=Flag.LOADING | Flag.STALE,
    categories=_CATEGORIES,
    group="connection",
    since="5.0.0",
    summary="Explains the subcommands of CLIENT.",
)
def client_help(request: Request) -> list[str]:
    """CLIENT HELP -> lines."""
    return [
        "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CACHING (YES|NO)",
        "    Refused: keys are not tracked for clients.",
        "GETNAME",
        "    Return the name of this connection.",
        "GETREDIR",
        "    Return -1: keys are not tracked for clients.",
        "ID",
        "    Return the ID of this connection.",
        "INFO",
        "    Describe this connection.",
        "KILL <ip:port>",
        "    Close the connection from <ip:port>.",
        "KILL <option> <value> [<option> <value> [...]]",
        "    Close the connections that all options fit:",
        "    * ADDR <ip:port>, LADDR <ip:port>: by their remote or local address.",
        "    * ID <client-id>, TYPE (NORMAL|MASTER|REPLICA|PUBSUB), USER <username>.",
        "    * MAXAGE <seconds>: those at least that old.",
        "    * SKIPME (YES|NO): whether to spare this connection (default: YES).",
        "LIST [TYPE (NORMAL|MASTER|REPLICA|PUBSUB) | ID <client-id> [<client-id> ...]]",
        "    Describe connections, one a line.",
        "NO-EVICT (ON|OFF)",
        "    Mark this connection as one not to evict; none is evicted.",
        "NO-TOUCH (ON|OFF)",
        "    Mark this connection as one that leaves times of access alone; none are kept.",
        "PAUSE <timeout> [WRITE|ALL]",
        "    Hold all commands, or those that write, back for <timeout> milliseconds.",
        "REPLY (ON|OFF|SKIP)",
        "    Say whether this connection wants replies; SKIP is for the next command.",
        "SETINFO <LIB-NAME|LIB-VER> <value>",
        "    Tell which client library this connection is used by.",
        "SETNAME <name>",
        "    Name this connection.",
        "TRACKING (ON|OFF)",
        "    ON is refused: keys are not tracked for clients.",
        "TRACKINGINFO",
        "    Tell that keys are not tracked.",
        "UNBLOCK <client-id> [TIMEOUT|ERROR]",
        "    End the wait of a blocked client.",
        "UNPAUSE",
        "    End a pause.",
        "HELP",
        "    Print this help.",
    ]
