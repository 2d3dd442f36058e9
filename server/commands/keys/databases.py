"""Which database a word of a request names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server.commands.arguments import parse_int
from riverbed.server.errors import CommandError

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.store.databases.database import Database

DB_OUT_OF_RANGE: Final = "ERR DB index is out of range"
DB_NOT_INT32: Final = "ERR value is out of range, value must between -2147483648 and 2147483647"
INT32: Final = range(-(1 << 31), 1 << 31)


def named_database(request: Request, word: bytes) -> Database:
    """The database with this number.  Three checks, as in Redis: a number, within 32 bits, of a database."""
    number = parse_int(word)
    if number not in INT32:
        raise CommandError(DB_NOT_INT32)
    databases = request.txn.databases
    if not 0 <= number < len(databases):
        raise CommandError(DB_OUT_OF_RANGE)
    return databases[number]
