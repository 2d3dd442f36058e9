"""What tools take out of a store is kept, in its directory `replaced`, each under a name of its own.

replaced/state            tables that were made again
replaced/appendonly.aof.1.incr.aof.from-917
                          what was cut off this file of the log, from byte 917 on
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from riverbed.store.disk.copying import copy_stretch
from riverbed.store.disk.durable_file import cut_file
from riverbed.store.disk.files import Files
from riverbed.store.log.reader import TornTail

REPLACED_DIRECTORY: Final = "replaced"


class Action(NamedTuple):
    """A repair that was made, in the words of the report, and where the replaced data is kept."""

    done: str
    kept: Path | None

    def __str__(self) -> str:
        return self.done if self.kept is None else f"{self.done}; the old one is kept as {self.kept}"


def unused_path(directory: Path, name: str, files: Files) -> Path:
    """An unused path for `name` among what was replaced in a store, whose directory is made if missing."""
    home = directory / REPLACED_DIRECTORY
    if not files.exists(home):
        files.make_directory(home)
        files.sync_directory(directory)
    path, number = home / name, 1
    while files.exists(path):
        number += 1
        path = home / f"{name}-{number}"
    return path


def cut_off(torn: TornTail, directory: Path, files: Files) -> Action:
    """Cut a torn tail off the log of a store, and keep it.  Raises OSError."""
    path = Path(torn.file)
    kept = unused_path(directory, f"{path.name}.from-{torn.position}", files)
    partial = kept.with_name(f"{kept.name}.partial")
    try:
        copy_stretch(path, partial, torn.position, None, files)
    except BaseException:  # a full disk is left as it was
        if files.exists(partial):
            files.unlink(partial)
        raise
    files.rename(partial, kept)
    files.sync_directory(kept.parent)
    cut_file(path, torn.position, files)
    return Action(f"cut {torn.byte_count:,} bytes off {path}, from byte {torn.position} on", kept)
