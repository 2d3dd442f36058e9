from __future__ import annotations

from unittest.mock import patch

import pytest

from riverbed.store.databases import sampling
from riverbed.store.databases.sampling import Sample, space
from riverbed.store.tables.reader import TableReader
from tests.support.store.stores import Store


def look(store: Store, watched: Sample) -> int:
    """Look at what is there now -> in how many pieces."""
    store.checkpoint()
    return sum(1 for _ in watched.look(store.clock.now_ms))


def keys_of(watched: Sample) -> list[bytes]:
    return [stream.key for stream in watched.streams]


def test_an_empty_store_has_nothing_to_show(store: Store) -> None:
    watched = Sample(store.txn, 10, 10)
    look(store, watched)
    assert (watched.streams, watched.groups, watched.streams_omitted, watched.groups_omitted) == ([], [], 0, 0)


def test_streams_with_groups_come_first_then_the_longest(store: Store) -> None:
    for length, key in ((5, b"five"), (9, b"nine"), (7, b"seven"), (1, b"one")):
        store.fill(key, length)
    store.run("XGROUP", "CREATE", b"one", "g", "0")
    watched = Sample(store.txn, 3, 10)
    look(store, watched)
    assert keys_of(watched) == [b"one", b"nine", b"seven"]
    assert watched.streams_omitted == 1


def test_figures_are_those_that_commands_tell(store: Store) -> None:
    store.fill(b"s", 300)
    store.fill(b"k" * 600, 2, db=3)
    store.run("XDEL", b"s", "1-0")
    watched = Sample(store.txn, 10, 10)
    look(store, watched)
    first, second = watched.streams
    assert (first.db, first.key, first.length, first.entries_added) == (0, b"s", 299, 300)
    assert first.byte_count == store.run("MEMORY", "USAGE", b"s")
    assert (second.db, second.key, second.length) == (3, b"k" * 600, 2)


def test_of_the_groups_those_with_the_most_pending_are_shown(store: Store) -> None:
    store.fill(b"s", 20)
    for name, count in (("few", 2), ("many", 9), ("some", 5)):
        store.deliver(b"s", count, group=name)
    store.run("XGROUP", "CREATE", b"s", "none", "0")
    watched = Sample(store.txn, 10, 3)
    look(store, watched)
    told = [(group.name, group.consumers, group.pending, group.lag) for group in watched.groups]
    assert told == [(b"many", 1, 9, 11), (b"some", 1, 5, 15), (b"few", 1, 2, 18)]
    assert watched.groups_omitted == 1


def test_the_oldest_pending_is_the_one_idle_longest_that_somebody_has(store: Store) -> None:
    begun_ms = store.clock.now_ms
    store.fill(b"s", 6)
    for consumer in ("Alice", "Bob", "Carol"):
        store.deliver(b"s", 2, consumer=consumer)
        store.clock.now_ms += 1000
    watched = Sample(store.txn, 10, 10)
    look(store, watched)
    assert watched.groups[0].oldest_ms == begun_ms
    # claimed again, it is not idle any more; what a deleted consumer had is nobody's business
    store.run("XCLAIM", b"s", "g", "Carol", 0, "1-0", "2-0")
    look(store, watched)
    assert watched.groups[0].oldest_ms == begun_ms + 1000
    store.run("XGROUP", "DELCONSUMER", b"s", "g", "Bob")
    store.run("XNACK", b"s", "g", "SILENT", "IDS", 1, "5-0")
    look(store, watched)
    assert watched.groups[0].oldest_ms == begun_ms + 2000
    store.run("XACK", b"s", "g", "1-0", "2-0", "6-0")
    look(store, watched)
    assert (watched.groups[0].pending, watched.groups[0].oldest_ms) == (1, None)


def test_dead_runs_of_deleted_consumers_are_stepped_over(store: Store) -> None:
    store.fill(b"s", 400)
    store.deliver(b"s", 300, consumer="Alice")
    store.clock.now_ms += 1000
    store.deliver(b"s", 100, consumer="Bob")
    store.run("XGROUP", "DELCONSUMER", b"s", "g", "Alice")
    watched = Sample(store.txn, 10, 10)
    look(store, watched)
    assert (watched.groups[0].pending, watched.groups[0].oldest_ms) == (100, store.clock.now_ms)


