"""Rows of entries: their seals, their parts, and the XADDs that they become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from riverbed.store.checksum import crc32c
from riverbed.store.wire.interface import SEAL_BYTES, SEAL_MARK
from riverbed.store.wire.reference.ids import ID_BYTES, KEY_BYTES, PREFIX_BYTES, id_bulk, parse_id, unpacked
from riverbed.store.wire.reference.words import BULK, take_head

Rows = list[tuple[bytes, bytes]]
Buffer = Any  # `collections.abc.Buffer` came with Python 3.12


def seal(prefix: bytes, row: bytes) -> bytes:
    """The row of an entry of the stream with this number, with its seal: a checksum of both."""
    if len(prefix) != PREFIX_BYTES:
        raise ValueError("not the number of a stream")
    return b"%b%b%b" % (row, crc32c(row, crc32c(prefix)).to_bytes(4, "big"), SEAL_MARK)


def unseal_one(key: bytes, row: bytes) -> bytes | None:
    """The row of an entry without its seal, None when it is damaged, or has another key."""
    prefix, _ = unpacked(key)
    bare = _unsealed(prefix, row)
    return bare if bare is not None and bare.startswith(id_bulk(key)) else None


def _unsealed(prefix: bytes, row: bytes) -> bytes | None:
    """The row without its seal, None when it is damaged.

    Rows that were written in format version 2 have no seal, and are taken apart.
    """
    if len(prefix) != PREFIX_BYTES:
        raise ValueError("not the number of a stream")
    if len(row) > SEAL_BYTES and row.endswith(SEAL_MARK):
        bare = row[:-SEAL_BYTES]
        return bare if seal(prefix, bare) == row else None
    return row if _take_row(row) is not None else None


def unseal(prefix: bytes, rows: list[bytes]) -> int:
    """Take the seals off the rows in their list; -> the index of the first damaged row, -1 when there is none."""
    for number, row in enumerate(rows):
        bare = _unsealed(prefix, row)
        if bare is None:
            return number
        rows[number] = bare
    return -1


def unseal_in(buffer: Buffer, starts: Buffer, ends: Buffer, stream_nos: Buffer) -> int:
    """As `unseal`, for the rows of the streams `stream_nos` from `starts` to `ends` in a buffer; changes `ends`.

    All numbers are native ones of 64 bits.
    """
    places, found, numbers = (memoryview(each).cast("B").cast("q") for each in (starts, ends, stream_nos))
    if not len(places) == len(found) == len(numbers):
        raise ValueError("not as many numbers of 64 bits")
    rows = memoryview(buffer).cast("B")
    for at, (start, end, number) in enumerate(zip(places, found, numbers, strict=True)):
        if not 0 <= start <= end <= len(rows):
            return at
        bare = _unsealed((number % (1 << 64)).to_bytes(8, "big"), bytes(rows[start:end]))
        if bare is None:
            return at
        found[at] = start + len(bare)
    return -1


def unseal_pairs(pairs: Rows) -> int:
    """As `unseal`, for (key, row) of any streams."""
    for number, (key, row) in enumerate(pairs):
        bare = unseal_one(key, row)
        if bare is None:
            return number
        pairs[number] = key, bare
    return -1


def measure_entries(
    rows: Iterator[tuple[bytes, bytes]], prefix: bytes, most: int
) -> tuple[list[bytes], list[int], Rows]:
    """Take at most `most` rows of entries out of an iterator; -> (keys, sizes, odd rows).

    Ends at the first key that does not begin with `prefix`, which is lost.  A size is the bytes of the fields; -1 when
    we would not have written the row so, or not under this key, and then the row is among the odd ones too.
    """
    if len(prefix) != PREFIX_BYTES or most < 0:
        raise ValueError("not the number of a stream, or a negative number of rows")
    keys: list[bytes] = []
    sizes: list[int] = []
    odd: Rows = []
    while len(keys) < most and (item := next(rows, None)) is not None:
        key, row = item
        if not key.startswith(prefix):
            break
        sound = _unsealed(prefix, row)
        parts = None if sound is None else _take_row(sound)
        if sound is None or parts is None or len(key) != KEY_BYTES or row[: parts[0]] != id_bulk(key):
            odd.append(item)
            sizes.append(-1)
        else:
            sizes.append(len(sound) - parts[1])
        keys.append(key)
    return keys, sizes, odd


def log_entries(rows: Iterator[bytes], last_key: bytes, head: bytes, room: int) -> tuple[bytes, int, bytes]:
    """Make XADDs of the rows of entries that an iterator gives, until they have `room` bytes.

    -> (XADDs, count, last key).  `last_key` is that of the row before, `head` are the name and the key as bulk strings.
    ValueError when a row is damaged, not above the one before, or we would not have written it so.
    """
    prefix, last_id = unpacked(last_key)
    if room < 0:
        raise ValueError("a negative bound")
    log: list[bytes] = []
    size = count = 0
    while size < room and (row := next(rows, None)) is not None:
        sound = _unsealed(prefix, row)
        parts = None if sound is None else _take_row(sound)
        if sound is None or parts is None:
            raise ValueError("this is not the row of an entry")
        id_end, fields, word_count = parts
        entry_id = parse_id(sound[sound.index(b"\n") + 1 : id_end - 2], may_be_short=False)
        if entry_id is None or entry_id <= last_id:
            raise ValueError("the entries are not in the order of their IDs")
        last_id = entry_id
        line = b"*%d\r\n%b%b%b" % (word_count + 3, head, sound[:id_end], sound[fields:])
        log.append(line)
        size += len(line)
        count += 1
    return b"".join(log), count, prefix + last_id.to_bytes(ID_BYTES, "big")


def _take_row(row: bytes) -> tuple[int, int, int] | None:
    """-> where the ID ends and where the fields begin, and how many words these are."""
    match, size = BULK.match, len(row)
    found = match(row)
    if found is None:
        return None
    id_end = found.end() + int(found[1]) + 2
    head = take_head(row, id_end, size) if row[id_end - 2 : id_end] == b"\r\n" else None
    if head is None or head[0] % 2:
        return None
    count, at = head
    fields = at
    for _ in range(count):
        found = match(row, at)
        if found is None:
            return None
        at = found.end() + int(found[1]) + 2
        if row[at - 2 : at] != b"\r\n":
            return None
    return (id_end, fields, count) if at == size else None
