"""The journal of a partition: which of its rows are written.  It is in the same server as the rows.

The rows of a pipeline are one transaction.  The last command of the transaction notes their names (`identity.py`):

    MULTI, XADD row, XADD row ..., XADD journal * batch 7 rows <16 bytes each>, EXEC, WATCH job journal, XLEN journal

So the server has both rows and names or neither, even if the reply is lost or the server or its disk fails.  The same
is true of a replica.  An attempt reads the journal first and sends the rows that are not in it.  It watches the journal
before it reads, and again after each transaction.  When another attempt at the partition writes, the next transaction
is not executed, and the attempt reads on.  XLEN shows whether anything was written between EXEC and WATCH.

    riverbed:spark:<job>                 batch=7        batch 7 is written: never write it or an earlier batch again
    riverbed:spark:<job>:<partition>     the journal, deleted when all of its batch is written
        batch=7 rows=<names>             these rows are written
        batch=7 refused=<names>          these are not: the server refused them

A streaming query keeps the first key, and so does a job with a jobId, because both can be started again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from riverbed.tools.live.redisclient import RedisClient, ReplyError, Word, fields
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.reading.options import JOURNAL_PREFIX
from riverbed.tools.spark.writing.identity import NAME_BYTES, SortedRuns

# How long a task may still run after its job has ended, if the job cannot be started again.
_ENDED_S: Final = 86_400
_LINES_A_PAGE: Final = 50
_KEYS_A_COMMAND: Final = 1000

Command = Sequence[Word]


@dataclass(frozen=True, slots=True)
class Job:
    """What is written: `name` is the same for every attempt, and for every run of a durable job."""

    name: str
    batch: int = 0
    is_durable: bool = False

    @property
    def key(self) -> bytes:
        return JOURNAL_PREFIX + self.name.encode()

    def journal_key(self, partition: int) -> bytes:
        return b"%b:%d" % (self.key, partition)


class Journal:
    """The journal of one partition, as one attempt knows it.

    Every method that takes a client raises Failure and ReplyError, as the client does.  Then `watch` is called again.
    """

    def __init__(self, job: Job, partition: int) -> None:
        self.key = job.journal_key(partition)
        self.is_committed = False  # the whole batch
        self.lines = 0
        self._job = job
        self._last_line: bytes | None = None
        self._written = SortedRuns()  # without this attempt's own rows
        self._refused = SortedRuns()
        self._watched_by: RedisClient | None = None

    def watch(self, client: RedisClient) -> None:
        """Read the new lines; on more lines, the next transaction fails.  Raises SourceError if lines were lost."""
        if self._watched_by is client:
            return
        # A server that refuses MULTI would take the rows without a transaction.
        *_, batches, page = client.call_all(
            [
                [b"MULTI"],
                [b"DISCARD"],
                self._watch_command(),
                _last_batch_command(self._job),
                self._page_command(),
            ]
        )
        self.is_committed = _is_committed(batches, self._job)
        if not self.is_committed:
            self._take(page)
            while len(page) == _LINES_A_PAGE:
                page = client.call(*self._page_command())
                self._take(page)
        self._watched_by = client

    def missing(self, names: list[bytes]) -> list[int]:
        """The indexes of the names that no other attempt has noted."""
        asked = np.array(names, dtype=f"S{NAME_BYTES}")
        found: list[int] = np.flatnonzero(self._written.count(asked) <= self._refused.count(asked)).tolist()
        return found

    def line(self, names: list[bytes]) -> Command:
        """The command that notes written rows, in the transaction that writes them."""
        return [b"XADD", self.key, b"*", b"batch", self._job.batch, b"rows", b"".join(names)]

    def refusal_line(self, names: list[bytes]) -> Command:
        return [b"XADD", self.key, b"*", b"batch", self._job.batch, b"refused", b"".join(names)]

    def commands_behind(self) -> list[Command]:
        """The commands that follow EXEC directly; their replies are for `executed`."""
        return [self._watch_command(), [b"XLEN", self.key]]

    def executed(self, client: RedisClient, line: bytes | None, length: int) -> None:
        """A transaction was executed and added `line`; the journal had `length` lines when it was watched again."""
        if line is not None:
            self._last_line = line
            self.lines += 1
        self._watched_by = client if length == self.lines else None

    def must_watch_again(self) -> None:
        """The journal has unknown lines: a transaction was not executed, or rows were refused."""
        self._watched_by = None

    def _watch_command(self) -> Command:
        return [b"WATCH", self._job.key, self.key]

    def _page_command(self) -> Command:
        # Starts with the last known line, which must be there: before Redis 6.2 a range cannot exclude its start.
        return [b"XRANGE", self.key, self._last_line or b"-", b"+", b"COUNT", _LINES_A_PAGE]

    def _take(self, page: list[Any]) -> None:
        if self._last_line is not None:
            if not page or page[0][0] != self._last_line:
                raise SourceError(
                    f"{self.key.decode()} has lost rows that were written to it: the server went back in time, as "
                    f"after a failover, or the key was deleted or trimmed; another attempt writes the missing rows"
                )
            page = page[1:]
        batch = b"%d" % self._job.batch
        for line, words in page:
            self._last_line = line
            self.lines += 1
            values = fields(words)
            # The journal of an earlier batch may be there, if that batch had partitions that the next batch had not.
            if values.get(b"batch") == batch:
                for name, runs in ((b"rows", self._written), (b"refused", self._refused)):
                    runs.add(np.sort(np.frombuffer(values.get(name, b""), dtype=f"S{NAME_BYTES}")))


def _last_batch_command(job: Job) -> Command:
    return [b"XREVRANGE", job.key, b"+", b"-", b"COUNT", 1]


def _is_committed(lines: list[Any], job: Job) -> bool:
    for _, words in lines:
        values = fields(words)
        return int(values.get(b"batch", b"-1")) >= job.batch
    return False


def commit(client: RedisClient, job: Job, lines: Mapping[int, int]) -> None:
    """The whole batch is written, with `lines` lines in the journal of each partition: never write it again.

    Raises SourceError when a journal has fewer lines, and so the server fewer rows, than it had acknowledged.
    """
    if _is_committed(client.call(*_last_batch_command(job)), job):
        return
    lengths = client.call_all([[b"XLEN", job.journal_key(partition)] for partition in lines])
    lost = [partition for partition, length in zip(lines, lengths, strict=True) if length < lines[partition]]
    if lost:
        raise SourceError(
            f"the server has lost rows that it had acknowledged, as after a failover: of {len(lost)} partitions, such "
            f"as {lost[0]}"
        )
    end(client, job, lines)


def end(client: RedisClient, job: Job, partitions: Collection[int]) -> None:
    """End the batch: no late task and no later run writes it again.  Deletes the journals."""
    keys = [job.journal_key(partition) for partition in partitions]
    commands: list[Command] = [[b"XADD", job.key, b"MAXLEN", 1, b"*", b"batch", job.batch]]
    if not job.is_durable:
        commands.append([b"EXPIRE", job.key, _ENDED_S])
    commands += [[b"DEL", *keys[at : at + _KEYS_A_COMMAND]] for at in range(0, len(keys), _KEYS_A_COMMAND)]
    *_, executed = client.call_all([[b"MULTI"], *commands, [b"EXEC"]])
    for reply in executed:
        if isinstance(reply, Exception):
            raise ReplyError(str(reply))
