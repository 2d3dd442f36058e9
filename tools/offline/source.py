"""Find a log: turn the path that a user gives into the files of one log, in order.

    DIR/                        a data directory of ours or of Redis 7: the log is in a directory in it
    DIR/appendonlydir/          the log's directory itself, or its manifest
    DIR/                        a data directory of a Redis before 7, with one appendonly.aof
    FILE                        an appendonly.aof, or a base of ours; any file that can be read without a manifest

Reads manifests and first batches; changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from riverbed.store.errors import CorruptionError
from riverbed.store.format import log_lines
from riverbed.store.format.log_lines import FrameError, parse_frame
from riverbed.store.layout import LOG_FILE
from riverbed.store.log import manifest
from riverbed.store.log.files.batch import LogPart
from riverbed.store.log.manifest import FileType, LogFile, Manifest
from riverbed.store.log.reader import list_parts
from riverbed.store.position import LogPosition
from riverbed.tools.console.console import Failure
from riverbed.tools.offline.heldfiles import HeldFiles

_SUFFIX: Final = ".manifest"
_BASE_MARK: Final = ".base."
# Read from the start of a file to learn which program wrote it: the first batch, unless it is very long.
_HEAD_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A log to read: its parts, the position where it begins (None: as the manifest says), and its open files."""

    name: str
    parts: list[LogPart]
    start: LogPosition | None
    files: HeldFiles
    store_id: str = ""  # if the log names it

    @property
    def is_ours(self) -> bool:
        """Whether annotations cover every command of every file."""
        return all(part.file.is_checksummed for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size for part in self.parts)


def find_source(path: Path, files: HeldFiles) -> Source:
    """The log at `path`, whose files are held by `files` from then on.

    Raises Failure when there is none or more than one, CorruptionError, OSError.
    """
    path = path.resolve() if path.is_symlink() else path  # the user named this path, so a link is allowed
    if path.name.endswith(_SUFFIX) and path.is_file():
        return _listed(path, files)
    if path.is_dir():
        listed = _manifests(path)
        if len(listed) > 1:
            names = ", ".join(str(found) for found in listed)
            raise Failure(f"{path} holds several logs: name one of {names}")
        if listed:
            return _listed(listed[0], files)
        path = _single(path)
    elif not path.exists():
        raise Failure(f"{path}: no such file or directory")
    elif not path.is_file():
        raise Failure(f"{path} is neither a directory nor a file")
    return _alone(path, files)


def _manifests(directory: Path) -> list[Path]:
    """The manifests in `directory`, or if it has none, one level below."""

    def within(place: Path) -> Iterator[Path]:
        for name in sorted(os.listdir(place)):
            if name.endswith(_SUFFIX) and not name.startswith("temp-") and (place / name).is_file():
                yield place / name

    found = list(within(directory))
    if not found:
        below = sorted(path for path in directory.iterdir() if path.is_dir())
        found = [manifest for place in below if os.access(place, os.R_OK | os.X_OK) for manifest in within(place)]
    return found


def _single(directory: Path) -> Path:
    """The single file that a Redis before 7 wrote."""
    files = sorted(path for path in directory.glob("*.aof") if path.is_file())
    if directory / LOG_FILE in files:
        return directory / LOG_FILE
    if len(files) == 1 and not files[0].name.endswith((".base.aof", ".incr.aof")):
        return files[0]
    if files:
        names = ", ".join(path.name for path in files[:3])
        raise Failure(f"{directory} holds {names}, but no manifest that says how they belong together")
    rdb = sorted(directory.glob("*.rdb"))
    if rdb:
        raise Failure(
            f"{directory} holds {rdb[0].name}, but no append-only file: start a redis-server on it and use "
            f"`riverbed import`"
        )
    raise Failure(f"{directory} holds no log: neither a manifest nor an append-only file")


def _listed(path: Path, files: HeldFiles) -> Source:
    home, before = path.parent, None
    while True:
        found = manifest.load(path, files)
        if found is None or not found.files:
            raise CorruptionError(str(path), None, "the manifest lists no file")
        # A file may be missing because a server has just rewritten the log; then the manifest lists other files.
        if files.hold(home / file.name for file in found.files) or found == before:
            store_id = "" if found.replids is None else found.replids.with_store().store_id
            return Source(str(home), list_parts(home, found, files), None, files, store_id)
        before = found


def _alone(path: Path, files: HeldFiles) -> Source:
    """One file without a manifest: its first lines show which program wrote it."""
    base = LogFile(path.name, 1, FileType.BASE)
    (part,) = list_parts(path.parent, Manifest(base=base), files)
    begins = _begins_at(path)
    if begins is None:
        # Read the file as an incr, so that its commands count and a replay can stop at an offset in it.
        plain = LogFile(path.name, 1, FileType.INCR)
        return Source(str(path), [LogPart(path, plain, part.size, is_last=True)], None, files)
    if _BASE_MARK in path.name:
        ours = LogFile(path.name, 1, FileType.BASE, is_checksummed=True)
        return Source(str(path), [LogPart(path, ours, part.size, is_last=True)], LogPosition(-1, 0, begins[1]), files)
    if begins[0] != 0:
        raise Failure(
            f"{path} begins at replication offset {begins[0]}: the log before that is in other files; "
            f"name the directory with all of them"
        )
    ours = LogFile(path.name, 1, FileType.INCR, start_offset=0, is_checksummed=True)
    return Source(str(path), list_parts(path.parent, Manifest(incrs=(ours,)), files), None, files)


def _begins_at(path: Path) -> tuple[int, int] | None:
    """The replication offsets before and after the first batch of a file of ours; None for any other file."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    at = command_bytes = 0
    try:
        while True:
            words, end = parse_frame(head, at)
            if words is not None:
                command_bytes += end - at
            elif head.startswith(log_lines.ANNOTATION_START, at):
                annotation = log_lines.parse_annotation(head, at)
                if annotation is None or annotation.covered != at:
                    return None
                return max(annotation.offset - command_bytes, 0), annotation.offset
            at = end
    except FrameError:
        return None
