"""Pages of LMDB's tables: measured, and searched without LMDB.

A leaf of LMDB 0.9: pgno:u64 pad:u16 flags:u16 lower:u16 upper:u16, then where each row begins; all in the order of the
machine.  Before a row stand its size:u32 flags:u16 and the size of its key:u16.  In a branch the number of the page
below, with the keys from this one on, stands in the place of size and flags; the first row there has no key.

The first two pages are of the last two commits:

    head of the page, magic:u32 version:u32 address:u64 size:u64, two tables, last_pgno:u64 commit_no:u64
    table = pad:u32 flags:u16 levels:u16 branch_pages:u64 leaf_pages:u64 overflow_pages:u64 rows:u64 root:u64

The first table is that of free pages, and its pad is the size of a page; the second one has the names of all others.
"""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import Final

from riverbed.store.wire.reference.ids import ID_BYTES, KEY_BYTES, PREFIX_BYTES
from riverbed.store.wire.reference.pending import Delivery, find_delivery
from riverbed.store.wire.reference.rows import Buffer

_PAGE_HEAD: Final = Struct("=12xHH")
_NODE_HEAD: Final = Struct("=IHH")
_BRANCH: Final = 1
_LEAF: Final = 2
_IS_TABLE: Final = 2  # the flags of a row of the main table
_META: Final = Struct("=16xII16xI92xQQ")  # magic, version, size of a page, last_pgno, commit_no
_MAIN_AT: Final = 88
_TABLE: Final = Struct("=6xH32xQ")  # levels, root
_MAGIC_AND_VERSION: Final = (0xBEEFC0DE, 1)
_PAGE_BYTES: Final = range(512, 65536 + 1)
_MOST_LEVELS: Final = 32

_Tree = tuple[memoryview, int, int, int]  # the file, the size of a page, the levels, the number of the root
_Page = tuple[memoryview, int]  # and how many rows it has


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


def find_keys(pages: Buffer, commit_no: int, table: bytes, keys: list[bytes]) -> bytes:
    """A byte for each key: 1 if the table has it as a commit has left it; 0 if it has not, or that is not certain.

    `pages` is a file of LMDB 0.9.  It is certain of the last two commits, and where pages are sound.
    """
    tree = _find_table(memoryview(pages), commit_no, table)
    return bytes(tree is not None and _has_key(tree, key) for key in keys)


def find_deliveries(
    pages: Buffer, commit_no: int, table: bytes, prefix: bytes, ids: list[bytes]
) -> list[Delivery | None]:
    """What the runs of a group say of entries as a commit has left them; None of those it has not, or if in doubt.

    As `find_keys`; the keys of the group begin with `prefix`.
    """
    if len(prefix) != PREFIX_BYTES or any(len(packed) != ID_BYTES for packed in ids):
        raise ValueError("no prefix of a group, or no packed ID")
    tree = _find_table(memoryview(pages), commit_no, table)
    return [None if tree is None else _find_delivery(tree, prefix + packed) for packed in ids]


def _find_table(view: memoryview, commit_no: int, name: bytes) -> _Tree | None:
    if len(view) < _META.size:
        return None
    page_bytes = _META.unpack_from(view)[2]
    if page_bytes not in _PAGE_BYTES or page_bytes > len(view) // 2:
        return None
    for at in (0, page_bytes):
        *known, _, _, number = _META.unpack_from(view, at)
        if tuple(known) == _MAGIC_AND_VERSION and number == commit_no:
            break
    else:
        return None
    levels, root = _TABLE.unpack_from(view, at + _MAIN_AT)
    page = _page(view, page_bytes, root, _LEAF) if levels == 1 else None
    if page is None:
        return None
    main, count = page
    for row in range(count):
        found = _row(main, row)
        if found is None:
            return None
        row_at, key = found
        end = row_at + _NODE_HEAD.size + len(name) + _TABLE.size
        if key == name and _NODE_HEAD.unpack_from(main, row_at)[1] == _IS_TABLE and end <= page_bytes:
            levels, root = _TABLE.unpack_from(main, end - _TABLE.size)
            return (view, page_bytes, levels, root) if 1 <= levels <= _MOST_LEVELS else None
    return None


