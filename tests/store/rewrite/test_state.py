from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError
from riverbed.store.format.log_lines import CommandCollector, parse_frame
from riverbed.store.format.streams import StreamRow, entry_key, key_key
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST
from riverbed.store.log import manifest as manifests
from riverbed.store.log.commands import PIECE_BYTES, Piece
from riverbed.store.model import Strategy, Trim
from riverbed.store.rewrite.groups import MAX_CLAIMED
from riverbed.store.rewrite.log_from_tables import write_log
from riverbed.store.rewrite.state import pieces
from riverbed.store.streams import trimming
from tests.support.scripts.random_commands import run_at_random
from tests.support.store.mutations import CASES, Case
from tests.support.store.stores import Store, rewrite, sid


def load(state: list[Piece], directory: Path, **options: Any) -> Store:
    """A fresh store made from a rewrite."""
    home = directory / LOG_DIRECTORY
    home.mkdir(parents=True)
    manifest, _ = write_log(home, state, OsFiles(), offset=12_345, seq=1, preface=b"", now_ms=1)
    manifests.replace(home / LOG_MANIFEST, manifest, OsFiles())
    return Store(directory, **options)


def text_of(state: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in state)


def commands_of(state: list[Piece]) -> list[bytes]:
    """The commands in order, as text; extensions are marked."""
    found = []
    for piece in state:
        at = 0
        collector = CommandCollector()
        while at < len(piece.data):
            words, end = parse_frame(piece.data, at)
            if words is None:
                collector.take_comment(piece.data[at:end])
                collector.finish()
                found.append(b"#" + b" ".join(collector.commands[-1]))
            else:
                found.append(b" ".join(words))
            at = end
    return found


def assert_survives(store: Store, home: Path) -> list[Piece]:
    """The state comes out of its rewrite as it was, and the rewrite of that is the same."""
    before = store.dump()
    state = rewrite(store)
    copy = load(state, home / "copy", **vars(store.options))
    try:
        assert copy.dump() == before
        assert copy.violations() == []
        again = rewrite(copy)
        assert text_of(again) == text_of(state)
        assert again == state
    finally:
        copy.engine.close()
    return state


def test_a_group_that_has_read_more_than_was_added_is_made_before_the_counter_is_lowered(
    store: Store, tmp_path: Path
) -> None:
    store.fill(b"s", 3)
    store.run("XGROUP", "CREATE", "s", "g", "2-0", "ENTRIESREAD", 3)
    store.run("XSETID", "s", "9-0", "ENTRIESADDED", 1047)
    store.run("XGROUP", "CREATE", "s", "h", "2-0", "ENTRIESREAD", 1047)
    store.run("XSETID", "s", "9-0", "ENTRIESADDED", 1008)
    commands = commands_of(assert_survives(store, tmp_path))
    assert [command for command in commands if b"XADD" not in command and b"SELECT" not in command] == [
        b"XSETID s 9-0 ENTRIESADDED 1047 MAXDELETEDID 0-0",
        b"XGROUP CREATE s g 2-0 ENTRIESREAD 3",
        b"XGROUP CREATE s h 2-0 ENTRIESREAD 1047",
        b"XSETID s 9-0 ENTRIESADDED 1008 MAXDELETEDID 0-0",
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_mutators_work_survives_a_rewrite(store: Store, tmp_path: Path, case: Case) -> None:
    case(store)
    assert_survives(store, tmp_path)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 40), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_random_states_survive_a_rewrite(seed: int, lengths: list[int]) -> None:
    with tempfile.TemporaryDirectory(prefix="riverbed-rewrite-") as home:
        store = Store(Path(home) / "store", node_max_entries=4)
        for commands in run_at_random(store, seed, lengths):
            if commands.chance(0.3):
                store.purge()
        assert_survives(store, Path(home))
        store.engine.close()


def test_an_empty_store_is_rewritten_as_nothing(store: Store) -> None:
    store.fill(b"s", 3)
    store.db.flush()
    assert rewrite(store) == []


# -- what is written ---------------------------------------------------------------------------------------------------


def lines_of(store: Store, *, extensions: bool = True) -> list[str]:
    return [line.decode() for line in commands_of(rewrite(store, extensions=extensions))]


def test_a_stream_is_its_entries_and_its_counters(store: Store) -> None:
    store.fill(b"s", 3).delete_entries([sid("1-0")])
    store.run("PEXPIREAT", "s", 4_102_444_800_000)
    assert lines_of(store) == [
        "SELECT 0",
        "XADD s 2-0 f v",
        "XADD s 3-0 f v",
        "XSETID s 3-0 ENTRIESADDED 3 MAXDELETEDID 1-0",
        "PEXPIREAT s 4102444800000",
    ]


