"""What tables of an earlier format version lack when they are opened for writing.

Version 5 added the rows of names to table `groups`.  All other differences are in rows, which stay as they are until
they are written: the turns of version 6, which older programs would take for times, are 0 in all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.store.errors import CorruptionError, DamagedRowError
from riverbed.store.format.groups import CONSUMER_KEY_BYTES, GROUP_KEY_BYTES, NAMED_SINCE, name_key_of, name_row
from riverbed.store.format.rows import DECODE_ERRORS

if TYPE_CHECKING:
    from typing import Any

    import lmdb


def upgrade(txn: lmdb.Transaction[bytes], groups: Any, version: int, path: str) -> None:
    """Add the rows that tables of `version` lack; `groups` is the handle of that table.  Raises CorruptionError."""
    if version >= NAMED_SINCE:
        return
    written = txn.cursor(groups)
    key = b""
    try:
        for key, row in txn.cursor(groups).iternext():
            if len(key) not in (GROUP_KEY_BYTES, CONSUMER_KEY_BYTES):
                continue  # one that is written here
            name_key = name_key_of(key, row)
            written.put(name_key, name_row(name_key))
    except (DamagedRowError, *DECODE_ERRORS) as error:
        reason = f"table groups: the row {key.hex()} cannot be read ({error}), and this version has to add rows to it"
        raise CorruptionError(path, None, f"{reason}; `riverbed check --repair` makes the tables again") from error
