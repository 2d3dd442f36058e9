"""The process that makes tables of the log a full sync receives, so that the server only writes and goes on serving.

    python -m server.replication.foldprocess DIRECTORY DIRNAME FILENAME MAP-BYTES NODE-ENTRIES NODE-BYTES

    server                          this process
                                <-  READY
    FOLD file byte offset       ->  executes the log up to there
                                <-  AT file byte offset
    ...
    END                         ->  closes the tables
                                <-  DONE
                                <-  FAILED reason      at any time, instead of an answer

It reads of each file what was there when it was told to, and only what the server has received whole; the base is
verified here.  The end of its input means that the full sync was given up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lmdb

from server.replay import Replayer
from store import manifest as manifests
from store.errors import StoreError
from store.files import OsFiles
from store.logreader import LogPosition, LogReader, list_parts
from store.recovery import RecoveryReport, fold
from store.tables import Tables
from store.writetxn import WriteTxn

READY: Final = "READY"
FOLD: Final = "FOLD"
AT: Final = "AT"
END: Final = "END"
DONE: Final = "DONE"
FAILED: Final = "FAILED"

NO_ROOM: Final = "lmdb-map-size is too small for what the primary holds"

# Below the server, which has clients; above what has time, for the replica is waited for.
_NICENESS: Final = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as the server asks -> exit status."""
    directory, dirname, filename, *numbers = sys.argv[1:] if arguments is None else arguments
    map_bytes, node_entries, node_bytes = map(int, numbers)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is the server's to answer
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    try:
        tables = Tables(Path(directory), map_bytes)
        try:
            txn = WriteTxn(tables)
            txn.node_max_entries, txn.node_max_bytes = node_entries, node_bytes
            _serve(Path(directory) / dirname, filename, txn)
        finally:
            tables.close()
    except lmdb.MapFullError:
        _say(FAILED, NO_ROOM)
        return 1
    except (StoreError, lmdb.Error, OSError) as error:
        _say(FAILED, " ".join(str(error).split()))
        return 1
    _say(DONE)
    return 0


def _serve(home: Path, filename: str, txn: WriteTxn) -> None:
    _say(READY)
    while words := sys.stdin.readline().split():
        if words[0] == END:
            txn.abort()
            return
        end = LogPosition(*map(int, words[1:]))
        _fold(home, filename, txn, end)
        _say(AT, *end)
    sys.exit(1)


def _fold(home: Path, filename: str, txn: WriteTxn, end: LogPosition) -> None:
    """Bring the tables up to `end`, which is in the last file.  Raises what reading and executing raise."""
    files = OsFiles()
    manifest = manifests.load(home / f"{filename}.manifest", files)
    assert manifest is not None, "made before this process was"
    txn.lineage = manifest.lineage
    parts = list_parts(home, manifest, files)
    parts[-1] = type(parts[-1])(parts[-1].path, parts[-1].file, end.position, is_last=True)
    reader = LogReader(parts, files, load_truncated=False)
    start = None if txn.position is None else LogPosition(*txn.position)
    fold(reader.batches(start, end), txn, Replayer().execute, RecoveryReport())
    txn.commit(list(end))


def _say(*words: object) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.write(" ".join(map(str, words)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
