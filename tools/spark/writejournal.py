"""Whether an attempt may still send rows, so that none that another attempt has written is written again.

A server remembers the names of rows (`writeidentity.py`) for a time only.  Until the first row of a partition can be
forgotten, any attempt at it may send.  From then on only one that is the first, and that no other has followed, may:
what is in the server is from itself alone.  So an attempt says that it begins before it sends, in the server:

    riverbed:spark:<job>:<partition>     batch=7 attempt=...   one for each; gone once committed
    riverbed:spark:<job>                 batch=7                 never write this batch again, nor one before it

The second is kept of jobs that can be started again, which are named by their checkpoint or by jobId.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from store.ids import id_ms, parse_id
from tools.redisclient import Word
from tools.spark.errors import SourceError

_MOST_MARGIN_MS: Final = 5000
# The notes of a job that has failed and cannot be started again, as long as anything of it may still run.
_EXPIRES_S: Final = 3 * 86_400
_KEYS_A_COMMAND: Final = 1000


class Server(Protocol):
    """Who keeps the journal."""

    def call(self, *words: Word) -> Any: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What is written: the names are the same for every attempt, and for every run of a durable one."""

    key: str  # in the journal
    batch: int = 0
    is_durable: bool = False

    def key_of(self, partition: int) -> bytes:
        return f"{self.key}:{partition}".encode()


@dataclass(frozen=True, slots=True)
class _Note:
    time_ms: int
    attempt: bytes


class Attempt:
    """One attempt at one partition.  Errors of `server` pass through."""

    def __init__(self, server: Server, job: Job, partition: int) -> None:
        """Say that it begins."""
        self._server = server
        self._job = job
        self._key = job.key_of(partition)
        self._name = secrets.token_hex(8).encode()
        self.is_committed = job.is_durable and _is_committed(server, job)
        if self.is_committed:
            return
        server.call(b"XADD", self._key, b"*", b"batch", b"%d" % job.batch, b"attempt", self._name)
        if not job.is_durable:
            server.call(b"EXPIRE", self._key, _EXPIRES_S)
        first = self._notes()[0]
        self._began_ms = first.time_ms
        self._is_first = first.attempt == self._name

    def _notes(self) -> list[_Note]:
        """Of all attempts at this batch of the partition, in turn."""
        notes = []
        for entry_id, words in self._server.call(b"XRANGE", self._key, b"-", b"+"):
            values = dict(zip(words[::2], words[1::2], strict=True))
            found = parse_id(entry_id)
            if found is not None and values.get(b"batch") == b"%d" % self._job.batch:
                notes.append(_Note(id_ms(found), values.get(b"attempt", b"")))
        return notes

    def require_may_send(self, now_ms: int, remembered_ms: int) -> None:
        """Raise SourceError unless rows may be sent at `now_ms`, by the server's clock; names are kept so long."""
        margin = min(_MOST_MARGIN_MS, remembered_ms // 4)
        if now_ms < self._began_ms + remembered_ms - margin:
            return
        if not self._is_first:
            age = (now_ms - self._began_ms) // 1000
            raise SourceError(
                f"the first attempt at this partition began {age} s ago, and the server remembers rows for "
                f"{remembered_ms // 1000} s (idmp-duration): it cannot tell any more which are there already, and some "
                f"may be. Set a longer time before writing (XCFGSET key IDMP-DURATION seconds, or stream-idmp-duration "
                f"in the server's configuration); idempotent=false writes all rows again"
            )
        if {note.attempt for note in self._notes()} != {self._name}:
            raise SourceError("another attempt has taken this partition over: this one ends here")


def _is_committed(server: Server, job: Job) -> bool:
    for _, words in server.call(b"XREVRANGE", job.key, b"+", b"-", b"COUNT", 1):
        values = dict(zip(words[::2], words[1::2], strict=True))
        return int(values.get(b"batch", b"-1")) >= job.batch
    return False


def commit(server: Server, job: Job, partitions: Iterable[int]) -> None:
    """All of it is written: never write it again."""
    if job.is_durable:
        server.call(b"XADD", job.key, b"MAXLEN", b"=", 1, b"*", b"batch", job.batch)
    keys = [job.key_of(partition) for partition in partitions]
    for at in range(0, len(keys), _KEYS_A_COMMAND):
        server.call(b"DEL", *keys[at : at + _KEYS_A_COMMAND])
