"""The names of the files and folders in a data directory and in a snapshot.  `FORMAT.md` says what each one holds."""

from __future__ import annotations

from typing import Final

STATE_DIRECTORY: Final = "state"
DATA_NAME: Final = "data.mdb"
LOCK_NAME: Final = "lock.mdb"
LOG_DIRECTORY: Final = "appendonlydir"
LOG_FILE: Final = "appendonly.aof"
LOG_MANIFEST: Final = f"{LOG_FILE}.manifest"
STREAMS_NAME: Final = "streams.jsonl"
MANIFEST_NAME: Final = "manifest.json"
# Where a server keeps its own, in its data directory.
SNAPSHOTS_DIRECTORY: Final = "snapshots"


def base_name(seq: int) -> str:
    """The name of a file of the log that holds a state."""
    return f"{LOG_FILE}.{seq}.base.aof"


def incr_name(seq: int) -> str:
    """The name of a file of the log that is appended to, or was."""
    return f"{LOG_FILE}.{seq}.incr.aof"
