"""What Spark calls to write: to a running server, in a batch or as a stream, and to a new data directory.

A writer is made on the driver, where what cannot work is refused, pickled, and run in the workers of executors; its
`commit` runs on the driver again, of a stream in another copy of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tools.spark import writejournal
from tools.spark.errors import OptionError, SourceError
from tools.spark.garbage import settle
from tools.spark.writeidentity import Names
from tools.spark.writejournal import Attempt, Job
from tools.spark.writeload import BulkLoad, Part
from tools.spark.writeoptions import WriteOptions, write_options
from tools.spark.writerows import Entry, RowMaker, row_maker
from tools.spark.writeserver import Connection, Sender, require_idempotence

# What Spark tells a task of a streaming query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task has appended."""

    job: Job
    partition: int
    rows: int


@dataclass(frozen=True)
class PartWritten(WriterCommitMessage):
    """What one task has put beside a directory to be."""

    part: Part


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """A writer of what a query has.  Raises SourceError for what cannot be written."""
    asked = write_options(options)
    if overwrite:
        raise OptionError('mode("overwrite") is refused: nothing is deleted here; take mode("append")')
    rows = row_maker(schema, asked.stream)
    return ServerWriter(asked, rows) if asked.path is None else DirectoryWriter(asked, rows)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    """A writer of a streaming query's batches.  Raises SourceError for what cannot be written."""
    asked = write_options(options)
    if overwrite:
        raise OptionError("only output mode append can be written: what is in a stream stays as it is")
    if asked.path is not None:
        raise OptionError("a stream is written to a server: a new data directory is made of one batch")
    return ServerStreamWriter(asked, row_maker(schema, asked.stream))


class ServerWriter(DataSourceArrowWriter):
    """Appends rows to streams of a running server, each once, also when its task is tried again."""

    def __init__(self, options: WriteOptions, rows: RowMaker) -> None:
        self._options = options
        self._rows = rows
        _look_at_server(options)
        name = options.job_id or secrets.token_hex(8)
        self._job = Job(options.journal + name, is_durable=options.job_id is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _append(self._options, self._rows, self._job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages)


class DirectoryWriter(DataSourceArrowWriter):
    """Makes a new data directory, offline: tasks write parts, and the driver makes the store of them."""

    def __init__(self, options: WriteOptions, rows: RowMaker) -> None:
        self._options = options
        self._rows = rows
        assert options.path is not None
        self._load = BulkLoad(Path(options.path), options.db, secrets.token_hex(4))
        self._load.begin()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        entries = (entry for batch in iterator for entry in self._rows.entries(batch))
        return PartWritten(self._load.write_part(context.partitionId(), context.taskAttemptId(), entries))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._load.finish([message.part for message in messages if isinstance(message, PartWritten)])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._load.abandon()


class ServerStreamWriter(DataSourceStreamArrowWriter):
    """Appends the batches of a streaming query, each once, also when the query is started again."""

    def __init__(self, options: WriteOptions, rows: RowMaker) -> None:
        self._options = options
        self._rows = rows
        _look_at_server(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise SourceError("Spark does not say which batch of which query this is")
        name = self._options.job_id or query
        job = Job(self._options.journal + name, int(batch), is_durable=True)
        return _append(self._options, self._rows, job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        _commit(self._options, messages)


def _look_at_server(options: WriteOptions) -> None:
    """Raise SourceError for a server that cannot be written to in this way."""
    with Connection(options, retries=0) as connection:
        connection.call("PING")
        if options.idempotent:
            require_idempotence(connection)


def _commit(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    if written and options.idempotent:
        with Connection(options) as connection:
            writejournal.commit(connection, written[0].job, [each.partition for each in written])


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # tasks have one
    return context


def _append(options: WriteOptions, maker: RowMaker, job: Job, batches: Iterable[pa.RecordBatch]) -> Written:
    settle()
    partition = _context().partitionId()
    with Connection(options) as connection:
        attempt = names = None
        if options.idempotent:
            attempt = Attempt(connection, job, partition)
            names = Names(f"{job.key}:{job.batch}", partition)
        sender = Sender(connection, attempt)
        rows = 0
        for entries in _pipelines(maker, batches, options.pipeline_rows):
            if attempt is None or not attempt.is_committed:
                sender.send(entries, None if names is None else names.of(entries))
            rows += len(entries)
    return Written(job, partition, rows)


def _pipelines(maker: RowMaker, batches: Iterable[pa.RecordBatch], most: int) -> Iterator[list[Entry]]:
    """The rows, some at a time."""
    for batch in batches:
        # A few at a time are taken apart, so that long values are not held twice.
        for at in range(0, batch.num_rows, most):
            yield list(maker.entries(batch.slice(at, most)))
