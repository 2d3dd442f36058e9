"""A log's directory before any log of ours is in it: a Redis may have left one there, or somebody a part of one.

A single file, as Redis before 7 kept it, is moved in and becomes the base.  Files that no manifest lists stop the
start: a log begun beside them would be one without its past.
"""

from __future__ import annotations

import re
from pathlib import Path

from store import manifest as manifests
from store.errors import CorruptionError
from store.files import Files
from store.logreader import list_parts
from store.manifest import FileType, LogFile, Manifest


def refuse_orphans(home: Path, filename: str, files: Files) -> None:
    """A log without its manifest must not be taken for no log, and written over."""
    if not files.exists(home):
        return
    ours = re.compile(re.escape(filename) + r"\.\d+\.(base|incr)\.(aof|rdb)")
    for name in sorted(files.names(home)):
        if ours.fullmatch(name):
            fd = files.open_read(home / name)
            try:
                if files.size(fd):
                    raise CorruptionError(str(home / name), None, "a log file is here, but no manifest lists it")
            finally:
                files.close(fd)


def adopt_single_file(directory: Path, home: Path, filename: str, manifest: Manifest, files: Files) -> Manifest:
    """Make the one file that Redis before 7 wrote the base of `manifest`, if there is one."""
    single, base = directory / filename, home / filename
    if not files.exists(single):
        return manifest
    adopted = Manifest(base=LogFile(filename, 1, FileType.BASE))
    if not manifest.files:
        list_parts(directory, adopted, files)
        files.make_directory(home)
        files.sync_directory(directory)
        # The manifest comes first, as in Redis: after a crash here it says what was about to happen.
        manifests.replace(home / f"{filename}.manifest", adopted, files)
    elif manifest != adopted or files.exists(base):
        return manifest
    files.rename(single, base)
    files.sync_directory(home)
    files.sync_directory(directory)
    return adopted
