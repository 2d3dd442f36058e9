"""CLIENT LIST and CLIENT INFO: the connected clients, a line for each.

Reads sessions and the buffers and addresses of their peers, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.clients.client import ADMIN_FLAGS, FLAGS
from riverbed.server.commands.clients.connection import DEFAULT_USER
from riverbed.server.commands.slices import in_slices, verbatim_in_pieces
from riverbed.server.commands.table import command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import Verbatim

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply

_IDS_A_SLICE: Final = 500

INVALID_CLIENT_ID: Final = "ERR Invalid client ID"

_KINDS: Final = {
    b"NORMAL": "normal",
    b"REPLICA": "replica",
    b"SLAVE": "replica",
    b"MASTER": "master",
    b"PUBSUB": "pubsub",
}


def parse_kind(word: bytes) -> str:
    """The kind that a word behind TYPE names, as `kind_of` returns it."""
    kind = _KINDS.get(word.upper())
    if kind is None:
        raise CommandError(b"ERR Unknown client type '%b'" % word)
    return kind


def kind_of(session: Session) -> str:
    """`replica`, `pubsub` or `normal`."""
    if session.is_replica:
        return "replica"
    return "pubsub" if session.subscriptions else "normal"


@command("CLIENT INFO", FLAGS, since="6.2.0", summary="Describes the connection.", tips=("nondeterministic_output",))
def client_info(request: Request) -> Verbatim:
    """CLIENT INFO -> one line as of CLIENT LIST, about the client that asks."""
    return Verbatim(_describe(request, request.session))


@command(
    "CLIENT LIST [TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]]",
    ADMIN_FLAGS,
    since="2.4.0",
    summary="Describes the connections.",
    tips=("nondeterministic_output", "request_policy:all_nodes"),
)
def client_list(request: Request) -> Reply:
    """CLIENT LIST [TYPE type] | [ID client-id ...] -> a line for each client, oldest first or in the order asked."""
    sessions = request.context.sessions
    words = request.argv[2:]
    option = words[0].upper() if words else b""
    if not words:
        chosen = list(sessions.values())
    elif option == b"TYPE" and len(words) == 2:
        kind = parse_kind(words[1])
        chosen = [session for session in sessions.values() if kind_of(session) == kind]
    elif option == b"ID" and len(words) > 1:
        return in_slices(request, _list_named, is_short=len(words) <= _IDS_A_SLICE)
    else:
        raise CommandError(errors.SYNTAX)
    return Verbatim(b"".join([_describe(request, session) for session in chosen]))


def _list_named(request: Request) -> Work:
    """Lines by ID.  A client may be named any number of times, so its line, far longer than its ID, is made once."""
    client_ids: list[int] = []
    for number, word in enumerate(request.argv[3:], 1):
        client_ids.append(parse_int(word, INVALID_CLIENT_ID))
        if not number % _IDS_A_SLICE:
            yield
    sessions = request.context.sessions
    lines: dict[int, bytes] = {}
    parts = []
    for number, client_id in enumerate(client_ids, 1):
        if client_id not in lines and client_id in sessions:
            lines[client_id] = _describe(request, sessions[client_id])
        parts.append(lines.get(client_id, b""))
        if not number % _IDS_A_SLICE:
            yield
    return verbatim_in_pieces(request, parts)


def _describe(request: Request, session: Session) -> bytes:
    """One line of CLIENT LIST.

    Fields are Redis's, in its order, because tools read them by name and by position; what has no meaning here (buffers
    of fixed size, threads) is 0.
    """
    peer = session.peer
    queued = session.transaction.queued
    query_bytes = session.input.unread_bytes + session.input.pending_bytes
    queued_bytes = session.transaction.queued_bytes
    words_bytes = session.taken_bytes + (sum(map(len, request.argv)) if session is request.session else 0)
    output_bytes = session.output_bytes
    last_command = session.last_command.lower() or b"NULL"
    in_transaction = request.in_transaction and session is request.session
    if session is request.session:
        last_command = b"|".join(request.argv[:2]).lower()
    fields = (
        (b"id", b"%d" % session.id),
        (b"addr", peer.address.encode()),
        (b"laddr", peer.local_address.encode()),
        (b"fd", b"%d" % peer.fd),
        (b"name", session.names.client),
        (b"age", _seconds_since(request, session.created_ms)),
        (b"idle", _seconds_since(request, session.last_interaction_ms)),
        (b"flags", _flags(session, in_transaction)),
        (b"db", b"%d" % session.db.number),
        (b"sub", b"%d" % len(session.subscriptions.channels)),
        (b"psub", b"%d" % len(session.subscriptions.patterns)),
        (b"ssub", b"%d" % len(session.subscriptions.shard_channels)),
        (b"multi", b"%d" % (-1 if queued is None else len(queued))),
        (b"watch", b"%d" % session.transaction.watched_keys),
        (b"qbuf", b"%d" % query_bytes),
        (b"qbuf-free", b"0"),
        (b"argv-mem", b"%d" % words_bytes),
        (b"multi-mem", b"%d" % queued_bytes),
        (b"rbs", b"0"),
        (b"rbp", b"0"),
        (b"obl", b"0"),
        (b"oll", b"0"),
        (b"omem", b"%d" % output_bytes),
        (b"tot-mem", b"%d" % (query_bytes + queued_bytes + words_bytes + output_bytes + session.account.kept)),
        (b"events", b"rw" if output_bytes else b"r"),
        (b"cmd", last_command),
        (b"user", DEFAULT_USER),
        (b"redir", b"-1"),
        (b"resp", b"%d" % session.resp),
        (b"lib-name", session.names.library),
        (b"lib-ver", session.names.library_version),
        (b"io-thread", b"0"),
        (b"tot-net-in", b"%d" % session.bytes_in),
        (b"tot-net-out", b"%d" % session.bytes_out),
        (b"tot-cmds", b"%d" % session.commands_processed),
    )
    return b" ".join([b"%b=%b" % field for field in fields]) + b"\n"


def _seconds_since(request: Request, ms: int) -> bytes:
    return b"%d" % (max(request.now_ms - ms, 0) // 1000)


def _flags(session: Session, in_transaction: bool) -> bytes:
    """One letter for each state of a client, N for none."""
    letters = (
        (session.is_replica, b"S"),
        (session.is_monitor, b"O"),
        (session.subscriptions, b"P"),
        (in_transaction or session.transaction.queued is not None, b"x"),
        (session.blocked is not None, b"b"),
        (session.transaction.watch_broken, b"d"),
        (session.closing, b"c"),
        (session.peer.address.startswith("/"), b"U"),
        (session.no_evict, b"e"),
        (session.no_touch, b"T"),
    )
    return b"".join([letter for holds, letter in letters if holds]) or b"N"
