"""Reads and checks the options that a user may give to the data source.

Options have the names of Spark's Kafka source where that has them; as in Spark, case does not matter.  Knows no files.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from riverbed.server.glob import Glob
from riverbed.store.ids import MAX_HALF, MAX_ID, MIN_ID, StreamID, id_text, make_id, parse_id
from riverbed.tools.columns.streams import Range, key_text
from riverbed.tools.spark.errors import OptionError

CACHE_BYTES: Final = 20 << 30
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS: Final = (1 << 64) - 1
# Prefix of the keys in which writers record what they have written.  They hold no data: read only if they are named.
JOURNAL_PREFIX: Final = b"riverbed:spark:"
_Choice = TypeVar("_Choice", bound=enum.Enum)
StreamName = tuple[int, bytes]  # database and key
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Table(enum.Enum):
    """The table that is read."""

    ENTRIES = "entries"
    PENDING = "pending"
    GROUPS = "groups"
    CONSUMERS = "consumers"
    STREAMS = "streams"


class Mode(enum.Enum):
    """What happens to a value that does not fit its column.  The names are Spark's."""

    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


class Verify(enum.Enum):
    """When the bytes of a snapshot are compared with its checksums."""

    ALWAYS = "always"  # by every task
    ONCE = "once"  # per machine and file, until the file changes
    NEVER = "never"


