"""Table `meta`: the names of its rows, which every checkpoint writes and which say what the rest of the store is.

What is in them FORMAT.md tells; `tables.py` writes the version, `writetxn.py` the others.
"""

from __future__ import annotations

from typing import Final

META_VERSION: Final = b"format_version"
META_COUNTERS: Final = b"counters"
META_DATABASES: Final = b"databases"
META_POSITION: Final = b"position"
META_SYNCED: Final = b"synced"
META_REPLICATION: Final = b"replication"

# The database of a position where no SELECT stands before it in its log file.
NO_DATABASE: Final = -1
