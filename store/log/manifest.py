"""The list of the files of the log: the manifest of Redis 7's multi-part append-only file.

    #RB:replid 8b1a...40 digits 0000...40 digits -1
    #RB:store 8b1a...40 digits
    #RB:unsynced
    file appendonly.aof.2.base.aof seq 2 type b size 81234 checksum crc32c
    file appendonly.aof.5.incr.aof seq 5 type i startoffset 900100 size 4001822 checksum crc32c
    file appendonly.aof.6.incr.aof seq 6 type i startoffset 4818544 checksum crc32c
    #CK:crc32c=1b2c3d4e

There is one base at most, then the incr files, oldest first; the last one is appended to.  Redis ignores keys that it
does not know and lines that start with `#`, and drops both when it writes the file again, so all our additions are
optional: `checksum` marks a file whose every command is covered by annotation lines, `size` is the final length of a
file that is closed, `commandbytes` how many bytes of a base are commands, `nextoffset` where history ends that replicas
may still ask for (see `Manifest.backlog`), `#RB:unsynced` stands where replies do not wait until the log is durable,
the other `#RB:` lines hold the replication ids (see `store/replication_id.py`), and the last line is a checksum of the
lines above it.  Where any addition of ours stands, that line must follow: a manifest that was cut between two lines
would otherwise be a shorter log.

This module reads and replaces the one file.  It opens none of the files it lists.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Final

from riverbed.store.checksum import crc32c
from riverbed.store.disk.durable_file import write_file
from riverbed.store.disk.files import Files
from riverbed.store.errors import CorruptionError
from riverbed.store.format.text import quote_text, split_text
from riverbed.store.layout import base_name, incr_name
from riverbed.store.position import MAX_OFFSET
from riverbed.store.replication_id import MAX_OLDER, Branch, ReplicationIds

MAX_LINE: Final = 1024
MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
CHECKSUM_NAME: Final = "crc32c"
_GUARD = re.compile(rb"#CK:crc32c=([0-9a-f]{8})\n")
_NUMBER = re.compile(r"\d{1,19}", re.ASCII)
_REPLIDS_START: Final = b"#RB:replid "
_REPLIDS = re.compile(rb"#RB:replid ([0-9a-f]{40}) ([0-9a-f]{40}) (-1|\d{1,19})\n")
_OLDER_START: Final = b"#RB:older "
_OLDER = re.compile(rb"#RB:older ([0-9a-f]{40}) (\d{1,19})\n")
_STORE_START: Final = b"#RB:store "
_UNSYNCED: Final = b"#RB:unsynced\n"
_STORE = re.compile(rb"#RB:store ([0-9a-f]{40})\n")


class FileType(Enum):
    """The type of a file; the letters are on disk."""

    BASE = "b"
    HISTORY = "h"  # replaced by a rewrite, to be deleted, now or when no replica may ask for it; never loaded
    INCR = "i"


@dataclass(frozen=True, slots=True)
class LogFile:
    """One line of the manifest.  `name` is the name in the file system, decoded by `os.fsdecode`."""

    name: str
    seq: int
    type: FileType
    start_offset: int | None = None
    size: int | None = None
    is_checksummed: bool = False
    command_bytes: int | None = None
    end_offset: int | None = None  # of history that replicas may ask for

    @classmethod
    def base(cls, seq: int, size: int, command_bytes: int) -> LogFile:
        """A state of `size` bytes, written by us."""
        name = base_name(seq)
        return cls(name, seq, FileType.BASE, size=size, is_checksummed=True, command_bytes=command_bytes)

    @classmethod
    def incr(cls, seq: int, start_offset: int) -> LogFile:
        """A file of ours that is appended to."""
        return cls(incr_name(seq), seq, FileType.INCR, start_offset=start_offset, is_checksummed=True)

    @property
    def is_ours(self) -> bool:
        """Whether its line has a key that only we write; a Redis that writes the manifest again leaves it out."""
        marks = (self.size, self.command_bytes, self.end_offset)
        return self.is_checksummed or any(mark is not None for mark in marks)

    def as_history(self, end_offset: int | None = None) -> LogFile:
        """The same file when the log does without it; with `end_offset`, the log goes on where it ends."""
        return dataclasses.replace(self, type=FileType.HISTORY, end_offset=end_offset)


@dataclass(frozen=True, slots=True)
class Manifest:
    base: LogFile | None = None
    history: tuple[LogFile, ...] = ()
    incrs: tuple[LogFile, ...] = ()
    replids: ReplicationIds | None = None
    is_unsynced: bool = False  # replies do not wait until the log is durable

    @property
    def files(self) -> tuple[LogFile, ...]:
        """The files to load, in order."""
        return self.incrs if self.base is None else (self.base, *self.incrs)

    @property
    def backlog(self) -> tuple[LogFile, ...]:
        """The history that the first incr continues, oldest first: replicas may ask for it after a rewrite."""
        found: list[LogFile] = []
        start = self.incrs[0].start_offset if self.incrs and self.incrs[0].is_checksummed else None
        for file in sorted(self.history, key=lambda file: file.seq, reverse=True):
            if file.end_offset is not None and file.end_offset == start and file.is_checksummed:
                found.append(file)
                start = file.start_offset
        return tuple(reversed(found))

    @property
    def streamed(self) -> tuple[LogFile, ...]:
        """The files that replicas can be sent, in order: the backlog and the incrs."""
        return *self.backlog, *self.incrs

    def without_backlog(self, names: Collection[str]) -> Manifest:
        """This manifest, but replicas may not ask for the history files `names` any more."""
        history = tuple(file.as_history() if file.name in names else file for file in self.history)
        return dataclasses.replace(self, history=history)

    @property
    def is_ours(self) -> bool:
        """Whether it has any of our marks, which a Redis leaves out when it writes a manifest."""
        listed = (*self.files, *self.history)
        return self.replids is not None or self.is_unsynced or any(file.is_ours for file in listed)

    def continued(self, offset: int, last_size: int, first_seq: int) -> tuple[Manifest, LogFile]:
        """-> (this manifest with a new incr file, which begins at `offset`; that file).

        The file before it has `last_size` bytes; `first_seq` is the number of the log's first incr.
        """
        file = LogFile.incr(self.next_seq(0 if self.incrs or self.history else first_seq - 1), offset)
        base, incrs = self.base, self.incrs
        if incrs:
            incrs = (*incrs[:-1], dataclasses.replace(incrs[-1], size=last_size))
        elif base is not None and base.size is None:
            base = dataclasses.replace(base, size=last_size)
        replids = self.replids or ReplicationIds.new()
        return dataclasses.replace(self, base=base, incrs=(*incrs, file), replids=replids), file

    def next_seq(self, after: int) -> int:
        """The number of the next incr file: above `after` and all others, and no file of the log has its name."""
        return _free(max([after, *(file.seq for file in (*self.incrs, *self.history))]) + 1, incr_name, self)

    def next_base(self, size: int, command_bytes: int) -> LogFile:
        """The next base of ours, under a name that no file of the log has."""
        seq = 1 + (self.base.seq if self.base is not None else 0)
        return LogFile.base(_free(seq, base_name, self), size, command_bytes)

    def begun_with(self, base: LogFile, from_seq: int) -> Manifest:
        """This manifest, but `base` is followed by incr `from_seq`; every file before that becomes history."""
        behind = [file for file in self.files if file.type is FileType.BASE or file.seq < from_seq]
        incrs = tuple(file for file in self.incrs if file.seq >= from_seq)
        assert incrs and incrs[0].seq == from_seq, "a base must lead to a file of the log"
        ends = {file.name: following.start_offset for file, following in pairwise(self.incrs) if file.is_checksummed}
        history = (*self.history, *(file.as_history(ends.get(file.name)) for file in behind))
        return dataclasses.replace(self, base=base, history=history, incrs=incrs)


def _free(seq: int, name: Callable[[int], str], manifest: Manifest) -> int:
    """The first number from `seq` on whose name no file of the log has: Redis lists files under any names."""
    names = {file.name for file in (*manifest.files, *manifest.history)}
    while name(seq) in names:
        seq += 1
    return seq


# -- text --------------------------------------------------------------------------------------------------------------


def serialize(manifest: Manifest) -> bytes:
    files = [] if manifest.base is None else [manifest.base]
    lines = b"" if manifest.replids is None else _replids_line(manifest.replids)
    lines += _UNSYNCED if manifest.is_unsynced else b""
    lines += b"".join(_line(file) for file in (*files, *manifest.history, *manifest.incrs))
    return lines + _guard(lines)


def _replids_line(replids: ReplicationIds) -> bytes:
    words = f"{replids.replication_id} {replids.previous_id} {replids.branch_offset}"
    line = b"%b%b\n" % (_REPLIDS_START, words.encode())
    if replids.store_id:
        line += b"%b%b\n" % (_STORE_START, replids.store_id.encode())
    return line + b"".join(b"%b%b %d\n" % (_OLDER_START, past_id.encode(), end) for past_id, end in replids.older)


def _guard(lines: bytes) -> bytes:
    return b"#CK:crc32c=%08x\n" % crc32c(lines)


def _line(file: LogFile) -> bytes:
    words = ["file", quote_text(file.name), "seq", str(file.seq), "type", file.type.value]
    if file.start_offset is not None:
        words += ["startoffset", str(file.start_offset)]
    if file.size is not None:
        words += ["size", str(file.size)]
    if file.is_checksummed:
        words += ["checksum", CHECKSUM_NAME]
    if file.command_bytes is not None:
        words += ["commandbytes", str(file.command_bytes)]
    if file.end_offset is not None:
        words += ["nextoffset", str(file.end_offset)]
    return os.fsencode(" ".join(words)) + b"\n"


def parse(data: bytes, file: str) -> Manifest:
    """The manifest in `data`; `file` names it in errors.  Raises CorruptionError."""
    if not data:
        raise CorruptionError(file, 0, "the manifest is empty")
    base: LogFile | None = None
    history: list[LogFile] = []
    incrs: list[LogFile] = []
    replids: ReplicationIds | None = None
    older: list[Branch] = []
    at = 0
    is_ours = is_guarded = is_unsynced = False
    own_names = (Path(file).name, _temporary(Path(file)).name)
    names = set()
    for line in io.BytesIO(data):
        is_guarded = False
        try:
            if len(line) > MAX_LINE:
                raise ValueError(f"line of more than {MAX_LINE} bytes")
            if not line.endswith(b"\n"):
                raise ValueError("the last line has no end")
            if line.startswith(_REPLIDS_START):
                replids, older = _parse_replids(line), []
            elif line.startswith(_STORE_START):
                replids = _with_store(replids, line)
            elif line.startswith(_OLDER_START):
                older.append(_parse_older(line, may_follow=replids is not None and len(older) < MAX_OLDER))
            elif line == _UNSYNCED:
                is_unsynced = True
            elif line.startswith(b"#"):
                guard = _GUARD.fullmatch(line)
                if guard and int(guard[1], 16) != crc32c(data[:at]):
                    raise ValueError("the lines above do not have the checksum that this line promises")
                is_guarded = guard is not None
            else:
                entry = _parse_line(line)
                is_ours = is_ours or entry.is_ours
                if entry.name in names:  # a file of the log would be deleted as history
                    raise ValueError(f"{entry.name!r} is listed twice")
                if entry.name in own_names:
                    raise ValueError("the manifest lists itself")
                names.add(entry.name)
                if entry.type is FileType.BASE:
                    if base is not None:
                        raise ValueError("second base file")
                    base = entry
                elif entry.type is FileType.HISTORY:
                    history.append(entry)
                else:
                    if incrs and entry.seq <= incrs[-1].seq:
                        raise ValueError("sequence numbers of incr files do not increase")
                    incrs.append(entry)
        except ValueError as error:
            raise CorruptionError(file, at, str(error)) from error
        at += len(line)
    if (is_ours or is_unsynced or replids is not None) and not is_guarded:
        raise CorruptionError(file, at, "the line with the checksum of all others is not at the end: lines are missing")
    if base is None and not history and not incrs:
        raise CorruptionError(file, at, "no file is listed")
    if incrs and incrs[-1].size is not None:  # what is behind that would be left out, and then written over
        raise CorruptionError(file, at, "the last incr file has a size, which only those have that another one follows")
    if replids is not None and older:
        replids = dataclasses.replace(replids, older=tuple(older))
    return Manifest(base, tuple(history), tuple(incrs), replids, is_unsynced)


def _parse_replids(line: bytes) -> ReplicationIds:
    found = _REPLIDS.fullmatch(line)
    if found is None:
        raise ValueError("malformed line about the replication id")
    return ReplicationIds(found[1].decode(), found[2].decode(), _bounded(found[3].decode()))


def _with_store(replids: ReplicationIds | None, line: bytes) -> ReplicationIds:
    found = _STORE.fullmatch(line)
    if found is None or replids is None:
        raise ValueError("malformed line about the store's id, or one that follows no replication id")
    return dataclasses.replace(replids, store_id=found[1].decode())


def _parse_older(line: bytes, *, may_follow: bool) -> Branch:
    found = _OLDER.fullmatch(line)
    if found is None or not may_follow:
        raise ValueError("malformed line about an older replication id, or one that follows no replication id")
    return Branch(found[1].decode(), _bounded(found[2].decode()))


def _parse_line(line: bytes) -> LogFile:
    words = split_text(os.fsdecode(line))
    if len(words) < 6 or len(words) % 2:
        raise ValueError("expected pairs of a key and a value, file, seq and type among them")
    pairs: dict[str, str] = {}
    for key, value in zip(words[::2], words[1::2], strict=True):
        if key.lower() in pairs:
            raise ValueError(f"{key} is given twice")
        pairs[key.lower()] = value
    missing = [key for key in ("file", "seq", "type") if not pairs.get(key)]
    if missing:
        raise ValueError(f"no {missing[0]} given")
    name = pairs["file"]
    if "/" in name or "\\" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is not a bare file name")
    seq = _number(pairs, "seq")
    if not seq:
        raise ValueError("seq is 0")
    try:
        file_type = FileType(pairs["type"])
    except ValueError as error:
        raise ValueError(f"unknown file type {pairs['type']!r}") from error
    checksum = pairs.get("checksum")
    if checksum not in (None, CHECKSUM_NAME):
        raise ValueError(f"unknown checksum {checksum!r}")
    return LogFile(
        name,
        seq,
        file_type,
        _number(pairs, "startoffset"),
        _number(pairs, "size"),
        is_checksummed=checksum is not None,
        command_bytes=_number(pairs, "commandbytes"),
        end_offset=_number(pairs, "nextoffset"),
    )


def _number(pairs: dict[str, str], key: str) -> int | None:
    text = pairs.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{key} is not a number: {text!r}")
    return _bounded(text)


def _bounded(text: str) -> int:
    number = int(text)
    if number > MAX_OFFSET:
        raise ValueError(f"{text} is more than {MAX_OFFSET}")
    return number


# -- the file ----------------------------------------------------------------------------------------------------------


def load(path: Path, files: Files) -> Manifest | None:
    """The manifest at `path`, or None when there is no such file.  Raises CorruptionError."""
    if not files.exists(path):
        return None
    fd = files.open_read(path)
    try:
        size = files.size(fd)
        if size > MAX_MANIFEST_BYTES:
            raise CorruptionError(str(path), None, f"{size} bytes are too many for a manifest")
        return parse(files.read_at(fd, size, 0), str(path))
    finally:
        files.close(fd)


def replace(path: Path, manifest: Manifest, files: Files) -> None:
    """Replace the file at `path` by `manifest`, in one step that survives a crash.

    Raises OSError with the old file untouched, or `ReplacedError` when the file was replaced but not made durable: then
    a crash may leave either of the two.
    """
    temporary = _temporary(path)
    data = serialize(manifest)
    try:
        parse(data, str(path))
    except CorruptionError as error:  # numbers may have grown too large
        raise OSError(errno.EOVERFLOW, f"the manifest could not be read again: {error.reason}", str(path)) from error
    try:
        write_file(temporary, [data], files)
        # Also makes the names of new files durable before the manifest lists them.
        files.sync_directory(path.parent)
        files.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):  # the error that counts is the first one
            files.unlink(temporary)
        raise
    try:
        files.sync_directory(path.parent)
    except OSError as error:
        raise ReplacedError(error.errno, f"the manifest was replaced but not synced: {error}") from error


def _temporary(path: Path) -> Path:
    return path.with_name(f"temp-{path.name}")


class ReplacedError(OSError):
    """The new manifest is in place, but a crash may bring the old one back."""
