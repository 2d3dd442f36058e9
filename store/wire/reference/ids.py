"""Numbers and IDs of entries: as text, as the 16 bytes in keys, and as integers, `ms << 64 | seq`."""

from __future__ import annotations

import re
from typing import Final

KEY_BYTES: Final = 24
PREFIX_BYTES: Final = 8  # of a key: the number of a stream or group
ID_BYTES: Final = 16
MAX_HALF: Final = (1 << 64) - 1
MAX_ID: Final = (1 << 128) - 1
_NUMBER = re.compile(rb"0|[1-9][0-9]*")


def parse_number(text: bytes) -> int | None:
    """A canonical number of 64 bits."""
    if len(text) > len(str(MAX_HALF)) or not _NUMBER.fullmatch(text) or int(text) > MAX_HALF:
        return None
    return int(text)


def parse_id(text: bytes, *, may_be_short: bool) -> int | None:
    """`ms-seq`, both of them canonical, or `ms` for `ms-0`."""
    ms_text, dash, seq_text = text.partition(b"-")
    if not dash and not may_be_short:
        return None
    ms, seq = parse_number(ms_text), parse_number(seq_text if dash else b"0")
    return None if ms is None or seq is None else ms << 64 | seq


def packed_id(text: bytes) -> bytes | None:
    """The 16 bytes of an entry's ID in keys; None when `text` is not `ms-seq`, both canonical and of 64 bits."""
    found = parse_id(text, may_be_short=False)
    return None if found is None else found.to_bytes(ID_BYTES, "big")


def find_id(packed_ids: bytes, packed_id: bytes) -> int:
    """Where `packed_id` begins among these ascending IDs of 16 bytes each, which all differ; -1 if it is not there."""
    if len(packed_id) != ID_BYTES:
        raise ValueError(f"{ID_BYTES} bytes are needed")
    low, high = 0, len(packed_ids) // ID_BYTES
    while low < high:
        middle = (low + high) // 2
        found = packed_ids[middle * ID_BYTES : (middle + 1) * ID_BYTES]
        if found == packed_id:
            return middle * ID_BYTES
        if found < packed_id:
            low = middle + 1
        else:
            high = middle
    return -1


def unpacked(key: bytes) -> tuple[bytes, int]:
    """-> what the keys of all rows of the stream begin with, and the ID."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"{KEY_BYTES} bytes are needed")
    return key[:-ID_BYTES], int.from_bytes(key[-ID_BYTES:], "big")


def id_bulk(key: bytes) -> bytes:
    _, entry_id = unpacked(key)
    text = b"%d-%d" % (entry_id >> 64, entry_id & MAX_HALF)
    return b"$%d\r\n%b\r\n" % (len(text), text)
