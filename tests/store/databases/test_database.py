from __future__ import annotations

from collections.abc import Callable

import pytest

from riverbed.store.databases.database import Database
from riverbed.store.databases.names import all_keys, random_key, scan_keys
from riverbed.store.databases.transaction import CACHED_BYTES, MAX_CHANGED
from riverbed.store.errors import DamagedRowError
from riverbed.store.ids import MAX_ID, MIN_ID
from riverbed.store.model import Change, Strategy, Trim
from riverbed.store.streams import trimming
from tests.support.store.stores import Store, sid, text_of

NOW_MS = 1_700_000_000_000


def ids_of(store: Store, key: bytes, db: int = 0) -> list[str]:
    stream = store.txn.databases[db].stream(key, 0)
    assert stream is not None
    return [text_of(row_key) for row_key, _ in stream.rows(MIN_ID, MAX_ID)]


def scan_all(db: Database, count: int, between: Callable[[], None] = lambda: None) -> list[bytes]:
    cursor, found = scan_keys(db, 0, count, 0)
    while cursor:
        between()
        cursor, keys = scan_keys(db, cursor, count, 0)
        found += keys
    return found


# -- whole streams move in one step ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10, 3000])
def test_no_entry_is_touched_by_moving_deleting_or_flushing_a_stream(store: Store, length: int) -> None:
    """The same few rows of few tables, however long the stream is."""
    store.fill(b"s", length)
    store.checkpoint()
    entries, nodes = store.count("entries"), store.count("nodes")
    db, other = store.txn.databases[:2]
    db.rename(store.stream(), b"r")
    db.move(store.stream(b"r"), other)
    store.txn.swap(db, other)
    db.delete(store.stream(b"r"))
    store.fill(b"t", 1)
    db.flush()
    assert (store.count("entries"), store.count("nodes")) == (entries + 1, nodes)
    assert store.dump() == {}
    assert store.txn.dead_rows.notes == 2
    assert store.violations() == []
    store.purge()
    tables = ("entries", "nodes", "keys", "names", "trash")
    assert [store.count(table) for table in tables] == [0] * len(tables)


def test_a_renamed_stream_keeps_everything_and_replaces_what_was_there(store: Store) -> None:
    stream = store.fill(b"s", 5)
    store.run("XGROUP", "CREATE", "s", "g", "2-0", "ENTRIESREAD", 2)
    store.db.set_expiry(stream, NOW_MS + 1)
    store.fill(b"t", 9)
    before = store.dump()[0][b"s"]
    store.db.rename(store.stream(), b"t")
    assert store.dump() == {0: {b"t": before}}
    store.restart()
    assert store.dump() == {0: {b"t": before}}
    store.add(b"t", "6-0")
    assert store.txn.log[-1].startswith(b"*5\r\n$4\r\nXADD\r\n$1\r\nt\r\n")


def test_renaming_a_stream_to_its_own_key_changes_nothing(store: Store) -> None:
    store.fill(b"s", 5)
    before = store.dump()
    store.db.rename(store.stream(), b"s")
    assert store.dump() == before


def test_a_moved_stream_is_logged_under_its_new_database(store: Store) -> None:
    store.fill(b"s", 5)
    store.db.move(store.stream(), store.txn.databases[3])
    store.commit()
    assert (store.db.size, store.txn.databases[3].size) == (0, 1)
    store.add(b"s", "6-0", db=3)
    assert store.txn.log[0] == b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n"
    store.rebuild()
    assert ids_of(store, b"s", 3)[-1] == "6-0"


def test_a_copy_is_the_same_and_shares_nothing(store: Store) -> None:
    stream = store.fill(b"s", 700)
    trimming.trim(stream, Trim(Strategy.MAXLEN, 300))
    store.deliver(b"s", 3)
    store.db.set_expiry(stream, NOW_MS + 9)
    store.fill(b"t", 2)
    target = store.txn.databases[2]
    store.db.copy(stream, target, b"c" * 500)
    store.db.copy(stream, store.db, b"t")
    found = store.dump()
    assert found[2][b"c" * 500] == found[0][b"t"] == found[0][b"s"]

    store.stream().delete_entries([sid("500-0")])
    assert store.run("XACK", "s", "g", "401-0") == 1
    store.db.delete(store.stream())
    store.purge()
    assert store.dump()[2][b"c" * 500] == found[0][b"t"]
    for start_again in (store.restart, store.rebuild):
        start_again()
        assert store.dump()[2][b"c" * 500] == found[0][b"t"]


