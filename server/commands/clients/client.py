"""CLIENT: what a client may ask and change about itself.

Changes only the session of the client that asks: client_list.py shows the other clients, client_control.py closes,
pauses and wakes them.  Both declare their subcommands in the container of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.clients.connection import BAD_CLIENT_NAME, MAX_NAME_BYTES, NAME_TOO_LONG, is_printable
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import NO_REPLY, OK

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply

NO_TRACKING: Final = "ERR Client side caching is not supported: this server does not track keys"
CACHING_NEEDS_TRACKING: Final = (
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled"
)

# What the rows of all subcommands have in common.
FLAGS: Final = Flag.NOSCRIPT | Flag.LOADING | Flag.STALE
ADMIN_FLAGS: Final = FLAGS | Flag.ADMIN


container("CLIENT", group="connection", since="2.4.0", summary="Container of commands about client connections.")


declare_help(
    "CLIENT",
    "CACHING (YES|NO)",
    "    Refused: keys are not tracked.",
    "GETREDIR",
    "    Return -1: keys are not tracked.",
    "GETNAME",
    "    Return the name of the current connection.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current client connection.",
    "KILL <ip:port>",
    "    Kill connection made from <ip:port>.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Kill connections. Options are:",
    "    * ADDR (<ip:port>|<unixsocket>:0)",
    "      Kill connections made from the specified address",
    "    * LADDR (<ip:port>|<unixsocket>:0)",
    "      Kill connections made to specified local address",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Kill connections by type.",
    "    * USER <username>",
    "      Kill connections authenticated by <username>.",
    "    * SKIPME (YES|NO)",
    "      Skip killing current connection (default: yes).",
    "    * ID <client-id>",
    "      Kill connections by client id.",
    "    * MAXAGE <maxage>",
    "      Kill connections older than the specified age.",
    "LIST [options ...]",
    "    Return information about client connections. Options:",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Return clients of specified type.",
    "    * ID <client-id> [<client-id> ...]",
    "      Return the clients with these IDs.",
    "UNPAUSE",
    "    Stop the current client pause, resuming traffic.",
    "PAUSE <timeout> [WRITE|ALL]",
    "    Suspend all, or just write, clients for <timeout> milliseconds.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the replies sent to the current connection.",
    "SETINFO <option> <value>",
    "    Set client meta attr. Options are:",
    "    * LIB-NAME: the client lib name.",
    "    * LIB-VER: the client lib version.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "UNBLOCK <clientid> [TIMEOUT|ERROR]",
    "    Unblock the specified blocked client.",
    "TRACKING (ON|OFF)",
    "    Refused, but for OFF: keys are not tracked.",
    "TRACKINGINFO",
    "    Report tracking status for the current connection.",
    "NO-EVICT (ON|OFF)",
    "    Protect current client connection from eviction.",
    "NO-TOUCH (ON|OFF)",
    "    Will not touch LRU/LFU stats when this mode is on.",
    since="5.0.0",
)


# -- oneself -----------------------------------------------------------------------------------------------------------


@command("CLIENT ID", FLAGS, since="5.0.0", summary="Returns the ID of the connection.")
def client_id(request: Request) -> int:
    """CLIENT ID -> a number that no other connection of this run of the server had."""
    return request.session.id


@command("CLIENT GETNAME", FLAGS, since="2.6.9", summary="Returns the name of the connection.")
def client_getname(request: Request) -> bytes | None:
    """CLIENT GETNAME -> the name, null without one."""
    return request.session.names.client or None


@command("CLIENT SETNAME connection-name", FLAGS, since="2.6.9", summary="Names the connection.")
def client_setname(request: Request) -> Reply:
    """CLIENT SETNAME connection-name -> OK.  An empty name is none."""
    name = request.argv[2]
    if not is_printable(name):
        raise CommandError(BAD_CLIENT_NAME)
    if len(name) > MAX_NAME_BYTES:
        raise CommandError(NAME_TOO_LONG)
    request.session.names.set_client(name)
    return OK


@command(
    "CLIENT SETINFO <LIB-NAME libname | LIB-VER libver>",
    FLAGS,
    since="7.2.0",
    summary="Sets the name or the version of the client's library.",
)
def client_setinfo(request: Request) -> Reply:
    """CLIENT SETINFO LIB-NAME name | LIB-VER version -> OK."""
    option, text = request.argv[2:]
    attribute = option.upper()
    if attribute not in (b"LIB-NAME", b"LIB-VER"):
        raise CommandError(b"ERR Unrecognized option '%b'" % option)
    if not is_printable(text):
        raise CommandError(b"ERR %b cannot contain spaces, newlines or special characters." % option)
    if len(text) > MAX_NAME_BYTES:
        raise CommandError(b"ERR %b cannot be longer than %d bytes" % (option, MAX_NAME_BYTES))
    if attribute == b"LIB-NAME":
        request.session.names.set_library(text)
    else:
        request.session.names.set_library_version(text)
    return OK


@command("CLIENT REPLY <ON | OFF | SKIP>", FLAGS, since="3.2.0", summary="Says whether the client wants replies.")
def client_reply(request: Request) -> Reply:
    """CLIENT REPLY ON -> OK; OFF and SKIP are not answered.  SKIP is for the next command alone.

    Inside a transaction OFF and SKIP are answered, as EXEC's reply has an element for each command; for the same reason
    SKIP does nothing there.
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
    session.refresh()
    return OK if mode == b"ON" or request.in_transaction else NO_REPLY


@command("CLIENT NO-EVICT <ON | OFF>", ADMIN_FLAGS, since="7.0.0", summary="Marks the client as one not to evict.")
def client_no_evict(request: Request) -> Reply:
    """CLIENT NO-EVICT ON | OFF -> OK.  Its memory still counts for maxmemory-clients; other clients are evicted."""
    request.session.spare(_on_or_off(request.argv[2]))
    return OK


@command(
    "CLIENT NO-TOUCH <ON | OFF>",
    FLAGS,
    since="7.2.0",
    summary="Has the client's commands leave no trace in the times of access.",
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


# -- caching on the client's side: there is none -----------------------------------------------------------------------


@command(
    "CLIENT TRACKING <ON | OFF>",
    FLAGS,
    since="6.0.0",
    summary="Refuses to track keys for a cache on the client's side.",
    arity=-3,
)
def client_tracking(request: Request) -> Reply:
    """CLIENT TRACKING OFF -> OK; ON is refused, so that a library falls back to not caching."""
    if _on_or_off(request.argv[2]):
        raise CommandError(NO_TRACKING)
    return OK


@command("CLIENT TRACKINGINFO", FLAGS, since="6.2.0", summary="Returns that no keys are tracked.")
def client_trackinginfo(request: Request) -> Reply:
    """CLIENT TRACKINGINFO -> flags, redirect, prefixes."""
    flags = [b"off"]
    return {b"flags": flags if request.session.resp == 2 else set(flags), b"redirect": -1, b"prefixes": []}


@command("CLIENT CACHING <YES | NO>", FLAGS, since="6.0.0", summary="Needs tracking, which there is none.")
def client_caching(request: Request) -> Reply:
    """CLIENT CACHING YES | NO -> an error."""
    raise CommandError(CACHING_NEEDS_TRACKING)


@command("CLIENT GETREDIR", FLAGS, since="6.0.0", summary="Returns that no invalidations are redirected.")
def client_getredir(request: Request) -> int:
    """CLIENT GETREDIR -> -1."""
    return -1