class Columns(enum.Enum):
    """What is done with the columns of a snapshot."""

    READ = "read"  # where there are some
    MAKE = "make"  # in the cache, for a snapshot that has none
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A checked set of options.  `streams` None: all of them."""

    paths: tuple[str, ...]
    as_of_ms: int | None = None  # of each path only the newest snapshot that is not later, in unix milliseconds
    table: Table = Table.ENTRIES
    streams: tuple[bytes, ...] | None = None
    pattern: bytes | None = None
    keys: tuple[str, ...] | None = None  # from a filter, as column `key` shows them
    db: int | None = None
    with_journals: bool = False  # the user names journals
    range: Range = field(default_factory=Range)
    starts_at_end: bool = False  # a stream is read from the entries on that are added from now on
    starts_at_id: bool = False  # at an ID that the user gave: it is an error if entries from there on are gone
    names: frozenset[StreamName] | None = None
    starts: Mapping[StreamName, StreamID] = field(default_factory=dict)  # by stream; other streams begin with the range
    ends: Mapping[StreamName, StreamID] = field(default_factory=dict)  # by stream; other streams end with the range
    min_partitions: int = 0
    max_records: int = 0  # of a partition; 0: no limit
    mode: Mode = Mode.PERMISSIVE
    corrupt_column: str = "_corrupt_record"
    fail_on_data_loss: bool = True
    verify: Verify = Verify.ONCE
    columns: Columns = Columns.READ
    fetch: bool = False  # also fetch snapshots on a disk that all machines share
    batch_rows: int = 16384
    infer_schema: bool = False  # without a schema, columns are chosen by a sample of the entries
    sampled_entries: int = 10_000
    cache_directory: str | None = None
    cache_bytes: int = CACHE_BYTES
    max_rows_per_trigger: int = 0  # of a micro-batch; 0: no limit
    data_checksum: int | None = None  # the CRC-32C that data.mdb of each snapshot must have
    filtered_db: int | None = None  # by a filter, which may fit no stream; one that `db` misses is an error

    def wants(self, db: int, key: bytes) -> bool:
        """Whether a stream is asked for."""
        if (self.db is not None and db != self.db) or self.filtered_db not in (None, db):
            return False
        if self.names is not None and (db, key) not in self.names:
            return False
        if self.streams is not None and key not in self.streams:
            return False
        if key.startswith(JOURNAL_PREFIX) and not self.with_journals:
            return False
        if self.keys is not None and key_text(key) not in self.keys:
            return False
        return self.pattern is None or Glob(self.pattern).matches(key)

    def named(self) -> set[tuple[int | None, bytes]]:
        """The streams that are named one by one; without a database, each has the key."""
        return {*(self.names or ()), *((self.db, key) for key in self.streams or ())}

    def range_of(self, db: int, key: bytes) -> Range:
        """The IDs of one stream that are asked for."""
        if not self.starts and not self.ends:
            return self.range
        name = db, key
        return self.range.cut(Range(self.starts.get(name, MIN_ID), self.ends.get(name, MAX_ID)))


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the user's options.  Raises OptionError, which names the option and its possible values."""
    given = {name.lower(): value for name, value in options.items()}
    if "location" in given:
        # What Spark adds to the options of a table when it is made; it adds none of them when the table is read.
        raise OptionError(f"CREATE TABLE keeps no path for a source in Python; take {_IN_SQL}")
    paths = _paths(given)
    names = _names(given)
    streams, pattern = _streams(given)
    starts, ends = _offsets(given, "startingOffsets", 0), _offsets(given, "endingOffsets", MAX_HALF)
    starts_at_end = given.get("startingoffsets", "").strip().lower() == "latest"
    if starts_at_end:
        del given["startingoffsets"]
    for name, other in _SYNONYMS.items():
        _rename(given, other, name)
    asked, starts_at_id = _range(given)
    read = ReadOptions(
        paths=paths,
        as_of_ms=_moment(given, "asOf"),
        table=_choice(given, "table", Table, Table.ENTRIES),
        streams=streams,
        pattern=pattern,
        db=whole(given, "db", 0, 15) if "db" in given else None,
        with_journals=bool(streams or names or (pattern or b"").startswith(JOURNAL_PREFIX)),
        range=asked,
        starts_at_end=starts_at_end,
        starts_at_id=starts_at_id,
        names=names,
        starts=starts,
        ends=ends,
        min_partitions=whole(given, "minPartitions", 1, 1_000_000, 0),
        max_records=whole(given, "maxRecordsPerPartition", 1, 1 << 62, 0),
        mode=_choice(given, "mode", Mode, Mode.PERMISSIVE),
        corrupt_column=given.pop("columnnameofcorruptrecord", "_corrupt_record"),
        fail_on_data_loss=flag(given, "failOnDataLoss", True),
        verify=_choice(given, "verify", Verify, Verify.ONCE),
        columns=_choice(given, "columns", Columns, Columns.READ),
        fetch=flag(given, "fetch", False),
        infer_schema=flag(given, "inferSchema", False),
        sampled_entries=whole(given, "sampledEntries", 1, 1_000_000, 10_000),
        batch_rows=whole(given, "batchRows", 1, 1 << 20, 16384),
        cache_directory=given.pop("cachedirectory", None),
        cache_bytes=whole(given, "cacheBytes", 0, 1 << 62, CACHE_BYTES),
        max_rows_per_trigger=whole(given, "maxRowsPerTrigger", 1, 1 << 62, 0),
        data_checksum=whole(given, "dataChecksum", 0, (1 << 32) - 1) if "datachecksum" in given else None,
    )
    none_left(given, _READ)
    require_no_nul(read.cache_directory or "")
    if read.table in _OF_STREAMS and (read.range != Range() or starts or ends or starts_at_end):
        raise OptionError(f"a range of IDs is for the tables entries and pending, not for {read.table.value}")
    return read


# Tables without rows for each entry.
_OF_STREAMS: Final = (Table.STREAMS, Table.GROUPS, Table.CONSUMERS)
_IN_SQL: Final = "CREATE TEMPORARY VIEW name USING riverbed OPTIONS (path 'data/snapshots/NAME')"
# The names that other sources of Spark have for some options.
_SYNONYMS: Final = {
    "startingId": "startingOffsets",
    "endingId": "endingOffsets",
    "maxRowsPerTrigger": "maxOffsetsPerTrigger",
}
# The options as the documentation spells them, for messages.
_READ: Final = (
    "path, asOf, table, stream, streams, streamPattern, db, startingId, startingOffsets, endingId, endingOffsets, "
    "startingTimestamp, endingTimestamp, minPartitions, maxRecordsPerPartition, mode, columnNameOfCorruptRecord, "
    "failOnDataLoss, verify, columns, fetch, batchRows, inferSchema, sampledEntries, cacheDirectory, cacheBytes, "
    "maxRowsPerTrigger, dataChecksum"
)


