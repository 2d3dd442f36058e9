"""Rows of streams as they are, as they nearly are, and what the native module makes of them beside its reference."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any, Final

from crc32c import crc32c

from riverbed.store.wire import reference

_NUMBERS: Final = (0, 1, 2, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 62) - 1)
_LARGE: Final = (1 << 62, (1 << 63) - 1, (1 << 64) - 1)
_IDS: Final = (0, 1, 5 << 64, 1_700_000_000_000 << 64, (1 << 128) - 1)


def random_values(rng: random.Random) -> tuple[Any, ...]:
    """The values of a stream's row, of which few are as large as they can be."""

    def number() -> int:
        return rng.choice(_NUMBERS if rng.random() < 0.99 else _LARGE)

    ids = [rng.choice(_IDS) + rng.choice([0, 0, 3]) & (1 << 128) - 1 for _ in range(7)]
    expire_ms = rng.choice([0, 0, 0, 0, 1_700_000_000_000])
    return (number(), None, number(), number(), expire_ms, *ids, *(number() for _ in range(5)), None)


def random_row(rng: random.Random, key: bytes) -> bytes:
    """A row that is bound to `key`, mostly one of a stream."""
    row = reference.pack_stream(key, random_values(rng))
    assert row is not None
    bare = bytearray(row[5:])
    kind = rng.random()
    if kind < 0.2:
        bare[rng.randrange(len(bare))] = rng.choice([0, 0x7F, 0x90, 0x99, 0xC0, 0xC4, 0xCC, 0xCF, 0xD0, 0xFF])
    elif kind < 0.3:
        del bare[rng.randrange(len(bare)) :]
    elif kind < 0.35:
        bare += b"\xc0"
    return b"\xc1" + crc32c(bytes(bare), crc32c(key)).to_bytes(4, "big") + bytes(bare)


def compare_streams(native: ModuleType, rng: random.Random) -> None:
    """Have both read, write and lend the same rows."""
    values = random_values(rng)
    row = native.pack_stream(b"k", values)
    assert row == reference.pack_stream(b"k", values), values
    assert native.open_stream(b"k", row) == values
    key = rng.choice([b"", b"k", b"\0\0\0\0\0stream:77"])
    row = random_row(rng, key)
    if rng.random() < 0.1:
        row = row[: rng.randrange(len(row))]
    elif rng.random() < 0.1:
        key += b"!"
    values = native.open_stream(key, row)
    assert values == reference.open_stream(key, row), (key, row)
    if values is not None:  # a number may have been longer than it had to be
        assert native.open_stream(key, native.pack_stream(key, values)) == values
    limits = rng.choice([0, 1, 100, 1 << 62]), rng.choice([0, 1, 4096, 1 << 62]), rng.choice([0, 1, 16])
    tail, expected = native.open_tail_by_row(key, row, *limits), reference.open_tail_by_row(key, row, *limits)
    assert (tail is None) == (expected is None), (key, row)
    if tail is not None and expected is not None:
        assert tail.stream_row() == expected.stream_row(), (key, row)
        assert (tail.last_id, tail.nodes()) == (expected.last_id, expected.nodes())
