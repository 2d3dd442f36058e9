"""Deliveries that no table has yet: what comes between them and the checkpoint finds what it would find behind it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import DeepCheck, check
from riverbed.store.databases.database import DATABASE_COUNT
from riverbed.store.databases.transaction import FEW_CHANGED as FEW_STREAMS
from riverbed.store.errors import DamagedRowError
from riverbed.store.format.log_lines import encode_command
from riverbed.store.format.pending import group_prefix
from riverbed.store.groups.pending import pel as pending_entries
from riverbed.store.groups.pending.young import BEHIND_PART, FEW_CHANGED, MAX_CHANGED, MAX_IN_RUN, MAX_PART, MAX_YOUNG
from riverbed.store.groups.view import GroupsView
from riverbed.store.ids import MAX_ID, pack_id
from riverbed.store.tables.view import OpenView
from riverbed.store.tables.writing.transaction import PART
from tests.support.in_process import HandClock, Product, answer
from tests.support.store.stores import Store, claim_order, rewrite, sid

READ = "XREADGROUP GROUP {} {} COUNT {} STREAMS {} >"
# Every kind of entry in the list of `g`: read one by one and together, by two consumers, in one millisecond and later.
DELIVERIES = [
    *(f"XADD s {number}-0 f v" for number in range(1, 21)),
    "XADD t 1-0 f v",
    "XGROUP CREATE s g 0",
    "XGROUP CREATE s h 0",
    "XGROUP CREATE t g 0",
    READ.format("g", "Alice", 2, "s"),
    "CHECKPOINT",
    READ.format("g", "Alice", 1, "s"),
    READ.format("g", "Alice", 1, "s"),
    READ.format("g", "Bob", 1, "s"),
    READ.format("h", "Carol", 6, "s"),
    "XACK s h 2-0",
    "PASS 1000",
    READ.format("g", "Bob", 5, "s"),
    READ.format("g", "Alice", 1, "s"),
    READ.format("g", "Alice", 1, "t"),
    "XREADGROUP GROUP g Alice COUNT 1 NOACK STREAMS s >",
    "XACK s g 4-0",
]
BETWEEN = [
    "XACK s g 3-0",
    "XACK s g 5-0 11-0",
    "XACK s g 1-0",
    "XACK s g 1-0 2-0 3-0",
    "XACK s g 3-0 2-0 3-0 99-0",
    "XACK s g 6-0 7-0 8-0 9-0 10-0",
    "XACK s g 7-0",
    "XACK s g 6-0 7-0 8-0 9-0 10-0 11-0 5-0 3-0 2-0 1-0",
    "XACKDEL s g DELREF IDS 2 3-0 8-0",
    "XDELEX s ACKED IDS 3 3-0 4-0 8-0",
    "XNACK s g FAIL IDS 2 3-0 8-0",
    "XCLAIM s g Carol 0 3-0 8-0",
    "XCLAIM s g Carol 0 3-0 JUSTID",
    "XCLAIM s g Carol 0 1-0 JUSTID",
    "XCLAIM s g Alice 0 2-0 JUSTID",
    "XCLAIM s g Carol 5000 2-0 JUSTID",
    "XCLAIM s g Carol 0 12-0 FORCE",
    "XAUTOCLAIM s g Carol 500 0",
    "XAUTOCLAIM s g Carol 0 7-0 COUNT 2 JUSTID",
    "XPENDING s g",
    "XPENDING s g - + 10",
    "XPENDING s g 4-0 8-0 3 Bob",
    "XPENDING s g IDLE 500 - + 10",
    "XINFO STREAM s FULL",
    "XINFO CONSUMERS s g",
    "XINFO GROUPS s",
    "XREADGROUP GROUP g Alice COUNT 2 STREAMS s 2-0",
    "XREADGROUP GROUP g Carol CLAIM 500 COUNT 3 STREAMS s >",
    "XGROUP SETID s g 0",
    "XGROUP SETID s g 5-0",
    "XGROUP SETID s g 5-0 ENTRIESREAD 5",
    "XGROUP SETID s g $",
    "XGROUP DELCONSUMER s g Bob",
    "XGROUP DELCONSUMER s g Alice",
    "XGROUP DESTROY s g",
    "XGROUP DESTROY s h",
    "XDEL s 3-0 8-0",
    "XTRIM s MAXLEN 12 DELREF",
    "XTRIM s MAXLEN 0 ACKED",
    "XSETID s 100-0",
    "DEL s",
    "RENAME s u",
    "RENAME t s",
    "COPY s u",
    "COPY s u DB 3",
    "MOVE s 3",
    "SWAPDB 0 3",
    "FLUSHDB",
    "FLUSHALL",
    "PEXPIREAT s 1",
    "CHECKPOINT",
    "PURGE",
]
AFTER = [
    READ.format("g", "Bob", 1, "s"),
    READ.format("g", "Bob", 2, "s"),
    "XACK s g 3-0 4-0 12-0 13-0",
    "XGROUP CREATE s g 5-0 MKSTREAM",
    "PURGE",
]
LOOKS = [
    words
    for key in ("s", "t", "u")
    for words in (f"XINFO STREAM {key} FULL COUNT 0", f"XPENDING {key} g", f"XPENDING {key} g - + 100")
]


class Twin:
    """A product whose checkpoints come when a script says so, or after each command as well."""

    def __init__(self, directory: Path, *, is_eager: bool) -> None:
        self.clock = HandClock()
        self.product = Product(directory, self.clock)
        self._is_eager = is_eager

    def run(self, line: str) -> object:
        match line.split():
            case ["CHECKPOINT"]:
                return self.product.checkpoint()
            case ["PART"]:
                return self.product.engine.write_part()
            case ["PURGE"]:
                return self.product.purge()
            case ["PASS", ms]:
                self.clock.now_ms += int(ms)
                return None
            case words:
                reply = answer(lambda: self.product.run(*words))
                if self._is_eager:
                    self.product.checkpoint()
                return reply

    def looks(self) -> list[object]:
        found = []
        for number in range(DATABASE_COUNT):
            self.product.session.db = self.product.engine.txn.databases[number]
            if self.product.session.db.size:
                found += [self.run(line) for line in LOOKS]
                found += [claim_order(self.product.session.db, key) for key in (b"s", b"t", b"u")]
        self.product.session.db = self.product.engine.txn.databases[0]
        return found


@pytest.mark.parametrize("changes", [[], ["XCLAIM s g Bob 0 2-0 JUSTID", "XACK s g 1-0"]])
@pytest.mark.parametrize("second", ["", *BETWEEN[::10]])
@pytest.mark.parametrize("first", BETWEEN)
def test_what_comes_before_the_checkpoint_finds_what_it_would_find_behind_it(
    tmp_path: Path, changes: list[str], first: str, second: str
) -> None:
    late, eager = (Twin(tmp_path / name, is_eager=name == "eager") for name in ("late", "eager"))
    for line in [*DELIVERIES, *changes, first, *filter(None, [second]), *AFTER]:
        assert late.run(line) == eager.run(line), line
    late.product.kill()
    assert late.looks() == eager.looks()
    late.product.restart()  # a range is the first thing that is asked then
    assert [late.run(line) for line in LOOKS[2::3]] == [eager.run(line) for line in LOOKS[2::3]]
    late.product.replay()
    assert late.looks() == eager.looks()
    for twin in (late, eager):
        twin.product.close()
        deep = DeepCheck(Replayer().execute, tmp_path)
        assert [str(one) for one in check(twin.product.directory, deep_check=deep)] == []


def read_one_by_one(store: Store, count: int, consumer: str = "Alice", key: bytes = b"s") -> None:
    for _ in range(count):
        store.deliver(key, 1, consumer=consumer)


def test_an_entry_acknowledged_before_the_checkpoint_has_been_in_no_table(store: Store) -> None:
    store.fill(b"s", 10)
    read_one_by_one(store, 3)
    store.deliver(b"s", 5)
    assert store.txn.young_ids == 8
    assert store.run("XACK", "s", "g", "2-0") == 1
    assert store.run("XACK", "s", "g", "1-0", "3-0") == 2
    assert store.run("XACK", "s", "g", "4-0", "5-0", "6-0", "7-0", "8-0") == 5
    assert store.txn.young_ids == store.count("pel") == 0
    store.checkpoint()
    assert store.count("pel") == 0


def test_an_older_entry_is_acknowledged_without_writing_the_younger_ones(store: Store) -> None:
    store.fill(b"s", 10)
    store.deliver(b"s", 4)
    store.checkpoint()
    read_one_by_one(store, 2)
    assert store.run("XACK", "s", "g", "3-0") == 1
    assert store.run("XACK", "s", "g", "1-0", "2-0") == 2
    assert (store.txn.young_ids, store.txn.changed_ids, store.count("pel")) == (
        2,
        3,
        1,
    )  # the acknowledgements wait too
    assert store.run("XACK", "s", "g", "3-0", "1-0") == store.run("XACK", "s", "g", "2-0") == 0
    store.checkpoint()
    assert (store.txn.young_ids, store.txn.changed_ids, store.count("pel")) == (0, 0, 2)
    assert pending(store) == [4, 5, 6]


def pending(store: Store) -> list[int]:
    """The numbers of the entries in the list of the first group of `s`, as the tables have them."""
    return [entry_id >> 64 for entry_id, *_ in store.dump()[0][b"s"]["groups"][0]["pending"]]


def test_a_run_acknowledged_one_by_one_is_written_once(store: Store) -> None:
    store.fill(b"s", 2 * MAX_IN_RUN)
    store.deliver(b"s", 2 * MAX_IN_RUN)
    store.checkpoint()
    for number in range(1, MAX_IN_RUN + 50):
        assert store.run("XACK", "s", "g", f"{number}-0") == 1
    assert (store.txn.changed_ids, store.count("pel")) == (MAX_IN_RUN + 49, 2)
    store.checkpoint()
    assert (store.txn.changed_ids, store.count("pel")) == (0, 1)
    assert pending(store) == list(range(MAX_IN_RUN + 50, 2 * MAX_IN_RUN + 1))


def test_the_last_entry_of_a_run_can_be_acknowledged_first(store: Store) -> None:
    store.fill(b"s", 9)
    store.deliver(b"s", 9)
    store.checkpoint()
    assert store.run("XACK", "s", "g", "9-0", "2-0") == 2
    store.checkpoint()
    assert pending(store) == [1, 3, 4, 5, 6, 7, 8]


def test_what_is_acknowledged_without_a_checkpoint_is_gone_after_a_crash(store: Store) -> None:
    store.fill(b"s", 9)
    store.deliver(b"s", 9)
    store.checkpoint()
    assert store.run("XACK", "s", "g", "3-0") == store.run("XACK", "s", "g", "5-0") == 1
    store.commit()
    store.crash()
    assert pending(store) == [1, 2, 4, 6, 7, 8, 9]


def test_a_released_entry_is_acknowledged_in_memory(store: Store) -> None:
    store.fill(b"s", 3)
    store.deliver(b"s", 3)
    store.run("XNACK", "s", "g", "FAIL", "IDS", "1", "2-0")
    store.checkpoint()
    assert store.run("XACK", "s", "g", "2-0") == 1
    group = store.groups().get(b"g")
    assert group is not None and (group.pel_count, group.released_count) == (2, 0)
    store.checkpoint()
    assert pending(store) == [1, 3]
    assert store.count("pel_by_time") == store.count("pel_by_consumer") == store.count("pel") == 2


def test_a_checkpoint_writes_neighbours_of_one_owner_and_time_as_one_run(store: Store) -> None:
    store.fill(b"s", 2 * MAX_IN_RUN + 10)
    read_one_by_one(store, MAX_IN_RUN + 1)
    read_one_by_one(store, 2, "Bob")
    store.clock.now_ms += 1
    read_one_by_one(store, 2, "Bob")
    store.deliver(b"s", MAX_IN_RUN - 1, consumer="Bob")
    before = store.dump()
    assert store.count("pel") == 5  # the dump has written them: 100 of Alice, 1 of hers, Bob's 2, 2, 99
    store.crash()
    assert store.dump() == before


def test_entries_claimed_one_by_one_become_one_run_again(store: Store) -> None:
    store.fill(b"s", 2 * MAX_IN_RUN + 10)
    store.deliver(b"s", MAX_IN_RUN)
    store.deliver(b"s", MAX_IN_RUN, consumer="Bob")
    store.checkpoint()
    for number in range(50, 151):
        store.run("XCLAIM", "s", "g", "Carol", 0, f"{number}-0", "JUSTID")
    assert (store.txn.changed_ids, store.count("pel")) == (101, 2)
    store.checkpoint()
    assert (store.txn.changed_ids, store.count("pel")) == (0, 4)  # 49 of Alice, 100 and 1 of Carol, 50 of Bob
    before = store.dump()
    store.rebuild()
    assert store.dump() == before


@pytest.mark.parametrize("part", [pending_entries.MAX_PART, 5, 1])
def test_entries_claimed_and_acknowledged_at_random_are_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(pending_entries, "MAX_PART", part)
    for seed in range(10):
        chance = random.Random(seed)
        late, eager = (Twin(tmp_path / f"{name}{seed}", is_eager=name == "eager") for name in ("late", "eager"))
        script = [f"XADD s {number}-0 f v" for number in range(1, 41)] + ["XGROUP CREATE s g 0"]
        script += [READ.format("g", f"c{n}", 7, "s") for n in range(5)] + ["XNACK s g FAIL IDS 2 9-0 20-0"]
        for _ in range(120):
            number = chance.randint(1, 36)
            script += [f"XCLAIM s g c{chance.randrange(3)} 0 {number}-0 JUSTID"] * (chance.random() < 0.6)
            script += [f"XCLAIM s g c{chance.randrange(3)} 1 {number}-0"] * (chance.random() < 0.3)
            script += ["PART"] * (chance.random() < 0.2)
            script += ["CHECKPOINT"] * (chance.random() < 0.05) + ["PASS 1"] * (chance.random() < 0.05)
            script += [f"XACK s g {number}-0"] * (chance.random() < 0.1)
            script += [f"XACK s g {number + 1}-0 {number}-0 {number + 2}-0"] * (chance.random() < 0.03)
            script += ["XREADGROUP GROUP g c1 COUNT 1 STREAMS s >"] * (chance.random() < 0.03)
            script += ["XGROUP DELCONSUMER s g c3"] * (chance.random() < 0.01)
        for line in script:
            assert late.run(line) == eager.run(line), (seed, line)
        assert late.looks() == eager.looks(), seed
        late.product.replay()
        assert late.looks() == eager.looks(), seed
        for twin in (late, eager):
            twin.product.close()
            assert [str(one) for one in check(twin.product.directory)] == []


def test_an_entry_that_was_just_looked_at_has_its_new_owner(store: Store) -> None:
    store.fill(b"s", 4)
    store.deliver(b"s", 4)
    store.checkpoint()
    group = store.groups().get(b"g")
    assert group is not None
    for consumer in (b"Alice", b"Bob"):
        store.run("XCLAIM", "s", "g", consumer, 0, "2-0", "JUSTID")
        found = group.find_many([pack_id(sid("2-0"))])[pack_id(sid("2-0"))]
        assert found.owner is not None and found.owner.name == consumer
    store.run("XCLAIM", "s", "g", "Carol", 0, "3-0", "JUSTID")
    found = group.find_many([pack_id(sid("3-0"))])[pack_id(sid("3-0"))]
    assert found.owner is not None and found.owner.name == b"Carol"


def test_a_delivery_in_a_transaction_has_no_transaction_of_its_own_in_the_log(store: Store) -> None:
    store.fill(b"s", 4)
    store.deliver(b"s", 1)
    store.commit()
    group = store.groups().get(b"g")
    assert group is not None
    for number, in_transaction in ((2, True), (3, False)):
        ((key, row),) = store.stream().rows(sid(f"{number}-0"), MAX_ID, 1)
        consumer = group.get_or_create(b"Alice", store.clock.now_ms)
        group.deliver_one(consumer, key, row, store.clock.now_ms, in_transaction=in_transaction)
        store.txn.end_command()
        assert (b"MULTI" in b"".join(store.txn.log)) is not in_transaction
        store.commit()


def test_what_has_changed_is_bounded_for_all_groups_together(store: Store) -> None:
    for key in (b"s", b"t"):
        store.fill(key, MAX_CHANGED)
        store.deliver(key, MAX_CHANGED)
    for number in range(1, MAX_CHANGED + 1):
        assert store.run("XACK", "t", "g", f"{number}-0") == 1
        store.run("XCLAIM", "s", "g", "Bob", 0, f"{number}-0", "JUSTID")
        assert store.txn.changed_ids <= MAX_CHANGED
    assert 0 < store.count("pel_by_consumer") < MAX_CHANGED // 4
    store.checkpoint()
    assert store.txn.changed_ids == 0
    assert store.count("pel") <= len(range(0, MAX_CHANGED, MAX_IN_RUN)) + 1  # cut where the bound was met


def test_what_has_changed_comes_back_from_the_log_without_being_written(store: Store) -> None:
    store.fill(b"s", 9)
    store.deliver(b"s", 9)
    store.checkpoint()
    for number in (3, 4, 8):
        store.run("XCLAIM", "s", "g", "Bob", 0, f"{number}-0")
    store.run("XACK", "s", "g", "2-0")
    store.commit()
    store.run("XCLAIM", "s", "g", "Carol", 0, "5-0")
    store.engine.rollback(store.clock.now_ms)
    assert (store.txn.changed_ids, store.count("pel")) == (4, 1)
    group = store.groups().get(b"g")
    assert group is not None
    assert {consumer.name: consumer.pel_count for consumer in group.consumers.in_order()} == {b"Alice": 5, b"Bob": 3}
    assert pending(store) == [1, 3, 4, 5, 6, 7, 8, 9]


def test_what_has_changed_is_forgotten_with_an_undone_tick(store: Store) -> None:
    store.fill(b"s", 9)
    store.deliver(b"s", 9)
    store.commit()
    store.checkpoint()
    store.run("XACK", "s", "g", "2-0")
    store.run("XCLAIM", "s", "g", "Bob", 0, "3-0")
    store.engine.rollback(store.clock.now_ms)
    assert store.txn.changed_ids == 0
    assert pending(store) == list(range(1, 10))


def test_what_is_young_is_bounded_for_all_groups_together(store: Store) -> None:
    for key in (b"s", b"t"):
        store.fill(key, MAX_YOUNG)
        store.deliver(key, 1)
        for _ in range(MAX_YOUNG // 1000):
            store.deliver(key, 1000)
            assert store.txn.young_ids <= MAX_YOUNG
    assert store.txn.young_ids > 0 < store.count("pel")
    store.checkpoint()
    assert store.txn.young_ids == 0


def test_an_undone_tick_leaves_the_young_deliveries_of_earlier_ones(store: Store) -> None:
    store.fill(b"s", 10)
    read_one_by_one(store, 3)
    store.commit()
    before = store.dump()
    store.checkpoint()
    read_one_by_one(store, 2)
    store.run("XACK", "s", "g", "2-0", "4-0")
    store.engine.rollback(store.clock.now_ms)
    assert store.dump() == before
    assert store.txn.young_ids == 0  # the dump has written what the log has brought back


def test_a_tick_undone_behind_young_deliveries_brings_them_back_from_the_log(store: Store) -> None:
    store.fill(b"s", 10)
    store.checkpoint()
    read_one_by_one(store, 3)
    store.commit()
    read_one_by_one(store, 2)
    store.run("XACK", "s", "g", "2-0", "4-0")
    store.engine.rollback(store.clock.now_ms)
    assert store.txn.young_ids == 3
    assert pending(store) == [1, 2, 3]


@pytest.mark.parametrize("words", [("XGROUP", "DESTROY", "s", "g"), ("DEL", "s"), ("FLUSHALL",)])
def test_young_deliveries_of_what_is_gone_leave_no_rows(store: Store, words: tuple[str, ...]) -> None:
    store.fill(b"s", 10)
    store.deliver(b"s", 2)
    store.checkpoint()
    store.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "JUSTID")
    store.run("XACK", "s", "g", "2-0")
    store.deliver(b"s", 2)
    store.run(*words)
    assert store.txn.young_ids == store.txn.changed_ids == 0
    store.commit()
    store.purge()
    store.checkpoint()
    assert store.count("pel") == store.count("pel_by_time") == store.count("pel_by_consumer") == 0


def test_a_view_of_the_open_transaction_shows_what_is_young(store: Store) -> None:
    store.fill(b"s", 10)
    store.deliver(b"s", 3)
    store.checkpoint()
    read_one_by_one(store, 3)
    store.run("XACK", "s", "g", "2-0")
    store.run("XCLAIM", "s", "g", "Bob", 0, "3-0", "JUSTID")
    view = OpenView(store.engine.tables, store.txn.lmdb)
    shown = GroupsView(view, store.stream()).pending_runs(1, None, [1, 2])
    assert [(run.consumer_no, len(run)) for run in shown] == [(1, 1), (2, 1), (1, 3)]
    view.release()


def test_the_purge_of_a_deleted_consumer_finds_what_was_young(store: Store) -> None:
    store.fill(b"s", 400)
    read_one_by_one(store, 300)
    assert store.run("XGROUP", "DELCONSUMER", "s", "g", "Alice") == 300
    store.commit()
    store.purge()
    assert store.count("pel") == 0


def test_a_rewrite_and_a_divided_log_have_the_young_deliveries(store: Store) -> None:
    store.fill(b"s", 10)
    read_one_by_one(store, 3)
    assert any(b"XCLAIM" in bytes(piece.data) for piece in rewrite(store))
    read_one_by_one(store, 3)
    store.commit()
    store.engine.divide_log()
    assert (store.txn.young_ids, store.count("pel")) == (0, 2)


def test_a_trim_by_reference_sees_the_young_deliveries(store: Store) -> None:
    store.fill(b"s", 12)
    read_one_by_one(store, 8)
    store.run("XACK", "s", "g", "1-0", "2-0")
    assert store.run("XTRIM", "s", "MAXLEN", "0", "ACKED") == 2
    assert store.run("XTRIM", "s", "MAXLEN", "=", "8", "DELREF") == 2
    assert len(store.dump()[0][b"s"]["groups"][0]["pending"]) == 4


def test_a_delivery_of_one_entry_is_logged_like_one_of_several(store: Store) -> None:
    store.fill(b"s", 9)
    store.deliver(b"s", 2)
    store.commit()
    store.deliver(b"s", 1)
    assert b"".join(store.txn.log) == encode_transaction(
        b"XCLAIM s g Alice 0 3-0 TIME %d RETRYCOUNT 1 FORCE JUSTID LASTID 3-0" % store.clock.now_ms,
        b"XGROUP SETID s g 3-0 ENTRIESREAD 3",
    )
    store.commit()
    store.run("DEL", "t")
    store.db.rename(store.stream(), b"renamed")
    store.commit()
    store.deliver(b"renamed", 1, consumer="Bob")
    assert b"".join(store.txn.log) == encode_transaction(
        b"XCLAIM renamed g Bob 0 4-0 TIME %d RETRYCOUNT 1 FORCE JUSTID LASTID 4-0" % store.clock.now_ms,
        b"XGROUP SETID renamed g 4-0 ENTRIESREAD 4",
    )


def encode_transaction(*lines: bytes) -> bytes:
    return b"".join(encode_command(line.split()) for line in (b"MULTI", *lines, b"EXEC"))


def test_changes_are_written_in_parts_of_neighbours(store: Store) -> None:
    store.fill(b"s", 4 * MAX_PART)
    store.deliver(b"s", 4 * MAX_PART)
    store.checkpoint()
    numbers = list(range(1, 4 * MAX_PART, 2))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        store.run("XACK", "s", "g", f"{number}-0")
    left = []
    while store.txn.changed_ids:
        store.engine.write_part()
        left.append(store.txn.changed_ids)
    assert left == [MAX_PART, 0]
    assert pending(store) == list(range(2, 4 * MAX_PART + 1, 2))


def test_parts_that_no_checkpoint_has_committed_are_gone_after_a_crash_and_in_the_log(store: Store) -> None:
    for number in range(FEW_STREAMS + PART):
        store.fill(b"%d" % number, 2)
    store.deliver(b"1", 2)
    store.run("XACK", "1", "g", "2-0")
    store.commit()
    before = store.dump()
    for parts in range(6):
        for _ in range(parts):
            store.engine.write_part()
        store.crash()
        assert store.dump() == before
    while store.txn.unwritten_parts:
        store.engine.write_part()
    store.checkpoint()
    store.crash()
    assert store.dump() == before


@pytest.fixture
def acknowledged(store: Store) -> Store:
    """A store with as many acknowledged entries in memory as may wait behind the replies of a tick, and two more."""
    store.fill(b"s", MAX_CHANGED)
    store.deliver(b"s", MAX_CHANGED)
    store.checkpoint()
    for number in range(1, FEW_CHANGED + 3):
        assert len(store.txn.overfull) == (number > FEW_CHANGED + 1)
        store.run("XACK", "s", "g", f"{number}-0")
    store.commit()
    return store


def test_some_changes_beyond_a_few_are_written_behind_the_replies(acknowledged: Store) -> None:
    store, before = acknowledged, acknowledged.count("pel")
    store.engine.write_behind()
    assert store.txn.changed_ids == FEW_CHANGED + 2 - BEHIND_PART
    assert store.count("pel") < before
    assert not store.txn.overfull
    assert pending(store) == list(range(FEW_CHANGED + 3, MAX_CHANGED + 1))
    store.crash()
    assert pending(store) == list(range(FEW_CHANGED + 3, MAX_CHANGED + 1))


@pytest.mark.parametrize("then", ["CHECKPOINT", "XPENDING s g - + 1", "XGROUP DESTROY s g", "DEL s", "FLUSHALL"])
def test_what_was_to_be_written_behind_the_replies_may_be_written_or_gone(acknowledged: Store, then: str) -> None:
    store = acknowledged
    if then == "CHECKPOINT":
        store.checkpoint()
        assert not store.txn.overfull
    else:
        store.run(*then.split())
    store.commit()
    store.engine.write_behind()
    assert store.txn.changed_ids == 0
    before = store.dump()
    store.crash()
    assert store.dump() == before


def test_what_a_damaged_row_hides_is_not_lost_behind_the_replies(acknowledged: Store) -> None:
    store, pel = acknowledged, acknowledged.txn.handles["pel"]
    key, row = next(iter(store.txn.lmdb.cursor(pel)))
    store.txn.lmdb.put(key, row[:-1] + bytes((row[-1] ^ 1,)), db=pel)
    store.engine.write_behind()
    assert store.txn.changed_ids == FEW_CHANGED + 2
    with pytest.raises(DamagedRowError):
        store.engine.checkpoint()
    store.txn.lmdb.put(key, row, db=pel)
    assert pending(store) == list(range(FEW_CHANGED + 3, MAX_CHANGED + 1))


def test_what_a_log_brings_is_no_change_of_the_tick_behind_it(store: Store) -> None:
    """A read would be taken for a command that has changed something, and be undone when it fails."""
    store.fill(b"s", 4)
    store.deliver(b"s", 4)
    store.run("XACK", "s", "g", "2-0")
    store.crash()
    store.run("XACK", "s", "g", "3-0")
    store.commit()
    store.engine.rollback(store.clock.now_ms)
    assert store.txn.is_unchanged_since(store.txn.mark())


@pytest.mark.parametrize("entry_id", ["0-1", "1-0", "9-0", "99-0"])
def test_keys_around_what_is_not_pending_are_looked_at_once(store: Store, entry_id: str) -> None:
    store.fill(b"s", 9)
    store.deliver(b"s", 9)
    store.run("XACK", "s", "g", "2-0", "5-0", "1-0", "9-0")
    store.checkpoint()
    group = store.groups().get(b"g")
    assert group is not None
    assert store.run("XACK", "s", "g", entry_id) == 0
    sound = group.pel._sound
    assert group_prefix(group.group_no) + pack_id(sid(entry_id)) in sound
    for number in range(1, 100):
        assert store.run("XACK", "s", "g", f"0-{number}") == 0
    assert len(sound) == 1
    assert store.run("XACK", "s", "g", "3-0") == 1
    store.checkpoint()
    assert not sound
