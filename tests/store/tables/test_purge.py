from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from riverbed.store.format.groups import GROUP_KEY_BYTES
from riverbed.store.format.streams import id_in_key
from riverbed.store.ids import MAX_ID, MIN_ID
from riverbed.store.model import Strategy, Trim
from riverbed.store.streams import trimming
from riverbed.store.streams.idempotence import Idempotence
from riverbed.store.tables import purge as purging
from riverbed.store.tables.purge import purge
from tests.support.store.stores import Store, sid

ROWS = ("entries", "nodes", "idmp", "idmp_ids", "idmp_times", "groups", "pel", "pel_by_consumer", "pel_by_time")


def fill_everything(store: Store, key: bytes, count: int, db: int = 0) -> None:
    """A stream with rows in every table."""
    stream = store.fill(key, count, db)
    for number in range(5):
        Idempotence(stream).record(b"producer", b"%d" % number, sid("1-0"))
    store.deliver(key, count, db=db)
    store.run("XGROUP", "CREATECONSUMER", key, "g", "Bob", db=db)
    # CLAIM asks for the order by time
    store.run("XREADGROUP", "GROUP", "g", "Bob", "COUNT", 1, "CLAIM", 100_000, "STREAMS", key, ">", db=db)


def rows_left(store: Store) -> dict[str, int]:
    return {table: store.count(table) for table in ROWS if store.count(table)}


@pytest.mark.parametrize("end", ["delete", "flush"])
def test_every_row_of_a_dead_stream_is_purged_and_none_of_another(store: Store, end: str) -> None:
    fill_everything(store, b"stays", 50, db=1)
    store.checkpoint()
    before, kept = store.dump(), rows_left(store)
    assert set(kept) == set(ROWS)
    fill_everything(store, b"goes", 1500)
    fill_everything(store, b"g" * 600, 10)
    store.checkpoint()
    if end == "delete":
        for key in (b"goes", b"g" * 600):
            store.db.delete(store.stream(key))
    else:
        store.db.flush()
    assert store.violations() == []
    store.purge()
    assert rows_left(store) == kept
    assert store.dump() == before


def test_the_purge_can_stop_anywhere_and_the_check_still_finds_everything_accounted_for(store: Store) -> None:
    fill_everything(store, b"a", 700)
    fill_everything(store, b"b", 700, db=1)
    store.checkpoint()
    store.db.delete(store.stream(b"a"))
    store.txn.databases[1].flush()
    slices = 0
    with patch.object(purging, "_ROWS_A_LOOK", 64):
        while purge(store.txn, lambda: True):
            slices += 1
            store.txn.swept = True
            assert store.violations() == []
    assert slices > 20
    assert rows_left(store) == {}


@pytest.mark.parametrize("end", ["delete", "flush", "flush with producers"])
def test_very_many_groups_or_keys_are_purged_a_few_at_a_time(store: Store, end: str) -> None:
    if end == "delete":
        store.fill(b"s", 1)
        for number in range(300):
            store.run("XGROUP", "CREATE", "s", f"g{number}", "0")
        store.checkpoint()
        store.db.delete(store.stream(b"s"))
    else:
        for number in range(300):
            stream = store.fill(b"s%d" % number, 1)
            if end == "flush with producers":
                Idempotence(stream).record(b"producer", b"1", sid("1-0"))
        store.fill(b"other", 1, db=1)
        store.checkpoint()
        store.txn.databases[1].flush()  # one note more
        store.db.flush()
    slices = 0
    before = groups_or_keys(store)
    while purge(store.txn, lambda: True):
        slices += 1
        left = groups_or_keys(store)
        assert before - left <= 2
        before = left
    assert slices >= 300
    assert rows_left(store) == {}


def groups_or_keys(store: Store) -> int:
    """How many rows there are whose deletion is followed by that of others."""
    keys = store.txn.lmdb.cursor(store.txn.handles["groups"]).iternext(values=False)
    return sum(len(key) == GROUP_KEY_BYTES for key in keys) + store.count("names")


