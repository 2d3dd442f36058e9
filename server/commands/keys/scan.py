"""KEYS, SCAN, RANDOMKEY, DBSIZE: which keys a database holds.

The store defines cursors, and guarantees that no key is missed while others come and go; here a cursor is a number in a
request and a reply.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import Args
from riverbed.server.commands.keys.keys import TYPE_NAME
from riverbed.server.commands.slices import in_pieces, in_slices, joined
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.glob import Glob
from riverbed.server.numbers import parse_digits
from riverbed.store.databases.names import random_key, scan_keys
from riverbed.store.format.resp import array_head, bulk

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply

INVALID_CURSOR: Final = "ERR invalid cursor"
CURSOR_BITS: Final = 64
SCAN_COUNT: Final = 10
# Keys looked at in one slice: a millisecond.
SCAN_SLICE: Final = 256

# A number as strtoul reads it: a sign is fine, a leading zero too, and nothing at all is zero.
# The digits are not given back one by one, which would take long when there are millions and then something else.
_CURSOR = re.compile(rb"([+-]?)([0-9]++)|")


@command(
    "KEYS pattern",
    Flag.READONLY,
    summary="Lists all keys that match a pattern.",
    categories=("keyspace", "dangerous"),
    tips=("request_policy:all_shards", "nondeterministic_output_order"),
)
def keys(request: Request) -> Reply:
    """KEYS pattern -> the keys, in no promised order.

    Runs in slices: a key that exists all the time is found, one that comes or goes meanwhile may be.
    """
    return in_slices(request, _keys)


def _keys(request: Request) -> Work:
    glob = Glob(request.argv[1])
    parts: list[bytes] = []
    cursor = found = 0
    while True:
        cursor, page = scan_keys(request.db, cursor, SCAN_SLICE, request.now_ms)
        page = yield from glob.select(page)
        found += len(page)
        parts += joined(list(map(bulk, page)))
        if not cursor:
            return in_pieces(request, [array_head(found), *parts])
        yield


def parse_cursor(word: bytes) -> int:
    """A cursor as C reads one: with a sign, and any number of zeros.  Raises CommandError."""
    match = _CURSOR.fullmatch(word)
    if match is None:
        raise CommandError(INVALID_CURSOR)
    number = parse_digits(match[2] or b"0")
    if number >> CURSOR_BITS:
        raise CommandError(INVALID_CURSOR)
    return -number % (1 << CURSOR_BITS) if match[1] == b"-" else number


@command(
    "SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]",
    Flag.READONLY,
    since="2.8.0",
    summary="Lists the keys of the database a few at a time.",
    tips=("nondeterministic_output", "request_policy:special"),
)
def scan(request: Request) -> Reply:
    """SCAN cursor [MATCH pattern] [COUNT count] [TYPE type] -> next cursor, keys.

    A key that is there during the whole iteration is returned; COUNT bounds the keys looked at, so a page may be
    empty.  An unknown TYPE matches nothing, it is no error.
    """
    args = Args(request.argv)
    cursor = parse_cursor(args.take())
    count = SCAN_COUNT
    glob: Glob | None = None
    is_wanted: bool | None = None
    while args:
        option = args.take_option()
        if option == b"MATCH":
            pattern = args.take()
            glob = None if pattern == b"*" else Glob(pattern)
        elif option == b"COUNT":
            count = args.take_int()
            if count < 1:
                raise CommandError(errors.SYNTAX)
        elif option == b"TYPE":
            is_wanted = args.take().lower() == TYPE_NAME.encode()
        else:
            raise CommandError(errors.SYNTAX)
    return in_slices(request, partial(_scan, cursor, count, glob, is_wanted))


def _scan(cursor: int, count: int, glob: Glob | None, is_wanted: bool | None, request: Request) -> Work:
    parts: list[bytes] = []
    found = 0
    while True:
        cursor, page = scan_keys(request.db, cursor, min(count, SCAN_SLICE), request.now_ms)
        page = page if glob is None else (yield from glob.select(page))
        if is_wanted is not None:
            request.count_lookup(True, len(page))  # as Redis, which looks for the type of each
        if is_wanted is not False:
            found += len(page)
            parts += joined(list(map(bulk, page)))
        count -= SCAN_SLICE
        if cursor == 0 or count <= 0:
            return in_pieces(request, [array_head(2), bulk(b"%d" % cursor), array_head(found), *parts])
        yield


@command(
    "RANDOMKEY",
    Flag.READONLY,
    summary="Picks a key at random.",
    tips=("request_policy:all_shards", "nondeterministic_output"),
)
def randomkey(request: Request) -> bytes | None:
    """RANDOMKEY -> a key, or null when there is none."""
    return random_key(request.db, request.now_ms)


@command(
    "DBSIZE",
    Flag.READONLY | Flag.FAST,
    group="server",
    summary="Counts the keys of the database.",
    categories=("keyspace",),
    tips=("request_policy:all_shards", "response_policy:agg_sum"),
)
def dbsize(request: Request) -> int:
    """DBSIZE -> number of keys; a key whose deadline has passed counts until it is noticed."""
    return request.db.size