def test_an_empty_stream_is_made_as_redis_makes_it(store: Store) -> None:
    trimming.trim(store.fill(b"s", 3), Trim(Strategy.MAXLEN, 0))
    store.run("XGROUP", "CREATE", "new", "g", "$", "MKSTREAM")
    assert lines_of(store) == [
        "SELECT 0",
        "XADD s MAXLEN 0 0-1 x y",
        "XSETID s 3-0 ENTRIESADDED 3 MAXDELETEDID 0-0",
        "XADD new MAXLEN 0 0-1 x y",
        "XSETID new 0-0 ENTRIESADDED 0 MAXDELETEDID 0-0",
        "XGROUP CREATE new g 0-0 ENTRIESREAD -1",
    ]


def test_what_is_pending_alike_is_one_claim_however_it_was_cut(store: Store) -> None:
    store.fill(b"s", 7)
    store.deliver(b"s", 6)
    store.run("XCLAIM", "s", "g", "Bob", 0, "3-0", "RETRYCOUNT", 7)
    store.run("XCLAIM", "s", "g", "Alice", 0, "3-0", "TIME", store.clock.now_ms, "RETRYCOUNT", 1, "JUSTID")
    store.run("XGROUP", "DELCONSUMER", "s", "g", "Bob")
    store.run("XGROUP", "CREATECONSUMER", "s", "g", "Idle")
    now_ms = store.clock.now_ms
    assert lines_of(store)[-6:] == [
        "XSETID s 7-0 ENTRIESADDED 7 MAXDELETEDID 0-0",
        "XGROUP CREATE s g 6-0 ENTRIESREAD 6",
        "XGROUP CREATECONSUMER s g Idle",
        f"XCLAIM s g Alice 0 1-0 2-0 3-0 4-0 5-0 6-0 TIME {now_ms} RETRYCOUNT 1 JUSTID FORCE",
        f"#XSEEN s g Alice {now_ms} {now_ms}",
        f"#XSEEN s g Idle {now_ms} -1",
    ]


def test_long_runs_are_cut_by_their_number(store: Store) -> None:
    store.fill(b"s", 2 * MAX_CLAIMED + 1)
    store.deliver(b"s", 2 * MAX_CLAIMED + 1)
    claims = [line for line in lines_of(store) if line.startswith("XCLAIM")]
    assert [line.count("-0 ") for line in claims] == [MAX_CLAIMED, MAX_CLAIMED, 1]


def test_records_of_entries_that_are_gone_are_claimed_from_placeholders(store: Store) -> None:
    store.fill(b"s", 4)
    store.deliver(b"s", 3)
    store.deliver(b"s", 1, group="h")
    store.stream().delete_entries([sid("2-0")])
    now_ms = store.clock.now_ms
    assert lines_of(store, extensions=False) == [
        "SELECT 0",
        "XADD s 2-0 x y",
        "XGROUP CREATE s g 0-0",
        f"XCLAIM s g Alice 0 2-0 TIME {now_ms} RETRYCOUNT 1 JUSTID FORCE",
        "XTRIM s MAXLEN = 0",
        "XSETID s 0-0",
        "XADD s 1-0 f v",
        "XADD s 3-0 f v",
        "XADD s 4-0 f v",
        "XSETID s 4-0 ENTRIESADDED 4 MAXDELETEDID 2-0",
        "XGROUP SETID s g 3-0 ENTRIESREAD 3",
        f"XCLAIM s g Alice 0 1-0 3-0 TIME {now_ms} RETRYCOUNT 1 JUSTID FORCE",
        "XGROUP CREATE s h 1-0 ENTRIESREAD 1",
        f"XCLAIM s h Alice 0 1-0 TIME {now_ms} RETRYCOUNT 1 JUSTID FORCE",
    ]


def test_what_nobody_owns_is_released_again_in_the_same_order(store: Store, tmp_path: Path) -> None:
    store.fill(b"s", 6)
    store.deliver(b"s", 6)
    store.run("XNACK", "s", "g", "FAIL", "IDS", 3, "5-0", "1-0", "3-0")
    store.run("XNACK", "s", "g", "FAIL", "IDS", 1, "2-0", "RETRYCOUNT", 9)
    released = [line for line in lines_of(store) if "XNACK" in line]
    assert released == [
        "#XNACK s g FAIL IDS 3 5-0 1-0 3-0 RETRYCOUNT 1 FORCE",
        "#XNACK s g FAIL IDS 1 2-0 RETRYCOUNT 9 FORCE",
    ]
    assert_survives(store, tmp_path)


@pytest.mark.parametrize("deleted", [False, True])
def test_what_nobody_owns_survives_when_there_is_nobody(store: Store, tmp_path: Path, deleted: bool) -> None:
    store.fill(b"s", 3)
    store.deliver(b"s", 3)
    store.run("XNACK", "s", "g", "FAIL", "IDS", 3, "3-0", "1-0", "2-0")
    store.run("XGROUP", "DELCONSUMER", "s", "g", "Alice")
    if deleted:
        store.stream().delete_entries([sid("1-0"), sid("3-0")])
    assert_survives(store, tmp_path)


