"""CLIENT LIST and CLIENT INFO: the connected clients, a line for each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.clients.client import ADMIN_FLAGS, FLAGS
from riverbed.server.commands.clients.client_line import describe
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
_LINES_A_SLICE = 100  # 20 us each

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
    client_ids = [session.id for session in chosen]
    return in_slices(request, partial(_list_chosen, client_ids), is_short=len(client_ids) <= _LINES_A_SLICE)


def _list_chosen(client_ids: list[int], request: Request) -> Work:
    """The lines of these clients; of those that leave meanwhile there may be none."""
    sessions = request.context.sessions
    parts = []
    for number, client_id in enumerate(client_ids, 1):
        if client_id in sessions:
            parts.append(_describe(request, sessions[client_id]))
        if not number % _LINES_A_SLICE:
            yield
    return verbatim_in_pieces(request, parts)


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
        if not number % _LINES_A_SLICE:
            yield
    return verbatim_in_pieces(request, parts)


def _describe(request: Request, session: Session) -> bytes:
    """The line of a client, which may be the one that asks."""
    argv = request.argv if session is request.session else None
    name = b"|".join(request.argv[:2]).lower() if argv and not request.in_transaction else b""  # else it is EXEC
    return describe(session, request.now_ms, argv, name, in_transaction=request.in_transaction and argv is not None)
