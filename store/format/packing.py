"""msgpack, the form of every row that is not on the hot path.  An import contract keeps it inside this folder."""

from __future__ import annotations

from typing import Any

import msgpack


def pack_row(values: Any) -> bytes:
    return bytes(msgpack.packb(values))


def unpack_row(row: bytes) -> Any:
    return msgpack.unpackb(row, strict_map_key=False)
