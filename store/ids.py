"""Stream IDs: parsing, text, order, neighbours.

An ID is one unsigned 128-bit integer, milliseconds in the high half and the sequence number in the low one.  Order,
equality, hashing, successor (`id + 1`, carry included), predecessor and the 16 packed bytes are then those of the
integer, and cost nothing.  `StreamID` is a type for the type checker only; at run time it is `int`.

Source: the "Entry IDs" section of the Redis Streams documentation.
"""

from __future__ import annotations

import re
from typing import Final, NewType

StreamID = NewType("StreamID", int)

SEQ_BITS: Final = 64
MAX_HALF: Final = (1 << SEQ_BITS) - 1
MIN_ID: Final = StreamID(0)
MAX_ID: Final = StreamID((1 << 128) - 1)
ID_BYTES: Final = 16

# Longer arguments are refused without parsing: two 20-digit halves with some leading zeros are far shorter.
MAX_TEXT_BYTES: Final = 127

_ID = re.compile(rb"(\d+)(?:-(\d+))?", re.ASCII)


def make_id(ms: int, seq: int) -> StreamID:
    """The ID of sequence number `seq` in millisecond `ms`; both must fit 64 bits."""
    return StreamID(ms << SEQ_BITS | seq)


def id_ms(entry_id: StreamID) -> int:
    return entry_id >> SEQ_BITS


def id_seq(entry_id: StreamID) -> int:
    return entry_id & MAX_HALF


def id_text(entry_id: StreamID) -> bytes:
    """Canonical `ms-seq`, without leading zeros."""
    return b"%d-%d" % (entry_id >> SEQ_BITS, entry_id & MAX_HALF)


def parse_id(text: bytes, missing_seq: int = 0) -> StreamID | None:
    """Parse `ms` or `ms-seq`; `missing_seq` replaces an absent sequence number.

    Leading zeros are accepted.  Returns None for anything else: signs, blanks, halves of 2^64 and more.
    """
    if len(text) > MAX_TEXT_BYTES:
        return None
    match = _ID.fullmatch(text)
    if match is None:
        return None
    ms_text, seq_text = match.groups()
    ms = int(ms_text)
    seq = missing_seq if seq_text is None else int(seq_text)
    if ms > MAX_HALF or seq > MAX_HALF:
        return None
    return StreamID(ms << SEQ_BITS | seq)


def pack_id(entry_id: StreamID) -> bytes:
    """The 16 bytes under which an entry is stored: big-endian, so that byte order is ID order."""
    return entry_id.to_bytes(ID_BYTES, "big")


def unpack_id(packed: bytes) -> StreamID:
    return StreamID(int.from_bytes(packed, "big"))