def test_a_walk_over_many_streams_goes_on_with_the_next_look(store: Store) -> None:
    for number in range(1, 251):
        store.fill(b"k%03d" % number, 1)
    store.fill(b"k240", 0)
    store.add(b"k240", "2-0", "3-0")
    with patch.object(sampling, "STREAM_ROWS_A_LOOK", 100):
        watched = Sample(store.txn, 2, 2)
        look(store, watched)
        assert len(keys_of(watched)) == 2
        assert max(keys_of(watched)) <= b"k100"
        look(store, watched)
        look(store, watched)
        assert keys_of(watched)[0] == b"k240"
        # a new walk has begun; the chosen are read again, whether it has come to them or not
        store.add(b"k240", "4-0")
        look(store, watched)
        assert (keys_of(watched)[0], watched.streams[0].length) == (b"k240", 4)
        assert watched.streams_omitted == 248


@pytest.mark.parametrize("end", ["DEL", "FLUSHDB", "RENAME"])
def test_what_is_gone_is_not_shown(store: Store, end: str) -> None:
    store.fill(b"s", 3)
    store.deliver(b"s", 2)
    watched = Sample(store.txn, 10, 10)
    look(store, watched)
    words = {"DEL": ["DEL", b"s"], "FLUSHDB": ["FLUSHDB"], "RENAME": ["RENAME", b"s", b"t"]}[end]
    store.run(*words)
    look(store, watched)
    assert keys_of(watched) == ([b"t"] if end == "RENAME" else [])
    assert [group.stream.key for group in watched.groups] == keys_of(watched)
    assert (watched.streams_omitted, watched.groups_omitted) == (0, 0)


def test_a_stream_that_goes_in_the_middle_of_a_look_does_no_harm(store: Store) -> None:
    for number in range(30):
        store.fill(b"k%d" % number, 2)
        store.deliver(b"k%d" % number, 1)
    store.checkpoint()
    watched = Sample(store.txn, 30, 30)
    pieces = 0
    for _ in watched.look(store.clock.now_ms):
        pieces += 1
        store.run("DEL", b"k%d" % pieces)
        store.checkpoint()
    assert pieces > 10
    look(store, watched)
    assert {group.stream.key for group in watched.groups} == set(keys_of(watched))
    assert len(watched.streams) == store.db.size


def test_a_destroyed_group_is_not_shown_and_the_ones_behind_it_are(store: Store) -> None:
    store.fill(b"s", 3)
    for name in ("a", "b", "c"):
        store.deliver(b"s", 1, group=name)
    store.run("XGROUP", "DESTROY", b"s", "b")
    watched = Sample(store.txn, 10, 10)
    look(store, watched)
    assert sorted(group.name for group in watched.groups) == [b"a", b"c"]


def test_many_groups_of_a_stream_are_looked_at_up_to_a_bound(store: Store) -> None:
    store.fill(b"s", 1)
    for number in range(250):
        store.run("XGROUP", "CREATE", b"s", f"g{number}", "0")
    with patch.object(sampling, "GROUP_ROWS_A_STREAM", 220):
        watched = Sample(store.txn, 10, 1000)
        look(store, watched)
    assert (len(watched.groups), watched.groups_omitted) == (220, 30)


def test_nothing_is_looked_at_when_nothing_is_to_be_shown(store: Store) -> None:
    store.fill(b"s", 3)
    store.deliver(b"s", 1)
    watched = Sample(store.txn, 0, 0)
    assert look(store, watched) == 0
    assert (watched.streams, watched.streams_omitted) == ([], 1)


def test_space_counts_rows_and_pages(store: Store) -> None:
    before = space(store.txn)
    store.fill(b"s", 5000)
    store.checkpoint()
    after = space(store.txn)
    assert after.tables["entries"][0] == 5000
    assert after.used_bytes == sum(size for _, size in after.tables.values())
    assert before.file_bytes < after.file_bytes
    assert after.free_bytes == after.file_bytes - after.used_bytes


def test_a_reader_that_stays_behind_is_told_by_its_age(store: Store) -> None:
    assert (space(store.txn).readers, space(store.txn).oldest_reader) == (0, 0)
    tables = store.engine.tables
    store.fill(b"s", 1)
    store.checkpoint()
    with tables.env.begin() as txn:
        assert TableReader(tables, txn).count("entries") == 1
        assert (space(store.txn).readers, space(store.txn).oldest_reader) == (1, 0)
        for number in range(3):
            store.fill(b"t%d" % number, 1)
            store.checkpoint()
        assert (space(store.txn).readers, space(store.txn).oldest_reader) == (1, 3)
    assert space(store.txn).readers == 0
