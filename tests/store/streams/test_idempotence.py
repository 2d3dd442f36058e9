from __future__ import annotations

import pytest

from riverbed.store.ids import StreamID
from riverbed.store.streams.idempotence import Idempotence, content_iid, sweep
from tests.support.store.stores import Store, sid

TABLES = ("idmp", "idmp_ids", "idmp_times")


def records_of(store: Store, key: bytes = b"s") -> Idempotence:
    return Idempotence(store.stream(key))


def record(store: Store, pid: bytes, iid: bytes, entry_id: str, key: bytes = b"s") -> None:
    records_of(store, key).record(pid, iid, sid(entry_id))


def find(store: Store, pid: bytes, iid: bytes, key: bytes = b"s") -> StreamID | None:
    return records_of(store, key).find(pid, iid)


def rows(store: Store) -> list[int]:
    return [store.count(table) for table in TABLES]


def sweep_all(store: Store, now_ms: int) -> None:
    sweep(store.txn, now_ms, lambda: False)


@pytest.fixture(autouse=True)
def stream(store: Store) -> None:
    """Every test begins with a stream of one entry."""
    store.add(b"s", "1-0")


def test_a_record_is_found_by_producer_and_id_after_every_kind_of_start(store: Store) -> None:
    record(store, b"p", b"i", "1-0")
    record(store, b"\0", b"\r\n", "2-0")
    record(store, b"q" * 5000, b"j" * 5000, "3-0")
    for start_again in (store.checkpoint, store.restart, store.crash, store.rebuild):
        start_again()
        assert find(store, b"p", b"i") == sid("1-0")
        assert find(store, b"\0", b"\r\n") == sid("2-0")
        assert find(store, b"q" * 5000, b"j" * 5000) == sid("3-0")
        assert [find(store, b"p", b"j"), find(store, b"q", b"i"), find(store, b"pi", b"i")] == [None] * 3
        assert records_of(store).tracked() == (3, 3)
        assert records_of(store).records_added == 3


def test_the_oldest_record_of_a_producer_makes_room_and_other_producers_keep_theirs(store: Store) -> None:
    store.txn.idmp_max_records = 3
    record(store, b"other", b"0", "1-0")
    for number in range(10):
        record(store, b"p", b"%d" % number, f"{number + 2}-0")
    assert [find(store, b"p", b"%d" % number) is not None for number in range(10)] == [False] * 7 + [True] * 3
    assert find(store, b"other", b"0") == sid("1-0")
    assert records_of(store).tracked() == (2, 4)
    assert records_of(store).records_added == 11


def test_the_servers_settings_count_until_the_first_record(store: Store) -> None:
    store.txn.idmp_duration_s, store.txn.idmp_max_records = 7, 2
    assert (records_of(store).duration_s, records_of(store).max_records) == (7, 2)
    store.txn.idmp_duration_s, store.txn.idmp_max_records = 8, 3
    record(store, b"p", b"0", "1-0")
    store.txn.idmp_duration_s, store.txn.idmp_max_records = 100, 1
    for start_again in (store.restart, store.rebuild):
        start_again()
        assert (records_of(store).duration_s, records_of(store).max_records) == (8, 3)
    for number in range(1, 5):
        record(store, b"p", b"%d" % number, f"{number}-0")
    assert records_of(store).tracked() == (1, 3)


def test_the_sweep_forgets_what_is_older_than_the_duration_and_not_before(store: Store) -> None:
    for seconds in range(5):
        record(store, b"p", b"%d" % seconds, f"{seconds * 1000}-1")
    sweep_all(store, 101_999)
    assert [find(store, b"p", b"%d" % seconds) is not None for seconds in range(5)] == [False, False, True, True, True]
    assert records_of(store).tracked() == (1, 3)
    sweep_all(store, 200_000)
    assert records_of(store).tracked() == (0, 0)
    assert rows(store) == [1, 0, 0]
    record(store, b"p", b"again", "7-0")
    assert records_of(store).tracked() == (1, 1)


def test_an_id_that_was_swept_and_used_again_is_replayed_as_the_later_entry(store: Store) -> None:
    for pid in (b"p", b"q"):
        record(store, pid, b"i", "1000-0")
        record(store, pid, b"j", "1000-1")
    sweep_all(store, 1 << 40)
    record(store, b"p", b"i", "200000-0")
    store.rebuild()
    assert find(store, b"p", b"i") == sid("200000-0")
    assert records_of(store).records_added == 5
    assert store.violations() == []
    sweep_all(store, 150_000)
    assert records_of(store).tracked() == (1, 1)
    assert find(store, b"p", b"i") == sid("200000-0")