def test_a_copy_leaves_out_what_a_destroyed_group_has_left_to_the_purge(store: Store) -> None:
    """The walk over the tables behind the test knows the groups of all consumers."""
    store.run("XGROUP", "CREATE", b"s", "gone", "$", "MKSTREAM")
    store.run("XGROUP", "CREATECONSUMER", b"s", "gone", "Alice")
    store.checkpoint()
    store.run("XGROUP", "DESTROY", b"s", "gone")
    store.run("XGROUP", "CREATE", b"s", "g", "$")
    store.run("COPY", b"s", b"t")


def test_swapped_databases_keep_their_numbers_and_change_contents(store: Store) -> None:
    first, second = store.txn.databases[:2]
    store.fill(b"a", 3)
    store.db.set_expiry(store.stream(b"a"), NOW_MS + 5)
    store.fill(b"b", 4, db=1)
    store.txn.swap(first, second)
    store.add(b"a", "9-0", db=1)
    assert (ids_of(store, b"b"), ids_of(store, b"a", 1)[-1]) == (["1-0", "2-0", "3-0", "4-0"], "9-0")
    assert (first.expiring, second.expiring) == (0, 1)
    for start_again in (store.crash, store.restart, store.rebuild):
        start_again()
        assert (ids_of(store, b"b"), ids_of(store, b"a", 1)[-1]) == (["1-0", "2-0", "3-0", "4-0"], "9-0")


def test_a_key_is_free_again_at_once_and_its_new_stream_is_another(store: Store) -> None:
    store.fill(b"s", 500)
    store.db.delete(store.stream())
    store.add(b"s", "1-0")
    assert ids_of(store, b"s") == ["1-0"]
    store.db.flush()
    store.add(b"s", "1-1")
    assert ids_of(store, b"s") == ["1-1"]
    store.purge()
    assert (ids_of(store, b"s"), store.count("entries")) == (["1-1"], 1)


def test_flushing_counts_the_keys_and_an_empty_database_has_none(store: Store) -> None:
    for number in range(20):
        store.fill(b"key %d" % number, 1)
    assert store.db.flush() == 20
    assert store.db.flush() == 0
    assert (store.db.size, store.db.expiring, list(all_keys(store.db, 0))) == (0, 0, [])


def test_present_are_the_keys_that_have_a_stream_in_the_order_asked(store: Store) -> None:
    keys = [b"b", b"", b"long" * 1000, b"a"]
    for key in keys:
        store.fill(key, 1)
    store.txn.write_back()
    assert store.db.present([b"c", *keys, b"long" * 1001]) == keys
    store.db.flush()
    assert store.db.present(keys) == []


@pytest.mark.parametrize("how", ["flush", "swap"])
def test_clients_that_watch_many_keys_cost_no_object_for_each(store: Store, how: str) -> None:
    keys = [b"key %d" % number for number in range(50)]
    for key in keys:
        store.fill(key, 1)
    store.restart()
    changed: list[bytes] = []
    store.txn.notify = lambda change, namespace, key: changed.append(key)
    store.db.interest.update(dict.fromkeys([b"none", *keys], 1))
    if how == "flush":
        store.db.flush()
    else:
        store.txn.swap(store.txn.databases[0], store.txn.databases[1])
    assert changed == keys
    assert not store.db.cached


@pytest.mark.parametrize("end", ["delete", "flush", "expire"])
def test_nothing_is_left_of_a_stream_that_came_and_went_between_checkpoints(store: Store, end: str) -> None:
    stream = store.fill(b"s", 6)
    store.deliver(b"s", 6)
    store.run("XADD", "s", "IDMP", "producer", "1", "*", "f", "v")
    store.db.set_expiry(stream, NOW_MS)
    if end == "delete":
        store.db.delete(stream)
    elif end == "flush":
        store.db.flush()
    else:
        store.txn.expire_due(NOW_MS, 10)
    assert store.violations() == []
    store.txn.expire_due(NOW_MS, 10)
    store.purge()
    for table in store.txn.handles:
        if table != "meta":
            assert store.count(table) == 0, table


# -- SCAN --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 10, 1000])
def test_a_scan_meets_every_key_once_whatever_comes_and_goes(store: Store, count: int) -> None:
    keys = [b"key %d" % number for number in range(30)]
    for key in keys:
        store.fill(key, 1)
    goes = iter(keys[1::3])
    comes = iter(range(1000))

    def disturb() -> None:
        key = next(goes, None)
        if key is not None:
            store.db.delete(store.stream(key))
        number = next(comes)
        if number < 50:
            store.fill(b"new %d" % number, 1)
        store.checkpoint()

    found = scan_all(store.db, count, disturb)
    stayed = [key for number, key in enumerate(keys) if number % 3 != 1]
    assert sorted(key for key in found if key in stayed) == sorted(stayed)
    assert len(found) == len(set(found))


