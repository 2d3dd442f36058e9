"""What is read: a file of the log as far as it is to be read, and its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from riverbed.store.errors import CorruptionError
from riverbed.store.log.manifest import FileType, LogFile
from riverbed.store.position import LogPosition
from riverbed.store.wire import LoggedRequest, words_of


class Batch(NamedTuple):
    """What one group commit wrote: `requests` in order, from byte `start` of `file` up to `end`.

    Neighbouring XADDs may be a run in `requests`; `commands` has lists of words only, and is made at each access.
    `time_ms` is the time of the commit, None in a file that is not ours: its commands may not fit, and Redis ignores
    the errors of commands that do not.  `noted_ms` is when the commands were written, to the second, if that Redis
    noted it.
    """

    requests: list[LoggedRequest]
    end: LogPosition
    time_ms: int | None
    file: str
    start: int
    noted_ms: int | None = None

    @property
    def commands(self) -> list[list[bytes]]:
        return words_of(self.requests)

    @property
    def size(self) -> int:
        """Bytes in the file, the annotation included."""
        return self.end.position - self.start


@dataclass(frozen=True, slots=True)
class LogPart:
    """One file to be read, up to `size` bytes, which may be fewer than it holds by now."""

    path: Path
    file: LogFile
    size: int
    is_last: bool

    @property
    def number(self) -> int:
        return -self.file.seq if self.file.type is FileType.BASE else self.file.seq

    def error(self, position: int | None, offset: int, reason: str) -> CorruptionError:
        return CorruptionError(str(self.path), position, f"{reason} (replication offset {offset})")


def is_preface(requests: Sequence[LoggedRequest]) -> bool:
    """Whether a file's first batch only repeats which database is selected, and so may leave the offset alone."""
    return len(requests) == 1 and isinstance(requests[0], list) and requests[0][0].upper() == b"SELECT"
