"""Keeps LMDB from writing over any page that its file has, so that cutting the file off undoes what was not committed.

A transaction that has changed more than 512 MB of pages writes some of them before its commit: to pages that are free,
and behind the end of the file.  LMDB leaves a free page alone while a reader began before the page became free.  So a
reader is held that seems to have begun before everything: it registers as any other, and its number becomes 0.

    lock.mdb    a head of 128 bytes, then 64 bytes a reader: transaction_no:u64 pid:i32 ...

The file grows by what such a transaction changes.  The pages that were kept are used again after it.

Source: `MDB_txninfo` and `MDB_reader` of LMDB 0.9 on a machine with 64 bits.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Final

from riverbed.store.tables.environment import LOCK_HEAD_BYTES, MAX_READERS, READER_BYTES, Tables

_NUMBER_BYTES: Final = 8
_PID_BYTES: Final = 4


@contextlib.contextmanager
def kept_pages(tables: Tables) -> Iterator[None]:
    """Every page is kept until the body ends, in which nothing may be committed.  Raises lmdb.Error, OSError."""
    reader = tables.env.begin()
    try:
        _become_oldest(tables, reader.id())
        yield
    finally:
        reader.abort()


def _become_oldest(tables: Tables, transaction_no: int) -> None:
    """Where the lock file is laid out otherwise no reader is found in it: then free pages may be written to."""
    found = transaction_no.to_bytes(_NUMBER_BYTES, sys.byteorder) + os.getpid().to_bytes(_PID_BYTES, sys.byteorder)
    fd = tables.lock_file()
    readers = os.pread(fd, READER_BYTES * MAX_READERS, LOCK_HEAD_BYTES)
    for at in range(0, len(readers), READER_BYTES):
        if readers.startswith(found, at):
            os.pwrite(fd, bytes(_NUMBER_BYTES), LOCK_HEAD_BYTES + at)
            break
