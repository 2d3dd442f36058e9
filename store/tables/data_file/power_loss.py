"""Decides after a power cut which of LMDB's two last commits can be trusted.

The server commits LMDB without waiting for the disk and syncs the commit in a thread.  At most one commit is not
durable yet.  LMDB keeps two meta pages, which its commits write in turn:

    commit 41 -> page 1, durable        commit 42 -> page 0, on its way        commit 43 waits until 42 is durable

A kill loses nothing, because the operating system still has the written pages.  A power cut may leave commit 42's meta
page on the disk without the pages that it points to.  Commit 41 is whole then, because LMDB reuses none of its pages
before 42 is the older commit of the two.  So a mark, a file beside the tables, names the boot of the machine in which
the tables were opened.  If the machine has booted since, the older meta page counts, and the log has the later commits.
The mark says so as well, in place of the boot, when a sync has failed.

Source: the layout of a meta page is that of LMDB 0.9 on a machine with 64 bits, see `tools/columns/pages.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from riverbed.store.disk.copying import move_to_new_places
from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.ownership import give_access
from riverbed.store.disk.real_files import has_refused_places, is_there, naming, open_file, read_file, sync_whole
from riverbed.store.errors import StoreError

MARK_NAME: Final = "in-use"
NEW_MARK_NAME: Final = f"{MARK_NAME}.new"
_DATA: Final = "data.mdb"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# Stands in the mark instead of the boot when the disk has failed: the newer page must never be trusted.
_FAILED: Final = "failed"
_UNKNOWN: Final = "unknown"
_MAX_MARK_BYTES: Final = 256

# page header, then magic, version, ..., the page size as the first word of the first root, ..., the commit's number
_MAGIC_AT: Final = 16
_PAGE_SIZE_AT: Final = 40
_COMMIT_AT: Final = 144
_META_END: Final = 152
_MAGIC: Final = Struct("<II").pack(0xBEEFC0DE, 1)
_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))


class DoubtError(StoreError):
    """A reader cannot tell which commit is whole: the machine stopped while tables were in use, or a sync failed."""


def prepare_use(state: Path) -> bool:
    """Write the file that `begin_use` makes the mark; -> False when the disk is full.  Raises any other OSError."""
    (state / NEW_MARK_NAME).unlink(missing_ok=True)
    if is_marked(state) and not is_in_doubt(state):
        return True  # after a kill
    try:
        _write_new_mark(state, _boot_id())
    except OSError as error:
        (state / NEW_MARK_NAME).unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


def begin_use(state: Path) -> None:
    """Set the mark: from now on the newer meta page may not be durable.  Call `prepare_use` first.  Raises OSError."""
    if is_there(state / NEW_MARK_NAME):
        _put_mark_in_place(state)


def distrust(state: Path) -> None:
    """Mark the newer meta page as failed: it could not be made durable.

    Raises OSError when the disk does not take the mark either.  A start before the machine's next one reads it all the
    same: whatever names another boot, or none, is a doubt.
    """
    try:
        _write_new_mark(state, _FAILED)
    finally:
        _put_mark_in_place(state)


def end_use(state: Path) -> None:
    """Remove the mark: every commit is durable.  Raises OSError."""
    (state / NEW_MARK_NAME).unlink(missing_ok=True)
    (state / MARK_NAME).unlink(missing_ok=True)
    _sync(state)


def is_marked(state: Path) -> bool:
    """Whether the tables are in use, or were not closed cleanly.  Raises OSError."""
    return is_there(state / MARK_NAME)


def is_in_doubt(state: Path) -> bool:
    """Whether the newer meta page may lack pages after a power cut, or a sync that failed.  Raises OSError."""
    return _read_mark(state) not in (None, _boot_id())


def may_follow_power_cut(state: Path) -> bool:
    """Whether a power cut may have ended the last use, also where boots cannot be told apart.  Raises OSError."""
    return is_in_doubt(state) or (is_marked(state) and _boot_id() == _UNKNOWN)


def _read_mark(state: Path) -> str | None:
    try:
        return read_file(state / MARK_NAME, _MAX_MARK_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None


def refuse_doubt(state: Path) -> None:
    """Check, for a reader, that the tables are not in doubt.  Raises DoubtError, OSError."""
    mark = _read_mark(state)
    if mark in (None, _boot_id()):
        return
    failed = f"the disk failed to store what was written to the tables in {state}, or to their log"
    raise DoubtError(
        f"{failed if mark == _FAILED else f'the machine stopped while the tables in {state} were in use'}; start "
        "riverbed-server on them once: it goes back to the last whole state and takes the rest from the log"
    )


def resolve_doubt(state: Path) -> WentBack | None:
    """Go back to the commit before, if the last one is in doubt; -> what that has changed, None when it did not.

    The caller holds the directory's lock and has opened nothing in it, and calls `move_refused` next.  The mark stays:
    a start that fails before `begin_use` may `undo` it.  Raises OSError.
    """
    data = state / _DATA
    if not is_marked(state) or not is_there(data):
        return None
    may_be_cut = may_follow_power_cut(state)
    with naming(data), data.open("r+b") as file:
        fd = file.fileno()
        went_back = _go_back(data, fd) if may_be_cut else None
        try:
            # after a kill: the newer commit becomes durable before the next one overwrites the older
            sync_whole(fd)
        except OSError:
            if may_be_cut:
                raise
            # the next sync would succeed although the pages of the newer commit are lost, also that of another start
            with contextlib.suppress(OSError):
                distrust(state)
            went_back = _go_back(data, fd)
            sync_whole(fd)
    return went_back


def move_refused(state: Path) -> list[Path]:
    """Put tables that are marked in other places of the disk, if it has refused part of them; -> the moved files.

    Raises StoreError, OSError.
    """
    data = state / _DATA
    if not is_marked(state) or not is_there(data):
        return []
    copy = data.with_name(f"{_DATA}.new")
    copy.unlink(missing_ok=True)  # of a start that was killed
    with naming(data), data.open("rb") as file:
        status = os.fstat(file.fileno())
        if not has_refused_places(file.fileno(), 0, status.st_size):
            return []
    files = OsFiles()
    move_to_new_places(data, copy, files)
    give_access(data, status)
    files.sync_directory(state)
    return [data]


class WentBack(NamedTuple):
    """`found` was in the newer meta page of `data`, and `written` is there now."""

    data: Path
    at: int
    found: bytes
    written: bytes

    def undo(self) -> None:
        """Restore the newer meta page, unless LMDB has written it since.  Raises OSError."""
        with self.data.open("r+b") as file:
            if os.pread(file.fileno(), len(self.written), self.at) == self.written:
                os.pwrite(file.fileno(), self.found, self.at)
                sync_whole(file.fileno())


def has_magic(data: Path) -> bool:
    """Whether a file begins as one of LMDB does.  Raises OSError."""
    with naming(data), data.open("rb") as file:
        return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


def _go_back(data: Path, fd: int) -> WentBack | None:
    """Overwrite the newer meta page with the older one; None when there is only one, or none.

    The copy gets the number of the commit before: LMDB wants even numbers in one place and odd ones in the other.

    Pages that differ in the number alone are of a start that was killed behind this: the older one is no other commit,
    and its number would be below those in the list of free pages.
    """
    first = os.pread(fd, _META_END, 0)
    size = int.from_bytes(first[_PAGE_SIZE_AT : _PAGE_SIZE_AT + 4], "little")
    if size not in _SIZES:
        return None
    pages = [first, os.pread(fd, _META_END, size)]
    if any(len(page) < _META_END or page[_MAGIC_AT : _MAGIC_AT + 8] != _MAGIC for page in pages):
        return None
    commits = [int.from_bytes(page[_COMMIT_AT:], "little") for page in pages]
    first, second = (page[_MAGIC_AT:_COMMIT_AT] for page in pages)
    if first == second:
        return None
    newer = commits.index(max(commits))
    before = max(min(commits) - 1, 0).to_bytes(8, "little")
    at, written = newer * size + _MAGIC_AT, pages[1 - newer][_MAGIC_AT:_COMMIT_AT] + before
    os.pwrite(fd, written, at)
    return WentBack(data, at, pages[newer][_MAGIC_AT:], written)


def _boot_id() -> str:
    """A text that differs for each boot of the machine; `unknown` if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return _UNKNOWN


def _put_mark_in_place(state: Path) -> None:
    """Rename the new mark to its place, in one step: a torn mark would be useless."""
    (state / NEW_MARK_NAME).rename(state / MARK_NAME)
    _sync(state)


def _write_new_mark(state: Path, text: str) -> None:
    path = state / NEW_MARK_NAME
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with naming(path), open(fd, "w") as file:
        file.write(text)
        file.flush()
        sync_whole(fd)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with naming(directory):
            sync_whole(fd)
    finally:
        os.close(fd)
