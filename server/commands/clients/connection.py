"""Commands about the connection itself: authentication, protocol, database, name, closing.

They change only the session; marking it as closing closes the socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.access.interface import Reason
from riverbed.server.commands.access.logins import note
from riverbed.server.commands.access.selector import Denial
from riverbed.server.commands.access.users import DEFAULT_USER
from riverbed.server.commands.arguments import Args
from riverbed.server.commands.keys.databases import named_database
from riverbed.server.commands.redaction import all_but_the_name, hidden
from riverbed.server.commands.slices import in_slices
from riverbed.server.commands.table import COMMANDS, Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.encode import bulk
from riverbed.server.protocol.replies import OK, SETTLED_OK, Block, Settled, settled_constant
from riverbed.server.version import REDIS_VERSION

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply

# Words of HELLO in a slice; about a millisecond.
_WORDS_A_SLICE = 500

# The answer to a wrong password takes so long, times the number of wrong ones in a row.
_DELAY_MS: Final = 100
_MAX_DELAY_MS: Final = 2000
# Of each word of a refused one, while the refusal waits.
_SHOWN_BYTES: Final = 128

WRONGPASS: Final = "WRONGPASS invalid username-password pair or user is disabled."
NO_PASSWORD_SET: Final = (
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
    "configuration is correct?"
)
NOPROTO: Final = "NOPROTO unsupported protocol version"
PROTOCOL_NOT_INTEGER: Final = "ERR Protocol version is not an integer or out of range"
HELLO_NEEDS_AUTH: Final = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option "
    "can be used to authenticate the client and select the RESP protocol version at the same time"
)
BAD_CLIENT_NAME: Final = "ERR Client names cannot contain spaces, newlines or special characters."
# Redis limits a name only as a word.  CLIENT LIST shows the names of all clients, so the limit here is far lower.
MAX_NAME_BYTES: Final = 64 << 10
NAME_TOO_LONG: Final = f"ERR Client names cannot be longer than {MAX_NAME_BYTES} bytes"

_PRINTABLE: Final = bytes(range(33, 127))
_PONG: Final = settled_constant(b"+PONG\r\n")

# May be sent before AUTH, and to a server that has no data yet.
_GREETING: Final = Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.FAST | Flag.NO_AUTH


# -- greeting ----------------------------------------------------------------------------------------------------------


@command("AUTH [username] password", _GREETING, summary="Authenticates the connection.", redact=all_but_the_name)
def auth(request: Request) -> Reply:
    """AUTH [username] password -> OK.

    Without a name it is `default`, whose password is the setting requirepass.  A client that fails keeps its state.
    """
    words = request.argv[1:]
    if len(words) > 2:
        raise CommandError(errors.SYNTAX)
    users = request.context.users
    if len(words) == 1 and users.default.needs_no_password:
        raise CommandError(NO_PASSWORD_SET)
    name = words[0] if len(words) == 2 else DEFAULT_USER
    _refuse_haste(request)
    user = users.log_in(name, words[-1])
    if user is None:
        return _refuse_password(request, name)
    request.session.be(user)
    request.session.authenticate(True)
    request.session.failed_auths = 0
    return OK


def _hello_without_password(words: list[bytes]) -> list[bytes]:
    """The words of a HELLO without user and password; all words from the first unexpected one on are hidden."""
    shown = words[:1]
    if words[1:2] and words[1].isdigit():
        shown.append(words[1])
        while len(words) - len(shown) >= 2:
            at = len(shown)
            option = words[at].upper()
            if option == b"SETNAME":
                shown += words[at : at + 2]
            elif option == b"AUTH":
                shown += [words[at], *hidden(words[at + 1 : at + 3])]
            else:
                break
    return shown + hidden(words[len(shown) :])


@command(
    "HELLO [protover [AUTH username password] [SETNAME clientname]]",
    _GREETING,
    since="6.0.0",
    summary="Chooses the protocol, and may authenticate and name the connection.",
    redact=_hello_without_password,
)
def hello(request: Request) -> Reply:
    """HELLO [protover [AUTH username password] [SETNAME clientname]] -> a map about the server.

    All or nothing: the options are checked before any of them takes effect.
    """
    return in_slices(request, _greet, is_short=len(request.argv) <= _WORDS_A_SLICE)


def _greet(request: Request) -> Work:
    session = request.session
    args = Args(request.argv)
    resp = session.resp
    user = session.user if session.authenticated else None
    login: tuple[bytes, bytes] | None = None
    name: bytes | None = None
    slice_end = _WORDS_A_SLICE
    if args:
        resp = args.take_int(PROTOCOL_NOT_INTEGER)
        if resp not in (2, 3):
            raise CommandError(NOPROTO)
    while args:
        option = args.take()
        if option.upper() == b"AUTH" and len(args) >= 2:
            login = args.take(), args.take()
            _refuse_haste(request)
            user = request.context.users.log_in(*login)
            if user is None:
                return _refuse_password(request, login[0])
        elif option.upper() == b"SETNAME" and args:
            name = args.take()
            if len(name) > MAX_NAME_BYTES:
                raise CommandError(NAME_TOO_LONG)
            if not is_printable(name):
                raise CommandError(BAD_CLIENT_NAME)
        else:
            raise CommandError(b"ERR Syntax error in HELLO option '%b'" % option)
        if args.position >= slice_end:
            yield
            slice_end = args.position + _WORDS_A_SLICE
    if login is not None and slice_end > _WORDS_A_SLICE:  # the user may have changed between slices
        user = request.context.users.log_in(*login)
        if user is None:
            return _refuse_password(request, login[0])
    if user is None:
        raise CommandError(HELLO_NEEDS_AUTH)
    session.resp = resp
    session.be(user)
    session.authenticate(True)
    if login is not None:
        session.failed_auths = 0
    if name is not None:
        session.names.set_client(name)
    return {
        b"server": b"redis",
        b"version": REDIS_VERSION.encode(),
        b"proto": resp,
        b"id": session.id,
        b"mode": b"standalone",
        b"role": b"replica" if request.context.replication.is_replica else b"master",
        b"modules": [],
    }


def is_printable(text: bytes) -> bool:
    """Whether `text` may name a client: no blank, nothing that would break a line of CLIENT LIST."""
    return not text.translate(None, _PRINTABLE)  # in C: a name may be long


def _refuse_password(request: Request, user: bytes) -> Reply:
    """Refuse a wrong password, later with each one, so that a connection cannot guess thousands a second."""
    session, context = request.session, request.context
    session.failed_auths += 1
    denial = Denial(Reason.AUTH, request.argv[0])
    command = COMMANDS[request.argv[0].upper()]
    note(context, session, denial, user, command, request.argv)
    context.wrong_passwords.note(session.peer.address, context.clock.monotonic())
    refusal = CommandError(WRONGPASS)
    deadline_ms = request.now_ms + min(session.failed_auths * _DELAY_MS, _MAX_DELAY_MS)
    if not request.may_block:
        session.guesses_from_ms = deadline_ms
        raise refusal
    # A stranger may have sent long words, and no more than the slow log shows is needed.
    shown = [word[:_SHOWN_BYTES] for word in command.shown(request.argv)]
    return Block((), deadline_ms, shown, is_for_work=True, is_delay=True, on_timeout=lambda: refusal)


def _refuse_haste(request: Request) -> None:
    """Refuse a password in a transaction unseen, within the delay behind a wrong one: its reply cannot wait."""
    if not request.may_block and request.now_ms < request.session.guesses_from_ms:
        raise CommandError(WRONGPASS)


# -- leaving and starting over -----------------------------------------------------------------------------------------


@command("QUIT", _GREETING | Flag.IMMEDIATE | Flag.SUBSCRIBER, summary="Closes the connection.", arity=-1)
def quit_(request: Request) -> Reply:
    """QUIT -> OK, then the connection closes.  Requests behind it are not run."""
    request.session.begin_closing()
    return OK


@command("RESET", _GREETING | Flag.IMMEDIATE | Flag.SUBSCRIBER, since="6.2.0", summary="Makes the connection as new.")
def reset(request: Request) -> Reply:
    """RESET -> RESET.

    Ends MULTI, WATCH, MONITOR and all subscriptions, selects database 0 and RESP2, forgets the name and the
    authentication.  The names of the client library stay: it is still the same library.
    """
    return in_slices(request, _reset, is_short=not request.session.subscriptions)


def _reset(request: Request) -> Work:
    session = request.session
    request.context.control.forget(session)
    yield from request.context.pubsub.forget_in_steps(session)
    session.db = request.db = request.txn.databases[0]
    session.resp = 2
    session.names.set_client(b"")
    session.replies_off = False  # a reply that is to be skipped is the one to RESET
    session.spare(False)
    session.no_touch = False
    default = request.context.users.default
    session.be(default)
    session.authenticate(default.lets_everybody_in)
    return "RESET"


# -- PING, ECHO, SELECT ------------------------------------------------------------------------------------------------


@command(
    "PING [message]",
    Flag.FAST | Flag.SUBSCRIBER,
    summary="Answers.",
    tips=("request_policy:all_shards", "response_policy:all_succeeded"),
)
def ping(request: Request) -> Reply:
    """PING [message] -> PONG, or the message.

    A subscriber in RESP2 gets `pong` and the message instead, in an array that it cannot take for a published one.
    """
    words = request.argv
    if len(words) > 2:
        raise errors.wrong_arity(b"ping")
    if not request.session.is_plain and request.session.is_confined:
        return [b"pong", words[1] if len(words) == 2 else b""]
    return _PONG if len(words) == 1 else (Settled(bulk(words[1])),)


@command("ECHO message", Flag.LOADING | Flag.STALE | Flag.FAST, summary="Answers with its argument.")
def echo(request: Request) -> Reply:
    """ECHO message -> the message."""
    return (Settled(bulk(request.argv[1])),)


@command("SELECT index", Flag.LOADING | Flag.STALE | Flag.FAST, summary="Changes the database of the connection.")
def select(request: Request) -> Reply:
    """SELECT index -> OK."""
    # both: the request object serves the client's next command as well
    request.session.db = request.db = named_database(request, request.argv[1])
    return SETTLED_OK
