"""Streams that a user names one by one: a name that no snapshot has is an error, which tells names that are like it.

Without it a mistyped name would be an empty frame.  A pattern, a filter and a database may have no streams.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from riverbed.store.snapshot.reader import Snapshot
from riverbed.tools.console.keytext import name_text
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.reading.locations import Place
from riverbed.tools.spark.reading.options import ReadOptions, StreamName, names_text

# Names are compared letter by letter, which takes long for many and for long ones.
_MOST_COMPARED: Final = 10_000
_LONGEST_COMPARED: Final = 200


def require_named(places: Sequence[tuple[Place, Snapshot]], options: ReadOptions) -> None:
    """Raise SourceError for a stream that is named and in none of these snapshots.  CorruptionError, OSError pass."""
    absent, others = options.named(), list[StreamName]()
    if not absent:
        return
    for _, snapshot in places:
        for stream in snapshot.streams():
            absent -= {(stream.db, stream.key), (None, stream.key)}
            if not absent:
                return
            if len(others) < _MOST_COMPARED and len(stream.key) <= _LONGEST_COMPARED:
                others.append((stream.db, stream.key))
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    raise SourceError(f"{absent_text(absent)} {places[0][0].name}{more}{_like(absent, others)}")


def absent_text(absent: Collection[tuple[int | None, bytes]]) -> str:
    """`there is no stream orders:1 in database 0 of`, for one of several streams the first."""
    db, key = min(absent, key=lambda name: (name[0] or 0, name[1]))
    return f"there is no stream {name_text(key)} in" + ("" if db is None else f" database {db} of")


def _like(absent: Collection[tuple[int | None, bytes]], others: Collection[StreamName]) -> str:
    from difflib import get_close_matches

    db, key = min(absent, key=lambda name: (name[0] or 0, name[1]))
    texts: dict[str, set[str]] = {}
    for other in others:
        texts.setdefault(name_text(other[1]), set()).add(_option(other, db))
    close = [text for name in get_close_matches(name_text(key), texts) for text in sorted(texts[name])]
    return f"; names like it: {', '.join(close)}" if close else ""


def _option(name: StreamName, db: int | None) -> str:
    """What the user may write to have this stream."""
    is_plain = db in (None, name[0]) and name_text(name[1]).encode() == name[1] and b"," not in name[1]
    return name[1].decode() if is_plain else f"option streams with {names_text([name])}"
