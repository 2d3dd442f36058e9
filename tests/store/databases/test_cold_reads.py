"""A stream that is not in memory answers reads without an object that is kept, as its object would."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.store.databases.recent_keys import RecentKeys
from riverbed.store.errors import DamagedRowError
from riverbed.store.format.streams import MAX_PLAIN_KEY, key_key
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID
from riverbed.store.model import Strategy, Trim
from riverbed.store.streams import trimming
from riverbed.store.streams.stream import Stream
from tests.store.databases.test_lent_rows import append, forget
from tests.support.store.stores import Store

NOW_MS = 1_800_000_000_000
KEYS = (b"a", b"b", b"k" * 401, b"producers")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", node_max_entries=4)
    yield store
    store.engine.abandon()


def test_the_first_read_keeps_nothing_and_the_second_an_object(store: Store) -> None:
    store.add(b"s", "1-0", "2-0")
    forget(store)
    stream = store.db.readable(b"s", NOW_MS)
    assert stream is not None
    assert (type(stream) is Stream, stream.length, stream.last_id >> 64) == (False, 2, 2)
    assert (len(store.db.cached), store.txn.cached_bytes) == (0, 0)
    again = store.db.readable(b"s", NOW_MS)
    assert again is store.db.cached[b"s"] is store.db.readable(b"s", NOW_MS)


@pytest.mark.parametrize("command", ["XRANGE {} - + COUNT 1", "XREVRANGE {} + -", "XREAD STREAMS {} 0", "XLEN {}"])
def test_reads_of_very_many_streams_keep_few_of_them(store: Store, command: str) -> None:
    for number in range(3000):
        store.add(b"%d" % number, "1-0")
    forget(store)
    for number in range(3000):
        assert store.run(*command.format(number).split())
    assert len(store.db.cached) < 10


def test_what_was_appended_to_a_stream_that_is_lent_is_read(store: Store) -> None:
    store.add(b"s", "1-0")
    forget(store)
    assert append(store, "XADD s 2-0 f v", "XADD s 3-0 f v") == 2
    assert store.run("XRANGE", "s", "-", "+")[0].count(b"$1\r\nf\r\n") == 3
    assert (store.db.lent_count, len(store.db.cached), store.txn.cached_bytes) == (0, 0, 0)


def test_a_stream_that_expires_is_deleted_by_a_read_behind_its_deadline(store: Store) -> None:
    store.add(b"s", "1-0")
    store.run("PEXPIREAT", "s", NOW_MS + 1000)
    for now_ms, length in ((NOW_MS, 1), (NOW_MS + 999, 1), (NOW_MS + 1000, None), (NOW_MS, None)):
        forget(store)
        store.db.read_lately = RecentKeys()
        stream = store.db.readable(b"s", now_ms)
        assert (None if stream is None else stream.length) == length
    assert store.db.size == 0
    assert store.txn.log[-1] == b"*2\r\n$3\r\nDEL\r\n$1\r\ns\r\n"


def test_a_damaged_row_of_a_stream_is_refused(store: Store) -> None:
    store.add(b"s", "1-0")
    forget(store)
    key = key_key(store.db.keyspace_no, b"s")
    row = store.txn.lmdb.get(key, db=store.txn.handles["keys"])
    assert row is not None
    store.txn.lmdb.put(key, row[:-1] + b"\0", db=store.txn.handles["keys"])
    for _ in ("no object", "an object"):
        with pytest.raises(DamagedRowError):
            store.db.readable(b"s", NOW_MS)


def test_reads_find_the_same_as_those_of_the_objects(store: Store) -> None:
    """Of streams with nodes and without, with deleted and trimmed entries, a long key, groups and settings."""
    rng = random.Random(7)
    last = 0
    store.run("XGROUP", "CREATE", "b", "g", "0", "MKSTREAM")
    for _ in range(400):
        key = rng.choice(KEYS)
        stream = store.stream(key)
        change = rng.randrange(8)
        if change < 4:
            last += 1
            store.add(key, f"{last}-0")
        elif change == 4 and last:
            stream.delete_entries([StreamID(rng.randint(1, last) << 64)])
        elif change == 5:
            trimming.trim(stream, Trim(Strategy.MAXLEN, rng.randrange(12), approximate=rng.random() < 0.5))
        elif change == 6 and rng.random() < 0.2:
            store.db.delete(stream)
            continue
        elif key == b"producers" and rng.random() < 0.1:
            store.run("XCFGSET", key, "IDMP-DURATION", 10)
        start, end = (StreamID(rng.randint(0, last + 1) << 64) for _ in range(2))
        for low, high, count in ((MIN_ID, MAX_ID, None), (start, end, 3), (start, MAX_ID, 1), (MIN_ID, end, 9)):
            expected = found_in(store, key, low, high, count, is_cold=False)
            assert found_in(store, key, low, high, count, is_cold=True) == expected


def found_in(store: Store, key: bytes, low: StreamID, high: StreamID, count: int | None, *, is_cold: bool) -> object:
    forget(store)
    store.db.read_lately = RecentKeys()
    stream = store.db.readable(key, NOW_MS) if is_cold else store.db.stream(key, NOW_MS)
    if stream is None:
        return None
    has_object = len(key) > MAX_PLAIN_KEY or (key == b"producers" and store.stream(key).idempotence is not None)
    assert (type(stream) is Stream) == (has_object or not is_cold)
    both = [stream.entries_within(low, high, count, 1 << 20, reverse=reverse) for reverse in (False, True)]
    return stream.length, stream.last_id, stream.last_live_id, stream.first_entry(low, high), both
