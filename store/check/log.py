"""The part of the check that reads the log: manifest, framing, checksums, offsets, and whether the tables fit the log.

    manifest   -> every file, every batch   -> the position up to which the tables cover the log
    its own       length, CRC-32C, offset,     a batch ends there, and the database selected there is the one that
    checksum      framing; SELECT first        the tables name

The backlog, which is kept for replicas alone, is read as well; what is wrong with it is a violation of `BACKLOG`.

`store/log/reader.py` reads the log; what it refuses is a violation.  A torn tail is no violation, because a crash
leaves one and the next start cuts it off; `torn_tail` keeps it for the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from riverbed.store.check.findings import Meta, Violation, violation_of
from riverbed.store.disk.files import Files
from riverbed.store.disk.real_files import read_file, require_plain
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import LOG_MANIFEST
from riverbed.store.log import manifest as manifests
from riverbed.store.log.manifest import Manifest
from riverbed.store.log.reader import (
    Batch,
    LogPart,
    LogReader,
    TornTail,
    backlog_batches,
    backlog_parts,
    list_parts,
)
from riverbed.store.log.takeover import refuse_orphans
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress
from riverbed.store.wire import Run

CHECKING_LOG: Final = "checking the log"
BACKLOG: Final = "backlog"

# Commands that are the same whichever database is selected.
_WITHOUT_DATABASE: Final = frozenset((b"MULTI", b"EXEC", b"SWAPDB", b"FLUSHALL", b"PING", b"REPLCONF"))
# How many times to read the log when a running server changes it meanwhile.
_TRIES: Final = 5


class LogCheck:
    """The check of the log in `home`.  Its public attributes are valid once `violations` is exhausted."""

    def __init__(self, home: Path, files: Files, is_stable: Callable[[], bool], steps: Progress) -> None:
        self.manifest: Manifest | None = None
        self.parts: list[LogPart] = []
        self.end: LogPosition | None = None
        self.torn_tail: TornTail | None = None
        self.is_missing = False  # there is no log
        self.is_short = False  # the log is whole, but ends before the position that the tables cover
        self._home = home
        self.files = files
        self.is_stable = is_stable
        self._steps = steps

    @property
    def manifest_path(self) -> Path:
        return self._home / LOG_MANIFEST

    @property
    def size_bytes(self) -> int:
        return sum(part.size for part in self.parts)

    def violations(self, meta: Meta | None) -> Iterator[Violation]:
        """Yield what is wrong with the log, and what disagrees with `meta`.  Raises UnsafeFileError, OSError."""
        require_plain(self._home)
        for attempt in range(_TRIES):
            before = self._manifest_bytes()
            found = []
            try:
                for violation in self._look(meta):
                    found.append(violation)
                    if self.is_stable():
                        yield from found
                        found.clear()
            except CorruptionError as error:
                found.append(violation_of("log", error))
            except FileNotFoundError as error:
                if self.is_stable():
                    raise
                found.append(Violation("log", "", "the file is missing", str(error.filename)))
            # Ask only when the answer matters: a server that starts at this moment would find the directory locked.
            if (not found and self.torn_tail is None) or self.is_stable():
                break
            self.torn_tail = None  # the server is still writing this batch
            if not found or (before == self._manifest_bytes() and attempt):
                break  # otherwise files were deleted while they were read
        yield from found

    def reload(self, position: LogPosition | None) -> bool:
        """List the files of a changed log again; -> whether `position` is in one of them."""
        self.manifest = manifests.load(self.manifest_path, self.files)
        self.parts = [] if self.manifest is None else list_parts(self._home, self.manifest, self.files)
        return position is None or any(part.number == position.file_seq for part in self.parts)

    def _manifest_bytes(self) -> bytes:
        try:
            return read_file(self.manifest_path, manifests.MAX_MANIFEST_BYTES)
        except FileNotFoundError:
            return b""

    def _look(self, meta: Meta | None) -> Iterator[Violation]:
        files = self.files
        self.torn_tail = self.end = None
        self.is_missing = self.is_short = False
        self.manifest = manifests.load(self.manifest_path, files)
        if self.manifest is None or not self.manifest.files:
            refuse_orphans(self._home, files)
            self.is_missing = True
            if meta is not None:
                yield Violation("log", "", "there is none, and the tables say how far they cover it", str(self._home))
            return
        if meta is not None and not meta.has_replids and self.manifest.replids is not None:
            yield Violation("meta", "replication", f"is missing; {self.manifest_path} names a line of offsets")
        if meta is not None and not meta.has_store and self.manifest.replids and self.manifest.replids.store_id:
            yield Violation("meta", "store", f"is missing; {self.manifest_path} names the store")
        self.parts = list_parts(self._home, self.manifest, files)
        position = None if meta is None else meta.position
        reader = LogReader(self.parts, files)
        log_db = -1
        seen = position is None or position.position == 0
        done, total = 0, self.size_bytes
        try:
            for batch in self._checked(reader, position):
                if isinstance(batch, Violation):
                    yield batch
                    continue
                if meta is not None and batch.end.file_seq == meta.position.file_seq and not seen:
                    log_db = _selected(batch, log_db)
                    if batch.end == meta.position:
                        seen = True
                        if batch.time_ms is not None and log_db not in (-1, meta.log_db):
                            reason = f"says that database {meta.log_db} is selected there, and the log says {log_db}"
                            yield Violation("meta", "position", reason)
                done += batch.size
                self._steps(CHECKING_LOG, done, total)
        except CorruptionError:
            self.end, self.is_short = reader.end, reader.end is not None
            raise
        self.end, self.torn_tail = reader.end, reader.torn_tail
        yield from self._check_backlog()
        if position is not None:
            yield from self._check_position(position, seen)

    def _check_backlog(self) -> Iterator[Violation]:
        assert self.manifest is not None
        try:
            for _ in backlog_batches(backlog_parts(self._home, self.manifest, self.files), self.files):
                pass
        except CorruptionError as error:
            yield violation_of(BACKLOG, error)

    def _checked(self, reader: LogReader, position: LogPosition | None) -> Iterator[Batch | Violation]:
        """Yield the batches, and a violation where a file runs a command on a database before any SELECT."""
        file = ""
        needs_select = False
        for batch in reader.batches(None, position):
            needs_select = batch.time_ms is not None and (needs_select or batch.file != file)
            file = batch.file
            for words in batch.requests if needs_select else ():
                name = b"XADD" if isinstance(words, Run) else words[0].upper()
                if name not in _WITHOUT_DATABASE:
                    needs_select = False
                    if name != b"SELECT":
                        yield Violation("log", "", "no SELECT before a command needs it", file, batch.start)
                    break
            yield batch

    def _check_position(self, position: LogPosition, seen: bool) -> Iterator[Violation]:
        """Check that the position of the tables is between two batches of a file that exists."""
        part = next((part for part in self.parts if part.number == position.file_seq), None)
        if part is None:
            yield Violation("meta", "position", f"is in file {position.file_seq}, which the log does not have")
        elif part.file.is_checksummed and not seen:
            reason = f"no batch ends at byte {position.position} with replication offset {position.offset}"
            yield Violation("meta", "position", reason, str(part.path), position.position)
        elif position.position == 0 and part.file.start_offset not in (None, position.offset):
            reason = f"says replication offset {position.offset}, and the file begins at {part.file.start_offset}"
            yield Violation("meta", "position", reason, str(part.path), 0)


def _selected(batch: Batch, log_db: int) -> int:
    """The database that is selected after `batch`."""
    for words in batch.requests:
        if isinstance(words, list) and words[0] == b"SELECT" and len(words) == 2 and words[1].isdigit():
            log_db = int(words[1])
    return log_db
