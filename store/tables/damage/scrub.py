"""Compares the rows of the tables with their checksums, some at a time, while a server writes them.

Each step is given a read transaction of its own: one for the whole pass would keep LMDB from using pages again.  So a
pass meets each row that is there all the time, and may miss others.  Indexes have nothing but keys, and no checksums:
each row has to be found by the indexes that lead to it, but for rows that the purge is deleting, or a COPY is writing:
table `trash` has a note of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from riverbed.store.errors import CorruptionError, DamagedRowError
from riverbed.store.format import dead_rows, groups, idempotence, pending, streams
from riverbed.store.format.entries import bare_pairs, bare_row
from riverbed.store.format.meta import META_READERS, META_VERSION, check_row
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.model import Row
from riverbed.store.tables.groups import has_names
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import numbered_streams

_SHOWN_KEY_BYTES: Final = 80
_STEP_BYTES: Final = 1 << 20
_ROWS: Final = 4096


class Step(NamedTuple):
    """What a step has read: so many rows, the key to go on from (None at the end), and what is wrong, by row."""

    rows: int
    next_key: bytes | None
    damage: list[str]


def scrub_step(reader: TableReader, table: str, start: bytes, most_rows: int) -> Step:
    """Compare up to `most_rows` rows of a table from the key `start` on, or about a megabyte if that is less."""
    chunk: list[Row] = []
    size = 0
    for item in islice(reader.rows(table, start=start), most_rows):
        chunk.append(item)
        size += len(item[1])
        if size >= _STEP_BYTES:
            break
    is_last = len(chunk) < most_rows and size < _STEP_BYTES
    next_key = None if is_last else chunk[-1][0] + b"\0"
    if table == "entries":  # nearly all rows: together they take a fifth of the time
        with contextlib.suppress(DamagedRowError, *DECODE_ERRORS):
            bare_pairs(list(chunk))
            return Step(len(chunk), next_key, [])
    return Step(len(chunk), next_key, list(_damage(reader, table, chunk)))


def _damage(reader: TableReader, table: str, rows: list[Row]) -> Iterator[str]:
    check = _CHECKS[table]
    dead: _Dead | None = None
    for key, row in rows:
        try:
            for place, is_there in check(reader, key, row):
                if is_there:
                    continue
                if dead is None:
                    dead = _Dead(reader)
                if not dead.has(table, key):
                    yield f"table {table}: the row {key[:_SHOWN_KEY_BYTES].hex()} is not found by table {place}"
        except DamagedRowError as error:
            yield f"table {table}: {_named(error, key)} does not fit its checksum"
        except DECODE_ERRORS as error:
            yield f"table {table}: the row {key[:_SHOWN_KEY_BYTES].hex()} cannot be read: {error}"


def require_sound(reader: TableReader, tables: Iterable[str], compared: Callable[[int], None]) -> None:
    """Compare all rows of `tables`; `compared` is called with the numbers of rows.  Raises CorruptionError."""
    for table in tables:
        key: bytes | None = b""
        while key is not None:
            step = scrub_step(reader, table, key, _ROWS)
            if step.damage:
                raise CorruptionError(str(reader.path), None, step.damage[0])
            compared(step.rows)
            key = step.next_key


class _Dead:
    """What the notes of table `trash` name."""

    def __init__(self, reader: TableReader) -> None:
        self._keyspaces: set[int] = set()
        self._streams: set[int] = set()  # and the numbers of idempotence records
        self._groups: set[int] = set()
        for _, row in reader.rows("trash"):
            match dead_rows.unpack_note(row):
                case dead_rows.DeadKeyspace(keyspace_no):
                    self._keyspaces.add(keyspace_no)
                case dead_rows.DeadStream(stream_no):
                    self._streams.add(stream_no)
                case dead_rows.DeadGroup(group_no, _):
                    self._groups.add(group_no)

    def has(self, table: str, key: bytes) -> bool:
        match table:
            case "keys":
                return streams.decode_key_key(key)[0] in self._keyspaces
            case "pel":
                return pending.decode_group_prefix(key) in self._groups
            case _:
                is_of_group = table == "groups" and groups.decode_group_no(key) in self._groups
                return is_of_group or streams.decode_stream_prefix(key) in self._streams


def _named(error: DamagedRowError, key: bytes) -> str:
    if error.stream_no:
        return f"{error.what} of stream {error.stream_no}"
    return f"the row {key[:_SHOWN_KEY_BYTES].hex()}"


# -- checks: each reads a row, and yields the indexes that must lead to it, with whether they do -----------------------


_Found: TypeAlias = Iterator[tuple[str, bool]]


def _check_key(reader: TableReader, key: bytes, row: bytes) -> _Found:
    keyspace_no, name = streams.decode_key_key(key)
    stream = streams.StreamRow.unpack(key, row)
    yield (
        "names",
        reader.get("names", streams.name_key(keyspace_no, stream.stream_no)) == (name or stream.long_key or b""),
    )
    if stream.expire_ms:
        yield "expiry", reader.get("expiry", streams.expiry_key(stream.expire_ms, stream.stream_no)) is not None


def _check_group_or_consumer(reader: TableReader, key: bytes, row: bytes) -> _Found:
    if len(key) == groups.NAME_KEY_BYTES:
        if row != groups.name_row(key):
            raise DamagedRowError("the row of a name", streams.decode_stream_prefix(key))
        return
    yield "groups", reader.get("groups", groups.name_key_of(key, row)) is not None or not has_names(reader)
    if len(key) == groups.CONSUMER_KEY_BYTES:
        return
    group = groups.GroupRow.unpack(key, row)
    if group.policy is not None and group.policy.consumer_ttl_ms:
        stream_no = streams.decode_stream_prefix(key)
        look = reader.get("consumer_ttls", groups.look_key(group.look_ms, stream_no, groups.decode_group_no(key)))
        yield "consumer_ttls", look == group.name or not any(True for _ in numbered_streams(reader, [stream_no]))


def _check_run(reader: TableReader, key: bytes, row: bytes) -> _Found:
    run = pending.Run.under(key, row)
    group_no = pending.decode_group_prefix(key)
    if run.consumer_no != pending.UNOWNED:
        place = pending.owner_prefix(group_no, run.consumer_no) + run.last
        yield "pel_by_consumer", reader.get("pel_by_consumer", place) is not None
    by_time = reader.get("pel_by_time", pending.time_key(group_no, run))
    yield "pel_by_time", by_time == (run.last if run.consumer_no == pending.UNOWNED else b"")


def _check_idempotence(reader: TableReader, key: bytes, row: bytes) -> _Found:
    if len(key) == idempotence.PRODUCER_KEY_BYTES:
        idempotence.ProducerRow.unpack(key, row)
    elif len(key) != idempotence.RECORD_KEY_BYTES:
        idempotence.RecordsRow.unpack(key, row)
    else:
        record = idempotence.RecordRow.unpack(key, row)
        place = idempotence.iid_key(idempotence.producer_of(key), record.iid)
        yield "idmp_ids", reader.get("idmp_ids", place) is not None
        yield "idmp_times", reader.get("idmp_times", idempotence.record_time_key(key, record.entry_id)) is not None


def _check_meta(reader: TableReader, key: bytes, row: bytes) -> _Found:
    if key not in META_READERS:
        raise ValueError("no row has this name")
    if key != META_VERSION:  # every version reads it, so that it has no checksum
        check_row(row)
    return iter(())


def _alone(unpack: Callable[[bytes, bytes], object]) -> Callable[[TableReader, bytes, bytes], _Found]:
    """The check of rows that no index leads to."""

    def check(reader: TableReader, key: bytes, row: bytes) -> _Found:
        unpack(key, row)
        return iter(())

    return check


_CHECKS: Final[Mapping[str, Callable[[TableReader, bytes, bytes], _Found]]] = {
    "keys": _check_key,
    "entries": _alone(bare_row),
    "nodes": _alone(streams.NodeRow.unpack),
    "expiry": _alone(streams.unpack_expiry),
    "idmp": _check_idempotence,
    "idmp_ids": _alone(idempotence.IidRow.unpack),
    "groups": _check_group_or_consumer,
    "pel": _check_run,
    "trash": _alone(lambda key, row: dead_rows.unpack_note(row)),
    "meta": _check_meta,
}

SCRUBBED_TABLES: Final = tuple(_CHECKS)
