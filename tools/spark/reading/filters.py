"""Turns filters of a query into ranges of IDs and sets of keys, so that excluded rows are not read at all.

These filters are pushed, and shown as `PushedFilters` in the plan: comparisons of `ms` and `timestamp`, equality of
`id`, `key` and `db`, `key IN`.  A list of IDs narrows the range, and Spark applies it again.  Spark applies all other
filters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from riverbed.store.ids import MAX_HALF, StreamID, make_id, parse_id
from riverbed.tools.columns.streams import Range
from riverbed.tools.spark.reading.options import ReadOptions, Table

# `ms` and `timestamp` are null for IDs above these, and no comparison with null is true.
_MAX_MS: Final = (1 << 63) - 1
_LAST_TIMESTAMP_MS: Final = _MAX_MS // 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Final = Range(StreamID(1), StreamID(0))


def push(options: ReadOptions, filters: list[Filter], *, prefix: str) -> tuple[ReadOptions, list[Filter]]:
    """-> (options that exclude what the filters exclude, the filters that Spark must apply itself)

    `prefix` is what the names of metadata columns begin with.
    """
    left = []
    for each in filters:
        name = _name(each, prefix)
        narrowed = _PUSHES[name](options, each) if name in _pushable(options.table) else None
        if narrowed is None:
            left.append(each)
            continue
        options, is_whole = narrowed
        if not is_whole:
            left.append(each)
    return options, left


def _pushable(table: Table) -> frozenset[str]:
    return frozenset(_PUSHES) if table in (Table.ENTRIES, Table.PENDING) else frozenset(("key", "db"))


def _name(each: Filter, prefix: str) -> str:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    if len(attribute) != 1 or not attribute[0].startswith(prefix):
        return ""
    return attribute[0].removeprefix(prefix)


# The narrowed options, and whether they express the whole filter; None for a filter that cannot be used.
_Narrowed = tuple[ReadOptions, bool] | None


def _push_key(options: ReadOptions, each: Filter) -> _Narrowed:
    match each:
        case IsNotNull():
            return options, True
        case EqualTo(value=str(key)) | EqualNullSafe(value=str(key)):
            keys = {key}
        case In(value=values) if all(isinstance(value, str) for value in values):
            keys = set(values)
        case _:
            return None
    if options.keys is not None:
        keys &= set(options.keys)
    return replace(options, keys=tuple(sorted(keys))), True


def _push_db(options: ReadOptions, each: Filter) -> _Narrowed:
    match each:
        case IsNotNull():
            return options, True
        case EqualTo(value=int(db)) | EqualNullSafe(value=int(db)):
            if options.filtered_db not in (None, db):
                return replace(options, range=_NOTHING, keys=()), True
            return replace(options, filtered_db=db), True
    return None


def _push_id(options: ReadOptions, each: Filter) -> _Narrowed:
    match each:
        case IsNotNull():
            return options, True
        case EqualTo(value=str(text)) | EqualNullSafe(value=str(text)):
            ids = [_exact_id(text)]
        case In(value=values) if values and all(isinstance(value, str) for value in values):
            ids = [_exact_id(value) for value in values]
        case _:
            return None
    known = [each_id for each_id in ids if each_id is not None]
    if not known:
        return replace(options, range=_NOTHING), True
    return replace(options, range=options.range.cut(Range(min(known), max(known)))), len(ids) == 1


def _exact_id(text: str) -> StreamID | None:
    """The ID whose canonical text is `text`; None for any other text."""
    found = parse_id(text.encode())
    return found if found is not None and f"{found >> 64}-{found & MAX_HALF}" == text else None


def _push_ms(options: ReadOptions, each: Filter) -> _Narrowed:
    if isinstance(each, IsNotNull):
        return _cut(options, 0, _MAX_MS)
    value = getattr(each, "value", None)
    if type(value) is not int:
        return None
    bounds = _bounds(each, value, value, _MAX_MS)
    return None if bounds is None else _cut(options, *bounds)


def _push_timestamp(options: ReadOptions, each: Filter) -> _Narrowed:
    value = getattr(each, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    difference = value - _EPOCH
    micros = (difference.days * 86_400 + difference.seconds) * 1_000_000 + difference.microseconds
    if isinstance(each, (EqualTo, EqualNullSafe)) and micros % 1000:
        return replace(options, range=_NOTHING), True
    # the milliseconds at or before the moment, and at or after it
    bounds = _bounds(each, micros // 1000, -(-micros // 1000), _LAST_TIMESTAMP_MS)
    return None if bounds is None else _cut(options, *bounds)


def _bounds(each: Filter, below: int, above: int, last_ms: int) -> tuple[int, int] | None:
    """The milliseconds, first and last, for which a comparison with a value between `below` and `above` holds.

    Behind `last_ms` the column is null.
    """
    match each:
        case EqualTo() | EqualNullSafe():
            return above, below
        case GreaterThan():
            return below + 1, last_ms
        case GreaterThanOrEqual():
            return above, last_ms
        case LessThan():
            return 0, above - 1
        case LessThanOrEqual():
            return 0, below
    return None


def _cut(options: ReadOptions, first_ms: int, last_ms: int) -> _Narrowed:
    first_ms, last_ms = max(first_ms, 0), min(last_ms, _MAX_MS)
    if first_ms > last_ms:
        return replace(options, range=_NOTHING), True
    return replace(options, range=options.range.cut(Range(make_id(first_ms, 0), make_id(last_ms, MAX_HALF)))), True


_PUSHES: Final[dict[str, Callable[[ReadOptions, Any], _Narrowed]]] = {
    "key": _push_key,
    "db": _push_db,
    "id": _push_id,
    "ms": _push_ms,
    "timestamp": _push_timestamp,
}
