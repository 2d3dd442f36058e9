"""The writers that Spark calls: for a running server, in a batch or as a stream, and for a new data directory.

The driver makes a writer, which refuses invalid options there.  The writer is pickled and runs in the workers of
executors.  Its `commit` runs on the driver again; for a stream, in another copy of the writer.
"""

from __future__ import annotations

import contextlib
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

from riverbed.tools.spark.errors import OptionError, SourceError
from riverbed.tools.spark.garbage import settle
from riverbed.tools.spark.writing.journal import Job, commit, end
from riverbed.tools.spark.writing.load import BulkLoad, Part
from riverbed.tools.spark.writing.options import WriteOptions, write_options
from riverbed.tools.spark.writing.rows import Entry, RowMaker, row_maker
from riverbed.tools.spark.writing.server import Connection, Sender

# Properties that Spark gives to a task of a streaming query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task has appended, and how many lines the journal of its partition has."""

    job: Job
    partition: int
    rows: int
    lines: int


@dataclass(frozen=True)
class PartWritten(WriterCommitMessage):
    """The part of a new data directory that one task has written."""

    part: Part


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """A writer of the rows of a query.  Raises SourceError for options or a schema that cannot be written."""
    asked = write_options(options)
    if overwrite:
        raise OptionError('mode("overwrite") is refused: this writer deletes nothing; take mode("append")')
    rows = row_maker(schema, asked.stream)
    return ServerWriter(asked, rows) if asked.path is None else DirectoryWriter(asked, rows)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    """A writer of a streaming query's batches.  Raises SourceError for options or a schema that cannot be written."""
    asked = write_options(options)
    if overwrite:
        raise OptionError("only output mode append can be written: entries of a stream do not change")
    if asked.job_id is not None:
        raise OptionError("jobId is for a batch query: a streaming one is named by its checkpoint")
    if asked.path is not None:
        raise OptionError("a stream is written to a server: a new data directory is made of one batch")
    return ServerStreamWriter(asked, row_maker(schema, asked.stream))


class ServerWriter(DataSourceArrowWriter):
    """Appends rows to streams of a running server, each once, also when its task is tried again."""

    def __init__(self, options: WriteOptions, rows: RowMaker) -> None:
        self._options = options
        self._rows = rows
        _look_at_server(options, retries=0)
        name = options.job_id or secrets.token_hex(8)
        self._job = Job(name, is_durable=options.job_id is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _append(self._options, self._rows, self._job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The query has failed: end it, unless it can be run again."""
        if self._job.is_durable:
            return
        # If the server cannot be reached, Spark reports why the query failed.
        with contextlib.suppress(SourceError), Connection(self._options, retries=0) as connection:
            connection.retried(lambda client: end(client, self._job, range(len(messages))))


class DirectoryWriter(DataSourceArrowWriter):
    """Makes a new data directory, offline: tasks write parts, and the driver makes the store from them."""

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
        # At the beginning of each micro-batch: the server may be just starting again.
        _look_at_server(options, options.retries)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise SourceError("Spark does not say which batch of which query this is")
        return _append(self._options, self._rows, Job(query, int(batch), is_durable=True), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        _commit(self._options, messages)


def _look_at_server(options: WriteOptions, retries: int) -> None:
    """Raise SourceError for a server that cannot be reached."""
    with Connection(options, retries=retries) as connection:
        connection.call("PING")


def _commit(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    if written:
        lines = {each.partition: each.lines for each in written}
        with Connection(options) as connection:
            connection.retried(lambda client: commit(client, written[0].job, lines))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # tasks have one
    return context


def _append(options: WriteOptions, maker: RowMaker, job: Job, batches: Iterable[pa.RecordBatch]) -> Written:
    settle()
    partition = _context().partitionId()
    rows = 0
    with Connection(options) as connection:
        sender = Sender(connection, job, partition)
        for entries in _pipelines(maker, batches, options.pipeline_rows):
            sender.send(entries)
            rows += len(entries)
        lines = sender.finish()
    return Written(job, partition, rows, lines)


def _pipelines(maker: RowMaker, batches: Iterable[pa.RecordBatch], most: int) -> Iterator[list[Entry]]:
    """The rows as lists of at most `most` entries."""
    for batch in batches:
        # Only a slice is converted at a time, so that long values are not held twice.
        for at in range(0, batch.num_rows, most):
            yield list(maker.entries(batch.slice(at, most)))
