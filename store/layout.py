"""The names of the files and folders in a data directory and in a snapshot.  `FORMAT.md` describes each of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

STATE_DIRECTORY: Final = "state"
DATA_NAME: Final = "data.mdb"
LOCK_NAME: Final = "lock.mdb"
LOG_DIRECTORY: Final = "appendonlydir"
LOG_FILE: Final = "appendonly.aof"
LOG_MANIFEST: Final = f"{LOG_FILE}.manifest"
STREAMS_NAME: Final = "streams.jsonl"
MANIFEST_NAME: Final = "manifest.json"
# Where a server writes how it ends, if a fatal error ends it.
LAST_WORDS_NAME: Final = "last-words"
# The folder of a server's own snapshots, in its data directory.
SNAPSHOTS_DIRECTORY: Final = "snapshots"
# Where damaged tables are made again, by `riverbed check --repair` or a server, and what may be in it.
REPAIR_DIRECTORY: Final = "repair"
DAMAGED_TABLES: Final = "damaged"
REPAIR_NAMES: Final = frozenset({STATE_DIRECTORY, DAMAGED_TABLES})
# Where a full sync is received, `sync-PID-XXXXXXXX`, and what may be in it.
SYNC_PREFIX: Final = "sync-"
REPLACED_TABLES: Final = "replaced-state"
SYNC_NAMES: Final = frozenset({LOG_DIRECTORY, STATE_DIRECTORY, REPLACED_TABLES})
# In a snapshot: its entries as Parquet, and the beginning of the names of those that are being made.
COLUMNS_DIRECTORY: Final = "columns"
COLUMNS_WORKING_PREFIX: Final = ".columns-"


def base_name(seq: int) -> str:
    """The name of a base file of the log, which holds a state."""
    return f"{LOG_FILE}.{seq}.base.aof"


def incr_name(seq: int) -> str:
    """The name of an incr file of the log, which batches are, or were, appended to."""
    return f"{LOG_FILE}.{seq}.incr.aof"


def store_around(path: Path) -> Path | None:
    """The data directory that `path` is one of the two parts of, or a file in such a part.  Raises OSError."""
    whole = Path(os.path.abspath(path))
    for directory in whole.parents[:2]:
        is_part = whole.relative_to(directory).parts[0] in (STATE_DIRECTORY, LOG_DIRECTORY)
        if is_part:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (directory / STATE_DIRECTORY / DATA_NAME).stat()
                return directory
    return None