def test_a_replay_which_sweeps_nothing_keeps_the_same_records_where_their_ids_were_out_of_order(store: Store) -> None:
    store.txn.idmp_max_records = 3
    given = {b"late": "150000-0", b"early": "1-0", b"earlier": "0-1", b"last": "150001-0"}
    for iid, entry_id in given.items():
        record(store, b"p", iid, entry_id)
        sweep_all(store, 150_000)
    held = [find(store, b"p", iid) for iid in given]
    store.rebuild()
    sweep_all(store, 150_000)
    assert [find(store, b"p", iid) for iid in given] == held == [None, None, None, sid("150001-0")]
    assert store.violations() == []


def test_records_that_wait_for_an_older_one_keep_none_of_other_producers(store: Store) -> None:
    for pid, iid, entry_id in [(b"p", b"a", "150000-0"), (b"p", b"b", "1-0"), (b"p", b"c", "2-0"), (b"q", b"a", "3-0")]:
        record(store, pid, iid, entry_id)
    sweep_all(store, 150_000)
    assert records_of(store).tracked() == (1, 3)
    assert sweep(store.txn, 1 << 40, lambda: True) == 1
    assert (find(store, b"p", b"a"), records_of(store).tracked()) == (None, (1, 2))
    sweep_all(store, 1 << 40)
    assert rows(store) == [1, 0, 0]


def test_a_sweep_looks_at_no_more_streams_than_it_has_time_for_and_at_all_of_them_in_the_end(store: Store) -> None:
    """Though none of their records is due but the last one's."""
    for number in range(5):
        key = b"k%d" % number
        store.add(key, "200000-0")
        record(store, b"p", b"i", "200000-0" if number < 4 else "1-0", key)
    for number in range(5):
        assert sweep(store.txn, 200_000, lambda: True) == (number == 4)
        assert (find(store, b"p", b"i", b"k4") is None) is (number == 4)
        assert store.txn.records_place
    assert sweep(store.txn, 1 << 40, lambda: True) == 1
    assert find(store, b"p", b"i", b"k0") is None  # it begins again
    sweep_all(store, 1 << 40)
    assert not store.txn.records_place
    assert rows(store)[1] == 0


def test_a_stream_whose_records_are_due_all_the_time_keeps_no_other_from_its_turn(store: Store) -> None:
    for key in (b"a", b"b", b"c"):
        store.add(key, "1-0")
        for number in range(10):
            record(store, b"p%d" % number, b"i", "1-0", key)
    for _ in range(6):
        assert sweep(store.txn, 1 << 40, lambda: True) == 1
    assert [records_of(store, key).tracked()[1] for key in (b"a", b"b", b"c")] == [8, 8, 8]


def test_a_sweep_stops_when_its_time_is_up_and_goes_on_later(store: Store) -> None:
    for number in range(6):
        record(store, b"p%d" % number, b"i", f"{number}-1")
    store.checkpoint()
    assert sweep(store.txn, 1 << 40, lambda: True) == 1
    assert records_of(store).tracked() == (5, 5)
    assert store.engine.needs_checkpoint
    sweep_all(store, 1 << 40)
    assert records_of(store).tracked() == (0, 0)


def test_each_stream_is_swept_by_its_own_duration(store: Store) -> None:
    store.add(b"t", "1-0")
    records_of(store, b"t").configure(10, None)
    record(store, b"p", b"i", "1000-0")
    record(store, b"p", b"i", "1000-0", key=b"t")
    sweep_all(store, 20_000)
    assert find(store, b"p", b"i") == sid("1000-0")
    assert find(store, b"p", b"i", key=b"t") is None


def test_a_changed_setting_forgets_all_records_and_keeps_the_counters(store: Store) -> None:
    for number in range(300):
        record(store, b"p%d" % number, b"i", "1-0")
    records_of(store).count_duplicate()
    records_of(store).configure(60, None)
    assert find(store, b"p7", b"i") is None
    assert records_of(store).tracked() == (0, 0)
    assert (records_of(store).duration_s, records_of(store).max_records) == (60, 100)
    assert (records_of(store).records_added, records_of(store).duplicates) == (300, 1)
    assert store.violations() == []
    store.purge()
    assert rows(store) == [0, 0, 0]
    record(store, b"p", b"i", "1-0")
    assert find(store, b"p", b"i") == sid("1-0")


