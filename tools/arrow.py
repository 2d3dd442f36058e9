"""Reads streams of a snapshot or of a data directory as Arrow tables, without Spark and without a server.

    from riverbed.tools.arrow import open_store

    with open_store("data") as store:
        table = store.to_arrow("orders", columns={"user": pa.string(), "amount": pa.float64()}, start="1795257000000")
        frame = table.to_pandas()                  # or polars.from_arrow(table), or duckdb.sql("from table")
        for batch in store.reader("orders"): ...   # a stream that does not fit into memory

A data directory is seen as its last checkpoint left it; its server may run meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.dataset as ds

from riverbed.store.ids import MAX_HALF, MAX_ID, MIN_ID, StreamID, parse_id
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader
from riverbed.tools.columns.convert import UnsupportedTypeError
from riverbed.tools.columns.decode import EntryBatch
from riverbed.tools.columns.fetch import fetch
from riverbed.tools.columns.projection import METADATA, Projection, field_types
from riverbed.tools.columns.streams import Range, StreamHere
from riverbed.tools.console.console import Failure
from riverbed.tools.offline.storestat import tables_at_rest
from riverbed.tools.offline.streamread import stream_row

Columns = Sequence[str] | Mapping[str, pa.DataType]


def open_store(path: str | Path, *, verify: bool = True) -> Store:
    """Open a snapshot or a data directory; close it, or use it in `with`.

    With `verify` a snapshot is compared with its checksums first.  Raises Failure when `path` is neither, or holds
    nothing yet; StoreError, OSError, lmdb.Error.
    """
    return Store(Path(path), verify=verify)


class Store:
    """The streams of a snapshot or of a data directory."""

    def __init__(self, path: Path, *, verify: bool) -> None:
        self.path = path
        self._is_live = (path / STATE_DIRECTORY / DATA_NAME).exists()
        self._closing = contextlib.ExitStack()
        self._tables: Tables = self._closing.enter_context(tables_at_rest(path, verify=verify))[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._closing.close()

    def schema(
        self, stream: str | bytes, *, db: int = 0, start: str | None = None, end: str | None = None
    ) -> pa.Schema:
        """`_ms _seq _id`, a column for each field that the entries have, and `_fields`.  Reads all entries once."""
        fields = field_types(self._batches(stream, db, start, end))
        return pa.schema([*((name, METADATA[name]) for name in ("_ms", "_seq", "_id")), *fields.items()]).append(
            pa.field("_fields", METADATA["_fields"])
        )

    def to_arrow(
        self,
        stream: str | bytes,
        *,
        columns: Columns | None = None,
        start: str | None = None,
        end: str | None = None,
        db: int = 0,
    ) -> pa.Table:
        """The entries from ID `start` to ID `end`, both included, in their order; see `reader`."""
        return self.reader(stream, columns=columns, start=start, end=end, db=db).read_all()

    def dataset(
        self,
        stream: str | bytes,
        *,
        columns: Columns | None = None,
        start: str | None = None,
        end: str | None = None,
        db: int = 0,
    ) -> ds.Dataset:
        """The same as a dataset in memory, which DuckDB, polars and pandas scan as often as they like."""
        return ds.dataset(self.to_arrow(stream, columns=columns, start=start, end=end, db=db))

    def reader(
        self,
        stream: str | bytes,
        *,
        columns: Columns | None = None,
        start: str | None = None,
        end: str | None = None,
        db: int = 0,
    ) -> pa.RecordBatchReader:
        """The entries batch by batch, once; the store must stay open meanwhile.

        `columns`: names of fields, which are read as bytes, and of `_ms _seq _id _fields`; or types by name, where a
        value that does not fit becomes null.  Without them all columns of `schema`.  An ID without a sequence number
        begins or ends with the whole millisecond.

        Raises Failure for a stream that there is not, a bad ID, or a type that fields cannot have.
        """
        if columns is None:
            kinds = {field.name: field.type for field in self.schema(stream, db=db, start=start, end=end)}
        elif isinstance(columns, Mapping):
            kinds = dict(columns)
        else:
            kinds = {name: METADATA.get(name, pa.binary()) for name in columns}
        for name, kind in kinds.items():
            if kind != METADATA.get(name, kind):
                raise Failure(f"column {name} is {METADATA[name]}, and cannot be {kind}")
        try:
            projection = Projection(kinds)
        except UnsupportedTypeError as error:
            raise Failure(str(error)) from None
        batches = self._batches(stream, db, start, end)
        return pa.RecordBatchReader.from_batches(projection.schema, map(projection.batch, batches))

    def _batches(self, stream: str | bytes, db: int, start: str | None, end: str | None) -> Iterator[EntryBatch]:
        key = stream.encode(errors="surrogateescape") if isinstance(stream, str) else stream
        wanted = Range(_id(start, 0, MIN_ID), _id(end, MAX_HALF, MAX_ID))
        with self._tables.env.begin() as txn:
            if stream_row(TableReader(self._tables, txn), db, key) is None:
                raise Failure(f"there is no stream {key.decode(errors='backslashreplace')} in database {db}")
        return self._fetched(db, key, wanted)

    def _fetched(self, db: int, key: bytes, wanted: Range) -> Iterator[EntryBatch]:
        with self._tables.env.begin() as txn:
            reader = TableReader(self._tables, txn)
            row = stream_row(reader, db, key)
            if row is not None:  # of a live store it may be deleted meanwhile
                here = StreamHere(db, key, row, wanted)
                for fetched in fetch(reader, [here], is_live=self._is_live):
                    yield fetched.batch


def _id(text: str | None, missing_seq: int, missing: StreamID) -> StreamID:
    found = missing if text is None else parse_id(text.encode(), missing_seq)
    if found is None:
        raise Failure(f"{text!r} is not an ID such as 1700000000000-0")
    return found


def run_sql(table: pa.Table, name: str, sql: str) -> pa.Table:
    """Run one query of DuckDB, which sees `table`, as `name` and as `entries`, and nothing else: no file, no network.

    Raises Failure without DuckDB, and with DuckDB's own words when it refuses the query.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        raise Failure("duckdb is not installed, and --sql needs it: pip install 'riverbed[sql]'") from None
    safe: dict[str, Any] = {
        "enable_external_access": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    with duckdb.connect(":memory:", config=safe) as connection:
        try:
            for each in {name, "entries"}:
                connection.register(each, table)
            connection.execute("SET lock_configuration = true")
            result: Any = connection.sql(sql)  # None for a statement without a result
            return pa.table({}) if result is None else result.to_arrow_table()
        except duckdb.Error as error:
            raise Failure(f"DuckDB: {error}") from None
