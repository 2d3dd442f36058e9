"""Pending entries that were delivered in one millisecond are taken in the order in which they got there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import DeepCheck, check
from riverbed.store.check.comparison import Comparison
from riverbed.store.errors import DamagedRowError
from riverbed.store.format.pending import (
    MAX_TIME_MS,
    MAX_TURN,
    ONE_TURN,
    TURN_KEY_BYTES,
    Run,
    group_prefix,
    last_in_key,
    time_key,
    time_prefix,
)
from riverbed.store.groups.group import Group
from riverbed.store.groups.pending import insertions
from riverbed.store.groups.pending.run_rows import replace_runs
from riverbed.store.ids import id_text, pack_id
from riverbed.store.tables.damage.scrub import scrub_step
from riverbed.store.tables.reader import TableReader
from tests.support.archives import unpack
from tests.support.in_process import HandClock, Product
from tests.support.program import run
from tests.support.store.stores import Store, claim_order, rewrite, sid

NOW_MS: Final = 1_700_000_000_000
OLD_MS: Final = NOW_MS - 90_000
FIXTURE: Final = Path(__file__).parents[3] / "fixtures" / "format-5" / "snapshot.tar.xz"
OF_THE_TIME: Final = 8 * 15  # a bit of the key
READ: Final = "XREADGROUP GROUP g Alice COUNT {} STREAMS s >"
TAKE: Final = "XREADGROUP GROUP g Carol COUNT {} CLAIM 60000 STREAMS s >"
STAGES: Final[dict[str, Callable[[Product], None]]] = {
    "young": lambda product: None,
    "checkpoint": Product.checkpoint,
    "restart": Product.restart,
    "kill": Product.kill,
    "replay": Product.replay,
}


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> Callable[[Product], None]:
    return STAGES[request.param]


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    """Nine entries and a group that has delivered none of them."""
    product = Product(tmp_path / "data", HandClock(NOW_MS))
    for number in range(1, 10):
        product.run("XADD", "s", f"{number}-0", "f", number)
    product.run("XGROUP", "CREATE", "s", "g", "0")
    yield product
    product.abandon()  # LMDB's objects end in their order


def say(product: Product, *lines: str) -> None:
    for line in lines:
        product.run(*line.split())


def order(product: Product, name: bytes = b"g", key: bytes = b"s") -> list[int]:
    return [entry_id >> 64 for entry_id in claim_order(product.session.db, key, name)]


def taken(product: Product, count: int) -> list[int]:
    """What CLAIM takes, by the numbers of the entries."""
    ((_, entries),) = product.run(*TAKE.format(count).split())
    return [int(entry[0].partition(b"-")[0]) for entry in entries]


def group_of(product: Product, key: bytes = b"s") -> Group:
    db = product.session.db
    stream = db.stream(key, 0)
    assert stream is not None
    group = db.groups(stream).get(b"g")
    assert group is not None
    return group


def runs_of(product: Product) -> list[tuple[list[int], int, int]]:
    """(numbers of the entries, delivery time, turn) of each run, in ID order."""
    pel = group_of(product).pel
    runs = sorted((run for _, run in pel.by_time(b"")), key=lambda run: run.first)
    return [([row.entry_id >> 64 for row in run.rows()], run.time_ms, run.turn) for run in runs]


def assert_sound(product: Product, tmp_path: Path) -> None:
    product.close()
    deep = DeepCheck(Replayer().execute, tmp_path)
    assert [str(one) for one in check(product.directory, deep_check=deep)] == []


SCRIPTS: Final[dict[str, tuple[list[str], list[int]]]] = {
    "one claim, out of order": (
        [READ.format(6), f"XCLAIM s g Bob 0 5-0 2-0 6-0 3-0 TIME {OLD_MS} JUSTID"],
        [5, 2, 6, 3, 1, 4],
    ),
    "claims of one, out of order": (
        [READ.format(4), *(f"XCLAIM s g Bob 0 {number}-0 TIME {OLD_MS} JUSTID" for number in (4, 2, 3, 1))],
        [4, 2, 3, 1],
    ),
    "claims of one by now": (
        [READ.format(4), *(f"XCLAIM s g Bob 0 {number}-0 JUSTID" for number in (3, 1))],
        [2, 4, 3, 1],
    ),
    "claims of one, and new entries between them": (
        [READ.format(3), "XCLAIM s g Bob 0 2-0", READ.format(1), "XCLAIM s g Bob 0 1-0", READ.format(2)],
        [3, 2, 4, 1, 5, 6],
    ),
    "claimed again": (
        [READ.format(4), "XCLAIM s g Bob 0 1-0", "XCLAIM s g Bob 0 2-0", "XCLAIM s g Bob 0 1-0"],
        [3, 4, 2, 1],
    ),
    "claimed by its owner": ([READ.format(3), "XCLAIM s g Alice 0 2-0 JUSTID"], [1, 3, 2]),
    "read again": ([READ.format(4), "XREADGROUP GROUP g Alice COUNT 2 STREAMS s 0"], [3, 4, 1, 2]),
    "given twice": (
        [READ.format(4), f"XCLAIM s g Bob 0 1-0 3-0 1-0 TIME {OLD_MS} JUSTID"],
        [3, 1, 2, 4],
    ),
    "with other delivery counts": (
        [READ.format(5), "XCLAIM s g Bob 0 2-0 4-0 RETRYCOUNT 7 JUSTID", "XCLAIM s g Bob 0 1-0 2-0 3-0 4-0 5-0"],
        [1, 2, 3, 4, 5],
    ),
    "with other delivery counts, out of order": (
        [READ.format(4), "XCLAIM s g Bob 0 2-0 RETRYCOUNT 7 JUSTID", "XCLAIM s g Bob 0 4-0 2-0 3-0 1-0"],
        [4, 2, 3, 1],
    ),
    "taken over": (
        [
            READ.format(4),
            f"XCLAIM s g Bob 0 4-0 TIME {OLD_MS - 2} JUSTID",
            f"XCLAIM s g Bob 0 1-0 3-0 TIME {OLD_MS} RETRYCOUNT 5 JUSTID",
            TAKE.format(3),
        ],
        [2, 4, 1, 3],
    ),
    "acknowledged in between": (
        [READ.format(4), "XCLAIM s g Bob 0 3-0 1-0", "XACK s g 3-0", "XCLAIM s g Bob 0 2-0", "XCLAIM s g Bob 0 4-0"],
        [1, 2, 4],
    ),
    "forced": (["XCLAIM s g Bob 0 4-0 2-0 3-0 FORCE JUSTID", "XCLAIM s g Bob 0 1-0 FORCE JUSTID"], [4, 2, 3, 1]),
    "released, and claimed": (
        [READ.format(4), "XNACK s g FAIL IDS 2 3-0 1-0", "XCLAIM s g Bob 0 1-0", "XCLAIM s g Bob 0 3-0"],
        [2, 4, 1, 3],
    ),
    "at two times by turns": (
        [
            READ.format(6),
            *(f"XCLAIM s g Bob 0 {number}-0 TIME {OLD_MS + number % 2} JUSTID" for number in (6, 5, 2, 3, 4, 1)),
        ],
        [6, 2, 4, 5, 3, 1],
    ),
    "with the position set back": (
        [READ.format(4), "XCLAIM s g Bob 0 2-0", "XGROUP SETID s g 0", READ.format(2)],
        [3, 4, 1, 2],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_entries_of_one_millisecond_are_in_the_order_of_delivery(
    product: Product, tmp_path: Path, stage: Callable[[Product], None], name: str
) -> None:
    lines, expected = SCRIPTS[name]
    say(product, *lines)
    stage(product)
    assert order(product) == expected
    product.clock.now_ms += 100_000
    assert taken(product, len(expected)) == expected
    assert_sound(product, tmp_path)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_order_is_the_same_when_all_is_written_after_each_command(product: Product, name: str) -> None:
    lines, expected = SCRIPTS[name]
    for line in lines:
        say(product, line)
        product.restart()
    assert order(product) == expected


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_taken_back_leaves_the_order_as_it_was(product: Product, name: str) -> None:
    *lines, last = SCRIPTS[name][0]
    say(product, *lines)
    product.checkpoint()
    before = order(product)
    product.undo([word.encode() for word in last.split()])
    assert order(product) == before
    say(product, last)
    assert order(product) == SCRIPTS[name][1]


@pytest.mark.parametrize("most", [0, 2, 1024])
@pytest.mark.parametrize("seed", range(4))
def test_random_deliveries_at_few_times_are_in_their_order(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, most: int
) -> None:
    """`most` is how many times are remembered."""
    monkeypatch.setattr(insertions, "_MOST_TIMES", most)
    rng = random.Random(seed)
    inserted: dict[int, tuple[int, int]] = {}
    read = 0
    for at in range(150):
        match rng.choice(("read", "read", "claim", "claim", "old", "old", "many", "ack", *STAGES)):
            case "read" if read < 9:
                read += 1
                say(product, READ.format(1))
                numbers, time_ms = [read], product.clock.now_ms
            case "claim" if inserted:
                numbers, time_ms = [rng.choice(list(inserted))], product.clock.now_ms
                say(product, f"XCLAIM s g Bob 0 {numbers[0]}-0 JUSTID")
            case "old" | "many" as how if inserted:
                numbers = rng.sample(list(inserted), 1 if how == "old" else rng.randint(1, len(inserted)))
                time_ms = product.clock.now_ms - rng.randrange(3)
                say(product, f"XCLAIM s g Bob 0 {' '.join(f'{n}-0' for n in numbers)} TIME {time_ms} JUSTID")
            case "ack" if inserted and rng.random() < 0.5:
                del inserted[number := rng.choice(list(inserted))]
                say(product, f"XACK s g {number}-0")
                continue
            case name:
                STAGES.get(name, Product.checkpoint)(product)
                product.clock.now_ms += rng.choice((-1, 0, 0, 1))
                continue
        for place, number in enumerate(numbers):
            inserted[number] = int(time_ms), 100 * at + place
        if rng.random() < 0.3:
            assert order(product) == sorted(inserted, key=lambda number: inserted[number])
    assert order(product) == sorted(inserted, key=lambda number: inserted[number])
    assert_sound(product, tmp_path)


def test_a_run_that_is_cut_keeps_its_turn_and_only_equal_turns_join(product: Product) -> None:
    say(product, READ.format(9), "XCLAIM s g Bob 0 3-0 4-0 5-0 6-0 7-0 JUSTID")
    product.checkpoint()
    assert runs_of(product) == [([1, 2], NOW_MS, 0), ([3, 4, 5, 6, 7], NOW_MS, 1), ([8, 9], NOW_MS, 0)]
    say(product, "XCLAIM s g Bob 0 5-0 JUSTID")
    product.checkpoint()
    assert runs_of(product)[1:4] == [([3, 4], NOW_MS, 1), ([5], NOW_MS, 2), ([6, 7], NOW_MS, 1)]
    assert order(product) == [1, 2, 8, 9, 3, 4, 6, 7, 5]
    say(product, "XACK s g 6-0", "XCLAIM s g Bob 0 3-0 JUSTID", "XCLAIM s g Bob 0 4-0 JUSTID")
    product.checkpoint()
    assert runs_of(product)[1:4] == [([3, 4], NOW_MS, 3), ([5], NOW_MS, 2), ([7], NOW_MS, 1)]


def test_the_usual_deliveries_take_no_turn(product: Product) -> None:
    say(product, READ.format(2), READ.format(1), READ.format(1), "XAUTOCLAIM s g Bob 0 0 COUNT 9")
    product.clock.now_ms += 1
    say(product, READ.format(3), "XACK s g 6-0", READ.format(1))
    assert {turn for _, _, turn in runs_of(product)[1:]} == {0}
    assert runs_of(product)[0] == ([1, 2, 3, 4], NOW_MS, 1)  # delivered and claimed in one millisecond


def test_old_times_one_by_one_leave_young_entries_unwritten(product: Product) -> None:
    """As a log has them that is replayed."""
    say(product, READ.format(9))
    product.checkpoint()
    pel, txn = group_of(product).pel, product.engine.txn
    for number in (9, 2, 5, 3, 8):
        packed = pack_id(sid(f"{number}-0"))
        assert pel.standing(packed) is not None
        pel.move_one(packed, 1, OLD_MS + number % 2, 1)
    assert txn.changed_ids == 5
    assert order(product) == [2, 8, 9, 5, 3, 1, 4, 6, 7]


def test_a_claim_looks_like_any_other_to_who_asks_for_times(product: Product) -> None:
    say(product, READ.format(4), *(f"XCLAIM s g Bob 0 {number}-0 TIME {OLD_MS} JUSTID" for number in (3, 2, 1)))
    product.checkpoint()
    assert [turn for _, _, turn in runs_of(product)] == [2, 1, 0, 0]
    assert [row[2] for row in product.run("XPENDING", "s", "g", "-", "+", "9")] == [90_000] * 3 + [0]
    idle = product.run("XPENDING", "s", "g", "IDLE", "90000", "-", "+", "9", "Bob")
    assert [row[0] for row in idle] == [b"1-0", b"2-0", b"3-0"]
    assert product.run("XPENDING", "s", "g", "IDLE", "90001", "-", "+", "9") == []
    full = product.run("XINFO", "STREAM", "s", "FULL")
    (group,) = full[full.index(b"groups") + 1]
    assert [row[2] for row in group[group.index(b"pending") + 1]] == [OLD_MS] * 3 + [NOW_MS]
    assert product.run("XCLAIM", "s", "g", "Carol", "90001", "1-0", "JUSTID") == []
    assert product.run("XCLAIM", "s", "g", "Carol", "90000", "1-0", "JUSTID") == [b"1-0"]


@pytest.mark.parametrize("stage", ["young", "replay"], indirect=True)
def test_a_copy_has_the_order_of_its_source(product: Product, stage: Callable[[Product], None]) -> None:
    say(product, READ.format(5), f"XCLAIM s g Bob 0 4-0 1-0 3-0 TIME {OLD_MS} JUSTID", "COPY s t")
    stage(product)
    assert order(product, key=b"t") == order(product) == [4, 1, 3, 2, 5]
    say(product, f"XCLAIM t g Bob 0 2-0 TIME {OLD_MS} JUSTID")
    assert order(product, key=b"t") == [4, 1, 3, 2, 5]


def test_turns_that_run_out_leave_the_order_of_ids(product: Product, tmp_path: Path) -> None:
    say(product, READ.format(5))
    group = group_of(product)
    group.pel.write_young()
    last = next(run for _, run in group.pel.by_time(b""))
    changed = Run(last.consumer_no, NOW_MS + (MAX_TURN - 1) * ONE_TURN, last.delivery_count, last.packed)
    replace_runs(product.engine.txn.cursor, group.group_no, [last], [changed])
    product.checkpoint()
    product.engine.txn.databases[0].let_go_of_groups()
    say(product, *(f"XCLAIM s g Bob 0 {number}-0 JUSTID" for number in (4, 2, 3)))
    assert [turn for _, _, turn in runs_of(product)] == [65_534, 65_535, 65_534]
    assert order(product) == [1, 5, 2, 3, 4]
    product.close()
    assert [str(one) for one in check(product.directory)] == []


@pytest.mark.parametrize("time_ms", [MAX_TIME_MS, MAX_TIME_MS + 1, (1 << 63) - 1])
@pytest.mark.parametrize("many", [False, True])
def test_a_time_that_is_too_large_is_the_largest(product: Product, tmp_path: Path, time_ms: int, many: bool) -> None:
    """A log can hold it: one that a program has made, or one of a server whose clock was wrong."""
    say(product, READ.format(4))
    product.request.from_log = True
    for ids in ["3-0 2-0", "1-0"] if many else ["3-0", "2-0", "1-0"]:
        say(product, f"XCLAIM s g Bob 0 {ids} TIME {time_ms} RETRYCOUNT 1 FORCE JUSTID LASTID 4-0")
    product.request.from_log = False
    assert order(product) == [4, 3, 2, 1]
    product.replay()
    assert order(product) == [4, 3, 2, 1]
    assert [run[1] for run in runs_of(product)] == [MAX_TIME_MS] * 3 + [NOW_MS]
    assert_sound(product, tmp_path)


def test_rows_of_an_earlier_version_come_before_what_is_inserted_at_their_time(tmp_path: Path) -> None:
    unpack(FIXTURE, tmp_path)
    restored = run("restore", tmp_path / "before", tmp_path / "data")
    assert restored.exit_code == 0, restored.output
    product = Product(tmp_path / "data", HandClock(NOW_MS * 2))
    before = [
        (run.time_ms, row.entry_id) for _, run in group_of(product, b"jobs").pel.by_time(b"") for row in run.rows()
    ]
    owned = [pair for pair in before if pair[0] > OLD_MS]  # the others are released
    assert owned == sorted(owned)
    oldest = [id_text(entry_id) for time_ms, entry_id in owned if time_ms == owned[0][0]]
    assert len(oldest) > 9
    claimed = product.run("XCLAIM", "jobs", "g", "Zoe", 0, *oldest[4:0:-1], "TIME", owned[0][0], "JUSTID")
    assert len(claimed) > 2
    expected = [one for one in oldest if one not in claimed] + claimed
    for stage in (Product.checkpoint, Product.kill, Product.restart):
        stage(product)
        db = product.session.db
        order_then = [id_text(entry_id) for entry_id in claim_order(db, b"jobs")]
        assert [one for one in order_then if one in expected] == expected
    product.close()
    assert list(check(tmp_path / "data")) == []


# -- what a rewrite leaves of it ---------------------------------------------------------------------------------------


def claimed(store: Store, *numbers: int) -> Store:
    store.fill(b"s", 9)
    store.deliver(b"s", 9)
    store.checkpoint()
    for number in numbers:
        store.run("XCLAIM", "s", "g", "Bob", 0, f"{number}-0", "TIME", OLD_MS, "JUSTID")
    return store


def test_turns_are_in_no_rewrite_and_are_no_difference(tmp_path: Path) -> None:
    ours, theirs = claimed(Store(tmp_path / "a"), 5, 4, 3), claimed(Store(tmp_path / "b"), 3, 4, 5)
    assert rewrite(ours) == rewrite(theirs)
    assert b"XCLAIM" in rewrite(ours)[0].data
    assert claim_order(ours.db) != claim_order(theirs.db)
    tables, others = ours.engine.tables, theirs.engine.tables
    with tables.env.begin() as txn, others.env.begin() as other:
        found = Comparison(TableReader(tables, txn), TableReader(others, other), now_ms=NOW_MS).differences()
        assert [difference for difference in found if difference is not None] == []


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def turned(product: Product) -> tuple[Product, bytes]:
    """A product with 2-0 in the second turn of its millisecond, and the key that says so."""
    say(product, READ.format(3), "XCLAIM s g Bob 0 2-0 JUSTID")
    product.checkpoint()
    group = group_of(product)
    run = next(run for _, run in group.pel.by_time(b"") if run.turn)
    return product, time_key(group.group_no, run)


def test_the_key_of_a_turn(turned: tuple[Product, bytes]) -> None:
    product, key = turned
    group_no = group_of(product).group_no
    assert len(key) == TURN_KEY_BYTES
    assert key == time_prefix(group_no, NOW_MS) + b"\xff" * 16 + b"\0\1" + pack_id(sid("2-0"))
    assert last_in_key(key) == pack_id(sid("2-0"))
    assert key.startswith(group_prefix(group_no))


@pytest.mark.parametrize("bit", [OF_THE_TIME, 8 * 20, 8 * 32 + 3, 8 * 33 + 1, 8 * 49], ids=str)
def test_a_key_whose_turn_does_not_fit_is_damage(turned: tuple[Product, bytes], bit: int) -> None:
    product, key = turned
    damaged = bytearray(key)
    damaged[bit // 8] ^= 1 << bit % 8
    cursor = product.engine.txn.cursor("pel_by_time")
    assert cursor.set_key(key)
    cursor.delete()
    cursor.put(bytes(damaged), b"")
    product.engine.txn.databases[0].let_go_of_groups()
    with pytest.raises(DamagedRowError):
        order(product)
    if bit > OF_THE_TIME:  # with another time it is not looked at: what reads the index meets it in any case
        with pytest.raises(DamagedRowError):
            say(product, "XCLAIM s g Bob 0 1-0 JUSTID")
    product.checkpoint()
    with product.engine.tables.env.begin() as txn:
        damage = scrub_step(TableReader(product.engine.tables, txn), "pel", b"", 100).damage
    assert [line.endswith("is not found by table pel_by_time") for line in damage] == [True]
    product.close()
    assert any("pel_by_time" in str(one) for one in check(product.directory))
