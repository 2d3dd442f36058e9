"""Makes a new data directory from the rows of a data frame, without a server.

    DIR.loading-xxxxxxxx/part-3-17      what a task has written: entries as XADD commands, with a checksum
    DIR.partial-xxxxxxxx/               the store, while the driver makes it from the parts
    DIR/                                the finished store, by one rename

The driver takes the parts in the order of their partitions, and only parts of tasks that Spark has accepted.  The
driver and all executors must share the place of the directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hiredis
import lmdb

from riverbed.store.disk.real_files import DIRECTORY_MODE, FILE_MODE
from riverbed.store.errors import StoreError
from riverbed.store.format.log_lines import encode_command
from riverbed.store.ids import id_text
from riverbed.tools.console.console import Failure
from riverbed.tools.offline.newdirectory import LOADING_MARK, left_over, new_directory, refuse_existing
from riverbed.tools.spark.errors import OptionError, SourceError
from riverbed.tools.spark.writing.rows import Entry

if TYPE_CHECKING:
    from riverbed.tools.loading.sinks import DirectorySink

_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A file with the entries of a partition, in order."""

    partition: int
    name: str
    size: int
    checksum: int
    rows: int


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """One load.  `token` distinguishes it from other loads of the same target."""

    target: Path
    db: int
    token: str

    @property
    def staging(self) -> Path:
        target = self.target.absolute()
        return target.with_name(f"{target.name}{LOADING_MARK}{self.token}")

    def begin(self) -> None:
        """Make the staging directory.  Raises OptionError when the target exists already."""
        try:
            refuse_existing(self.target)
            self.staging.parent.mkdir(parents=True, exist_ok=True)
            self.staging.mkdir(DIRECTORY_MODE)
        except (Failure, OSError) as error:
            raise OptionError(f"cannot make {self.target}: {error}") from error

    def write_part(self, partition: int, attempt: int, entries: Iterable[Entry]) -> Part:
        """In a task: write its entries to a file in the staging directory."""
        path = self.staging / f"part-{partition}-{attempt}"
        size = checksum = rows = 0
        try:
            with open(path, "xb", opener=_private) as file:
                for entry in entries:
                    data = encode_command([b"XADD", entry.key, entry.entry_id or b"*", *entry.words])
                    file.write(data)
                    checksum = zlib.crc32(data, checksum)
                    size += len(data)
                    rows += 1
        except FileNotFoundError as error:
            raise SourceError(
                f"there is no {self.staging} here: driver and executors must share the place of a new data directory"
            ) from error
        return Part(partition, path.name, size, checksum, rows)

    def finish(self, parts: list[Part]) -> None:
        """On the driver: make the store.  Raises SourceError; the target does not exist then."""
        from riverbed.tools.loading.sinks import DirectorySink  # imports a server's commands: no task needs them

        try:
            with new_directory(self.target) as partial, contextlib.closing(DirectorySink(partial, self.db)) as sink:
                _fill(sink, self._entries(parts))
                sink.finish()
        except (Failure, StoreError, lmdb.Error, OSError) as error:
            raise SourceError(f"cannot make {self.target}: {error}") from error
        finally:
            self.abandon()
        for path in left_over(self.target):
            warnings.warn(f"{path} is of a load of the same directory that was killed, or still runs", stacklevel=2)

    def abandon(self) -> None:
        """Delete what tasks have written."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def _entries(self, parts: list[Part]) -> Iterator[Entry]:
        for part in sorted(parts, key=lambda part: part.partition):
            path = self.staging / part.name
            if os.stat(path).st_size != part.size:
                raise SourceError(f"{path} is not as its task has left it")
            for words in _commands(path, part.checksum):
                yield Entry(words[1], None if words[2] == b"*" else words[2], words[3:])


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _commands(path: Path, checksum: int) -> Iterator[list[bytes]]:
    """The commands in a file.  Raises SourceError after the last command when the file was changed."""
    reader = hiredis.Reader()
    found = 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            found = zlib.crc32(data, found)
            reader.feed(data)
            try:
                while (words := reader.gets()) is not False:
                    yield words
            except hiredis.ProtocolError as error:
                raise SourceError(f"{path} is damaged: {error}") from error
    if found != checksum:
        raise SourceError(f"{path} is damaged: its checksum is another one")


def _fill(sink: DirectorySink, entries: Iterator[Entry]) -> None:
    for key, entry_id, words in entries:
        try:
            sink.add(key, entry_id, words)
        except ValueError as error:
            last_id = id_text(sink.last_id(key)).decode()
            where = f"stream {key.decode(errors='backslashreplace')} of the new store, which is at {last_id}"
            raise SourceError(
                f"{where}: {error}; rows are taken in order, so order them by key and both numbers of the ID"
            ) from error
