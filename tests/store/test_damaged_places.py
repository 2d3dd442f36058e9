"""A flipped bit in the key of a row beside which other rows have been written since: no neighbour tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.store.databases import consumer_ttl
from riverbed.store.databases.names import scan_keys
from riverbed.store.errors import CorruptionError, DamagedRowError
from riverbed.store.format.idempotence import PRODUCER_KEY_BYTES
from riverbed.store.format.meta import META_COUNTERS, META_NUMBERING
from riverbed.store.groups.view import GroupsView
from riverbed.store.ids import MAX_ID, MIN_ID
from riverbed.store.tables.damage.scrub import SCRUBBED_TABLES, require_sound
from riverbed.store.tables.reader import TableReader
from tests.support.store.stores import Store, sid


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    store.fill(b"s", 30)
    store.run("XGROUP", "CREATE", "s", "g", "0")
    for consumer in ("Alice", "Bob"):
        store.run("XREADGROUP", "GROUP", "g", consumer, "COUNT", "5", "STREAMS", "s", ">")
    store.checkpoint()
    return store


def move(store: Store, table: str, number: int, at: int, bit: int) -> None:
    """Flip a bit in the key of a row, and have it where such a key belongs, as if its neighbours had come later."""
    handle = store.txn.handles[table]
    with store.txn.lmdb.cursor(handle) as cursor:
        key, row = list(cursor)[number]
    moved = bytearray(key)
    moved[at] ^= bit
    assert store.txn.lmdb.delete(key, db=handle) and store.txn.lmdb.put(bytes(moved), row, db=handle)


def scrub(store: Store) -> None:
    require_sound(TableReader(store.engine.tables, store.txn.lmdb), SCRUBBED_TABLES, lambda rows: None)


def test_a_short_list_of_keys_has_as_many_as_there_are(store: Store) -> None:
    store.run("XADD", "other", "1-1", "f", "v")
    store.run("XADD", "elsewhere", "1-1", "f", "v", db=1)
    store.checkpoint()
    move(store, "names", 1, 3, 0x40)  # of keyspace 0, now of keyspace 64
    with pytest.raises(DamagedRowError, match="the list of names"):
        scan_keys(store.db, 0, 10, 0)
    assert scan_keys(store.txn.databases[1], 0, 10, 0) == (0, [b"elsewhere"])
    store.kill()


def test_the_list_of_a_deleted_consumer_has_all_its_entries(store: Store) -> None:
    move(store, "pel_by_consumer", 1, 7, 0x40)
    group = store.groups().get(b"g")
    assert group is not None
    bob = group.consumers.named(b"Bob")
    assert bob is not None
    with pytest.raises(DamagedRowError, match="a consumer's list"):
        group.delete_consumer(bob)
    store.kill()


@pytest.mark.parametrize(("table", "consumer_no"), [("pel_by_consumer", 2), ("pel", None)])
def test_a_view_shows_all_that_is_pending(store: Store, table: str, consumer_no: int | None) -> None:
    move(store, table, 1, 7, 0x40)
    with store.view() as view:
        runs = GroupsView(view, store.stream()).pending_runs(1, consumer_no, [1, 2])
        with pytest.raises(DamagedRowError):
            list(runs)
    store.kill()


def test_no_pending_entry_is_listed_twice(store: Store) -> None:
    """The run of 1-0 to 5-0 stands behind that of 6-0 to 10-0, and ends before the place where it is found."""
    for _ in range(4):
        store.run("XREADGROUP", "GROUP", "g", "Alice", "COUNT", "5", "STREAMS", "s", ">")
    store.checkpoint()
    move(store, "pel", 0, 15, 8)  # 5-0, now 13-0
    for words in (("-", "+", "100"), ("-", "+", "7"), ("6-0", "+", "7"), ("12-0", "+", "3")):
        with pytest.raises(DamagedRowError):
            store.run("XPENDING", "s", "g", *words)
    store.kill()


def test_consumers_are_deleted_at_the_time_that_their_group_has(store: Store) -> None:
    store.run("XGROUP", "POLICY", "s", "g", "CONSUMERTTL", "1000")
    store.checkpoint()
    store.clock.now_ms += 100_000
    move(store, "consumer_ttls", 0, 7, 1)
    looks = iter(range(9))
    with pytest.raises(DamagedRowError, match="the time for consumers"):
        consumer_ttl.sweep(store.txn, store.clock.now_ms, lambda: next(looks) > 7, lambda group: ())
    store.kill()


def test_a_producer_is_counted_once(store: Store) -> None:
    store.run("XADD", "s", "IDMP", "producer", "one", "*", "f", "v")
    handle = store.txn.handles["idmp"]
    with store.txn.lmdb.cursor(handle) as cursor:
        number = next(number for number, (key, _) in enumerate(cursor) if len(key) == PRODUCER_KEY_BYTES)
    move(store, "idmp", number, -1, 1)
    with pytest.raises(DamagedRowError):
        store.run("XADD", "s", "IDMP", "producer", "two", "*", "f", "v")
    store.kill()


@pytest.mark.parametrize("name", [META_COUNTERS, META_NUMBERING])
def test_a_scrub_knows_the_names_of_the_rows_of_meta(store: Store, name: bytes) -> None:
    scrub(store)
    handle = store.txn.handles["meta"]
    row = store.txn.lmdb.pop(name, db=handle)
    store.txn.lmdb.put(name[:-1] + b"\x01", row, db=handle)
    with pytest.raises(CorruptionError, match="no row has this name"):
        scrub(store)
    store.kill()


def test_keys_without_their_rows_are_compared_as_well(store: Store) -> None:
    """A trim that removes references logs what it removes, so that a damaged key would outlive the repair."""
    move(store, "entries", 14, -1, 4)  # 15-0, now 15-4
    stream = store.stream()
    assert len(stream.keys(MIN_ID, sid("14-0"), 14)) == 14
    for start, end, count in ((MIN_ID, sid("20-0"), None), (sid("15-0"), sid("15-0"), None), (MIN_ID, MAX_ID, 15)):
        with pytest.raises(DamagedRowError):
            stream.keys(start, end, count)
    store.kill()


def test_a_scrub_compares_where_the_index_of_released_entries_leads(store: Store) -> None:
    store.run("XNACK", "s", "g", "FAIL", "IDS", "1", "2-0")
    store.checkpoint()
    scrub(store)
    handle = store.txn.handles["pel_by_time"]
    with store.txn.lmdb.cursor(handle) as cursor:
        key, row = next((key, row) for key, row in cursor if row)
    store.txn.lmdb.put(key, row[:-1] + b"\x01", db=handle)
    with pytest.raises(CorruptionError, match="pel_by_time"):
        scrub(store)
    store.kill()
