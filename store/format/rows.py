"""What the rows of all tables have in common: the version, IDs of 16 bytes, and the errors of decoding.

A module beside this one has the keys and rows of each kind of table, as pure functions and small types.  `FORMAT.md`
says the same in prose with worked examples; a test decodes the examples with these modules.  Integers inside keys are
big-endian, so that byte order is number order.  `log_lines.py` has the bytes of the log.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from riverbed.store.ids import ID_BYTES, StreamID

FORMAT_VERSION: Final = 6
# Whose tables are read as well, and go on as the present version when they are opened for writing.
OLDEST_VERSION: Final = 2

# What decoding raises when the bytes are not what was encoded.
DECODE_ERRORS: Final = (error, ValueError, TypeError, IndexError)

_ID: Final = Struct(f"{ID_BYTES}s")


def pack_ids(*ids: StreamID) -> bytes:
    return b"".join([entry_id.to_bytes(ID_BYTES, "big") for entry_id in ids])


def unpack_ids(packed: bytes) -> list[StreamID]:
    """Raises one of DECODE_ERRORS when these are not whole IDs."""
    return [StreamID(int.from_bytes(one, "big")) for (one,) in _ID.iter_unpack(packed)]
