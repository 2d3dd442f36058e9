"""Commands on whole keys: delete, look, rename, copy, move, flush.

Every key is a stream, so TYPE knows one type.  Nothing here looks inside a stream, and nothing but COPY takes longer
for a long stream than for a short one.  Deadlines are in expiry.py, the commands that list keys in scan.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.access.logins import require_writing
from riverbed.server.commands.arguments import Args, parse_int
from riverbed.server.commands.keys.databases import DB_OUT_OF_RANGE, INT32, named_database
from riverbed.server.commands.slices import in_slices
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK
from riverbed.store.databases.copying import CopyInTheMaking

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.databases.database import Database

SAME_OBJECT: Final = "ERR source and destination objects are the same"
INVALID_FIRST_DB: Final = "ERR invalid first DB index"
INVALID_SECOND_DB: Final = "ERR invalid second DB index"

TYPE_NAME: Final = "stream"

# A copy of a stream that changes all the time is made in one turn at last: it would never be done.
COPY_ATTEMPTS: Final = 4
# One to two milliseconds: 2 us each.
_KEYS_A_SLICE: Final = 500


# -- delete and look ---------------------------------------------------------------------------------------------------


def _delete_some(request: Request, keys: list[bytes]) -> int:
    deleted = 0
    for key in keys:
        stream = request.db.stream(key, request.now_ms)
        if stream is not None:
            request.db.delete(stream)
            deleted += 1
    request.txn.changes += deleted
    return deleted


def _look_up_some(request: Request, keys: list[bytes]) -> int:
    return sum([request.lookup(key) is not None for key in keys])


def _count_all(request: Request, count_some: Callable[[Request, list[bytes]], int]) -> Reply:
    """The sum of what `count_some` finds of all keys of the request."""
    if len(request.argv) <= _KEYS_A_SLICE:
        return count_some(request, request.argv[1:])
    return in_slices(request, partial(_count_in_slices, count_some))


def _count_in_slices(count_some: Callable[[Request, list[bytes]], int], request: Request) -> Work:
    total = 0
    for at in range(1, len(request.argv), _KEYS_A_SLICE):
        if at > 1:
            yield f"the first {at - 1} of {len(request.argv) - 1} keys"
        total += count_some(request, request.argv[at : at + _KEYS_A_SLICE])
    return total


@command(
    "DEL key [key ...]",
    Flag.WRITE,
    summary="Deletes keys of every type.",
    tips=("request_policy:multi_shard", "response_policy:agg_sum"),
)
def delete(request: Request) -> Reply:
    """DEL key [key ...] -> how many existed.  A key given twice counts once."""
    return _count_all(request, _delete_some)


@command(
    "UNLINK key [key ...]",
    Flag.WRITE | Flag.FAST,
    since="4.0.0",
    summary="Deletes keys and leaves their contents to be purged in the background.",
    tips=("request_policy:multi_shard", "response_policy:agg_sum"),
)
def unlink(request: Request) -> Reply:
    """UNLINK key [key ...] -> how many existed.  The same as DEL: no deletion here waits for the contents."""
    return _count_all(request, _delete_some)


@command(
    "EXISTS key [key ...]",
    Flag.READONLY | Flag.FAST,
    summary="Counts how many of the given keys exist.",
    tips=("request_policy:multi_shard", "response_policy:agg_sum"),
)
def exists(request: Request) -> Reply:
    """EXISTS key [key ...] -> how many exist.  A key given twice counts twice."""
    return _count_all(request, _look_up_some)


@command(
    "TOUCH key [key ...]",
    Flag.READONLY | Flag.FAST,
    since="3.2.1",
    summary="Counts the given keys that exist; access times are not kept.",
    tips=("request_policy:multi_shard", "response_policy:agg_sum"),
)
def touch(request: Request) -> Reply:
    """TOUCH key [key ...] -> how many exist.  Nothing is evicted here, so nothing asks when a key was last used."""
    return _count_all(request, _look_up_some)


@command("TYPE key", Flag.READONLY | Flag.FAST, summary="Names the type of the value at a key.")
def type_(request: Request) -> str:
    """TYPE key -> stream, or none."""
    return "none" if request.lookup(request.argv[1]) is None else TYPE_NAME


# -- rename, copy, move ------------------------------------------------------------------------------------------------


@command("RENAME key newkey", Flag.WRITE, summary="Renames a key and overwrites the destination.")
def rename(request: Request) -> Reply:
    """RENAME key newkey -> OK.  Onto itself it does nothing, but the key has to exist."""
    stream, new_key = request.existing_stream(request.argv[1]), request.argv[2]
    if new_key != stream.key:
        request.db.rename(stream, new_key)
        request.txn.changes += 1
    return OK


@command("RENAMENX key newkey", Flag.WRITE | Flag.FAST, summary="Renames a key unless the destination exists.")
def renamenx(request: Request) -> int:
    """RENAMENX key newkey -> 1, or 0 when newkey exists."""
    stream, new_key = request.existing_stream(request.argv[1]), request.argv[2]
    if request.db.stream(new_key, request.now_ms) is not None:
        return 0
    request.db.rename(stream, new_key)
    request.txn.changes += 1
    return 1


@command(
    "COPY source destination [DB destination-db] [REPLACE]",
    Flag.WRITE | Flag.DENYOOM,
    since="6.2.0",
    summary="Copies the value of a key to a new key.",
)
def copy(request: Request) -> Reply:
    """COPY source destination [DB destination-db] [REPLACE] -> 1, or 0 when there is no source or a destination."""
    request.lookup(_parse_copy(request)[0])
    return in_slices(request, _copy)


def _parse_copy(request: Request) -> tuple[bytes, Database, bytes, bool]:
    """-> (source, the destination's database and key, whether it is replaced)"""
    args = Args(request.argv)
    key, new_key = args.take(), args.take()
    target = request.db
    replace = False
    while args:
        option = args.take_option()
        if option == b"REPLACE":
            replace = True
        elif option == b"DB" and args:
            target = named_database(request, args.take())
        else:
            raise CommandError(errors.SYNTAX)
    if target is request.db and key == new_key:
        raise CommandError(SAME_OBJECT)
    return key, target, new_key, replace


def _copy(request: Request) -> Work:
    """Copy in slices.  When the source changes, but for new entries, begin again, and the last time in one turn."""
    key, target, new_key, replace = _parse_copy(request)

    def may_copy() -> bool:
        is_there = request.db.stream(key, request.now_ms) is not None
        return is_there and (replace or target.stream(new_key, request.now_ms) is None)

    for attempt in range(1, COPY_ATTEMPTS + 1):
        stream = request.db.stream(key, request.now_ms)
        if stream is None or not may_copy():
            return 0
        rows = CopyInTheMaking(request.db, stream)
        try:
            for _ in rows.fill():
                if attempt < COPY_ATTEMPTS:
                    yield
            if not rows.is_stale:
                for dead_letter in rows.dead_letters:  # a right to read the source is none to have entries moved there
                    require_writing(request, dead_letter)
                if not may_copy():
                    return 0
                request.db.finish_copy(rows, target, new_key)
                request.txn.changes += 1
                return 1
        finally:
            rows.close()
    raise AssertionError("a copy that is made in one turn has met a change of its source")


@command("MOVE key db", Flag.WRITE | Flag.FAST, summary="Moves a key to another database.")
def move(request: Request) -> int:
    """MOVE key db -> 1, or 0 when there is no such key here or one of its name there."""
    key = request.argv[1]
    target = named_database(request, request.argv[2])
    if target is request.db:
        raise CommandError(SAME_OBJECT)
    stream = request.db.stream(key, request.now_ms)
    if stream is None or target.stream(key, request.now_ms) is not None:
        return 0
    request.db.move(stream, target)
    request.txn.changes += 1
    return 1


# -- whole databases ---------------------------------------------------------------------------------------------------


def _check_flush_mode(request: Request) -> None:
    """ASYNC and SYNC are both accepted and both O(1): the rows are purged in slices in the background."""
    words = request.argv[1:]
    if words and (len(words) > 1 or words[0].upper() not in (b"ASYNC", b"SYNC")):
        raise CommandError(errors.SYNTAX)


@command(
    "FLUSHDB [ASYNC | SYNC]",
    Flag.WRITE,
    group="server",
    summary="Deletes all keys of the database.",
    categories=("keyspace", "dangerous"),
    tips=("request_policy:all_shards", "response_policy:all_succeeded"),
)
def flushdb(request: Request) -> Reply:
    """FLUSHDB [ASYNC | SYNC] -> OK."""
    _check_flush_mode(request)
    request.txn.changes += request.db.flush()
    return OK


@command(
    "FLUSHALL [ASYNC | SYNC]",
    Flag.WRITE,
    group="server",
    summary="Deletes all keys of all databases.",
    categories=("keyspace", "dangerous"),
    tips=("request_policy:all_shards", "response_policy:all_succeeded"),
)
def flushall(request: Request) -> Reply:
    """FLUSHALL [ASYNC | SYNC] -> OK.  Logged as one FLUSHDB for each database that held something."""
    _check_flush_mode(request)
    for database in request.txn.databases:
        if database.size:
            request.txn.changes += database.flush()
    return OK


@command(
    "SWAPDB index1 index2",
    Flag.WRITE | Flag.FAST,
    group="server",
    since="4.0.0",
    summary="Swaps the contents of two databases.",
    categories=("keyspace", "dangerous"),
)
def swapdb(request: Request) -> Reply:
    """SWAPDB index1 index2 -> OK.  Clients keep their database number and see the other contents at once."""
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
    request.txn.changes += 1
    return OK