def test_a_scan_sees_its_own_database_only(store: Store) -> None:
    for number in range(5):
        store.fill(b"a%d" % number, 1)
        store.fill(b"b%d" % number, 1, db=1)
    assert scan_all(store.db, 2) == [b"a0", b"a1", b"a2", b"a3", b"a4"]
    assert scan_all(store.txn.databases[1], 5) == [b"b0", b"b1", b"b2", b"b3", b"b4"]
    assert scan_keys(store.txn.databases[2], 0, 10, 0) == (0, [])


def test_a_scan_that_is_complete_says_so_at_once(store: Store) -> None:
    for number in range(4):
        store.fill(b"%d" % number, 1)
    assert scan_keys(store.db, 0, 4, 0) == (0, [b"0", b"1", b"2", b"3"])
    cursor, keys = scan_keys(store.db, 0, 3, 0)
    assert cursor and keys == [b"0", b"1", b"2"]
    assert scan_keys(store.db, cursor, 3, 0) == (0, [b"3"])


@pytest.mark.parametrize("cursor", [5, 1 << 40, (1 << 64) - 1, 1 << 70])
def test_a_cursor_from_nowhere_ends_the_scan(store: Store, cursor: int) -> None:
    store.fill(b"s", 1)
    assert scan_keys(store.db, cursor, 10, 0) == (0, [])


def test_a_scan_deletes_what_has_expired_and_does_not_show_it(store: Store) -> None:
    for number in range(6):
        store.fill(b"%d" % number, 1)
        if number % 2:
            store.db.set_expiry(store.stream(b"%d" % number), NOW_MS + 1)
    assert scan_keys(store.db, 0, 10, NOW_MS + 1) == (0, [b"0", b"2", b"4"])
    assert (store.db.size, store.txn.expired_keys) == (3, 3)


@pytest.mark.parametrize("is_written", [False, True], ids=["in memory alone", "in the tables"])
def test_a_scan_of_a_replica_leaves_what_has_expired_to_its_primary(store: Store, is_written: bool) -> None:
    for number in range(3):
        stream = store.add(b"%d" % number, "1-0")
        if number == 1:
            store.db.set_expiry(stream, NOW_MS)
    if is_written:
        store.checkpoint()
    store.txn.follows = True
    assert scan_keys(store.db, 0, 10, NOW_MS + 1) == (0, [b"0", b"2"])
    assert list(all_keys(store.db, NOW_MS + 1)) == [b"0", b"2"]
    assert store.db.size == 3


# -- random keys -------------------------------------------------------------------------------------------------------


def test_a_random_key_is_any_of_the_keys_and_of_this_database(store: Store) -> None:
    assert random_key(store.db, 0) is None
    store.fill(b"other", 1, db=1)
    for number in range(8):
        store.fill(b"%d" % number, 1)
    for number in range(1, 4):
        store.db.delete(store.stream(b"%d" % number))
    store.fill(b"last", 1, db=1)
    found = {random_key(store.db, 0) for _ in range(500)}
    assert found == {b"0", b"4", b"5", b"6", b"7"}


def test_a_random_key_has_not_expired(store: Store) -> None:
    for number in range(5):
        store.fill(b"%d" % number, 1)
        store.db.set_expiry(store.stream(b"%d" % number), NOW_MS + number)
    assert random_key(store.db, NOW_MS + 3) == b"4"
    assert random_key(store.db, NOW_MS + 4) is None
    assert store.db.size == 0


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_an_expired_key_is_gone_when_looked_at_and_the_log_says_so(store: Store) -> None:
    store.fill(b"s", 3)
    store.db.set_expiry(store.stream(), NOW_MS + 100)
    store.commit()
    assert store.db.stream(b"s", NOW_MS + 99) is not None
    assert store.db.stream(b"s", NOW_MS + 100) is None
    assert store.txn.log == [b"*2\r\n$3\r\nDEL\r\n$1\r\ns\r\n"]
    assert (store.db.size, store.db.expiring) == (0, 0)


