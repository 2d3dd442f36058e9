"""Table `meta`: the names of its rows, which every checkpoint writes and which say what the rest of the store is.

What is in them FORMAT.md tells; `store/tables/environment.py` writes the version, `store/databases/transaction.py` the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from riverbed.store.format import rows as fmt
from riverbed.store.replication_id import ReplicationIds

META_VERSION: Final = b"format_version"
META_COUNTERS: Final = b"counters"
META_DATABASES: Final = b"databases"
META_POSITION: Final = b"position"
META_SYNCED: Final = b"synced"
META_REPLICATION: Final = b"replication"
META_STORE: Final = b"store"
META_NUMBERING: Final = b"numbering"

# The database of a position where no SELECT stands before it in its log file.
NO_DATABASE: Final = -1


def replid_rows(replids: ReplicationIds | None) -> Iterator[tuple[bytes, bytes]]:
    """The rows that say whose offsets the position is on."""
    if replids is None:
        return
    yield META_REPLICATION, fmt.pack_row([replids.replication_id, replids.previous_id, replids.branch_offset])
    if replids.store_id:
        yield META_STORE, fmt.pack_row(replids.store_id)


def decode_replids(get: Callable[[bytes], bytes | None]) -> ReplicationIds | None:
    """What those rows say, which `get` looks up by name; None without any.  Raises one of DECODE_ERRORS."""
    line, store = get(META_REPLICATION), get(META_STORE)
    if line is None:
        return None
    replication_id, previous_id, branch_offset = fmt.unpack_row(line)
    return ReplicationIds(replication_id, previous_id, branch_offset, "" if store is None else fmt.unpack_row(store))
