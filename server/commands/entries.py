"""Entries as replies.  They are stored as the array a reader is sent, so a reply is joined, never encoded."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from struct import Struct
from typing import Final

from store.format import BULK_HEADS, array_head
from store.ids import MAX_HALF, SEQ_BITS, StreamID

_PIECE_ENTRIES: Final = 2000
_ID_OF_KEY = Struct(">8xQQ").unpack  # an entry's LMDB key: stream number, ms, seq


def entry_wire(entry_id: StreamID, fields: bytes) -> bytes:
    """`[id [field value ...]]`; `fields` is the stored array."""
    text = b"%d-%d" % (entry_id >> SEQ_BITS, entry_id & MAX_HALF)
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(text), text, fields)


def entries_wire(rows: list[tuple[bytes, bytes]]) -> bytes:
    """The array of the entries in `rows`, (key, value) pairs of the table of entries."""
    return array_head(len(rows)) + _wire(rows)


def id_texts(rows: list[tuple[bytes, bytes]]) -> list[bytes]:
    """The IDs of entries, for who needs them besides the reply."""
    return [b"%d-%d" % _ID_OF_KEY(key) for key, _ in rows]


def entries_wire_with(rows: list[tuple[bytes, bytes]], texts: list[bytes]) -> bytes:
    """As `entries_wire`, with the texts of the IDs at hand."""
    heads = BULK_HEADS
    parts = [
        b"*2\r\n%b\r\n%b\r\n%b" % (heads[len(text)], text, fields)
        for (_, fields), text in zip(rows, texts, strict=True)
    ]
    return array_head(len(rows)) + b"".join(parts)


def _wire(rows: list[tuple[bytes, bytes]]) -> bytes:
    # 0.3 us an entry; a `%` per part instead of one per entry would take 0.5
    parts: list[bytes] = []
    append = parts.append
    heads = BULK_HEADS
    for key, fields in rows:
        text = b"%d-%d" % _ID_OF_KEY(key)
        append(b"*2\r\n%b\r\n%b\r\n%b" % (heads[len(text)], text, fields))
    return b"".join(parts)


def long_range(rows: Generator[tuple[bytes, bytes], None, None], count: int) -> Generator[bytes, None, None]:
    """The array of the first `count` of `rows`, in pieces of about a millisecond's work.  Closes `rows` at the end."""
    try:
        yield array_head(count)
        while count > 0:
            piece = list(islice(rows, min(_PIECE_ENTRIES, count)))
            assert piece, "fewer entries than were counted"
            count -= len(piece)
            yield _wire(piece)
    finally:
        rows.close()
