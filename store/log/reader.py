"""Reads the log back: batches in order, and decides what to do about damaged bytes.

Every such decision is made here, once, for the server's start, for replicas and for the offline tools:

  * Annotations are believed when the checksum fits AND the bytes before parse into whole commands.  A client may store
    anything, also text that looks like an annotation: framing decides, the text never does.
  * The last file may end in the middle of a batch, as a crash leaves it.  What follows the last sound batch is then a
    `TornTail`, reported and never executed.
  * `CorruptionError` is raised for an unsound batch that a sound one follows anywhere, for an unsound batch in any file
    but the last, and for a listed file that is missing or shorter than the manifest says.  Going on would lose what was
    acknowledged.
  * A power cut takes what was not synced in any order.  After one, where the log was not synced before each reply, a
    sound batch may follow what is missing: the tail is torn all the same.
  * Nothing before a position that the caller knows to be durable (a checkpoint covers it) is taken for a torn tail.
  * Files without our checksums (a Redis wrote them) are parsed exactly; only the last may end early, and is then cut
    back to its last complete command, or to before an unfinished MULTI.

Nothing is written here and memory stays bounded by the longest batch: files are read in chunks, and a length found in
a file is compared with what the file holds before memory is allocated for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from riverbed.store.disk.files import Files
from riverbed.store.errors import CorruptionError
from riverbed.store.log.bit_flips import MAX_BYTES, find_flipped_bit
from riverbed.store.log.empty_rdb import MAGIC, MAX_EMPTY_BYTES, is_empty_rdb
from riverbed.store.log.files.batch import Batch, LogPart
from riverbed.store.log.files.plain import PLAIN_BATCH_COMMANDS
from riverbed.store.log.files.reader import read_part
from riverbed.store.log.manifest import FileType, LogFile, Manifest
from riverbed.store.log.padding import end_of_batches
from riverbed.store.position import LogPosition

__all__ = ["Batch", "LogPart", "LogReader", "TornTail", "list_parts"]


@dataclass(frozen=True, slots=True)
class TornTail:
    """What a crash left behind the last sound batch: `byte_count` bytes from `position` of `file` on.

    `offset` is the replication offset up to which the log is whole.
    """

    file: str
    position: int
    byte_count: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.byte_count} bytes from byte {self.position} on are not a whole batch ({self.reason}); "
            f"the log is whole up to replication offset {self.offset}"
        )


def list_parts(directory: Path, manifest: Manifest, files: Files) -> list[LogPart]:
    """The files of `manifest` in order, with their current sizes; an RDB file without keys has size 0 here.

    Raises CorruptionError when one is missing, shorter than the manifest says, or not text.
    """
    return [part_of(directory, file, files, is_last=file is manifest.files[-1]) for file in manifest.files]


def parts_up_to(parts: Sequence[LogPart], end: LogPosition) -> list[LogPart]:
    """The files of a log up to `end`, and as much of the one that it is in.

    Raises CorruptionError when it is in none.
    """
    kept = [part for part in parts if part.number <= end.file_seq]
    if not kept or kept[-1].number != end.file_seq:
        home = str(parts[0].path.parent) if parts else ""
        raise CorruptionError(home, None, f"no file of the log has number {end.file_seq}")
    return [*kept[:-1], LogPart(kept[-1].path, kept[-1].file, end.position, is_last=True)]


def backlog_parts(directory: Path, manifest: Manifest, files: Files) -> list[LogPart]:
    """The files of the kept backlog, in order; one that is deleted ends it.

    Raises CorruptionError when one is shorter than the manifest says.
    """
    gone = [file.name for file in manifest.backlog if not files.exists(directory / file.name)]
    kept = manifest.without_backlog(gone).backlog
    return [part_of(directory, file, files, is_last=False) for file in kept]


def backlog_batches(parts: list[LogPart], files: Files) -> Iterator[Batch]:
    """Yield every batch of the kept backlog.  Raises CorruptionError when it is not whole, OSError."""
    if not parts:
        return
    first, last = parts[0], parts[-1]
    reader = LogReader(parts, files)
    yield from reader.batches(LogPosition(first.number, 0, first.file.start_offset or 0), None)
    if reader.end is None or reader.end.offset != last.file.end_offset:
        raise last.error(
            last.size, 0 if reader.end is None else reader.end.offset, f"the next file begins at {last.file.end_offset}"
        )


def part_of(directory: Path, file: LogFile, files: Files, *, is_last: bool) -> LogPart:
    """One file of the log with its present size, without what it has behind the end that the manifest says.

    That is a copy of what the next file begins with, left by a crash: see `appending/successor.py`.  Raises
    CorruptionError as `list_parts` does, OSError.
    """
    path = directory / file.name
    if not files.exists(path):
        raise CorruptionError(str(path), None, "the manifest lists this file, and it is missing")
    fd = files.open_read(path)
    try:
        size = files.size(fd)
        if files.read_at(fd, len(MAGIC), 0) == MAGIC:
            is_small_base = file.type is FileType.BASE and size <= MAX_EMPTY_BYTES
            if not (is_small_base and is_empty_rdb(files.read_at(fd, size, 0))):
                raise _unreadable_rdb(path)
            size = 0  # nothing to be executed
        elif file.type is not FileType.BASE and file.is_checksummed:
            size = end_of_batches(files, fd, size) if file.size is None else min(size, file.size)
    finally:
        files.close(fd)
    if file.size is not None and size != file.size:
        raise CorruptionError(str(path), min(size, file.size), f"{size} bytes long, closed with {file.size} bytes")
    return LogPart(path, file, size, is_last=is_last)


def _unreadable_rdb(path: Path) -> CorruptionError:
    return CorruptionError(
        str(path),
        0,
        "this is an RDB file, which cannot be read here: run `CONFIG SET aof-use-rdb-preamble no` and "
        "`BGREWRITEAOF` on the source, then copy again; or copy from the running source with `riverbed import`",
    )


class LogReader:
    """One pass over `parts`.  When `batches` is exhausted, `end` and `torn_tail` say how the log ends."""

    def __init__(
        self,
        parts: list[LogPart],
        files: Files,
        *,
        load_truncated: bool = True,
        may_lack_writes: bool = False,
        plain_batch_commands: int = PLAIN_BATCH_COMMANDS,
    ) -> None:
        """`plain_batch_commands` is how many commands make a batch where no annotation ends one.

        With `may_lack_writes` a power cut may have taken writes of the last file that later ones follow.
        """
        self.end: LogPosition | None = None
        self.torn_tail: TornTail | None = None
        self._parts = parts
        self._files = files
        self._load_truncated = load_truncated
        self._may_lack_writes = may_lack_writes
        self._plain_batch_commands = plain_batch_commands

    def batches(self, start: LogPosition | None, durable: LogPosition | None) -> Iterator[Batch]:
        """Yield every batch from `start` (None: the beginning) on.

        A tail that begins before `durable` is not torn but corrupt.  Raises CorruptionError; OSError passes through.
        """
        parts = self._parts
        if start is not None:
            parts = [part for part in parts if part.number >= start.file_seq]
            if not parts or parts[0].number != start.file_seq:
                raise CorruptionError(
                    str(self._parts[0].path.parent) if self._parts else "",
                    None,
                    f"no file of the log has number {start.file_seq}, where reading is to begin",
                )
        if not parts:
            return
        place = start or LogPosition(parts[0].number, 0, self._first_offset())
        for part in parts:
            fd = self._files.open_read(part.path)
            try:
                reader = read_part(self._files, fd, part, self._plain_batch_commands)
                reader.begin(place)
                yield from reader.batches()
                place = reader.place
                if reader.unsound is not None:
                    self._judge_tail(part, place, reader.unsound, reader.sound_again, durable)
            finally:
                self._files.close(fd)
        self.end = place
        if durable is not None and place < durable:
            raise parts[-1].error(
                place.position,
                place.offset,
                f"the log ends before the place that a checkpoint covers: file {durable.file_seq}, "
                f"byte {durable.position}, replication offset {durable.offset}",
            )

    def _first_offset(self) -> int:
        """The offset at which the log begins: that of the first incr, also for the base before it."""
        incrs = [part.file for part in self._parts if part.file.type is FileType.INCR]
        return (incrs[0].start_offset or 0) if incrs and incrs[0].is_checksummed else 0

    def _judge_tail(
        self, part: LogPart, place: LogPosition, reason: str, sound_again: int | None, durable: LogPosition | None
    ) -> None:
        if sound_again is not None:
            damage = f"damaged batch: {reason}; the batch from byte {sound_again} on is sound again"
            if not (part.is_last and self._may_lack_writes):
                raise part.error(place.position, place.offset, damage)
            reason = f"{damage}, and a power cut has stopped a server that did not sync each write"
        if not part.is_last:
            raise part.error(place.position, place.offset, f"{reason}, and more files follow")
        if not self._load_truncated:
            raise part.error(place.position, place.offset, f"{reason}, and aof-load-truncated is no")
        if durable is not None and place < durable:
            raise part.error(
                place.position, place.offset, f"{reason}, below byte {durable.position} which a checkpoint covers"
            )
        self._refuse_flipped(part, place, part.size if sound_again is None else sound_again)
        self.torn_tail = TornTail(str(part.path), place.position, part.size - place.position, place.offset, reason)

    def _refuse_flipped(self, part: LogPart, place: LogPosition, end: int) -> None:
        """Raise CorruptionError if what lies before byte `end` is not torn, but a whole batch with a flipped bit."""
        size = end - place.position
        if not part.file.is_checksummed or size > MAX_BYTES:
            return
        fd = self._files.open_read(part.path)
        try:
            byte = find_flipped_bit(self._files.read_at(fd, size, place.position))
        finally:
            self._files.close(fd)
        if byte is not None:
            reason = f"a bit is flipped in byte {place.position + byte}, and the batch is whole but for that"
            raise part.error(place.position, place.offset, reason)
