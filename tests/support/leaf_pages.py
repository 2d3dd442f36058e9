"""Pages of LMDB, sound and damaged, and what the native module makes of them beside its reference."""

from __future__ import annotations

import random
import struct
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Final

import lmdb

from riverbed.store.format.pending import Run
from riverbed.store.wire import reference

_PAGE_BYTES: Final = 4096
# How many rows of which size, by table: a tree of three levels, a leaf, rows that have pages of their own, nothing.
SEARCHED: Final = {b"tree": (2000, 10), b"leaf": (20, 10), b"large": (5, 10_000), b"none": (0, 0)}


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


class SearchedFile:
    """A file of LMDB: `commit_no` is the last commit, which has added every third key, from number 2 on."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            env = lmdb.open(directory, map_size=1 << 28, max_dbs=5)
            handles = {table: env.open_db(table) for table in SEARCHED}
            runs = env.open_db(b"runs")
            for rest in ((0, 1), (2,)):
                with env.begin(write=True) as txn:
                    for table, (count, size) in SEARCHED.items():
                        for number in range(count):
                            if number % 3 in rest:
                                txn.put(self.key(number), bytes(size), db=handles[table])
                    self.commit_no = txn.id()
                    for number in range(self.RUNS):
                        key, row = self.run_row(number)
                        txn.put(key, row, db=runs)
            env.close()
            self.pages = bytearray((Path(directory) / "data.mdb").read_bytes())

    # Runs of pending entries, in a tree of two levels: of five IDs, mostly, and every third ID is in none.
    RUNS: Final = 400
    PREFIX: Final = bytes(7) + b"\3"

    @staticmethod
    def packed(number: int) -> bytes:
        return bytes(12) + number.to_bytes(4, "big")

    @classmethod
    def run_row(cls, number: int) -> tuple[bytes, bytes]:
        count = 90 if number % 50 == 0 else 5
        ids = [cls.packed(1000 * number + 3 * each + each % 2) for each in range(count)]
        return cls.PREFIX + ids[-1], Run(number % 9, number, 1 + number % 3, b"".join(ids)).pack(cls.PREFIX)

    @staticmethod
    def key(number: int) -> bytes:
        return b"%04d" % number * (20 + number % 5)


def compare_searches(native: ModuleType, rng: random.Random, file: SearchedFile) -> int:
    """Look for keys and pending entries, mostly with bytes of the file changed, by both; -> how many were found."""
    table = rng.choice([*SEARCHED, b"tree", b"tree", b"more"])
    numbers = [
        rng.randrange(2100) if table == b"tree" else rng.randrange(25) for _ in range(rng.choice([0, 1, 9, 140]))
    ]
    keys = [file.key(number)[: rng.choice([None, None, None, -1, 0])] for number in numbers]
    commit_no = file.commit_no - rng.choice([0] * 10 + [1, 2, 4])
    pages = file.pages
    changed: dict[int, int] = {}
    for _ in range(rng.choice([0, 0, 1, 3, 20])):
        page = rng.choice([0, 1, rng.randrange(len(pages) // _PAGE_BYTES)]) * _PAGE_BYTES
        at = page + rng.choice([rng.randrange(_PAGE_BYTES), rng.randrange(160), rng.randrange(8, 40)])
        changed.setdefault(at, pages[at])
        pages[at] = rng.choice([0, 1, 2, 255, rng.randrange(256), pages[at] ^ 1 << rng.randrange(8)])
    cut = rng.choice([len(pages)] * 20 + [0, 151, 152, 4095, 4096, 8192, len(pages) // 2, len(pages) - 1])
    found: bytes = native.find_keys(pages[:cut], commit_no, table, keys)
    assert found == reference.find_keys(pages[:cut], commit_no, table, keys), (table, keys, changed, cut)
    wanted = [file.packed(1000 * rng.randrange(file.RUNS + 1) + rng.randrange(16)) for _ in numbers]
    prefix = rng.choice([file.PREFIX] * 9 + [bytes(8)])
    table = rng.choice([b"runs"] * 9 + [b"leaf"])
    deliveries = native.find_deliveries(pages[:cut], commit_no, table, prefix, wanted)
    assert deliveries == reference.find_deliveries(pages[:cut], commit_no, table, prefix, wanted), (wanted, changed)
    for at, byte in changed.items():
        pages[at] = byte
    return sum(found) + len(deliveries) - deliveries.count(None)
