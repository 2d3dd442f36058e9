"""The log of our server as lines of text, while it runs: what a command left there, batch by batch.

Unlike `pair.logged_commands` it shows the commands in extension lines too, and which ones were committed together.
"""

from __future__ import annotations

from pathlib import Path

from riverbed.store.disk.files import OsFiles
from riverbed.store.log import manifest
from riverbed.store.log.reader import LogReader, list_parts

HOME = "appendonlydir"
NAME = "appendonly.aof"


def logged_batches(directory: Path) -> list[list[bytes]]:
    """Every batch of the log in `directory`: its commands, the words joined by blanks."""
    files = OsFiles()
    reader = LogReader(list_parts(directory / HOME, manifest_of(directory), files), files)
    return [[b" ".join(words) for words in batch.commands] for batch in reader.batches(None, None)]


def manifest_of(directory: Path) -> manifest.Manifest:
    """The manifest of the log in `directory`."""
    found = manifest.load(directory / HOME / f"{NAME}.manifest", OsFiles())
    assert found is not None, "a log without a manifest"
    return found


def unpadded(data: bytes) -> bytes:
    """The bytes of a file of the log without the lines of `#` behind its last batch."""
    batches = data.rstrip(b"#\n")
    return batches + b"\n" if batches else b""


class LogTail:
    """What the log of a running server has got since the last look.  SELECT is left out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = len(logged_batches(directory))

    def batches(self) -> list[list[bytes]]:
        batches = logged_batches(self._directory)
        new, self._seen = batches[self._seen :], len(batches)
        return [[line for line in batch if not line.startswith(b"SELECT ")] for batch in new]

    def lines(self) -> list[bytes]:
        return [line for batch in self.batches() for line in batch]