def test_pending_ids_above_the_last_one_survive(store: Store, tmp_path: Path) -> None:
    """XSETID may take the last ID of an emptied stream back below what is pending."""
    store.add(b"s", "10-0", "20-0")
    store.deliver(b"s", 2)
    trimming.trim(store.stream(), Trim(Strategy.MAXLEN, 0))
    store.run("XSETID", "s", "5-0")
    store.add(b"s", "6-0")
    state = assert_survives(store, tmp_path)
    assert b"XADD s 10-0 x y" in commands_of(state)


def test_a_last_id_below_what_was_deleted_survives(store: Store, tmp_path: Path) -> None:
    """Redis 7 lets XSETID go there, so a log of it may have."""
    stream = store.add(b"s", "10-0")
    stream.delete_entries([sid("10-0")])
    stream.set_id(sid("5-0"))
    store.add(b"s", "6-0")
    state = assert_survives(store, tmp_path)
    assert commands_of(state)[-2:] == [b"XSETID s 10-0 ENTRIESADDED 2 MAXDELETEDID 10-0", b"XSETID s 6-0"]


def test_settings_that_equal_the_servers_stay_the_streams_own(store: Store, tmp_path: Path) -> None:
    store.run("XADD", "s", "IDMP", "p", "i", "*", "f", "v")
    state = assert_survives(store, tmp_path)
    assert b"#XCFGSET s IDMP-DURATION 100 IDMP-MAXSIZE 100" in commands_of(state)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_without_extensions_everything_is_known_to_redis(store: Store, case: Case) -> None:
    case(store)
    state = rewrite(store, extensions=False)
    plain = [line for line in commands_of(rewrite(store)) if not line.startswith(b"#")]
    assert commands_of(state) == plain
    assert all(piece.command_bytes == len(piece.data) for piece in state)


def test_databases_come_in_their_order_and_keys_in_that_of_creation(store: Store) -> None:
    store.add(b"z", "1-0")
    store.add(b"a", "1-0", db=3)
    store.add(b"a", "1-0")
    store.add(b"k" * 500, "1-0")
    store.run("RENAME", "z", "b")
    keys = [line.split()[:2] for line in lines_of(store) if line.startswith(("XADD", "SELECT"))]
    assert keys == [["SELECT", "0"], ["XADD", "b"], ["XADD", "a"], ["XADD", "k" * 500], ["SELECT", "3"], ["XADD", "a"]]


def test_pieces_are_about_a_megabyte(store: Store, tmp_path: Path) -> None:
    for number in range(1, 200):
        store.stream().append_entry(sid(f"{number}-0"), [b"f", b"v" * (40_000 if number % 50 else 3 << 20)])
    state = assert_survives(store, tmp_path)
    assert len(state) >= 8
    for piece in state[:-1]:
        assert PIECE_BYTES <= len(piece.data) < PIECE_BYTES + (4 << 20)
    assert sum(piece.entries for piece in state) == 199


def test_rows_that_wait_for_the_purge_are_left_out(store: Store, tmp_path: Path) -> None:
    trimming.trim(store.fill(b"s", 300), Trim(Strategy.MAXLEN, 3))
    store.fill(b"t", 300)
    store.deliver(b"t", 300, consumer="gone")
    store.run("XGROUP", "DELCONSUMER", "t", "g", "gone")
    store.deliver(b"t", 1, group="h")
    store.run("XGROUP", "DESTROY", "t", "h")
    store.fill(b"u", 3)
    store.run("DEL", "u")
    assert store.txn.dead_rows.notes
    state = assert_survives(store, tmp_path)
    assert not [line for line in commands_of(state) if line.startswith(b"XCLAIM") or b" u " in line]


@pytest.mark.parametrize(
    "change", [{"length": 4}, {"length": 6}, {"first_id": sid("2-0")}, {"last_live_id": sid("9-9")}]
)
def test_tables_that_contradict_themselves_are_not_rewritten(store: Store, change: dict[str, Any]) -> None:
    store.fill(b"s", 5)
    store.fill(b"t", 5)
    store.checkpoint()
    key = key_key(0, b"s")
    tables = store.engine.tables
    original = store.txn.lmdb.get(key, db=tables.handles["keys"])
    assert original is not None
    row = StreamRow.unpack(key, original)._replace(**change).pack(key)
    store.txn.lmdb.put(key, row, db=tables.handles["keys"])
    with pytest.raises(CorruptionError, match="riverbed check"):
        list(pieces(tables, store.txn.lmdb))
    store.txn.lmdb.put(key, original, db=tables.handles["keys"])


@pytest.mark.parametrize(
    "row", [b"", b"$3\r\n2-0\r\n*2\r\n$1\r\nf\r\n$1\r\nvxx", b"$3\r\n2-0\r\n*4\r\n$1\r\nf\r\n$1\r\nv\r\n"]
)
def test_a_row_that_is_damaged_does_not_enter_the_base(store: Store, row: bytes) -> None:
    store.fill(b"s", 5)
    store.checkpoint()
    tables = store.engine.tables
    key = entry_key(store.stream().stream_no, sid("2-0"))
    assert store.txn.lmdb.replace(key, row, db=tables.handles["entries"]) is not None
    with pytest.raises(CorruptionError, match="row of an entry"):
        list(pieces(tables, store.txn.lmdb))
