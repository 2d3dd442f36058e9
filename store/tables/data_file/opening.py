"""Opens LMDB on its two files: the data, and the lock file with the slots of readers.

LMDB names only its folder in an error, and kills the process where the lock file has a hole on a full disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.disk.real_files import FILE_MODE, is_there, naming, open_file
from riverbed.store.layout import DATA_NAME, LOCK_NAME

# Slots for the read transactions of all processes together: long replies, rewrites, snapshots, full syncs, tools.  The
# first process that opens a store sets the number, so every `lmdb.open` of a store must pass this one.
MAX_READERS: Final = 1024
LOCK_HEAD_BYTES: Final = 128
READER_BYTES: Final = 64
# What the system says of a file that may not be opened, or not for writing.
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_LOCK_FILE_BYTES: Final = LOCK_HEAD_BYTES + READER_BYTES * MAX_READERS


def open_environment(
    path: Path, map_bytes: int, table_count: int, *, readonly: bool, is_locked: bool, syncs: bool
) -> lmdb.Environment:
    """Open the environment in the folder `path`, whose files are made unless it is `readonly`.

    With `is_locked` it has a lock file; without `syncs` no commit waits for the disk.  Raises lmdb.Error, OSError.
    """
    if is_locked and not readonly:
        _allocate(path / LOCK_NAME)
    is_new = not readonly and not is_there(path / DATA_NAME)
    try:
        env = _open_at_once(path, map_bytes, table_count, readonly=readonly, is_locked=is_locked, syncs=syncs)
    except lmdb.Error as error:
        if str(error).endswith(tuple(map(os.strerror, _FORBIDDEN))):
            _require_access(path, os.O_RDONLY if readonly else os.O_RDWR)
        raise
    if is_new:
        os.close(open_file(path / DATA_NAME, os.O_RDONLY | os.O_CREAT))  # hands it over to the folder's owner
    return env


def _require_access(path: Path, flags: int) -> None:
    """Raise the OSError of the file that may not be opened: LMDB names only its folder."""
    for name in (DATA_NAME, LOCK_NAME):
        with contextlib.suppress(FileNotFoundError):
            os.close(open_file(path / name, flags))


def _open_at_once(
    path: Path, map_bytes: int, table_count: int, *, readonly: bool, is_locked: bool, syncs: bool
) -> lmdb.Environment:
    return lmdb.open(
        str(path),
        map_size=map_bytes,
        max_dbs=table_count + 3,
        max_readers=MAX_READERS,
        metasync=False,
        sync=syncs,
        readonly=readonly,
        create=not readonly,
        mode=FILE_MODE,
        lock=is_locked,
        meminit=True,  # or what was in memory before, passwords too, would be in the unused space of pages
        # The server looks for single rows, and 4 kB around each are enough; tools read in order.
        readahead=readonly,
    )


def _allocate(lock_file: Path) -> None:
    """Allocate all blocks of LMDB's lock file on the disk, where the system offers that.  Raises OSError.

    LMDB maps the file into memory: a write to a hole of the file kills the process when the disk is full.
    """
    if sys.platform != "linux":
        return
    is_new = not is_there(lock_file)
    fd = open_file(lock_file, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(fd).st_blocks * 512 < _LOCK_FILE_BYTES:
            with naming(lock_file):
                os.posix_fallocate(fd, 0, _LOCK_FILE_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if is_new:
                lock_file.unlink()
            raise
    finally:
        os.close(fd)
