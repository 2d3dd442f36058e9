"""DEBUG, for tests of servers and clients only: a digest of all data, another load of it, any error or type of reply.

It is one command whose second word chooses, not a container.  Redis has it so, and errors and COMMAND show it.
Knows of a row in the store only that its key ends with the ID.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.table import Flag, command, help_text
from riverbed.server.errors import NOT_IN_MULTI, CommandError
from riverbed.server.protocol.replies import OK, Verbatim
from riverbed.store.databases.names import all_keys
from riverbed.store.format.streams import id_in_key, packed_id_in
from riverbed.store.ids import StreamID

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.databases.database import Database

DIGEST_SLICE: Final = 512

# What C's strtod makes of a word: the number it begins with, or nothing, which is 0.
_NUMBER = re.compile(rb"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


@command(
    "DEBUG <DIGEST | ERROR message | HELP | LOADAOF | PROTOCOL type | RELOAD | SLEEP seconds>",
    Flag.GUARDED | Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.SHOWS_TABLES,
    summary="Container of commands for testing servers and clients.",
)
def debug(request: Request) -> Reply:
    """DEBUG subcommand [argument] -> see DEBUG HELP."""
    found = _DEBUG.get(request.argv[1].upper())
    if found is None or len(request.argv) != found[0]:
        raise errors.subcommand_syntax(request.argv)
    return found[1](request)


def _debug_digest(request: Request) -> str:
    """A hash of all keys, entries and counters: equal for equal states, whatever led to them.

    Groups, idempotence records and where rows happen to be stored do not count.
    """
    digest = 0
    for database in request.txn.databases:
        for key in all_keys(database, request.now_ms):
            digest ^= int.from_bytes(_stream_digest(database, key, request.now_ms))
    return f"{digest:040x}"


def _stream_digest(database: Database, key: bytes, now_ms: int) -> bytes:
    stream = database.stream(key, now_ms)
    assert stream is not None, "listed a moment ago"
    state = (stream.length, stream.last_id, stream.max_deleted_id, stream.entries_added, stream.expire_ms)
    digest = hashlib.sha1(repr((database.number, key, state)).encode(), usedforsecurity=False)
    start = stream.first_id
    while rows := stream.rows(start, stream.last_id, DIGEST_SLICE):
        for row_key, fields in rows:
            # Only the ID of the row's key: where the stream is stored does not count.
            digest.update(packed_id_in(row_key) + fields)
        start = StreamID(id_in_key(rows[-1][0]) + 1)
    return digest.digest()


def _debug_error(request: Request) -> Reply:
    raise CommandError(request.argv[2])


def _debug_help(request: Request) -> Reply:
    return help_text(
        "DEBUG",
        "DIGEST",
        "    Return a hash of all keys and entries. Reads everything, and the server waits for it.",
        "ERROR <message>",
        "    Return <message> as an error.",
        "LOADAOF",
        "    Make the state again of the whole log. The server waits for it.",
        "PROTOCOL <type>",
        "    Return a value of <type>: " + ", ".join(_PROTOCOL) + ".",
        "RELOAD",
        "    Save the state and read it again.",
        "SLEEP <seconds>",
        "    Stop the server for <seconds>. Decimals allowed.",
    )


# One example of each type of reply, for tests of clients.
_PROTOCOL: Final[dict[str, Reply]] = {
    "string": b"Hello World",
    "integer": 12345,
    "double": 3.141,
    "null": None,
    "array": [0, 1, 2],
    "set": frozenset((0, 1, 2)),
    "map": {0: False, 1: True, 2: False},
    "verbatim": Verbatim(b"This is a verbatim\nstring"),
    "true": True,
    "false": False,
}


def _debug_protocol(request: Request) -> Reply:
    kind = request.argv[2].lower().decode("latin-1")
    if kind not in _PROTOCOL:
        raise CommandError("ERR Wrong protocol type name. Please use one of the following: " + "|".join(_PROTOCOL))
    return _PROTOCOL[kind]


def _debug_loadaof(request: Request) -> Reply:
    return _reload(request, from_log=True)


def _debug_reload(request: Request) -> Reply:
    return _reload(request, from_log=False)


def _reload(request: Request, *, from_log: bool) -> Reply:
    if request.in_transaction:
        raise CommandError(NOT_IN_MULTI)
    request.context.checkpoints.reload(from_log=from_log)
    return OK


def _debug_sleep(request: Request) -> Reply:
    number = _NUMBER.match(request.argv[2])
    request.context.control.sleep(max(float(number[0]), 0.0) if number else 0.0)
    return OK


_DEBUG: Final[dict[bytes, tuple[int, Callable[[Request], Reply]]]] = {
    b"DIGEST": (2, _debug_digest),
    b"ERROR": (3, _debug_error),
    b"HELP": (2, _debug_help),
    b"LOADAOF": (2, _debug_loadaof),
    b"PROTOCOL": (3, _debug_protocol),
    b"RELOAD": (2, _debug_reload),
    b"SLEEP": (3, _debug_sleep),
}
