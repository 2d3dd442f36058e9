"""Takes the seals off the rows of entries: every reader of table `entries` goes through one of these functions.

    row      "$3\\r\\n1-1\\r\\n*2\\r\\n..."  crc32c:u32  mark:u8      of the stream's number and what stands before it

A row is bound to its stream by the checksum, and to its ID by its own text.  `wire/interface.py` says what a seal is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from riverbed.store.checksum import crc32c
from riverbed.store.errors import DamagedRowError
from riverbed.store.model import Row
from riverbed.store.wire import SEAL_BYTES, SEAL_MARK, unseal, unseal_one, unseal_pairs

_PREFIX_BYTES: Final = 8
_MARK: Final = SEAL_MARK[0]
_LONGEST_HEAD: Final = 64


def sealed_row(prefix: bytes, pieces: Sequence[bytes]) -> bytes:
    """The row that `pieces` are when joined, with its seal; for rows so long that joining them twice costs memory."""
    checksum = crc32c(prefix)
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return b"".join((*pieces, checksum.to_bytes(4, "big"), SEAL_MARK))


def bare_row(key: bytes, row: bytes) -> bytes:
    """The row under `key` as readers are sent it.  Raises DamagedRowError."""
    try:
        bare = unseal_one(key, row)
    except ValueError:  # a key of another length than all have
        raise DamagedRowError("the key of an entry") from None
    if bare is None:
        raise _damaged(key, row)
    return bare


def bare_pairs(rows: list[Row]) -> list[Row]:
    """The (key, row) of some streams as readers are sent the rows.  Changes `rows`.  Raises DamagedRowError."""
    try:
        damaged = unseal_pairs(rows)
    except ValueError:  # a key of another length than all have
        raise DamagedRowError("the key of an entry") from None
    if damaged >= 0:
        raise _damaged(*rows[damaged])
    return rows


def bare_values(prefix: bytes, rows: list[bytes]) -> list[bytes]:
    """The rows of one stream as readers are sent them.  Changes `rows`.  Raises DamagedRowError."""
    damaged = unseal(prefix, rows)
    if damaged >= 0:
        raise _damaged(prefix, rows[damaged])
    return rows


def size_of_bare(row: Sequence[int]) -> int:
    """The length of the row without its seal.  Nothing is verified."""
    return len(row) - SEAL_BYTES if len(row) > SEAL_BYTES and row[-1] == _MARK else len(row)


def verified_size(key: bytes, row: bytes | memoryview) -> int:
    """As `size_of_bare`, of a row that was compared with its checksum, without a copy.  Raises DamagedRowError."""
    size = size_of_bare(row)
    if size == len(row):
        if unseal_one(key, bytes(row)) is None:
            raise _damaged(key, bytes(row[:_LONGEST_HEAD]))
        return size
    checksum = crc32c(row[:size], crc32c(key[:_PREFIX_BYTES]))
    if checksum.to_bytes(4, "big") != bytes(row[size:-1]):
        raise _damaged(key, bytes(row[:_LONGEST_HEAD]))
    return size


def _damaged(key: bytes, row: bytes) -> DamagedRowError:
    """The key, or what it begins with; then the ID that stands in the row is named."""
    stream_no = int.from_bytes(key[:_PREFIX_BYTES], "big")
    if len(key) > _PREFIX_BYTES:
        name = b"%d-%d" % (int.from_bytes(key[8:16], "big"), int.from_bytes(key[16:], "big"))
    else:
        name = b"".join(row[:_LONGEST_HEAD].split(b"\r\n")[1:2])
    return DamagedRowError(f"entry {name.decode('ascii', 'backslashreplace')}", stream_no)
