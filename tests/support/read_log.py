"""The log of our server as lines of text, while it runs: what a command left there, batch by batch.

Unlike `pair.logged_commands` it shows the commands in extension lines too, and which ones were committed together.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST
from riverbed.store.log import manifest
from riverbed.store.log.reader import LogReader, list_parts


def logged_batches(directory: Path, files: Files | None = None) -> list[list[bytes]]:
    """Every batch of the log in `directory`: its commands, the words joined by blanks."""
    files = files or OsFiles()
    reader = LogReader(list_parts(directory / LOG_DIRECTORY, manifest_of(directory, files), files), files)
    return [[b" ".join(words) for words in batch.commands] for batch in reader.batches(None, None)]


def without_select(batches: list[list[bytes]]) -> list[list[bytes]]:
    return [[line for line in batch if not line.startswith(b"SELECT ")] for batch in batches]


def manifest_of(directory: Path, files: Files | None = None) -> manifest.Manifest:
    """The manifest of the log in `directory`."""
    found = manifest.load(directory / LOG_DIRECTORY / LOG_MANIFEST, files or OsFiles())
    assert found is not None, "a log without a manifest"
    return found


def change_manifest(directory: Path, **changes: Any) -> None:
    """Have the manifest of the log in `directory` say something else."""
    manifest.replace(directory / LOG_DIRECTORY / LOG_MANIFEST, replace(manifest_of(directory), **changes), OsFiles())


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
        return without_select(new)

    def lines(self) -> list[bytes]:
        return [line for batch in self.batches() for line in batch]
