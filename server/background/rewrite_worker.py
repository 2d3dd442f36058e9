"""The process that rewrites the log, so that the server neither stops nor grows for it.

    python -m riverbed.server.background.rewrite_worker DIRECTORY FILE MAP-BYTES

    server                                              this process
    divides the log, checkpoints
    {"go": true}                                    ->  begins its read transaction
                                                    <-  {"held": [file, byte, offset], "total": entries}   checkpoint
    {"go": true} again, or
    {"offset": o, "now_ms": t, "room_bytes": n}     ->  writes FILE
                                                    <-  {"entries": e, "bytes": b}                         now and then
                                                    <-  {"entries": e, "bytes": b, "command_bytes": c}     it is durable

When the server has gone or gives the rewrite up, FILE is removed.  The rewrite fails when less than `room_bytes` are
free on the disk: these belong to the server.

Nothing it does can harm the store: it has the tables open for reading only, and FILE is not part of the log until the
server lists it in the manifest.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any, Final

import lmdb

from riverbed.server.background.child import Server, work_for_server
from riverbed.server.background.worker_modules import REWRITE
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import StoreError
from riverbed.store.format.meta import read_position
from riverbed.store.log.base_file import BaseSize, write_base
from riverbed.store.rewrite.state import entry_count, pieces
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader

_REPORT_S: Final = 0.2


def work(server: Server) -> None:
    """Rewrite as the server asks."""
    directory, path, map_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    tables = Tables(directory, map_bytes, readonly=True)
    try:
        order = server.listen()
        while "go" in order:
            with tables.env.begin() as txn:
                row = read_position(TableReader(tables, txn).meta_row)
                if row is None:
                    raise StoreError("no checkpoint was ever made")
                server.say(held=row.place, total=entry_count(tables, txn))
                order = server.listen()
                if "go" not in order:
                    size = _write(server, path, tables, txn, order)
                    server.say(entries=size.entries, bytes=size.size, command_bytes=size.command_bytes)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        tables.close()


def _write(server: Server, path: Path, tables: Tables, txn: lmdb.Transaction[bytes], order: dict[str, Any]) -> BaseSize:
    files = OsFiles()
    reported = time.monotonic()

    def progress(size: BaseSize) -> None:
        nonlocal reported
        server.go_on()
        if files.free_bytes(path.parent) < order["room_bytes"]:
            raise StoreError("the disk is nearly full")
        if time.monotonic() - reported >= _REPORT_S:
            reported = time.monotonic()
            server.say(entries=size.entries, bytes=size.size)

    return write_base(
        path, pieces(tables, txn), files, offset=order["offset"], now_ms=order["now_ms"], progress=progress
    )


if __name__ == "__main__":
    work_for_server(REWRITE, work)
