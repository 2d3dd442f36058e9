"""Reads one table of an LMDB file without LMDB: leaf pages by the hundred, parsed by numpy.

A cursor takes 250 ns a row, this module 40.  The file must not be written any more.  It is read with `pread` and not
mapped, so that a file that is cut short while it is read causes an error and not a signal.  All numbers and places in
a page are checked before they are used, so that no bytes can cause an access outside of the buffers:

    file       magic, version and page size are known ones     every page is inside, and has the number it is asked by
    page       is of the kind that its place in the tree says  its nodes fill it to the byte, none over another
    tree       as deep as it says, no page met from two sides  keys ascend, within pages, across them, and between the
                                                               keys that lead to a page
    long value its own pages say how many they are

So a flipped bit makes rows missing, double or cut only if all of this still holds.  A flipped bit in a value is found
by the checksum of the whole file, which `locations.py` compares before a table is opened.

Other files that LMDB can write (other versions and byte orders, duplicate keys) are an UnknownFileError: use a cursor
for these.

    page   number:u64 pad:u16 flags:u16 lower:u16 upper:u16, node places:u16 up to `lower`, nodes from `upper` on
    node   size:u32 flags:u16 key size:u16 key value        in a leaf; flagged as big, the value is a page's number
           child:u48 key size:u16 key                       in a branch, the first one's key unused
    meta   a page's header, magic:u32 version:u32 address:u64 map size:u64 two roots, last page:u64 transaction:u64
    root   pad:u32 flags:u16 depth:u16 branches:u64 leaves:u64 overflow pages:u64 rows:u64 page:u64

Reads only keys of one length, and does not know what is in them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from riverbed.store.errors import CorruptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Bytes = NDArray[np.uint8]

__all__ = ["MARGIN", "LeafRows", "PageTable", "UnknownFileError"]

# How many bytes behind the last page may be read, as readers read eight bytes at a time.
MARGIN: Final = 24

_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_PAGE_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))
_MAGIC_WORDS: Final = Struct("<II")
_ROOT: Final = Struct("<IHHQQQQQ")
_META: Final = Struct("<16xIIQQ48s48sQQ")
_PAGE: Final = Struct("<QHHHH")
_LONG_PAGE: Final = Struct("<QHHI")
_HEAD: Final = _PAGE.size
_NODE: Final = 8
_NOWHERE: Final = (1 << 64) - 1

_BRANCH: Final = 0x01
_LEAF: Final = 0x02
_OVERFLOW: Final = 0x04
_META_PAGE: Final = 0x08
_BIG: Final = 0x01  # of a node: the value is on pages of its own
_SUBTABLE: Final = 0x02
_DEEPEST: Final = 32  # LMDB's own limit

_LOW_HALF: Final = np.uint64(0xFFFFFFFF)
_CHILD: Final = np.uint64((1 << 48) - 1)
_IS_BIG: Final = np.uint64(_BIG << 32)
_IS_ROW: Final = ~(_LOW_HALF | _IS_BIG)  # the other flags, and the size of the key


class UnknownFileError(Exception):
    """The file is not damaged, but only LMDB can read it."""


class _Root(NamedTuple):
    """Where a table begins."""

    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflow_pages: int
    rows: int
    page: int


class _Nodes(NamedTuple):
    """The nodes of some pages: where each begins, its head as one number, and the bytes behind the head as a line of
    numbers; for each page, how many nodes it has and the number of its first.
    """

    places: Positions
    heads: Words
    behind: Words
    counts: Positions
    firsts: Positions


@dataclass(frozen=True, slots=True)
class Leaves:
    """Leaf pages in the order of keys: their numbers, and the bounds of their keys, the upper one excluded."""

    numbers: Positions
    lows: NDArray[np.bytes_]
    highs: NDArray[np.bytes_]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, part: slice) -> Leaves:
        return Leaves(self.numbers[part], self.lows[part], self.highs[part])


@dataclass(frozen=True, slots=True)
class LeafRows:
    """The rows of some leaf pages, in the order of their keys.

    `buffer` has `MARGIN` bytes more than the pages.  The value of row i is in it from `starts[i]` to `ends[i]`.  If
    `pages[i]` is not 0, it is the page of the file on which a long value begins; then only `ends[i] - starts[i]` has a
    meaning.  `keys` has a line for each row, of big-endian numbers of 64 bits.
    """

    buffer: Bytes
    starts: Positions
    ends: Positions
    keys: NDArray[np.uint64]
    pages: Positions | None  # 0 for a value that is in the buffer; None when all are


class PageTable:
    """A table of a file that is not written any more.  All keys have `key_bytes` bytes, a multiple of eight.

    A context manager: it holds the file open.  Raises UnknownFileError for a file or a kind of table that it does not
    know; CorruptionError for a damaged file, at once or later; OSError.
    """

    def __init__(self, path: Path, name: bytes, key_bytes: int) -> None:
        if sys.byteorder != "little":
            raise UnknownFileError("this machine's numbers are big-endian")
        self._path = path
        self._key_bytes = key_bytes
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = os.fstat(self._file).st_size
            self._page_bytes, self._last_page, main = self._read_meta()
            self._root = self._find(main, name)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def row_count(self) -> int:
        return self._root.rows

    @property
    def leaf_count(self) -> int:
        return self._root.leaves

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    def _damage(self, page: int, reason: str) -> CorruptionError:
        return CorruptionError(str(self._path), page * self._page_bytes, f"page {page}: {reason}")

    # -- finding the table ---------------------------------------------------------------------------------------------

    def _read_meta(self) -> tuple[int, int, _Root]:
        """-> (bytes of a page, the last page in use, the root of the table of tables)"""
        head = os.pread(self._file, _HEAD + _META.size, 0)
        if len(head) < _META.size:
            raise CorruptionError(str(self._path), 0, "too short for a file of LMDB")
        magic, version = _MAGIC_WORDS.unpack_from(head, _HEAD)
        if magic != _MAGIC or version != _VERSION:
            raise UnknownFileError(f"magic {magic:08x} and version {version} are not those of LMDB 0.9")
        page_bytes = _Root._make(_ROOT.unpack(_META.unpack_from(head)[4])).pad
        if page_bytes not in _PAGE_SIZES:
            raise CorruptionError(str(self._path), 0, f"pages of {page_bytes} bytes")
        metas = []
        for number in (0, 1):
            page = os.pread(self._file, _META.size, number * page_bytes)
            if len(page) < _META.size:
                raise CorruptionError(str(self._path), 0, "too short for a file of LMDB")
            found, _, flags, _, _ = _PAGE.unpack_from(page)
            meta = _META.unpack(page)
            free = _Root._make(_ROOT.unpack(meta[4]))
            if (found, flags, *meta[:2], free.pad) != (number, _META_PAGE, _MAGIC, _VERSION, page_bytes):
                raise CorruptionError(str(self._path), number * page_bytes, "a page that describes the file is damaged")
            metas.append(meta)
        newest = metas[1] if metas[1][7] > metas[0][7] else metas[0]
        last_page = newest[6]
        if (last_page + 1) * page_bytes > self._size:
            raise CorruptionError(str(self._path), None, f"{self._size} bytes, and page {last_page} should be in it")
        return page_bytes, last_page, _Root._make(_ROOT.unpack(newest[5]))

    def _find(self, main: _Root, name: bytes) -> _Root:
        """The root of a table by its name."""
        page = main.page
        for level in range(main.depth, 0, -1):
            nodes = self._nodes(page, _LEAF if level == 1 else _BRANCH)
            if level == 1:
                found = {key: (flags, value) for key, flags, value in nodes}.get(name)
                if found is None or found[0] != _SUBTABLE or len(found[1]) != _ROOT.size:
                    raise UnknownFileError(f"there is no table {name.decode()}")
                root = _Root._make(_ROOT.unpack(found[1]))
                if root.flags:
                    raise UnknownFileError(f"table {name.decode()} has flags {root.flags:#x}")
                if root.depth > _DEEPEST or (root.page == _NOWHERE) != (root.depth == 0):
                    raise self._damage(page, f"table {name.decode()} is {root.depth} pages deep")
                return root
            children = [key for key, _, _ in nodes]
            place = max((at for at, key in enumerate(children) if not at or key <= name), default=0)
            page = int.from_bytes(nodes[place][2], "little")
        raise UnknownFileError("there are no tables")

    def _nodes(self, number: int, kind: int) -> list[tuple[bytes, int, bytes]]:
        """(key, flags, value) of each node of one page; in a branch the value is the child's page number."""
        numbers = np.array([number], dtype=np.int64)
        pages, buffer = self._read(numbers)
        found = self._take_apart(pages, buffer, numbers, kind)
        data = pages.tobytes()
        nodes = []
        for at, head in zip(found.places.tolist(), found.heads.tolist(), strict=True):
            key_end = at + _NODE + (head >> 48)
            if kind == _BRANCH:
                nodes.append((data[at + _NODE : key_end], 0, (head & ((1 << 48) - 1)).to_bytes(8, "little")))
            else:
                nodes.append(
                    (data[at + _NODE : key_end], head >> 32 & 0xFFFF, data[key_end : key_end + (head & 0xFFFFFFFF)])
                )
        return nodes

    # -- pages ---------------------------------------------------------------------------------------------------------

    def _read(self, numbers: Positions) -> tuple[Bytes, Bytes]:
        """-> (the pages, a line each; the same as one buffer, with a margin)"""
        if int(numbers.min()) < 2 or int(numbers.max()) > self._last_page:
            raise CorruptionError(str(self._path), None, "a page is named that is not in the file")
        count, page_bytes = len(numbers), self._page_bytes
        buffer = np.empty(count * page_bytes + MARGIN, dtype=np.uint8)
        view = memoryview(buffer.data)
        begins = np.flatnonzero(np.diff(numbers, prepend=-1) != 1)
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), count], strict=True):
            self._read_into(view[begin * page_bytes : end * page_bytes], int(numbers[begin]) * page_bytes)
        return buffer[: count * page_bytes].reshape(count, page_bytes), buffer

    def _read_into(self, target: memoryview, at: int) -> None:
        while target:
            size = os.preadv(self._file, [target], at)
            if not size:
                raise CorruptionError(str(self._path), at, "the file ends, and did not when it was opened")
            target, at = target[size:], at + size

    def _take_apart(self, pages: Bytes, buffer: Bytes, numbers: Positions, kind: int, bytes_behind: int = 0) -> _Nodes:
        """The nodes of some pages.  Raises CorruptionError unless each is inside its page and none overlap.

        Up to `MARGIN` bytes behind each head are read as well, even if they are outside of the page.
        """
        count, page_bytes = pages.shape
        halves = pages.view("<u2")
        lower, upper = halves[:, 6].astype(np.int64), halves[:, 7].astype(np.int64)
        sound = pages[:, :8].view("<u8")[:, 0] == numbers.astype(np.uint64)
        sound &= (halves[:, 5] == kind) & (lower > _HEAD) & (lower % 2 == 0) & (lower <= upper)
        if not sound.all():
            raise self._damage(int(numbers[np.argmin(sound)]), "is not the page that it should be")
        counts = (lower - _HEAD) >> 1
        width = int(counts.max())
        table = halves[:, _HEAD // 2 : _HEAD // 2 + width].astype(np.int64)
        if int(counts.min()) == width:
            within = table.reshape(-1)
            begins = np.repeat(np.arange(count) * page_bytes, width)
        else:
            within = table[np.arange(width) < counts[:, None]]
            begins = np.repeat(np.arange(count) * page_bytes, counts)
        if int(within.max()) > page_bytes - _NODE:
            raise self._damage(int(numbers[0]), "or one of the next: a node is outside of its page")
        places = within + begins
        # One access to memory a node, as the accesses are what takes time.
        look = _NODE + bytes_behind
        found = np.ndarray((len(buffer) - look + 1,), dtype=f"V{look}", buffer=buffer, strides=(1,))[places]
        words = found.view("<u8").reshape(len(places), look // 8)
        heads = words[:, 0].copy()
        sizes = (heads >> np.uint64(48)).astype(np.int64)
        if kind == _LEAF:
            lengths = (heads & _LOW_HALF).astype(np.int64)
            is_big = (heads & _IS_BIG) != 0
            sizes += np.where(is_big, 8, lengths) if is_big.any() else lengths
        sizes += _NODE + 1
        sizes &= -2
        firsts = np.cumsum(counts) - counts
        self._require_filled(places, sizes, firsts, np.arange(count) * page_bytes, upper, numbers)
        return _Nodes(places, heads, words[:, 1:], counts, firsts)

    def _require_filled(
        self,
        places: Positions,
        sizes: Positions,
        firsts: Positions,
        begins: Positions,
        upper: Positions,
        numbers: Positions,
    ) -> None:
        """Raise CorruptionError unless the nodes of each page fill it without gaps from `upper` to its end."""
        lasts = np.append(firsts[1:], len(places)) - 1
        # If rows were only ever added behind the last, nodes lie from the end of the page down.
        above = np.empty_like(places)
        above[1:] = places[:-1]
        above[firsts] = begins + self._page_bytes
        if np.array_equal(places + sizes, above) and np.array_equal(places[lasts], begins + upper):
            return
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        above[:-1] = ordered[1:]
        # In this order the nodes of one page are together too, as each node is inside its page.
        above[lasts] = begins + self._page_bytes
        is_filled = ordered + sizes[order] == above
        is_filled[firsts] &= ordered[firsts] == begins + upper
        if not is_filled.all():
            page = np.searchsorted(firsts, int(np.argmin(is_filled)), side="right") - 1
            raise self._damage(int(numbers[page]), "its nodes do not fill it")

    # -- the table -----------------------------------------------------------------------------------------------------

    def leaves(self, ranges: Iterable[tuple[bytes, bytes]]) -> Leaves:
        """The leaf pages that may have a key in one of `ranges`, which include both ends, ascend and do not overlap."""
        pairs = list(ranges)
        kind = f"S{self._key_bytes}"
        firsts = np.array([first for first, _ in pairs], dtype=kind)
        lasts = np.array([last for _, last in pairs], dtype=kind)
        highest = b"\xff" * self._key_bytes
        if not pairs or not self._root.depth:
            return Leaves(np.empty(0, dtype=np.int64), np.empty(0, dtype=kind), np.empty(0, dtype=kind))
        found = Leaves(
            np.array([self._root.page], dtype=np.int64), np.array([b""], dtype=kind), np.array([highest], dtype=kind)
        )
        for _ in range(self._root.depth - 1):
            children = self._children(found, kind)
            # The first range that does not end before the child begins: does it begin before the child ends?
            first = np.searchsorted(lasts, children.lows)
            inside = first < len(pairs)
            inside[inside] = firsts[first[inside]] < children.highs[inside]
            found = Leaves(children.numbers[inside], children.lows[inside], children.highs[inside])
            if not len(found):
                break
        return found

    def _children(self, branches: Leaves, kind: str) -> Leaves:
        pages, buffer = self._read(branches.numbers)
        places, heads, _, counts, firsts = self._take_apart(pages, buffer, branches.numbers, _BRANCH)
        numbers = (heads & _CHILD).astype(np.int64)
        has_key = heads >> np.uint64(48) == self._key_bytes
        has_key[firsts] = True
        if not has_key.all():
            raise self._damage(int(branches.numbers[0]), "or one of the next: keys of a wrong length")
        windows = np.ndarray((len(buffer) - self._key_bytes + 1,), dtype=kind, buffer=buffer, strides=(1,))
        lows = windows[places + _NODE]
        lows[firsts] = branches.lows
        highs = np.empty_like(lows)
        highs[:-1] = lows[1:]
        highs[firsts + counts - 1] = branches.highs
        if not (lows < highs).all():
            raise self._damage(int(branches.numbers[0]), "or one of the next: keys do not ascend")
        return Leaves(numbers, lows, highs)

    def rows(self, leaves: Leaves) -> LeafRows:
        """The rows of some leaf pages, at least one page."""
        pages, buffer = self._read(leaves.numbers)
        places, heads, behind, counts, firsts = self._take_apart(pages, buffer, leaves.numbers, _LEAF, self._key_bytes)
        if ((heads & _IS_ROW) != self._key_bytes << 48).any():
            raise self._damage(int(leaves.numbers[0]), "or one of the next: rows of another kind")
        starts = places + (_NODE + self._key_bytes)
        ends = starts + (heads & _LOW_HALF).astype(np.int64)
        kind = f"S{self._key_bytes}"
        lows = behind[firsts].view(kind)[:, 0]
        highs = behind[firsts + counts - 1].view(kind)[:, 0]
        if (lows < leaves.lows).any() or (highs >= leaves.highs).any():
            raise self._damage(int(leaves.numbers[0]), "or one of the next: keys that belong elsewhere")
        # Each number of the keys gets an array of its own, so that reading one does not step over the others.
        keys = np.ascontiguousarray(behind.T).byteswap(inplace=True).T
        if not _ascend(keys):
            raise self._damage(int(leaves.numbers[0]), "or one of the next: keys do not ascend")
        is_big = (heads & _IS_BIG) != 0
        longs: Positions | None = None
        if is_big.any():
            values = np.ndarray((len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))
            longs = np.where(is_big, values[starts].astype(np.int64), 0)
        return LeafRows(buffer, starts, ends, keys, longs)

    def long_value(self, page: int, size: int) -> bytes:
        """A value of `size` bytes on pages of its own, from `page` on."""
        page_bytes = self._page_bytes
        page_count = -(-(_HEAD + size) // page_bytes)
        if not 2 <= page <= self._last_page or page + page_count - 1 > self._last_page:
            raise CorruptionError(str(self._path), None, f"a long value should be on page {page}, which there is not")
        data = bytearray(_HEAD + size)
        self._read_into(memoryview(data), page * page_bytes)
        number, _, flags, pages = _LONG_PAGE.unpack_from(data)
        if (number, flags) != (page, _OVERFLOW) or pages < page_count:
            raise self._damage(page, "is not the long value that it should be")
        return bytes(data[_HEAD:])


def _ascend(keys: NDArray[np.uint64]) -> bool:
    """Whether each key, a line of numbers, is above the key before it."""
    is_above = np.zeros(len(keys) - 1, dtype=np.bool_)
    for column in range(keys.shape[1] - 1, -1, -1):
        upper, lower = keys[1:, column], keys[:-1, column]
        is_above = (upper > lower) | ((upper == lower) & is_above)
    return bool(is_above.all())
