"""What LMDB alone takes for the rows of appends to many streams: those of entries, and a row of each stream.

No server runs, and nothing is parsed, logged or answered.  Rows are read in the order of the requests and put in that
of the streams' numbers, as the server does, with as many entries to a commit.  LMDB has it easier here: all streams of
a commit are put in one order, and each row is read once, where the server lets go of streams when it has 16,000.
"""

from __future__ import annotations

import random
import shutil
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import lmdb

Item = TypeVar("Item")

# What the server does between two checkpoints at full load, and how often: the first ones fill the tables.
_ENTRIES: Final = 65_000
_CHECKPOINTS: Final = 4
_FIRST: Final = 4
# Streams whose rows are read at once, as many as a pipeline has, and those whose rows are put at once.
_READ: Final = 16
_PUT: Final = 64
# Rows of an entry with two fields, and of a stream.
_ENTRY: Final = b"e" * 63
_STREAM: Final = b"s" * 134
_MS: Final = 1_795_000_000_000


def append_rows(directory: Path, streams: int) -> float:
    """Put half a million entries of so many streams into new tables; -> us of CPU an entry of the second half."""
    rng = random.Random(1)
    numbers = rng.sample(range(streams), streams)  # by key: in the order in which clients first used the keys
    seconds = 0.0
    with lmdb.open(str(directory), map_size=8 << 30, max_dbs=2, metasync=False) as tables:
        entries, keys = tables.open_db(b"entries"), tables.open_db(b"keys")
        with tables.begin(write=True) as txn:
            txn.cursor(keys).putmulti([(_key(stream), _STREAM) for stream in range(streams)])
        for checkpoint in range(_FIRST + _CHECKPOINTS):
            asked = [rng.randrange(streams) for _ in range(_ENTRIES)]
            rows: dict[int, list[tuple[bytes, bytes]]] = {}
            for seq, stream in enumerate(asked):
                rows.setdefault(stream, []).append(
                    (struct.pack(">QQQ", numbers[stream], _MS + checkpoint, seq), _ENTRY)
                )
            looked_up = [[_key(stream) for stream in part] for part in _parts(list(dict.fromkeys(asked)), _READ)]
            put = [
                ([row for stream in part for row in rows[stream]], [(_key(stream), _STREAM) for stream in part])
                for part in _parts(sorted(rows, key=numbers.__getitem__), _PUT)
            ]
            begun = time.process_time()
            _checkpoint(tables, entries, keys, looked_up, put)
            if checkpoint >= _FIRST:
                seconds += time.process_time() - begun
    shutil.rmtree(directory)
    return seconds / (_CHECKPOINTS * _ENTRIES) * 1e6


def _checkpoint(
    tables: lmdb.Environment,
    entries: lmdb._Database,
    keys: lmdb._Database,
    looked_up: list[list[bytes]],
    put: list[tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]],
) -> None:
    with tables.begin(write=True) as txn:
        of_entries, of_keys = txn.cursor(entries), txn.cursor(keys)
        for some in looked_up:
            of_keys.getmulti(some)
        for rows, stream_rows in put:
            of_entries.putmulti(rows)
            of_keys.putmulti(stream_rows)


def _parts(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    return (items[at : at + most] for at in range(0, len(items), most))


def _key(stream: int) -> bytes:
    return b"\0\0\0\0stream:%012d" % stream
