"""The rewrite as a process of its own, so that the server neither stops nor grows for it.

    python -m store.rewriter DIRECTORY FILE MAP-BYTES        started by the server (`server/rewriting.py`)

    server                                    rewriter
                                              is imported, opens the tables
                                          <-  READY
    divides the log, checkpoints
    GO                                    ->  begins its read transaction
                                          <-  HELD file byte offset entries     of which checkpoint
    GO again, or WRITE offset time room   ->  writes FILE
                                          <-  AT entries bytes command-bytes    now and then
                                          <-  DONE entries bytes command-bytes  it is durable
                                          <-  FAILED reason

The end of its input means that the server is gone or wants no more of it: FILE is removed then.  It stops by itself
when less than `room` bytes are free on the disk, which belong to the server.

Nothing it does can harm the store: it has the tables open for reading only, and nobody reads FILE until the server
lists it in the manifest.
"""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lmdb

from store import format as fmt
from store.basefile import BaseSize, write_base
from store.errors import StoreError
from store.files import OsFiles
from store.meta import META_POSITION
from store.priority import step_back
from store.rewrite import entry_count, pieces
from store.tables import Tables

READY: Final = "READY"
HELD: Final = "HELD"
AT: Final = "AT"
DONE: Final = "DONE"
FAILED: Final = "FAILED"
GO: Final = "GO"
WRITE: Final = "WRITE"

_REPORT_S: Final = 0.2
# As low as it gets: the server and its clients come first.


class _Ended(Exception):
    """There is nobody any more to work for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as the server asks -> exit status."""
    directory, path, map_bytes = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is the server's to answer
    step_back()
    try:
        _work(Path(directory), Path(path), int(map_bytes))
    except (StoreError, lmdb.Error, OSError) as error:
        _remove(Path(path))
        with contextlib.suppress(OSError):
            _say(FAILED, " ".join(str(error).split()))
        return 1
    except _Ended:
        _remove(Path(path))
        return 1
    return 0


def _work(directory: Path, path: Path, map_bytes: int) -> None:
    tables = Tables(directory, map_bytes, readonly=True)
    try:
        _say(READY)
        order = _listen()
        while order[0] == GO:
            with tables.env.begin() as txn:
                row = txn.get(META_POSITION, db=tables.handles["meta"])
                if row is None:
                    raise StoreError("nothing was ever checkpointed")
                *place, _ = fmt.unpack_row(row)
                _say(HELD, *place, entry_count(tables, txn))
                order = _listen()
                if order[0] == WRITE:
                    offset, now_ms, room = map(int, order[1:])
                    size = _write(path, tables, txn, offset, now_ms, room)
                    _say(DONE, size.entries, size.size, size.command_bytes)
    finally:
        tables.close()


def _write(path: Path, tables: Tables, txn: lmdb.Transaction[bytes], offset: int, now_ms: int, room: int) -> BaseSize:
    files = OsFiles()
    reported = time.monotonic()

    def progress(size: BaseSize) -> None:
        nonlocal reported
        if select.select([sys.stdin], [], [], 0)[0]:
            raise _Ended
        if files.free_bytes(path.parent) < room:
            raise StoreError("the disk is nearly full")
        if time.monotonic() - reported >= _REPORT_S:
            reported = time.monotonic()
            _say(AT, size.entries, size.size, size.command_bytes)

    return write_base(path, pieces(tables, txn), files, offset=offset, now_ms=now_ms, progress=progress)


def _listen() -> list[str]:
    words = sys.stdin.readline().split()
    if not words:
        raise _Ended
    return words


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