def test_a_setting_that_stays_the_same_forgets_and_logs_nothing(store: Store) -> None:
    record(store, b"p", b"i", "1-0")
    store.commit()
    records_of(store).configure(100, 100)
    records_of(store).configure(None, None)
    assert store.txn.log == []
    assert find(store, b"p", b"i") == sid("1-0")


def test_a_copy_has_records_of_its_own(store: Store) -> None:
    record(store, b"p", b"i", "1-0")
    store.db.copy(store.stream(), store.db, b"c")
    record(store, b"p", b"j", "2-0", key=b"c")
    assert (find(store, b"p", b"i", key=b"c"), find(store, b"p", b"j")) == (sid("1-0"), None)
    store.db.delete(store.stream())
    store.purge()
    assert find(store, b"p", b"i", key=b"c") == sid("1-0")
    assert records_of(store, b"c").tracked() == (1, 2)


def test_records_go_along_when_the_stream_is_renamed(store: Store) -> None:
    record(store, b"p", b"i", "1-0")
    store.db.rename(store.stream(), b"r")
    store.crash()
    assert find(store, b"p", b"i", key=b"r") == sid("1-0")


@pytest.mark.parametrize("checkpoint_first", [False, True])
@pytest.mark.parametrize("end", ["delete", "flush"])
def test_records_die_with_their_stream(store: Store, end: str, checkpoint_first: bool) -> None:
    record(store, b"p", b"i", "1-0")
    if checkpoint_first:
        store.checkpoint()
    if end == "delete":
        store.db.delete(store.stream())
    else:
        store.db.flush()
    assert store.violations() == []
    sweep_all(store, 0)
    store.purge()
    assert rows(store) == [0, 0, 0]


def test_dead_records_that_are_not_purged_yet_do_not_disturb_the_sweep(store: Store) -> None:
    record(store, b"p", b"i", "1-0")
    store.db.delete(store.stream())
    sweep_all(store, 1 << 40)
    assert store.violations() == []
    store.purge()
    assert rows(store) == [0, 0, 0]


@pytest.mark.parametrize("end", [["DEL", "s"], ["FLUSHDB"], ["XCFGSET", "s", "IDMP-DURATION", "1000"]])
@pytest.mark.parametrize("now_ms", [1, 1 << 40])
def test_the_sweep_comes_between_any_two_slices_of_the_purge(store: Store, end: list[str], now_ms: int) -> None:
    for number in range(600):
        store.run("XADD", "s", "IDMP", f"p{number % 20}", f"i{number}", "*", "f", "v")
    store.checkpoint()
    store.run(*end)
    slices = 0
    while store.engine.purge(0.0):
        slices += 1
        sweep_all(store, now_ms)
    assert slices > 5
    assert rows(store) == [0, 0, 0]
    assert store.violations() == []


# -- the iid made of what an entry holds -------------------------------------------------------------------------------


def test_entries_with_the_same_pairs_in_any_order_are_the_same() -> None:
    first = content_iid([b"a", b"1", b"b", b"2", b"c", b"3"])
    assert content_iid([b"c", b"3", b"a", b"1", b"b", b"2"]) == first
    assert len(first) == 16


@pytest.mark.parametrize(
    "words",
    [
        [b"a", b"2", b"b", b"1"],
        [b"1", b"a", b"b", b"2"],
        [b"a", b"1"],
        [b"a", b"1", b"b", b"2", b"b", b"2"],
        [b"a", b"1", b"a", b"1", b"b", b"2"],
        [b"a1", b"", b"b", b"2"],
        [b"", b"a1", b"b", b"2"],
        [b"a", b"1b", b"", b"2"],
    ],
)
def test_entries_that_differ_in_anything_else_are_not(words: list[bytes]) -> None:
    assert content_iid(words) != content_iid([b"a", b"1", b"b", b"2"])


def test_a_pair_twice_does_not_cancel_itself_out() -> None:
    assert content_iid([b"a", b"1", b"a", b"1"]) != content_iid([b"b", b"2", b"b", b"2"])