def _rename(given: dict[str, str], other: str, name: str) -> None:
    """Give an option that has its `other` name its own."""
    if other.lower() in given:
        if name.lower() in given:
            raise OptionError(f"only one of {name} and {other} can be given")
        given[name.lower()] = given.pop(other.lower())


def require_no_nul(path: str) -> None:
    if "\0" in path:
        raise OptionError(f"a path cannot have a NUL in it, as {path!r} has")


def local_path(path: str) -> str:
    """A path without the `file:` of a URI, if it has one; those of other schemes and hosts stay as they are."""
    for scheme in ("file://localhost/", "file:///"):
        if path.startswith(scheme):
            return path[len(scheme) - 1 :]
    return path if path.startswith("file://") else path.removeprefix("file:")


def is_uri(path: str) -> bool:
    """Whether a path that `local_path` leaves is the URI of another place: `s3://b/c`, `hdfs:/c`."""
    return _URI.match(path) is not None


def none_left(given: dict[str, str], known: str) -> None:
    if given:
        name = min(given)
        raise OptionError(f"there is no option {name!r}; there are {known}")


def _paths(given: dict[str, str]) -> tuple[str, ...]:
    """`load("a")` comes as `path`, `load(["a", "b"])` as `paths`, a JSON list."""
    text = given.pop("paths", None)
    path = given.pop("path", None)
    paths: list[str] = []
    if text is not None:
        try:
            found = json.loads(text)
        except ValueError:
            raise OptionError(f"paths must be a JSON list of texts, not {text!r}") from None
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise OptionError(f"paths must be a JSON list of texts, not {text!r}")
        paths += found
    if path is not None:
        paths.append(path)
    for each in paths:
        require_no_nul(each)
    if not any(paths):
        raise OptionError(
            'no path: say which snapshot, as in spark.read.format("riverbed").load("data/snapshots/NAME"), or in SQL '
            f"{_IN_SQL}"
        )
    return tuple(each for each in paths if each)


def _streams(given: dict[str, str]) -> tuple[tuple[bytes, ...] | None, bytes | None]:
    one, many, pattern = (given.pop(name, None) for name in ("stream", "streams", "streampattern"))
    if sum(value is not None for value in (one, many, pattern)) > 1:
        raise OptionError("only one of stream, streams and streamPattern can be given")
    if one is not None:
        return (one.encode(),), None
    if many is not None:
        return tuple(name.strip().encode() for name in many.split(",")), None
    return None, None if pattern is None else pattern.encode()


def _names(given: dict[str, str]) -> frozenset[StreamName] | None:
    """`streams` as a JSON list of databases and percent-encoded keys, for keys that have a comma or are not UTF-8."""
    text = given.get("streams", "").strip()
    if not text.startswith("["):
        return None
    del given["streams"]
    try:
        return frozenset(_stream_name(name) for name in json.loads(text))
    except (ValueError, AttributeError, RecursionError) as error:
        raise OptionError(f'streams must be names, or JSON such as ["0/orders%3A1"]: {error}') from None


