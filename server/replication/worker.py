"""The process that makes tables from a full sync's log, so that the server only writes and goes on serving.

    python -m riverbed.server.replication.worker DIRECTORY MAP-BYTES QUOTA-BYTES NODE-ENTRIES NODE-BYTES

    server                                      this process
    {"replay": [file, byte, offset]}        ->  executes the log up to there
                                            <-  {"at": [file, byte, offset]}
    ...
    {"close": true}                         ->  closes the tables
                                            <-  {"closed": true}

It reads only what was in each file when the order came, and what the server has received whole.  It also verifies the
base.  It works in DIRECTORY, by relative paths, see `Server.work_in`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

import lmdb

from riverbed.server.background.child import Server, work_for_server
from riverbed.server.commands.replay import Replayer
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import StoreError
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST
from riverbed.store.log import manifest as manifests
from riverbed.store.log.reader import LogReader, list_parts, parts_up_to
from riverbed.store.position import LogPosition
from riverbed.store.recovery.replay import RecoveryReport, replay
from riverbed.store.tables.environment import Tables

MODULE: Final = "riverbed.server.replication.worker"
NO_ROOM: Final = "lmdb-map-size is too small for the primary's data"

# Less urgent than the server, which has clients; more urgent than idle work, for the replica is waited for.
_NICENESS: Final = 5


def work(server: Server) -> None:
    """Replay as the server asks."""
    directory, *numbers = sys.argv[1:]
    map_bytes, quota_bytes, node_entries, node_bytes = map(int, numbers)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    server.work_in(Path(directory))
    try:
        tables = Tables(Path(), map_bytes)
        try:
            txn = WriteTxn(tables)
            txn.configure_nodes(node_entries, node_bytes)
            _serve(server, Path(directory) / LOG_DIRECTORY, txn, quota_bytes)
        finally:
            tables.close()
    except lmdb.MapFullError:
        raise StoreError(NO_ROOM) from None
    server.say(closed=True)


def _serve(server: Server, home: Path, txn: WriteTxn, quota_bytes: int) -> None:
    while "replay" in (order := server.listen()):
        end = LogPosition(*order["replay"])
        _replay(home, txn, end)
        if txn.tables.used_bytes(txn.lmdb) > quota_bytes:
            raise StoreError(NO_ROOM)
        server.say(at=end)
    txn.abort()


def _replay(home: Path, txn: WriteTxn, end: LogPosition) -> None:
    """Bring the tables up to `end`, which is in the last file.  Raises what reading and executing raise."""
    files = OsFiles()
    manifest = manifests.load(home / LOG_MANIFEST, files)
    assert manifest is not None, "made before this process was"
    txn.replids = manifest.replids
    parts = parts_up_to(list_parts(home, manifest, files), end)
    reader = LogReader(parts, files, load_truncated=False)
    start = None if txn.position is None else LogPosition(*txn.position)
    replay(reader.batches(start, end), txn, Replayer().execute, RecoveryReport())
    txn.commit(end)


if __name__ == "__main__":
    work_for_server(MODULE, work)
