"""Commands on whole keys: delete, look, list, rename, copy, move, flush.

Every key is a stream, so TYPE knows one type.  Nothing here looks inside a stream, and nothing costs more for a long
stream than for a short one; COPY alone does what the store's copy costs.  Deadlines are in expiry.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from server import errors
from server.args import Args, parse_int
from server.commands.table import ALL_KEYS, FIRST_KEY, Flag, KeySpec, command
from server.errors import CommandError
from server.glob import compile_glob
from server.replies import OK

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.replies import Reply
    from server.session import Request
    from store.keyspace import Database
    from store.streams import Stream

SAME_OBJECT: Final = "ERR source and destination objects are the same"
DB_OUT_OF_RANGE: Final = "ERR DB index is out of range"
DB_NOT_INT32: Final = "ERR value is out of range, value must between -2147483648 and 2147483647"
INVALID_FIRST_DB: Final = "ERR invalid first DB index"
INVALID_SECOND_DB: Final = "ERR invalid second DB index"
INVALID_CURSOR: Final = "ERR invalid cursor"
NO_LFU: Final = (
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
    "between policies at runtime LRU and LFU data will take some time to adjust."
)

TYPE_NAME: Final = "stream"
CURSOR_BITS: Final = 64
SCAN_COUNT: Final = 10
SCAN_SLICE: Final = 1000
INT32: Final = range(-(1 << 31), 1 << 31)

SOURCE_AND_TARGET: Final = KeySpec(1, 2, 1)
SECOND_WORD: Final = KeySpec(2, 2, 1)

# strtoul's idea of a number: a sign is fine, a leading zero too, and nothing at all is zero.
_CURSOR = re.compile(rb"([+-]?)([0-9]+)|")


def _lookup(request: Request, key: bytes) -> Stream | None:
    """The stream at `key`, counted as a hit or a miss: for commands that read."""
    stream = request.db.stream(key, request.now_ms)
    request.context.stats.count_lookup(stream is not None)
    return stream


def _database(request: Request, word: bytes) -> Database:
    """The database a word names.  Three checks, as in Redis: a number, a small one, and one that exists."""
    number = parse_int(word)
    if number not in INT32:
        raise CommandError(DB_NOT_INT32)
    databases = request.txn.databases
    if not 0 <= number < len(databases):
        raise CommandError(DB_OUT_OF_RANGE)
    return databases[number]


# -- delete and look ---------------------------------------------------------------------------------------------------


def _delete_all(request: Request) -> int:
    deleted = 0
    for key in request.argv[1:]:
        stream = request.db.stream(key, request.now_ms)
        if stream is not None:
            request.db.delete(stream)
            deleted += 1
    return deleted


@command(
    b"DEL",
    arity=-2,
    flags=Flag.WRITE,
    keys=ALL_KEYS,
    categories=("keyspace", "write", "slow"),
    group="generic",
    summary="Deletes keys, whatever they hold.",
    syntax="key [key ...]",
    tips=("request_policy:multi_shard", "response_policy:agg_sum"),
)
def delete(request: Request) -> int:
    """DEL key [key ...] -> how many existed.  A key given twice counts once."""
    return _delete_all(request)


@command(
    b"UNLINK",
    arity=-2,
    flags=Flag.WRITE | Flag.FAST,
    keys=ALL_KEYS,
    categories=("keyspace", "write", "fast"),
    group="generic",
    since="4.0.0",
    summary="Deletes keys and leaves their contents to be purged in the background.",
    syntax="key [key ...]",
    tips=("request_policy:multi_shard", "response_policy:agg_sum"),
)
def unlink(request: Request) -> int:
    """UNLINK key [key ...] -> how many existed.  The same as DEL: no deletion here waits for the contents."""
    return _delete_all(request)


@command(
    b"EXISTS",
    arity=-2,
    flags=Flag.READONLY | Flag.FAST,
    keys=ALL_KEYS,
    categories=("keyspace", "read", "fast"),
    group="generic",
    summary="Counts how many of the given keys exist.",
    syntax="key [key ...]",
    tips=("request_policy:multi_shard", "response_policy:agg_sum"),
)
def exists(request: Request) -> int:
    """EXISTS key [key ...] -> how many exist.  A key given twice counts twice."""
    return sum(_lookup(request, key) is not None for key in request.argv[1:])


@command(
    b"TOUCH",
    arity=-2,
    flags=Flag.READONLY | Flag.FAST,
    keys=ALL_KEYS,
    categories=("keyspace", "read", "fast"),
    group="generic",
    since="3.2.1",
    summary="Counts the given keys that exist; access times are not kept.",
    syntax="key [key ...]",
    tips=("request_policy:multi_shard", "response_policy:agg_sum"),
)
def touch(request: Request) -> int:
    """TOUCH key [key ...] -> how many exist.  Nothing is evicted here, so nobody asks when a key was last used."""
    return sum(_lookup(request, key) is not None for key in request.argv[1:])


@command(
    b"TYPE",
    arity=2,
    flags=Flag.READONLY | Flag.FAST,
    keys=FIRST_KEY,
    categories=("keyspace", "read", "fast"),
    group="generic",
    summary="Names the type of the value at a key.",
    syntax="key",
)
def type_(request: Request) -> str:
    """TYPE key -> stream, or none."""
    return "none" if _lookup(request, request.argv[1]) is None else TYPE_NAME


# -- list --------------------------------------------------------------------------------------------------------------


@command(
    b"KEYS",
    arity=2,
    flags=Flag.READONLY,
    categories=("keyspace", "read", "slow", "dangerous"),
    group="generic",
    summary="Lists all keys that match a pattern.",
    syntax="pattern",
    tips=("request_policy:all_shards", "nondeterministic_output_order"),
)
def keys(request: Request) -> list[bytes]:
    """KEYS pattern -> the keys, in no promised order."""
    listed = request.db.keys(request.now_ms)
    if request.argv[1] == b"*":
        return list(listed)
    return list(filter(compile_glob(request.argv[1]), listed))


def _parse_cursor(word: bytes) -> int:
    match = _CURSOR.fullmatch(word)
    if match is None:
        raise CommandError(INVALID_CURSOR)
    number = int(match[2] or 0)
    if number >> CURSOR_BITS:
        raise CommandError(INVALID_CURSOR)
    return -number % (1 << CURSOR_BITS) if match[1] == b"-" else number


@command(
    b"SCAN",
    arity=-2,
    flags=Flag.READONLY,
    categories=("keyspace", "read", "slow"),
    group="generic",
    since="2.8.0",
    summary="Lists the keys of the database a few at a time.",
    syntax="cursor [MATCH pattern] [COUNT count] [TYPE type]",
    tips=("nondeterministic_output", "request_policy:special"),
)
def scan(request: Request) -> list[Reply]:
    """SCAN cursor [MATCH pattern] [COUNT count] [TYPE type] -> next cursor, keys.

    A key that is there during the whole iteration is returned; COUNT bounds the keys looked at, so a page may be
    empty.  An unknown TYPE matches nothing, it is no error.
    """
    args = Args(request.argv)
    cursor = _parse_cursor(args.take())
    count = SCAN_COUNT
    matches: Callable[[bytes], object] | None = None
    wanted = True
    while args:
        option = args.take_option()
        if option == b"MATCH":
            pattern = args.take()
            matches = None if pattern == b"*" else compile_glob(pattern)
        elif option == b"COUNT":
            count = args.take_int()
            if count < 1:
                raise CommandError(errors.SYNTAX)
        elif option == b"TYPE":
            wanted = args.take().lower() == TYPE_NAME.encode()
        else:
            raise CommandError(errors.SYNTAX)
    found: list[bytes] = []
    # A large COUNT is taken in slices: what is not in the reply is not held either.
    while True:
        cursor, page = request.db.scan(cursor, min(count, SCAN_SLICE), request.now_ms)
        if wanted:
            found += page if matches is None else filter(matches, page)
        count -= SCAN_SLICE
        if cursor == 0 or count <= 0:
            return [b"%d" % cursor, found]


@command(
    b"RANDOMKEY",
    arity=1,
    flags=Flag.READONLY,
    categories=("keyspace", "read", "slow"),
    group="generic",
    summary="Picks a key at random.",
    tips=("request_policy:all_shards", "nondeterministic_output"),
)
def randomkey(request: Request) -> bytes | None:
    """RANDOMKEY -> a key, or null when there is none."""
    return request.db.random_key(request.now_ms)


@command(
    b"DBSIZE",
    arity=1,
    flags=Flag.READONLY | Flag.FAST,
    categories=("keyspace", "read", "fast"),
    group="server",
    summary="Counts the keys of the database.",
    tips=("request_policy:all_shards", "response_policy:agg_sum"),
)
def dbsize(request: Request) -> int:
    """DBSIZE -> number of keys; a key whose deadline has passed counts until it is noticed."""
    return request.db.size


# -- rename, copy, move ------------------------------------------------------------------------------------------------


@command(
    b"RENAME",
    arity=3,
    flags=Flag.WRITE,
    keys=SOURCE_AND_TARGET,
    categories=("keyspace", "write", "slow"),
    group="generic",
    summary="Renames a key and overwrites the destination.",
    syntax="key newkey",
)
def rename(request: Request) -> Reply:
    """RENAME key newkey -> OK.  Onto itself it does nothing, but the key has to exist."""
    stream, new_key = _existing(request, request.argv[1]), request.argv[2]
    if new_key != stream.key:
        request.db.rename(stream, new_key)
    return OK


@command(
    b"RENAMENX",
    arity=3,
    flags=Flag.WRITE | Flag.FAST,
    keys=SOURCE_AND_TARGET,
    categories=("keyspace", "write", "fast"),
    group="generic",
    summary="Renames a key unless the destination exists.",
    syntax="key newkey",
)
def renamenx(request: Request) -> int:
    """RENAMENX key newkey -> 1, or 0 when newkey exists."""
    stream, new_key = _existing(request, request.argv[1]), request.argv[2]
    if request.db.stream(new_key, request.now_ms) is not None:
        return 0
    request.db.rename(stream, new_key)
    return 1


def _existing(request: Request, key: bytes) -> Stream:
    stream = request.db.stream(key, request.now_ms)
    if stream is None:
        raise CommandError(errors.NO_SUCH_KEY)
    return stream


@command(
    b"COPY",
    arity=-3,
    flags=Flag.WRITE | Flag.DENYOOM,
    keys=SOURCE_AND_TARGET,
    categories=("keyspace", "write", "slow"),
    group="generic",
    since="6.2.0",
    summary="Copies the value of a key to a new key.",
    syntax="source destination [DB destination-db] [REPLACE]",
)
def copy(request: Request) -> int:
    """COPY source destination [DB destination-db] [REPLACE] -> 1, or 0 when there is no source or a destination."""
    args = Args(request.argv)
    key, new_key = args.take(), args.take()
    target = request.db
    replace = False
    while args:
        option = args.take_option()
        if option == b"REPLACE":
            replace = True
        elif option == b"DB" and args:
            target = _database(request, args.take())
        else:
            raise CommandError(errors.SYNTAX)
    if target is request.db and key == new_key:
        raise CommandError(SAME_OBJECT)
    stream = request.db.stream(key, request.now_ms)
    if stream is None:
        return 0
    if target.stream(new_key, request.now_ms) is not None and not replace:
        return 0
    request.db.copy(stream, target, new_key)
    return 1


@command(
    b"MOVE",
    arity=3,
    flags=Flag.WRITE | Flag.FAST,
    keys=FIRST_KEY,
    categories=("keyspace", "write", "fast"),
    group="generic",
    summary="Moves a key to another database.",
    syntax="key db",
)
def move(request: Request) -> int:
    """MOVE key db -> 1, or 0 when there is no such key here or one of its name there."""
    key = request.argv[1]
    target = _database(request, request.argv[2])
    if target is request.db:
        raise CommandError(SAME_OBJECT)
    stream = request.db.stream(key, request.now_ms)
    if stream is None or target.stream(key, request.now_ms) is not None:
        return 0
    request.db.move(stream, target)
    return 1


# -- whole databases ---------------------------------------------------------------------------------------------------


def _check_flush_mode(request: Request) -> None:
    """ASYNC and SYNC are both accepted and both O(1): the rows are purged in slices in the background."""
    words = request.argv[1:]
    if words and (len(words) > 1 or words[0].upper() not in (b"ASYNC", b"SYNC")):
        raise CommandError(errors.SYNTAX)


@command(
    b"FLUSHDB",
    arity=-1,
    flags=Flag.WRITE,
    categories=("keyspace", "write", "slow", "dangerous"),
    group="server",
    summary="Deletes all keys of the database.",
    syntax="[ASYNC | SYNC]",
    tips=("request_policy:all_shards", "response_policy:all_succeeded"),
)
def flushdb(request: Request) -> Reply:
    """FLUSHDB [ASYNC | SYNC] -> OK."""
    _check_flush_mode(request)
    request.db.flush()
    return OK


@command(
    b"FLUSHALL",
    arity=-1,
    flags=Flag.WRITE,
    categories=("keyspace", "write", "slow", "dangerous"),
    group="server",
    summary="Deletes all keys of all databases.",
    syntax="[ASYNC | SYNC]",
    tips=("request_policy:all_shards", "response_policy:all_succeeded"),
)
def flushall(request: Request) -> Reply:
    """FLUSHALL [ASYNC | SYNC] -> OK.  Logged as one FLUSHDB for each database that held something."""
    _check_flush_mode(request)
    for database in request.txn.databases:
        if database.size:
            database.flush()
    return OK


@command(
    b"SWAPDB",
    arity=3,
    flags=Flag.WRITE | Flag.FAST,
    categories=("keyspace", "write", "fast", "dangerous"),
    group="server",
    since="4.0.0",
    summary="Swaps the contents of two databases.",
    syntax="index1 index2",
)
def swapdb(request: Request) -> Reply:
    """SWAPDB index1 index2 -> OK.  Clients stay with their number and see the other contents at once."""
    numbers = []
    for word, error in zip(request.argv[1:], (INVALID_FIRST_DB, INVALID_SECOND_DB), strict=True):
        number = parse_int(word, error)
        if number not in INT32:
            raise CommandError(error)
        numbers.append(number)
    databases = request.txn.databases
    if not all(0 <= number < len(databases) for number in numbers):
        raise CommandError(DB_OUT_OF_RANGE)
    first, second = numbers
    if first != second:
        request.txn.swap(databases[first], databases[second])
    return OK


# -- OBJECT ------------------------------------------------------------------------------------------------------------


@command(
    b"OBJECT",
    arity=-2,
    flags=Flag.NONE,
    categories=("slow",),
    group="generic",
    since="2.2.3",
    summary="Container of the commands that look at how a value is kept.",
)
def object_(request: Request) -> Reply:
    """Reached only with a subcommand that there is not."""
    raise errors.unknown_subcommand(request.argv)


@command(
    b"OBJECT ENCODING",
    arity=3,
    flags=Flag.READONLY,
    keys=SECOND_WORD,
    categories=("keyspace", "read", "slow"),
    group="generic",
    since="2.2.3",
    summary="Names the internal encoding of a value.",
    syntax="key",
    tips=("nondeterministic_output",),
)
def object_encoding(request: Request) -> bytes | None:
    """OBJECT ENCODING key -> stream, or null."""
    return None if _lookup(request, request.argv[2]) is None else TYPE_NAME.encode()


@command(
    b"OBJECT FREQ",
    arity=3,
    flags=Flag.READONLY,
    keys=SECOND_WORD,
    categories=("keyspace", "read", "slow"),
    group="generic",
    since="4.0.0",
    summary="Tells how often a key is used, where that is tracked.",
    syntax="key",
    tips=("nondeterministic_output",),
)
def object_freq(request: Request) -> None:
    """OBJECT FREQ key -> null for a missing key; otherwise refused, since nothing is evicted by frequency here."""
    if _lookup(request, request.argv[2]) is not None:
        raise CommandError(NO_LFU)


@command(
    b"OBJECT HELP",
    arity=2,
    flags=Flag.LOADING | Flag.STALE,
    categories=("keyspace", "slow"),
    group="generic",
    since="6.2.0",
    summary="Explains the subcommands of OBJECT.",
)
def object_help(request: Request) -> list[str]:
    """OBJECT HELP -> lines."""
    return [
        "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "ENCODING <key>",
        "    Return the encoding of the value at <key>: every value is a stream.",
        "FREQ <key>",
        "    Refused: no eviction policy here tracks how often a key is used.",
        "IDLETIME <key>",
        "    Return 0 for a <key> that exists: access times are not kept.",
        "REFCOUNT <key>",
        "    Return how often the value at <key> is referred to: always once.",
        "HELP",
        "    Print this help.",
    ]


@command(
    b"OBJECT IDLETIME",
    arity=3,
    flags=Flag.READONLY,
    keys=SECOND_WORD,
    categories=("keyspace", "read", "slow"),
    group="generic",
    since="2.2.3",
    summary="Tells how long a key has not been used, where that is tracked.",
    syntax="key",
    tips=("nondeterministic_output",),
)
def object_idletime(request: Request) -> int | None:
    """OBJECT IDLETIME key -> 0, or null for a missing key.

    Access times are not kept: a write for every read would be paid for a figure that only eviction needs.  Of the
    two wrong answers, "just used" is the one after which nobody deletes a key.
    """
    return None if _lookup(request, request.argv[2]) is None else 0


@command(
    b"OBJECT REFCOUNT",
    arity=3,
    flags=Flag.READONLY,
    keys=SECOND_WORD,
    categories=("keyspace", "read", "slow"),
    group="generic",
    since="2.2.3",
    summary="Counts the references to the value at a key.",
    syntax="key",
    tips=("nondeterministic_output",),
)
def object_refcount(request: Request) -> int | None:
    """OBJECT REFCOUNT key -> 1, or null."""
    return None if _lookup(request, request.argv[2]) is None else 1