def test_due_keys_of_all_databases_are_deleted_a_few_at_a_time_earliest_first(store: Store) -> None:
    for number in range(6):
        store.fill(b"%d" % number, 1, db=number % 2)
        database = store.txn.databases[number % 2]
        database.set_expiry(store.stream(b"%d" % number, number % 2), NOW_MS + 10 - number)
    assert store.txn.expire_due(NOW_MS, 100) == 0
    assert store.txn.expire_due(NOW_MS + 9, 2) == 2
    assert sorted(all_keys(store.db, 0)) == [b"0", b"2"]
    assert sorted(all_keys(store.txn.databases[1], 0)) == [b"1", b"3"]
    assert store.txn.expire_due(NOW_MS + 9, 100) == 3
    assert list(all_keys(store.db, 0)) == [b"0"]


def test_a_deadline_that_was_moved_or_lifted_does_not_count_any_more(store: Store) -> None:
    store.fill(b"s", 1)
    for deadline_ms in (NOW_MS + 5, NOW_MS + 9, None, NOW_MS + 7, NOW_MS + 20):
        store.db.set_expiry(store.stream(), deadline_ms)
    assert store.txn.expire_due(NOW_MS + 10, 100) == 0
    assert (store.count("expiry"), store.db.expiring) == (1, 1)
    store.restart()
    assert store.stream().expire_ms == NOW_MS + 20


def test_deadlines_of_a_flushed_database_go_when_they_pass(store: Store) -> None:
    for number in range(10):
        store.fill(b"%d" % number, 1)
        store.db.set_expiry(store.stream(b"%d" % number), NOW_MS + 1)
    store.db.flush()
    store.fill(b"new", 1)
    assert store.count("expiry") == 10
    assert store.violations() == []
    assert store.txn.expire_due(NOW_MS + 1, 100) == 10
    assert (store.count("expiry"), list(all_keys(store.db, 0)), store.txn.expired_keys) == (0, [b"new"], 0)


def test_a_deadline_goes_along_when_the_stream_is_renamed_moved_or_swapped(store: Store) -> None:
    store.fill(b"s", 1)
    store.db.set_expiry(store.stream(), NOW_MS + 1)
    store.db.rename(store.stream(), b"t")
    store.db.move(store.stream(b"t"), store.txn.databases[1])
    store.txn.swap(store.txn.databases[1], store.txn.databases[2])
    assert store.violations() == []
    assert store.txn.expire_due(NOW_MS + 1, 100) == 1
    assert store.dump() == {}


def test_nothing_expires_while_the_log_says_itself_what_does(store: Store) -> None:
    store.fill(b"s", 1)
    store.db.set_expiry(store.stream(), NOW_MS)
    store.txn.keep_expired = True
    assert store.db.stream(b"s", NOW_MS + 1) is not None
    assert store.txn.expire_due(NOW_MS + 1, 100) == 0


# -- the cache, and who is told ----------------------------------------------------------------------------------------


def test_more_streams_than_are_kept_in_memory_are_all_there(store: Store) -> None:
    keys = [b"%d" % number * 12_000 for number in range(1000)]
    assert sum(map(len, keys)) > CACHED_BYTES
    for key in keys:
        store.add(key, "1-0")
    store.checkpoint()
    assert 0 < sum(map(len, store.db.cached)) < CACHED_BYTES // 3
    for key in keys:
        store.add(key, "2-0")
    store.restart()
    assert store.db.size == len(keys)
    assert ids_of(store, keys[7]) == ids_of(store, keys[-1]) == ["1-0", "2-0"]


def test_a_tick_lets_go_of_no_more_streams_than_it_has_read(store: Store) -> None:
    """Emptying the cache at once held up every client for tens of milliseconds."""
    most, at_once = 0, 100
    for number in range(0, 40_000, at_once):
        for key in range(number, number + at_once):
            store.add(b"%d" % key, "1-0")
        store.commit()
        before = len(store.db.cached)
        store.txn.bound_caches()
        most = max(most, before - len(store.db.cached))
    assert 0 < most <= at_once + 64
    assert store.txn.cached_bytes <= CACHED_BYTES
    for key in range(40_000):
        assert store.db.stream(b"%d" % key, 0) is not None
        store.txn.bound_caches()
    assert store.violations() == []


def test_the_bytes_of_cached_streams_are_those_of_the_streams_that_are_cached(store: Store) -> None:
    """Deleting, flushing, renaming and moving leave nothing behind in the count."""
    for db in (0, 1):
        store.fill(b"s", 1, db=db)
        store.fill(b"t", 1, db=db)
    expected = store.txn.cached_bytes
    for number in range(3):
        store.fill(b"u", 1)
        store.db.rename(store.stream(b"u"), b"longer name")
        store.db.move(store.stream(b"longer name"), store.txn.databases[2])
        store.db.delete(store.stream(b"t"))
        store.fill(b"t", 1)
        store.txn.databases[2].flush()
        store.commit()
        assert store.txn.cached_bytes == expected, number
    for db in (0, 1):
        store.txn.databases[db].flush()
    assert store.txn.cached_bytes == 0