def _offsets(given: dict[str, str], option: str, missing_seq: int) -> dict[StreamName, StreamID]:
    """IDs by stream, from JSON; `_bound` reads a single ID."""
    text = given.get(option.lower(), "").strip()
    if not text.startswith("{"):
        return {}
    del given[option.lower()]
    found: dict[StreamName, StreamID] = {}
    try:
        for name, value in json.loads(text).items():
            entry_id = parse_id(value.encode(), missing_seq)
            if entry_id is None:
                raise ValueError(f"{value!r} is not an ID")
            found[_stream_name(name)] = entry_id
    except (ValueError, AttributeError, RecursionError) as error:
        raise OptionError(
            f'{option} must be an ID, or JSON such as {{"0/orders%3A1": "1700000000000-0"}}: {error}'
        ) from None
    return found


def _stream_name(text: str) -> StreamName:
    db, slash, key = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} does not begin with a database and a slash")
    return int(db), unquote_to_bytes(key)


def name_text(name: StreamName) -> str:
    """A stream in JSON: `0/orders%3A1`."""
    return f"{name[0]}/{quote_from_bytes(name[1])}"


def names_text(names: Iterable[StreamName]) -> str:
    """The value of option `streams` for exactly these streams."""
    return json.dumps([name_text(name) for name in names])


def offsets_text(ids: Mapping[StreamName, StreamID]) -> str:
    """The value of `startingOffsets` or `endingOffsets` for these IDs."""
    return json.dumps({name_text(name): id_text(entry_id).decode() for name, entry_id in ids.items()})


def _range(given: dict[str, str]) -> tuple[Range, bool]:
    """The range of IDs to read, both ends included, and whether the user gave the lower one as an ID."""
    first = _bound(given, "startingId", ("earliest", "-"), 0)
    since = _moment(given, "startingTimestamp")
    last = _bound(given, "endingId", ("latest", "+"), MAX_HALF)
    until = _moment(given, "endingTimestamp")
    if first is not None and since is not None:
        raise OptionError("only one of startingId and startingTimestamp can be given")
    if last is not None and until is not None:
        raise OptionError("only one of endingId and endingTimestamp can be given")
    low = first if first is not None else make_id(since, 0) if since is not None else StreamID(0)
    high = last if last is not None else make_id(until, MAX_HALF) if until is not None else MAX_ID
    if low > high:
        raise OptionError("the range of IDs ends before it begins")
    return Range(low, high), first is not None


def _bound(given: dict[str, str], name: str, unbounded: tuple[str, ...], missing_seq: int) -> StreamID | None:
    text = given.pop(name.lower(), None)
    if text is None or text.strip().lower() in unbounded:
        return None
    found = parse_id(text.strip().encode(), missing_seq)
    if found is None:
        raise OptionError(f"{name} must be an ID such as 1700000000000-0, not {text!r}")
    return found


def _moment(given: dict[str, str], name: str) -> int | None:
    """The time of an option in unix milliseconds: given so, or as ISO 8601, in UTC unless it says otherwise."""
    text = given.pop(name.lower(), None)
    if text is None:
        return None
    text = text.strip()
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{name} must be a time such as 2026-11-21T12:00:00Z or unix milliseconds, not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)  # a float would miss one now and then
    if not 0 <= milliseconds <= _MAX_MS:
        raise OptionError(f"{name} is before 1970: {text!r}")
    return milliseconds


def whole(given: dict[str, str], name: str, least: int, most: int, missing: int = 0) -> int:
    text = given.pop(name.lower(), None)
    if text is None:
        return missing
    if not _WHOLE.fullmatch(text.strip()) or not least <= int(text) <= most:
        raise OptionError(f"{name} must be a number from {least} to {most}, not {text!r}")
    return int(text)


def flag(given: dict[str, str], name: str, missing: bool) -> bool:
    text = given.pop(name.lower(), str(missing)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _choice(given: dict[str, str], name: str, kind: type[_Choice], missing: _Choice) -> _Choice:
    text = given.pop(name.lower(), None)
    if text is None:
        return missing
    for each in kind:
        if str(each.value).lower() == text.strip().lower():
            return each
    names = ", ".join(str(each.value) for each in kind)
    raise OptionError(f"{name} must be one of {names}, not {text!r}")
