"""The keys of a database in the order of their creation: SCAN, KEYS, RANDOMKEY.

The table `names` has a row for each stream, by keyspace number and stream number.  A stream that has expired is deleted
when it is met, or only left out, see `Database.stream`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from riverbed.store.errors import DamagedRowError
from riverbed.store.format import streams
from riverbed.store.tables.places import seek, seek_below

if TYPE_CHECKING:
    from riverbed.store.databases.database import Database


def scan_keys(db: Database, cursor: int, count: int, now_ms: int) -> tuple[int, list[bytes]]:
    """At most `count` keys after `cursor`; -> (next cursor, keys).  Cursor 0 begins; next cursor 0 is the end.

    The cursor is the number of the last stream seen.  A key that exists during the whole scan, as the same stream,
    is reported exactly once, whatever other keys change.  A key that RENAME overwrites during the scan takes the
    other stream's place in the order, and may be missed.

    Raises DamagedRowError for a name that is of no stream, or of another one.
    """
    keys: list[bytes] = []
    names = db.txn.cursor("names")
    seen = 0
    start = streams.name_key(db.keyspace_no, min(cursor + 1, (1 << 64) - 1))
    rows = list(islice(names.iternext(), count + 1)) if seek(names, start) else []
    if not cursor and len(rows) <= count:
        _require_all(db, [packed for packed, _ in rows])
    if not cursor and seek_below(names, start):
        _require_foreign(db, *names.item(), now_ms)
    for packed, key in rows[:count]:
        keyspace_no, stream_no = streams.decode_name_key(packed)
        if keyspace_no != db.keyspace_no:
            _require_foreign(db, packed, key, now_ms)
            return 0, keys
        seen = stream_no
        stream = db.stream(key, now_ms)
        if stream is not None and stream.stream_no == stream_no:
            keys.append(key)
        elif stream is not None or _names_nothing(db, packed, key):
            raise DamagedRowError(f"the name of stream {stream_no}", stream_no)
    if len(rows) > count:
        if streams.decode_name_key(rows[count][0])[0] == db.keyspace_no:
            return seen, keys
        _require_foreign(db, *rows[count], now_ms)
    return 0, keys


def _require_all(db: Database, names: list[bytes]) -> None:
    """Refuse all the names of this database that were found when they are not as many as its keys."""
    found = sum(streams.decode_name_key(packed)[0] == db.keyspace_no for packed in names)
    if found != db.size:
        raise DamagedRowError("the list of names")


def _require_foreign(db: Database, packed: bytes, key: bytes, now_ms: int) -> None:
    """Refuse a name beside those of this database that is of one of its streams: a bit has moved it there."""
    _, stream_no = streams.decode_name_key(packed)
    stream = db.stream(key, now_ms)
    if stream is not None and stream.stream_no == stream_no:
        raise DamagedRowError(f"the name of stream {stream_no}", stream_no)


def _names_nothing(db: Database, packed: bytes, key: bytes) -> bool:
    """Whether a name is there and has no stream.

    One that has expired is deleted with its name when it is met, but on a replica, and in a pause, both stay.
    """
    is_there = db.txn.lmdb.get(packed, db=db.txn.handles["names"]) is not None
    return is_there and db.look_up(key) is None


def all_keys(db: Database, now_ms: int) -> Iterator[bytes]:
    """All keys that have not expired, in the order of their creation."""
    cursor = 0
    while True:
        cursor, page = scan_keys(db, cursor, 512, now_ms)
        yield from page
        if not cursor:
            return


def random_key(db: Database, now_ms: int) -> bytes | None:
    """A random key, None when there is none.

    Looks up a random stream number between the first and the last; a gap makes the key after it more likely.
    """
    for _ in range(100):
        names = db.txn.cursor("names")
        if not db.size or not seek(names, streams.name_key(db.keyspace_no, 0)):
            return None
        low = streams.decode_name_key(names.key())[1]
        if not (seek(names, streams.name_key(db.keyspace_no + 1, 0)) and names.prev()):
            names.last()
        high = streams.decode_name_key(names.key())[1]
        seek(names, streams.name_key(db.keyspace_no, low + secrets.randbelow(high - low + 1)))
        key = names.value()
        if db.stream(key, now_ms) is not None:
            return key
    return None
