"""Make a data directory completely or not at all.

The directory is built beside its target, as `NAME.partial-XXXXXXXX`, and gets its name in one rename when everything in
it is durable.  So a result that an error, a kill or a power cut left incomplete is never taken for a whole one, and
nothing that exists is overwritten.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.markup import escape

from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.ownership import give
from riverbed.store.disk.real_files import DIRECTORY_MODE, is_directory, is_there
from riverbed.tools.console.console import Failure, notes

PARTIAL_MARK: Final = ".partial-"
LOADING_MARK: Final = ".loading-"  # what tasks of Spark have written for it


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory to build in; it becomes `target` when the block ends well, and is removed otherwise.

    The caller syncs the files.  An empty directory at `target` is replaced: the new one gets its mode, and all that is
    in the new one gets its owner.  Raises Failure when anything else is at `target`; OSError.
    """
    target = target.resolve()
    refuse_existing(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}{PARTIAL_MARK}{secrets.token_hex(4)}")
    partial.mkdir(DIRECTORY_MODE)
    try:
        yield partial
        _take_over_owner(target, partial)
        OsFiles().sync_directory(partial)
        os.rename(partial, target)  # fails when `target` is not empty by now
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    OsFiles().sync_directory(target.parent)


def refuse_existing(target: Path) -> None:
    """Raise Failure unless `target` does not exist, or is an empty directory."""
    if os.path.ismount(target):
        raise Failure(f"{target} is a mount point, which cannot be replaced in one step: name a directory in it")
    if is_directory(target):
        if any(target.iterdir()):
            raise Failure(
                f"{target} is not empty, and no file is overwritten; name a new directory{_left_over(target)}"
            )
    elif is_there(target, follows=False):
        raise Failure(f"{target} exists, and no file is overwritten; name a new directory{_left_over(target)}")


def tell_left_over(target: Path) -> None:
    """Name on standard error what killed commands have left beside `target`."""
    for path in left_over(target):
        notes().print(f"[yellow]note:[/] {escape(str(path))} was half made by a command that was killed")


def left_over(target: Path) -> list[Path]:
    """The incomplete results of killed commands beside `target`.  They may be deleted when no command runs."""
    target = target.resolve()
    if not target.parent.is_dir():
        return []
    marks = (f"{target.name}{PARTIAL_MARK}", f"{target.name}{LOADING_MARK}")
    return sorted(path for path in target.parent.iterdir() if path.name.startswith(marks))


def _left_over(target: Path) -> str:
    found = left_over(target)
    return f" ({', '.join(str(path) for path in found)}: half made by a command that was killed)" if found else ""


def _take_over_owner(target: Path, partial: Path) -> None:
    if target.is_dir():
        there = target.stat()
        partial.chmod(stat.S_IMODE(there.st_mode))
        give(partial, there)
