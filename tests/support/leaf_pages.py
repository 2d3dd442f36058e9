"""Pages of LMDB, sound and damaged, and what the native module makes of them beside its reference."""

from __future__ import annotations

import random
import struct
from types import ModuleType

from riverbed.store.wire import reference


def leaf(rows: list[tuple[bytes, bytes]], size: int = 256) -> bytes:
    """A leaf of LMDB 0.9 with these rows, which must have room in it; the last one stands in front of the others."""
    page = bytearray(size)
    at = size
    for number, (key, row) in enumerate(rows):
        node = struct.pack("=IHH", len(row), 0, len(key)) + key + row
        at -= len(node)
        page[at : at + len(node)] = node
        struct.pack_into("=H", page, 16 + 2 * number, at)
    struct.pack_into("=QHHHH", page, 0, 7, 0, 2, 16 + 2 * len(rows), at)
    return bytes(page)


def compare_leaves(native: ModuleType, rng: random.Random) -> None:
    """Read a page, mostly with one byte changed, by both."""
    keys = [bytes([rng.choice(b"abc") for _ in range(rng.randrange(4))]) for _ in range(rng.randrange(8))]
    keys = sorted(set(keys)) if rng.random() < 0.9 else keys
    page = bytearray(leaf([(key, bytes(rng.randrange(6))) for key in keys]))
    if rng.random() < 0.6:
        at = rng.choice([rng.randrange(len(page)), *range(12, 36)])
        page[at] = rng.choice([0, 1, 15, 16, 255, page[at] ^ 1 << rng.randrange(8)])
    last = rng.choice([None, None, b"", b"a", keys[0] if keys else b"b", b"cccc"])
    cut = rng.choice([len(page)] * 20 + [0, 15, 16, 17, 40])
    found = native.measure_leaf(bytes(page[:cut]), last)
    assert found == reference.measure_leaf(bytes(page[:cut]), last), (page, last, cut, found)
