"""msgpack, the form of every row that is not on the hot path.  An import contract keeps it inside this folder."""

from __future__ import annotations

from typing import Any, Final

import msgpack

# One for all rows: `msgpack.packb` makes one for each.
_PACKER: Final = msgpack.Packer()


def pack_row(values: Any) -> bytes:
    return bytes(_PACKER.pack(values))


def unpack_row(row: bytes) -> Any:
    return msgpack.unpackb(row, strict_map_key=False)
