"""Replaces a store by another one in its directory: the last step of a full sync.

    DIR/state/          \\                 DIR/SOURCE/state/           \\
    DIR/appendonlydir/   > is replaced by  DIR/SOURCE/appendonlydir/    > which is not used afterwards
    ...                 /                  ...                         /

The log decides which store is valid.  Its manifest is replaced in one step.  The old tables are moved away before that
step, and the new tables are moved in after it.  So a crash in between costs a rebuild of the tables from the log that
the manifest lists, and never mixes both stores.  Files of the other log are listed in the manifest's history, to be
deleted: before the step the files of the new log, after it the files of the old log.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from riverbed.store.disk.files import Files
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST, STATE_DIRECTORY
from riverbed.store.log import manifest as manifests

_REPLACED: Final = "replaced-state"


def move_in(directory: Path, source: Path, files: Files) -> None:
    """Replace the log and the tables of `directory` by those of its subdirectory `source`.

    Both stores are closed and durable, and their log files have different numbers and names.  The old tables move to
    `source`.  Raises CorruptionError with nothing changed, OSError.
    """
    home, arriving_home = directory / LOG_DIRECTORY, source / LOG_DIRECTORY
    path = home / LOG_MANIFEST
    old = manifests.load(path, files) or manifests.Manifest()
    new = manifests.load(arriving_home / LOG_MANIFEST, files)
    listed = (*old.files, *old.history)
    if new is None or {file.name for file in listed} & {file.name for file in new.files}:
        raise CorruptionError(str(arriving_home), None, "these files cannot stand beside those that are here")
    arriving = tuple(file.as_history() for file in new.files)
    manifests.replace(path, replace(old, history=(*old.history, *arriving)), files)
    for file in new.files:
        files.rename(arriving_home / file.name, home / file.name)
    files.sync_directory(home)
    files.rename(directory / STATE_DIRECTORY, source / _REPLACED)
    files.sync_directory(directory)
    leaving = tuple(file.as_history() for file in listed)
    manifests.replace(path, replace(new, history=leaving), files)
    files.rename(source / STATE_DIRECTORY, directory / STATE_DIRECTORY)
    files.sync_directory(directory)
