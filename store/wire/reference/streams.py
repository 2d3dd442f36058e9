"""Rows of the table of streams: a checksum of the key and the values, and these as msgpack.

    %xC1 crc32c:u32  %x99  stream_no nil length entries_added expire_ms
                     %xC4 %x70 7 IDs  group_count  %x94 node_count tail_total tail_dead tail_bytes  nil

What has a key in the place of the first nil, or settings in that of the second one, is left to another reader.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from riverbed.store.checksum import crc32c
from riverbed.store.wire.reference.ids import ID_BYTES, MAX_HALF

Values = tuple[Any, ...]

VALUES: Final = 18
_MARK: Final = b"\xc1"
_HEAD_BYTES: Final = 5
_ARRAY: Final = b"\x99"
_NODES: Final = b"\x94"
_NIL: Final = b"\xc0"
_IDS: Final = b"\xc4\x70"
_ID_COUNT: Final = 7
_NUMBER_SIZES: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}  # bytes, by the kind that stands before them
_MAX_FIXINT: Final = 0x7F  # a number that is its own kind


class _OtherRowError(Exception):
    """The row is none of these."""


class _Reader:
    """What is left of a row."""

    def __init__(self, row: bytes) -> None:
        self._row = row
        self._at = 0

    def take(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._row):
            raise _OtherRowError
        return self._row[self._at - size : self._at]

    def skip(self, wanted: bytes) -> None:
        if self.take(len(wanted)) != wanted:
            raise _OtherRowError

    def number(self) -> int:
        (kind,) = self.take(1)
        if kind <= _MAX_FIXINT:
            return kind
        size = _NUMBER_SIZES.get(kind)
        if size is None:
            raise _OtherRowError
        return int.from_bytes(self.take(size), "big")

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def end(self) -> None:
        if self._at != len(self._row):
            raise _OtherRowError


def open_stream(key: bytes, row: bytes) -> Values | None:
    """The values of a stream's row, with None for each nil; None when it is not bound to `key`, or is another one."""
    _require_bytes(key, row)
    bare = row[_HEAD_BYTES:]
    if row[:_HEAD_BYTES] != _head(key, bare):
        return None
    reader = _Reader(bare)
    try:
        reader.skip(_ARRAY)
        stream_no = reader.number()
        reader.skip(_NIL)
        counts = reader.numbers(3)
        reader.skip(_IDS)
        ids = [int.from_bytes(reader.take(ID_BYTES), "big") for _ in range(_ID_COUNT)]
        group_count = reader.number()
        reader.skip(_NODES)
        nodes = reader.numbers(4)
        reader.skip(_NIL)
        reader.end()
    except _OtherRowError:
        return None
    return (stream_no, None, *counts, *ids, group_count, *nodes, None)


def pack_stream(key: bytes, values: Any) -> bytes | None:
    """The row under `key` with the values that `open_stream` returns; None when one of those that were None is not.

    OverflowError when a number is negative or too large.
    """
    _require_bytes(key)
    if not isinstance(values, tuple) or len(values) != VALUES:
        raise TypeError("the values of a stream's row are needed")
    each = iter(values)
    parts = [_ARRAY, _packed(next(each))]
    if next(each) is not None:
        return None
    parts += [_NIL, *map(_packed, islice(each, 3))]
    parts += [_IDS, *(_whole(number).to_bytes(ID_BYTES, "big") for number in islice(each, _ID_COUNT))]
    parts += [_packed(next(each)), _NODES, *map(_packed, islice(each, 4))]
    if next(each) is not None:
        return None
    bare = b"".join((*parts, _NIL))
    return _head(key, bare) + bare


def _head(key: bytes, bare: bytes) -> bytes:
    return _MARK + crc32c(bare, crc32c(key)).to_bytes(4, "big")


def _packed(number: int) -> bytes:
    """A number of 64 bits as msgpack, in as few bytes as it takes."""
    if not 0 <= _whole(number) <= MAX_HALF:
        raise OverflowError("not a number of 64 bits")
    if number <= _MAX_FIXINT:
        return bytes((number,))
    kind, size = next((kind, size) for kind, size in _NUMBER_SIZES.items() if number < 1 << 8 * size)
    return bytes((kind,)) + number.to_bytes(size, "big")


def _whole(number: Any) -> int:
    if not isinstance(number, int):
        raise TypeError("a number is needed")
    return number


def _require_bytes(*values: Any) -> None:
    if not all(isinstance(value, bytes) for value in values):
        raise TypeError("bytes are needed")