def _has_key(tree: _Tree, key: bytes) -> bool:
    place = _seek(tree, key)
    if place is None or place[1] == place[2]:
        return False
    found = _row(*place[:2])
    return found is not None and found[1] == key


def _find_delivery(tree: _Tree, key: bytes) -> Delivery | None:
    place = _seek(tree, key)
    if place is None:
        return None
    page, row, count, following = place
    if row == count:
        leaf = _page(*tree[:2], following, _LEAF) if following else None
        if leaf is None or not leaf[1]:
            return None
        page, row = leaf[0], 0
    found = _row(page, row)
    if found is None:
        return None
    at, last = found
    size, flags, _ = _NODE_HEAD.unpack_from(page, at)
    begin = at + _NODE_HEAD.size + len(last)
    if at < _PAGE_HEAD.size or flags or size > len(page) - begin or len(last) != KEY_BYTES:
        return None
    try:
        return find_delivery(last, bytes(page[begin : begin + size]), key)
    except ValueError:
        return None


def _seek(tree: _Tree, key: bytes) -> tuple[memoryview, int, int, int] | None:
    """The leaf of a key: -> the page, the first row that is not below the key, how many rows there are, the next leaf.

    The next leaf is 0 when it is not below the same branch.
    """
    view, page_bytes, levels, number = tree
    following = 0
    for _ in range(levels - 1):
        branch = _page(view, page_bytes, number, _BRANCH)
        below = None if branch is None else _pages_below(*branch, key)
        if below is None:
            return None
        number, following = below
    leaf = _page(view, page_bytes, number, _LEAF)
    if leaf is None:
        return None
    page, high = leaf
    low, count = 0, high
    while low < high:
        middle = (low + high) // 2
        found = _row(page, middle)
        if found is None:
            return None
        if found[1] < key:
            low = middle + 1
        else:
            high = middle
    return page, low, count, following


def _page(view: memoryview, page_bytes: int, number: int, kind: int) -> _Page | None:
    """A page, if it is there and of this kind."""
    if number >= len(view) // page_bytes:
        return None
    page = view[number * page_bytes : (number + 1) * page_bytes]
    own, flags, lower = unpack_from("=Q2xHH", page)
    if own != number or flags != kind or not _PAGE_HEAD.size <= lower <= page_bytes:
        return None
    return page, (lower - _PAGE_HEAD.size) // 2


def _row(page: memoryview, row: int) -> tuple[int, bytes] | None:
    """Where a row begins, and its key, if that is in the page."""
    (at,) = unpack_from("=H", page, _PAGE_HEAD.size + 2 * row)
    if at > len(page) - _NODE_HEAD.size:
        return None
    *_, key_size = _NODE_HEAD.unpack_from(page, at)
    begin = at + _NODE_HEAD.size
    return (at, bytes(page[begin : begin + key_size])) if key_size <= len(page) - begin else None


def _pages_below(page: memoryview, count: int, key: bytes) -> tuple[int, int] | None:
    """The numbers of the page below this branch that the key belongs to, and of the next one, 0 if there is none."""
    low, high = min(count, 1), count
    while low < high:
        middle = (low + high) // 2
        found = _row(page, middle)
        if found is None:
            return None
        if found[1] <= key:
            low = middle + 1
        else:
            high = middle
    number = _number_below(page, low - 1) if low else None
    return None if number is None else (number, (_number_below(page, low) or 0) if low < count else 0)


def _number_below(page: memoryview, row: int) -> int | None:
    found = _row(page, row)
    if found is None:
        return None
    low_bits, high_bits = unpack_from("=IH", page, found[0])
    return int(low_bits | high_bits << 32)
