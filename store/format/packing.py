"""msgpack, the form of every row that is not on the hot path.  An import contract keeps it inside this folder.

    %xC1 crc32c:u32 msgpack      no msgpack begins with %xC1; rows of format version 2 have neither mark nor checksum

Rows with fields of fixed sizes have their checksum behind these, and are longer by four bytes than in version 2.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from riverbed.store.checksum import crc32c
from riverbed.store.errors import DamagedRowError

_MARK: Final = b"\xc1"
_HEAD_BYTES: Final = 5
CHECKSUM_BYTES: Final = 4
_SHOWN_KEY_BYTES: Final = 40

# One for all rows: `msgpack.packb` makes one for each.
_PACKER: Final = msgpack.Packer()


def pack_plain(values: Any) -> bytes:
    """msgpack without a checksum, which programs of all versions read."""
    return bytes(_PACKER.pack(values))


def pack_row(values: Any, key: bytes = b"") -> bytes:
    """The row, with a checksum that is one over `key` as well."""
    row = bytes(_PACKER.pack(values))
    return b"%b%b%b" % (_MARK, crc32c(row, crc32c(key)).to_bytes(CHECKSUM_BYTES, "big"), row)


def unpack_row(row: bytes, key: bytes = b"") -> Any:
    """Undo `pack_row`; older rows have checksums without a key.  Raises DamagedRowError."""
    if not is_bound(row, key):
        raise _damaged(key)
    try:
        return msgpack.unpackb(row[_HEAD_BYTES:] if row[:1] == _MARK else row, strict_map_key=False)
    except ValueError:
        raise _damaged(key) from None


def rebind_row(row: bytes, key: bytes, new_key: bytes) -> bytes:
    """The same row for another key.  Raises DamagedRowError."""
    return pack_row(unpack_row(row, key), new_key)


def is_bound(row: bytes, key: bytes) -> bool:
    """Whether the row has a checksum that fits `key`, or one that no key is in."""
    if row[:1] != _MARK:
        return True
    checksum, row = row[1:_HEAD_BYTES], row[_HEAD_BYTES:]
    if crc32c(row, crc32c(key)).to_bytes(CHECKSUM_BYTES, "big") == checksum:
        return True
    return bool(crc32c(row).to_bytes(CHECKSUM_BYTES, "big") == checksum)


def add_checksum(row: bytes, key: bytes = b"") -> bytes:
    """A row of fixed sizes with its checksum behind it, which is one over `key`, or the part given of it, as well."""
    return row + crc32c(row, crc32c(key)).to_bytes(CHECKSUM_BYTES, "big")


def without_checksum(row: bytes, key: bytes) -> bytes:
    """Undo `add_checksum`; older rows have checksums without a key.  Raises DamagedRowError."""
    bare, checksum = row[:-CHECKSUM_BYTES], row[-CHECKSUM_BYTES:]
    for before in (key, b""):
        if crc32c(bare, crc32c(before)).to_bytes(CHECKSUM_BYTES, "big") == checksum:
            return bare
    raise _damaged(key)


def _damaged(key: bytes) -> DamagedRowError:
    return DamagedRowError(f"the row {key[:_SHOWN_KEY_BYTES].hex()}" if key else "a row")
