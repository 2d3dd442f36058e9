"""Pages of LMDB's tables.

A leaf of LMDB 0.9: pgno:u64 pad:u16 flags:u16 lower:u16 upper:u16, then where each row begins; all in the order of the
machine.  Before a row stand its size:u32 flags:u16 and the size of its key:u16.
"""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import Final

_PAGE_HEAD: Final = Struct("=12xHH")
_NODE_HEAD: Final = Struct("=IHH")


def measure_leaf(page: bytes, last_key: bytes | None) -> tuple[int, bytes | None] | None:
    """The rows of a leaf of LMDB 0.9; -> (count, last key), None when it is not a sound page of plain rows.

    The keys ascend from above `last_key` on, which is None before the first leaf.  Rows are plain that stand in the
    page as a whole and are no tables.
    """
    size, head = len(page), _PAGE_HEAD.size
    if size < head:
        return None
    lower, upper = _PAGE_HEAD.unpack_from(page)
    if not head <= lower <= upper <= size:
        return None
    count = (lower - head) // 2
    for at in unpack_from(f"={count}H", page, head):
        if not upper <= at <= size - _NODE_HEAD.size:
            return None
        value_size, flags, key_size = _NODE_HEAD.unpack_from(page, at)
        at += _NODE_HEAD.size
        key = page[at : at + key_size]
        if flags or at + key_size + value_size > size or (last_key is not None and key <= last_key):
            return None
        last_key = key
    return count, last_key
