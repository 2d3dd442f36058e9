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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import lmdb
import pyarrow as pa
import pyarrow.dataset as ds

from riverbed.store.disk.real_files import is_there
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

# What a query may take unless more is allowed.
SQL_TIMEOUT_S: Final = 300.0
SQL_MEMORY_BYTES: Final = 2 << 30
_SQL_ROWS: Final = 10_000
_INTERRUPT_S: Final = 0.1

Columns = Sequence[str] | Mapping[str, pa.DataType] | Callable[[pa.Schema], Mapping[str, pa.DataType]]


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
        self._is_live = is_there(path / STATE_DIRECTORY / DATA_NAME)
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
        with self._tables.env.begin() as txn:
            return self._schema(self._batches(txn, stream, db, start, end))

    @staticmethod
    def _schema(batches: Iterator[EntryBatch]) -> pa.Schema:
        fields = field_types(batches)
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
        value that does not fit becomes null; or a function that makes these of the `schema`.  Without them all columns
        of `schema`, of the same checkpoint.  An ID without a sequence number begins or ends with the whole millisecond.

        Raises Failure for a stream that there is not, a bad ID, or a type that fields cannot have.
        """
        with contextlib.ExitStack() as held:
            txn = held.enter_context(self._tables.env.begin())
            if columns is None or callable(columns):
                known = self._schema(self._batches(txn, stream, db, start, end))
                kinds = {field.name: field.type for field in known} if columns is None else dict(columns(known))
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
            batches = self._batches(txn, stream, db, start, end)
            batches = _ending(batches, held.pop_all())
        return pa.RecordBatchReader.from_batches(projection.schema, map(projection.batch, batches))

    def _batches(
        self, txn: lmdb.Transaction[bytes], stream: str | bytes, db: int, start: str | None, end: str | None
    ) -> Iterator[EntryBatch]:
        key = stream.encode(errors="surrogateescape") if isinstance(stream, str) else stream
        wanted = Range(_id(start, 0, MIN_ID), _id(end, MAX_HALF, MAX_ID))
        reader = TableReader(self._tables, txn)
        row = stream_row(reader, db, key)
        if row is None:
            raise Failure(f"there is no stream {key.decode(errors='backslashreplace')} in database {db}")
        return (each.batch for each in fetch(reader, [StreamHere(db, key, row, wanted)], is_live=self._is_live))


def _ending(batches: Iterator[EntryBatch], held: contextlib.ExitStack) -> Iterator[EntryBatch]:
    """The batches, and then the end of what is held for them."""
    with held:
        yield from batches


def _id(text: str | None, missing_seq: int, missing: StreamID) -> StreamID:
    found = missing if text is None else parse_id(text.encode(), missing_seq)
    if found is None:
        raise Failure(f"{text!r} is not an ID such as 1700000000000-0")
    return found


def run_sql(
    table: pa.Table,
    name: str,
    sql: str,
    *,
    timeout_s: float = SQL_TIMEOUT_S,
    memory_bytes: int = SQL_MEMORY_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Run one query of DuckDB, which sees `table`, as `name` and as `entries`, and nothing else: no file, no network.

    Yields the result while the query runs.  `memory_bytes` is what DuckDB may take besides `table`; it writes nothing
    to disk.  Raises Failure without DuckDB, after `timeout_s`, and with DuckDB's own words when it refuses the query or
    runs out of memory.
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
        "memory_limit": f"{memory_bytes // 1000}KB",
        "temp_directory": "",
    }
    deadline = time.monotonic() + timeout_s
    with duckdb.connect(":memory:", config=safe) as connection, ThreadPoolExecutor(1) as other_thread:

        def wait_for(work: Callable[[], Any]) -> Any:
            """Do it in the other thread, as an interrupt of this one waits for DuckDB's code to return."""
            doing = other_thread.submit(work)
            try:
                return doing.result(max(deadline - time.monotonic(), 0))
            except BaseException:
                while not doing.done():  # an interrupt before the query has begun would be lost
                    connection.interrupt()
                    wait([doing], _INTERRUPT_S)
                raise

        try:
            for each in {name, "entries"} - {""}:
                connection.register(each, table)
            connection.execute("SET lock_configuration = true")
            result = wait_for(lambda: connection.sql(sql))  # None for a statement without a result
            if result is None:
                return
            reader = wait_for(lambda: result.to_arrow_reader(_SQL_ROWS))
            while (batch := wait_for(lambda: next(reader, None))) is not None:
                yield batch
        except TimeoutError:
            raise Failure(f"the query has not ended within {timeout_s:g} s; --timeout allows more") from None
        except (duckdb.Error, pa.ArrowException) as error:
            raise Failure(f"DuckDB: {error}") from None
