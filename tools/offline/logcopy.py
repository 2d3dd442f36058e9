"""Copies a log of ours byte for byte while it is executed, so that its checksums and replication offsets stay.

    source, executed up to here       v
    | incr 1       | incr 2           .          |        the thread copies what lies behind the last step,
    copy           | incr 1       | incr 2     |          and syncs it

What was not executed, as it is beyond the requested moment or torn, is never copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from riverbed.store.disk.beside import WorkBeside
from riverbed.store.disk.copying import GrowingCopy
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST, base_name, incr_name
from riverbed.store.log import manifest
from riverbed.store.log.files.batch import Batch
from riverbed.store.log.manifest import FileType, LogFile, Manifest
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds
from riverbed.tools.offline.source import Source

_STEP_BYTES: Final = 32 << 20


class LogCopy:
    """The copy of the log of `source` in `directory`/appendonlydir.  A context manager, which closes its files."""

    def __init__(self, source: Source, directory: Path) -> None:
        """Raises OSError."""
        self._source = source
        self._directory = directory
        self._home = directory / LOG_DIRECTORY
        self._left = list(source.parts)  # the first of them is copied now, or next
        self._file: GrowingCopy | None = None
        self._copying = WorkBeside("log to disk")
        source.files.make_directory(self._home)

    def follow(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield `batches`, and have a thread copy those that the caller is done with.

        Raises the StoreError or OSError that copying has met, a step later.
        """
        size = 0
        for batch in batches:
            yield batch
            size += batch.size
            if size >= _STEP_BYTES:
                size = 0
                self._copying.begin(partial(self._copy_to, batch.end))

    def finish(self, end: LogPosition) -> LogPosition:
        """Copy the rest up to `end`, and list the files, durably -> the same position in the copy.

        Raises StoreError, OSError.
        """
        self._copying.wait()
        self._copy_to(end)
        listed = self._listed(end)
        incr = listed.incrs[-1]
        if incr.seq != end.file_seq:  # an incr holds the offset at which the log continues after its base
            self._source.files.close(self._source.files.create(self._home / incr.name))
            end = LogPosition(incr.seq, 0, end.offset)
        manifest.replace(self._home / LOG_MANIFEST, listed, self._source.files)
        self._source.files.sync_directory(self._home)
        self._source.files.sync_directory(self._directory)
        return end

    def _copy_to(self, end: LogPosition) -> None:
        while self._left and self._left[0].number <= end.file_seq:
            part = self._left[0]
            is_last = part.number == end.file_seq
            if self._file is None:
                self._file = GrowingCopy(part.path, self._home / _listed_as(part.file).name, self._source.files)
            self._file.extend(end.position if is_last else part.size)
            if is_last:
                return
            self._close()
            del self._left[0]

    def _listed(self, end: LogPosition) -> Manifest:
        """What the manifest says of a log that ends at `end`: at least one incr, the last one without a size."""
        base: LogFile | None = None
        incrs: list[LogFile] = []
        for part in self._source.parts:
            if part.number > end.file_seq:
                break
            is_last = part.number == end.file_seq
            file = replace(_listed_as(part.file), size=end.position if is_last else part.size)
            if file.type is FileType.BASE:
                base = file
            else:
                incrs.append(replace(file, size=None) if is_last else file)
        if not incrs:
            following = [part.file.seq for part in self._source.parts if part.file.type is FileType.INCR]
            incrs.append(LogFile.incr(following[0] if following else 1, end.offset))
        return Manifest(base, (), tuple(incrs), ReplicationIds.new(self._source.store_id))

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._copying.end()
        self._close()


def _listed_as(file: LogFile) -> LogFile:
    """The file under the name that ours have."""
    return replace(file, name=(base_name if file.type is FileType.BASE else incr_name)(file.seq))
