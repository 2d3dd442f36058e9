"""Keeps LMDB from overwriting any page of its file, so that truncating the file undoes uncommitted changes.

A transaction that has changed more than 512 MB of pages writes some of them before its commit: to free pages, and
behind the end of the file.  LMDB does not reuse a free page while a reader is open that began before the page became
free.  So a reader is held open that seems to be older than every page: it registers like any reader, and its
transaction number is then set to 0.

    lock.mdb    a head of 128 bytes, then 64 bytes a reader: transaction_no:u64 pid:i32 ...

The file grows by the pages that such a transaction changes.  The kept pages are used again after it.

Source: `MDB_txninfo` and `MDB_reader` of LMDB 0.9 on a machine with 64 bits.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Final

from riverbed.store.disk.real_files import naming
from riverbed.store.layout import LOCK_NAME
from riverbed.store.tables.data_file.opening import LOCK_HEAD_BYTES, MAX_READERS, READER_BYTES
from riverbed.store.tables.environment import Tables

_NUMBER_BYTES: Final = 8
_PID_BYTES: Final = 4


@contextlib.contextmanager
def kept_pages(tables: Tables) -> Iterator[None]:
    """Keep every page until the body ends.  The body must not commit.  Raises lmdb.Error, OSError."""
    reader = tables.env.begin()
    try:
        _become_oldest(tables, reader.id())
        yield
    finally:
        reader.abort()


def _become_oldest(tables: Tables, transaction_no: int) -> None:
    """Set this reader's transaction number to 0 in the lock file.

    If the lock file has another layout, the reader is not found, and LMDB may overwrite free pages.
    """
    found = transaction_no.to_bytes(_NUMBER_BYTES, sys.byteorder) + os.getpid().to_bytes(_PID_BYTES, sys.byteorder)
    fd = tables.lock_file()
    readers = os.pread(fd, READER_BYTES * MAX_READERS, LOCK_HEAD_BYTES)
    for at in range(0, len(readers), READER_BYTES):
        if readers.startswith(found, at):
            with naming(tables.path / LOCK_NAME):
                os.pwrite(fd, bytes(_NUMBER_BYTES), LOCK_HEAD_BYTES + at)
            break