def test_notes_are_worked_off_in_the_order_of_their_arrival(store: Store) -> None:
    for key in (b"a", b"b", b"c"):
        store.fill(key, 3)
        store.db.delete(store.stream(key))
    assert store.txn.dead_rows.notes == 3
    assert purge(store.txn, lambda: True)
    store.restart()
    assert store.txn.dead_rows.notes in (1, 2)
    store.fill(b"d", 3)
    store.db.delete(store.stream(b"d"))
    store.purge()
    assert (store.txn.dead_rows.notes, rows_left(store)) == (0, {})


def test_nothing_waits_where_nothing_died(store: Store) -> None:
    store.fill(b"s", 10)
    assert store.engine.purge(1.0) is False
    assert store.txn.dead_rows.rows_purged == 0


def test_a_second_trim_while_the_first_is_not_purged_yet(store: Store) -> None:
    stream = store.fill(b"s", 2000)
    for length in (1500, 900, 5):
        trimming.trim(stream, Trim(Strategy.MAXLEN, length))
    assert store.txn.dead_rows.notes == 3
    assert store.violations() == []
    store.purge()
    assert store.count("entries") == 5


def test_a_stream_that_dies_while_its_trim_is_not_purged_yet(store: Store) -> None:
    trimming.trim(store.fill(b"s", 2000), Trim(Strategy.MAXLEN, 5))
    store.db.delete(store.stream())
    assert store.violations() == []
    store.purge()
    assert rows_left(store) == {}


def test_a_destroyed_group_and_a_deleted_consumer_leave_nothing(store: Store) -> None:
    fill_everything(store, b"s", 600)
    assert store.run("XGROUP", "DELCONSUMER", "s", "g", "Alice") == 600
    (group,) = store.groups()
    assert (group.pel_count, list(group.pending())) == (0, [])
    assert store.txn.dead_rows.notes == 1
    assert store.violations() == []
    store.purge()
    assert [store.count(table) for table in ("pel", "pel_by_consumer", "pel_by_time")] == [0, 0, 0]
    store.run("XGROUP", "DESTROY", "s", "g")
    store.purge()
    assert store.count("groups") == 0


def test_a_purge_is_not_logged(store: Store) -> None:
    fill_everything(store, b"s", 600)
    store.db.delete(store.stream())
    store.commit()
    end = store.engine.log.end
    store.purge()
    assert (store.txn.log, store.engine.log.end) == ([], end)
    assert store.engine.needs_checkpoint


def test_the_entry_at_which_a_dead_range_ends_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", node_max_entries=50)
    stream = store.fill(b"s", 1003)
    trimming.trim(stream, Trim(Strategy.MAXLEN, 3))  # down to the last node, whose first entry is the floor
    store.commit()
    assert stream.floor_id == sid("1001-0") and store.txn.dead_rows.notes == 1
    store.purge()
    assert [id_in_key(key) for key, _ in stream.rows(MIN_ID, MAX_ID)] == [sid(f"{n}-0") for n in (1001, 1002, 1003)]
    store.checkpoint()
    assert store.violations() == []
    store.kill()


def test_the_row_behind_those_of_a_dead_stream_stays(tmp_path: Path) -> None:
    """The number of the records is one more than that of the stream that is deleted, and their row has nothing else."""
    store = Store(tmp_path / "store")
    for key in ("s", "t"):
        store.run("XADD", key, "1-1", "f", "v")
    store.run("XADD", "s", "IDMP", "producer", "one", "*", "f", "v")
    settings = store.stream().idempotence
    assert settings is not None and settings.records_no == store.stream(b"t").stream_no + 1
    store.run("DEL", "t")
    store.purge()
    store.run("XADD", "s", "IDMP", "producer", "one", "*", "f", "v")
    assert store.stream().length == 2
    assert Idempotence(store.stream()).tracked() == (1, 1)
    store.checkpoint()
    assert store.violations() == []
    store.kill()