def test_what_is_let_go_of_is_there_with_its_groups_and_all_that_is_pending(store: Store) -> None:
    store.fill(b"s", 20)
    store.deliver(b"s", 9)
    for number in range(100):
        store.fill(b"other%d" % number, 1)
    expected = store.dump()
    store.txn.cached_bytes = 1 << 40
    store.txn.bound_caches()
    assert (len(store.db.cached), store.txn.cached_bytes, store.txn.young_ids) == (0, 0, 0)
    assert store.dump() == expected
    store.run("XACK", "s", "g", "3-0")
    store.commit()
    assert store.violations() == []
    expected = store.dump()
    store.crash()
    assert store.dump() == expected


def test_a_group_whose_rows_cannot_be_written_beside_damage_is_not_forgotten(store: Store) -> None:
    store.fill(b"s", 100)
    store.run("XGROUP", "CREATE", "s", "g", "0")
    store.run("XREADGROUP", "GROUP", "g", "Alice", "COUNT", "100", "STREAMS", "s", ">")
    store.checkpoint()
    assert store.run("XACK", "s", "g", "3-0") == 1
    pel = store.txn.handles["pel"]
    key, row = next(iter(store.txn.lmdb.cursor(pel)))
    store.txn.lmdb.put(key, row[:-1] + bytes((row[-1] ^ 1,)), db=pel)
    with pytest.raises(DamagedRowError):
        store.db.let_go_of_oldest()
    store.txn.lmdb.put(key, row, db=pel)
    shown = store.run("XPENDING", "s", "g", "2-0", "4-0", "10")
    assert [b"%d-0" % number in b"".join(shown) for number in (2, 3, 4)] == [True, False, True]


def test_a_checkpoint_has_few_rows_to_write_however_many_streams_changed(store: Store) -> None:
    """Rows are written after each tick, those first that changed first."""
    keys = [b"%d" % number for number in range(MAX_CHANGED + 100)]
    for key in keys:
        store.add(key, "1-0")
    store.txn.bound_caches()
    assert store.txn.changed_streams == MAX_CHANGED
    assert not store.db.cached[keys[99]].dirty
    assert store.db.cached[keys[100]].dirty
    store.add(keys[0], "2-0")
    store.checkpoint()
    assert store.txn.changed_streams == 0
    store.restart()
    assert store.db.size == len(keys)
    assert ids_of(store, keys[0]) == ["1-0", "2-0"]
    assert ids_of(store, keys[-1]) == ["1-0"]


def test_who_waits_for_a_key_hears_what_happens_to_it_and_nothing_else(store: Store) -> None:
    heard: list[tuple[Change, int, bytes]] = []
    store.txn.notify = lambda change, db, key: heard.append((change, db.number, key))
    first, second = store.txn.databases[:2]
    first.interest[b"s"] = second.interest[b"s"] = 1

    def told(action: Callable[[], object]) -> list[tuple[Change, int, bytes]]:
        heard.clear()
        action()
        return list(heard)

    assert told(lambda: store.add(b"other", "1-0")) == []
    assert told(lambda: store.add(b"s", "1-0")) == [(Change.APPENDED, 0, b"s")]
    assert told(lambda: store.stream().delete_entries([sid("1-0")])) == [(Change.MODIFIED, 0, b"s")]
    assert told(lambda: first.move(store.stream(), second)) == [(Change.REMOVED, 0, b"s"), (Change.CREATED, 1, b"s")]
    assert told(lambda: second.copy(store.stream(b"s", 1), first, b"s")) == [(Change.CREATED, 0, b"s")]
    assert told(lambda: first.rename(store.stream(), b"t")) == [(Change.REMOVED, 0, b"s")]
    assert told(lambda: first.rename(store.stream(b"t"), b"s")) == [(Change.CREATED, 0, b"s")]
    assert told(lambda: store.txn.swap(first, second)) == [(Change.CREATED, 0, b"s"), (Change.CREATED, 1, b"s")]
    assert told(lambda: first.delete(store.stream())) == [(Change.REMOVED, 0, b"s")]
    assert told(second.flush) == [(Change.REMOVED, 1, b"s")]
