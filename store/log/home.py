"""The directory of the log: the manifest, and the files that it lists.

This module knows which files are listed and where they are.  `appending/writer.py` knows what is appended to the last
file and how much of it is durable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Self

from riverbed.store.disk.durable_file import cut_file, file_size
from riverbed.store.disk.files import Files
from riverbed.store.layout import LOG_MANIFEST, incr_name
from riverbed.store.log import manifest as manifests
from riverbed.store.log.manifest import LogFile, Manifest, ReplacedError
from riverbed.store.log.reader import LogPart, list_parts
from riverbed.store.log.takeover import refuse_orphans
from riverbed.store.position import LogPosition

# Bases that are being written.
TEMPORARY_PREFIX: Final = "temp-rewrite-"


class Base(NamedTuple):
    """The file that the log begins with: the state at replication offset `start_offset`.

    `command_bytes` of its `size` bytes are commands; None in a file that we did not write.
    """

    path: Path
    seq: int
    size: int
    command_bytes: int | None
    start_offset: int


class LogHome:
    """The files of one log in the directory `path`."""

    def __init__(self, path: Path, files: Files, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._files = files

    @classmethod
    def find(cls, path: Path, files: Files) -> Self:
        """The log in `path`; it may have no files yet.  Raises CorruptionError, OSError."""
        manifest = manifests.load(path / LOG_MANIFEST, files) or Manifest()
        if not manifest.files:
            refuse_orphans(path, files)
        home = cls(path, files, manifest)
        home.end_backlog([file.name for file in manifest.history if not files.exists(path / file.name)])
        return home

    def create(self) -> None:
        """Make the directory, durably.  Raises OSError."""
        self._files.make_directory(self.path)
        self._files.sync_directory(self.path.parent)

    def remove(self, *, with_directory: bool) -> None:
        """Delete a log of one empty file.  Best effort; an empty file that no manifest lists does no harm."""
        files = self._files
        with contextlib.suppress(OSError):
            for path in (self.path / name for name in (LOG_MANIFEST, f"temp-{LOG_MANIFEST}", incr_name(1))):
                if files.exists(path):
                    files.unlink(path)
            if with_directory and files.exists(self.path):
                files.remove_directory(self.path)

    def put_manifest(self, manifest: Manifest) -> None:
        """Make `manifest` the list of the files, durably.

        Raises OSError with the old one in place, or ReplacedError, when a crash may bring the old one back.
        """
        manifests.replace(self.path / LOG_MANIFEST, manifest, self._files)
        self.manifest = manifest

    def create_file(self, name: str) -> int:
        """-> the descriptor of a new file.  Raises OSError.

        What a crash has left in its place is deleted, not emptied: a power cut may bring the old bytes back.
        """
        path = self.path / name
        if self._files.exists(path):
            self._files.unlink(path)
        return self._files.create(path)

    def begin_file(self, offset: int, last_size: int, first_seq: int) -> tuple[LogFile, int]:
        """Create and list the next incr file, which begins at `offset`; the file before it has `last_size` bytes.

        -> (the file, its descriptor).  A crash in between leaves a file that is never read.  Raises as
        `put_manifest` does.
        """
        manifest, file = self.manifest.continued(offset, last_size, first_seq)
        fd = self.create_file(file.name)
        try:
            self.put_manifest(manifest)
        except OSError as error:
            with contextlib.suppress(OSError):  # the error that counts is the first one
                self._files.close(fd)
            if not isinstance(error, ReplacedError):
                with contextlib.suppress(OSError):  # the next try deletes it
                    self._files.unlink(self.path / file.name)
            raise
        return file, fd

    def cut_copies(self, closed: Iterable[LogFile]) -> None:
        """Cut off the copies of batches behind the ends of closed files, which a Redis would execute twice.

        Not when the next file has just begun: readers of other processes may have the manifest from before.  Best
        effort, as all readers leave them out.
        """
        for file in closed:
            path = self.path / file.name
            with contextlib.suppress(OSError):
                if file.size is not None and file_size(path, self._files) > file.size:
                    cut_file(path, file.size, self._files, is_durable=False)

    # -- what is there -------------------------------------------------------------------------------------------------

    def parts(self) -> list[LogPart]:
        """The files to load, in order.  Raises CorruptionError, OSError."""
        return list_parts(self.path, self.manifest, self._files)

    def has_incr(self, seq: int) -> bool:
        """Whether the incr `seq` is listed."""
        return any(file.seq == seq for file in self.manifest.incrs)

    def base(self, size: int) -> Base | None:
        """The base of `size` bytes that the first incr continues; None when there is none."""
        file, incrs = self.manifest.base, self.manifest.incrs
        if file is None:
            return None
        start_offset = (incrs[0].start_offset or 0) if incrs else 0
        return Base(self.path / file.name, file.seq, size, file.command_bytes, start_offset)

    def bytes_from(self, start: LogPosition | None) -> int:
        """How many bytes of the files lie behind `start`.  Raises CorruptionError, OSError."""
        size = 0
        for part in self.parts():
            if start is None or part.number > start.file_seq:
                size += part.size
            elif part.number == start.file_seq:
                size += max(part.size - start.position, 0)
        return size

    def superseded(self, kept_from: int | None = None) -> list[str]:
        """The history files that are no longer needed: replicas may ask for what lies behind offset `kept_from`."""
        manifest = self.manifest
        kept = {
            file.name
            for file in manifest.backlog
            if kept_from is not None and file.end_offset is not None and file.end_offset > kept_from
        }
        return [file.name for file in manifest.history if file.name not in kept]

    def end_backlog(self, names: Collection[str]) -> None:
        """Send replicas nothing more from the history files `names`."""
        self.manifest = self.manifest.without_backlog(names)

    def leftovers(self, kept_from: int | None = None) -> list[Path]:
        """The files that are superseded, and what a killed rewrite left behind.  Raises OSError."""
        names = self.superseded(kept_from)
        names += [name for name in self._files.names(self.path) if name.startswith(TEMPORARY_PREFIX)]
        return [self.path / name for name in names]

    def without_deleted(self) -> Manifest:
        """The manifest without the history files that are deleted.  Raises OSError."""
        history = tuple(file for file in self.manifest.history if self._files.exists(self.path / file.name))
        return replace(self.manifest, history=history)
