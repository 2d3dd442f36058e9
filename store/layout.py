"""The names of the files and folders in a data directory and in a snapshot.  `FORMAT.md` says what each one holds."""

from __future__ import annotations

from typing import Final

STATE_DIRECTORY: Final = "state"
DATA_NAME: Final = "data.mdb"
LOCK_NAME: Final = "lock.mdb"
DIRECTORY_NAME: Final = "appendonlydir"
FILE_NAME: Final = "appendonly.aof"
STREAMS_NAME: Final = "streams.jsonl"
MANIFEST_NAME: Final = "manifest.json"
# Where a server keeps its own, in its data directory.
SNAPSHOTS_DIRECTORY: Final = "snapshots"
