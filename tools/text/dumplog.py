"""A log as text: one line for each command, and a comment above each batch that shows where it ends.

    # appendonly.aof.1.incr.aof, bytes 0 to 111: offset 67, 2026-11-21T12:08:58.596Z
    XADD s 1-1 f "two words"

Words are quoted as redis-cli reads them.  Commands that Redis does not know, which our log holds in comment lines, look
like any other command here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.real_files import read_file
from riverbed.store.errors import CorruptionError
from riverbed.store.format.text import quoted
from riverbed.store.log import manifest as manifests
from riverbed.store.log.files.batch import Batch, LogPart
from riverbed.store.log.manifest import FileType
from riverbed.store.log.reader import LogReader, list_parts
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress
from riverbed.tools.console.console import Failure
from riverbed.tools.console.keytext import shown
from riverbed.tools.offline.heldfiles import HeldFiles
from riverbed.tools.offline.moment import time_text
from riverbed.tools.offline.source import find_source

_PLAIN = re.compile(rb"[!$-&(-\[\]-~][!#-&(-\[\]-~]*")  # no blank, quote or backslash; no comment

READING: Final = "reading the log"


def log_lines(path: Path, limit: int | None, progress: Progress) -> Iterator[str]:
    """The lines of a log, or of one file of it.  Raises Failure when `path` is no log, CorruptionError, OSError.

    `progress` is called with the number of bytes read, and of all bytes.
    """
    with HeldFiles() as files:
        yield from _lines(path, limit, progress, files)


def _lines(path: Path, limit: int | None, progress: Progress, files: HeldFiles) -> Iterator[str]:
    parts, start = _parts(path, files)
    reader = LogReader(parts, files)
    left = limit
    done, total = 0, sum(part.size for part in parts)
    for batch in reader.batches(start, None):
        done += batch.size
        progress(READING, min(done, total), total)
        yield _heading(batch)
        for words in batch.commands:
            if left is not None:
                if not left:
                    return
                left -= 1
            yield " ".join(map(word_text, words))
    torn = reader.torn_tail
    if torn is not None:
        raise CorruptionError(torn.file, torn.position, f"torn tail of {torn.byte_count} bytes: {torn.reason}")


def _parts(path: Path, files: HeldFiles) -> tuple[list[LogPart], LogPosition | None]:
    """The file `path` as a manifest beside it lists it; without one, the log that `find_source` finds."""
    path = path.resolve() if path.is_symlink() else path  # the user named this path, so a link is allowed
    if path.is_file() and not path.name.endswith(".manifest"):
        for beside in sorted(path.parent.glob("*.manifest")):
            listed = manifests.load(beside, files)
            if listed is None:
                continue
            for part in list_parts(path.parent, listed, files):
                if part.file.name == path.name:
                    return [part], LogPosition(part.number, 0, _begins_at(part, listed))
    source = find_source(path, files)
    return source.parts, source.start


def _begins_at(part: LogPart, listed: manifests.Manifest) -> int:
    """The replication offset where a file begins; a base has the offset of the incr after it."""
    if part.file.type is FileType.BASE:
        return (listed.incrs[0].start_offset or 0) if listed.incrs else 0
    return part.file.start_offset or 0


def _heading(batch: Batch) -> str:
    time_ms = batch.time_ms or batch.noted_ms
    when = "" if time_ms is None else f", {time_text(time_ms)}"
    name, end = shown(Path(batch.file).name), batch.end
    return f"# {name}, bytes {batch.start} to {end.position}: offset {end.offset}{when}"


def word_text(word: bytes) -> str:
    """`word` as redis-cli reads it: unchanged, or in double quotes with escapes."""
    return word.decode() if _PLAIN.fullmatch(word) else quoted(word)


def manifest_lines(path: Path) -> Iterator[str]:
    """The lines of a manifest, if it is sound.  Raises CorruptionError, Failure, OSError."""
    path = path.resolve() if path.is_symlink() else path  # the user named this path, so a link is allowed
    if manifests.load(path, OsFiles()) is None:
        raise Failure(f"there is no {path}")
    text = read_file(path, manifests.MAX_MANIFEST_BYTES).decode(errors="backslashreplace")
    yield from map(shown, text.splitlines())
