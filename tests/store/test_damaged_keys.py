"""A flipped bit in the key of a row, which no checksum covers, is noticed by what the rows say of each other."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import lmdb
import pytest

from riverbed.store.databases.first_entries import first_entries
from riverbed.store.databases.names import all_keys, scan_keys
from riverbed.store.errors import CorruptionError, DamagedRowError
from riverbed.store.format.groups import CONSUMER_KEY_BYTES, consumer_name_key, decode_group_no, group_name_key
from riverbed.store.format.idempotence import PRODUCER_KEY_BYTES, RECORD_KEY_BYTES
from riverbed.store.format.pending import group_prefix
from riverbed.store.format.streams import decode_stream_prefix
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, id_text, pack_id, unpack_id
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, STATE_DIRECTORY
from riverbed.store.rewrite.log_from_tables import rebuild_log
from riverbed.store.rewrite.state import pieces
from riverbed.store.tables.damage.scrub import SCRUBBED_TABLES, require_sound
from riverbed.store.tables.environment import TABLES, Tables
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.writing.transaction import UNBOUNDED_ROW
from tests.support.store.stores import Store, sid

MAP_BYTES = 1 << 30


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = Store(tmp_path / "store")
    for number in range(1, 21):
        store.run("XADD", "s", f"{number}-1", "f", "v")
    store.run("XGROUP", "CREATE", "s", "g", "0")
    for iid in ("a", "b"):
        store.run("XADD", "s", "IDMP", "producer", iid, "*", "f", "v")
    for consumer in ("Alice", "Bob"):
        store.run("XREADGROUP", "GROUP", "g", consumer, "COUNT", "5", "STREAMS", "s", ">")
    store.checkpoint()
    store.engine.close()
    return tmp_path / "store"


def flip_key(directory: Path, table: str, *, key_bytes: int | None = None, at: int = -1) -> None:
    """Flip a bit of the first key, of those that have `key_bytes`, at the byte `at`."""
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin(write=True) as txn:
        db = env.open_db(table.encode(), txn=txn, create=False)
        key, row = next(item for item in txn.cursor(db) if key_bytes in (None, len(item[0])))
        changed = bytearray(key)
        changed[at] ^= 4
        txn.delete(key, db=db)
        txn.put(bytes(changed), row, db=db)
    env.close()


def flip_in_place(directory: Path, prefix: bytes, flip: int, *, last: bool) -> None:
    """Flip a bit of the prefix of the first or last run that has it, where it stands in its page."""
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin() as txn:
        keys = [key for key, _ in txn.cursor(env.open_db(b"pel", txn=txn, create=False)) if key.startswith(prefix)]
    env.close()
    path = directory / STATE_DIRECTORY / DATA_NAME
    data = bytearray(path.read_bytes())
    key = keys[-1 if last else 0]
    assert len(keys) > 1
    at = data.find(key)
    while at >= 0:  # pages that are not used any more have it too
        data[at + len(prefix) - 1] ^= flip
        at = data.find(key, at)
    path.write_bytes(data)


def rewritten(directory: Path) -> int:
    """What a rewrite of the log makes of the tables; -> its size."""
    tables = Tables(directory, MAP_BYTES, readonly=True)
    try:
        with tables.env.begin() as txn:
            return sum(len(piece.data) for piece in pieces(tables, txn))
    finally:
        tables.close()


@pytest.mark.parametrize(
    ("table", "key_bytes", "at"),
    [
        ("groups", CONSUMER_KEY_BYTES, -1),
        ("groups", CONSUMER_KEY_BYTES, 9),
        ("groups", 16, 0),
        ("idmp", 8, 3),
        ("idmp", PRODUCER_KEY_BYTES, 3),
        ("idmp", RECORD_KEY_BYTES, 3),
        ("pel", None, -1),
        ("pel", None, 3),
        ("entries", None, 2),
        ("entries", None, -1),
        ("keys", None, -1),
        ("names", None, 1),
    ],
)
def test_a_rewrite_makes_no_log_of_tables_with_a_damaged_key(
    directory: Path, table: str, key_bytes: int | None, at: int
) -> None:
    assert rewritten(directory) > 500
    flip_key(directory, table, key_bytes=key_bytes, at=at)
    with pytest.raises(CorruptionError):
        rewritten(directory)
    shutil.rmtree(directory / LOG_DIRECTORY)
    with pytest.raises(CorruptionError):
        rebuild_log(directory, now_ms=1_700_000_000_000, map_bytes=MAP_BYTES)


def test_pending_entries_under_a_damaged_key_are_an_error(directory: Path) -> None:
    flip_key(directory, "pel")
    store = Store(directory)
    group = store.groups().get(b"g")
    assert group is not None
    with pytest.raises(DamagedRowError):
        list(group.pending())
    store.kill()


def test_pending_entries_of_another_group_are_an_error(directory: Path) -> None:
    store = Store(directory)
    for group in ("a", "b", "c", "d"):
        store.run("XGROUP", "CREATE", "s", group, "0")
    store.run("XREADGROUP", "GROUP", "d", "Alice", "COUNT", "1", "STREAMS", "s", ">")
    store.checkpoint()
    store.engine.close()
    flip_key(directory, "pel", at=7)  # of group 1, now of group 5
    store = Store(directory)
    group = store.groups().get(b"d")
    assert group is not None
    with pytest.raises(DamagedRowError):
        list(group.pending())
    store.kill()


@pytest.mark.parametrize(("group", "at_end"), [(b"b", False), (b"b", True)])
def test_the_range_of_a_group_is_an_error_when_its_first_or_last_run_has_another_group(
    directory: Path, group: bytes, at_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(directory)
    for name in ("a", "b", "c"):
        store.run("XGROUP", "CREATE", "s", name, "0")
        for consumer in ("Alice", "Bob", "Carol"):
            store.run("XREADGROUP", "GROUP", name, consumer, "COUNT", "2", "STREAMS", "s", ">")
    store.checkpoint()
    view = store.groups().get(group)
    assert view is not None and view.edges() == (sid("1-1"), sid("6-1"))
    store.engine.close()
    flip_in_place(directory, group_prefix(3), 4, last=at_end)
    monkeypatch.setattr("riverbed.store.tables.environment._WALKED_AT_START_BYTES", 0)  # as if it were large
    store.open()
    view = store.groups().get(group)
    assert view is not None
    with pytest.raises(DamagedRowError):
        view.edges()
    store.kill()


@pytest.mark.parametrize("name", [b"t", b"other"])
def test_a_damaged_name_is_an_error_and_no_missing_key(directory: Path, name: bytes) -> None:
    store = Store(directory)
    store.run("XADD", "other", "1-1", "f", "v")
    store.checkpoint()
    assert list(all_keys(store.txn.databases[0], 0)) == [b"s", b"other"]
    store.engine.close()
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin(write=True) as txn:
        names = env.open_db(b"names", txn=txn, create=False)
        key, row = next(iter(txn.cursor(names)))
        assert row == b"s"
        txn.put(key, name, db=names)
    env.close()
    store.open()
    with pytest.raises(DamagedRowError, match="the name of stream 1"):
        list(all_keys(store.txn.databases[0], 0))
    store.kill()


def test_names_of_streams_that_expire_during_a_scan_are_left_out(directory: Path) -> None:
    store = Store(directory)
    for name in ("gone", "stays", "long" * 200):
        store.run("XADD", name, "1-1", "f", "v")
    store.run("PEXPIREAT", "gone", "4102444800000")
    store.run("PEXPIREAT", "long" * 200, "4102444800000")
    assert list(all_keys(store.txn.databases[0], 0)) == [b"s", b"gone", b"stays", b"long" * 200]
    store.checkpoint()
    assert list(all_keys(store.txn.databases[0], 4102444800001)) == [b"s", b"stays"]
    store.kill()


def flip_key_in_place(directory: Path, table: str, number: int, at: int, bit: int = 4) -> None:
    """Flip a bit in the byte `at` of a key, given by its number in its table, where it stands in its page."""
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin() as txn:
        key, row = list(txn.cursor(env.open_db(table.encode(), txn=txn, create=False)))[number]
    env.close()
    path = directory / STATE_DIRECTORY / DATA_NAME
    data = path.read_bytes()
    changed = bytearray(key)
    changed[at] ^= bit
    assert key + row in data
    path.write_bytes(data.replace(key + row, bytes(changed) + row))


def opened(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store, started as if its tables were large."""
    monkeypatch.setattr("riverbed.store.tables.environment._WALKED_AT_START_BYTES", 0)
    return Store(directory)


@pytest.mark.parametrize("bit", [1, 4])
@pytest.mark.parametrize("at", [0, 4, -1])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_stream_under_a_damaged_key_is_an_error_and_no_missing_key(
    directory: Path, number: int, at: int, bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(directory)
    names = [b"aaa", b"sss", b"zzz"]
    store.run("XADD", "aaa", "1-1", "f", "v")
    store.run("RENAME", "s", "sss")
    store.run("XADD", "zzz", "1-1", "f", "v")
    store.checkpoint()
    store.engine.close()
    flip_key_in_place(directory, "keys", number, at, bit)
    store = opened(directory, monkeypatch)
    with pytest.raises(DamagedRowError):
        store.txn.databases[0].stream(names[number], 0)
    store.kill()


@pytest.mark.parametrize("bit", [1, 2, 4])
@pytest.mark.parametrize("at", [-1, 11, 7])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_consumer_with_a_damaged_key_in_its_list_is_an_error(
    directory: Path, number: int, at: int, bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(directory)
    for consumer in ("Alice", "Bob"):
        store.run("XREADGROUP", "GROUP", "g", consumer, "COUNT", "5", "STREAMS", "s", ">")
    store.checkpoint()
    store.engine.close()
    flip_key_in_place(directory, "pel_by_consumer", number, at, bit)
    store = opened(directory, monkeypatch)
    group = store.groups().get(b"g")
    assert group is not None

    def read_lists() -> None:
        for consumer in group.consumers.in_order():
            list(group.pel.owned(consumer.consumer_no, StreamID(0), sid("99-0")))

    with pytest.raises(DamagedRowError):
        read_lists()
    store.kill()


@pytest.mark.parametrize("at", [7, 15, 16, 23])
@pytest.mark.parametrize("number", [1, 7, 19])
def test_an_entry_under_a_damaged_key_is_an_error_and_no_missing_entry(
    directory: Path, number: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_key_in_place(directory, "entries", number, at)
    store = opened(directory, monkeypatch)
    stream = store.txn.databases[0].stream(b"s", 0)
    assert stream is not None
    entry_id = sid(f"{number + 1}-1")
    for read in (
        lambda: stream.first_entry(entry_id, entry_id),
        lambda: stream.entries_within(entry_id, entry_id, None, None),
        lambda: stream.entry(entry_id),
        lambda: stream.has(entry_id),
    ):
        with pytest.raises(DamagedRowError):
            read()
    store.kill()


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_an_idempotent_entry_is_not_added_again_because_a_bit_of_its_record_has_flipped(
    directory: Path, at: int
) -> None:
    path = directory / STATE_DIRECTORY / DATA_NAME
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin() as txn:
        keys = [key for key, _ in txn.cursor(env.open_db(b"idmp_ids", txn=txn, create=False))]
    env.close()
    data = path.read_bytes()
    for key in keys:
        flipped = bytearray(key)
        flipped[at] ^= 4
        path.write_bytes(data)
        store = Store(directory)  # a start walks the pages of so small a file
        before = store.stream().length
        with path.open("r+b") as file:
            file.write(path.read_bytes().replace(key, flipped))
        answers = []
        for iid in ("a", "b"):
            try:
                answers.append(store.run("XADD", "s", "IDMP", "producer", iid, "*", "f", "v"))
            except DamagedRowError as error:
                answers.append(str(error))
        assert any("damaged" in str(answer) for answer in answers)
        assert store.stream().length == before
        with pytest.raises(CorruptionError):
            require_sound(TableReader(store.engine.tables, store.txn.lmdb), SCRUBBED_TABLES, lambda rows: None)
        store.kill()


@pytest.mark.parametrize("at", [16, 17, 18, 19, -1])
def test_a_consumer_whose_row_is_damaged_is_not_taken_for_one_that_is_not_there(directory: Path, at: int) -> None:
    if at == -1:
        path = directory / STATE_DIRECTORY / DATA_NAME
        path.write_bytes(path.read_bytes().replace(b"Alice", b"Blice"))
    else:
        flip_key(directory, "groups", key_bytes=CONSUMER_KEY_BYTES, at=at)
    store = Store(directory)
    for words in (
        ("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "0"),
        ("XACK", "s", "g", "1-1"),
        ("XPENDING", "s", "g"),
        ("XGROUP", "CREATECONSUMER", "s", "g", "Alice"),
        ("XGROUP", "DELCONSUMER", "s", "g", "Alice"),
    ) * 2:
        with pytest.raises(DamagedRowError):
            store.run(*words)
    store.kill()


@pytest.mark.parametrize("at", [7, 15, 19, 20, 27, 31])
@pytest.mark.parametrize("whose", ["Alice", "Bob", "g"])
def test_a_name_under_a_damaged_key_is_not_taken_for_one_that_is_not_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch, whose: str, at: int
) -> None:
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin() as txn:
        keys = list(txn.cursor(env.open_db(b"groups", txn=txn, create=False)).iternext(values=False))
    env.close()
    stream_no, group_no = decode_stream_prefix(keys[0]), decode_group_no(keys[0])
    names = {
        "Alice": consumer_name_key(stream_no, group_no, b"Alice", 1),
        "Bob": consumer_name_key(stream_no, group_no, b"Bob", 2),
        "g": group_name_key(stream_no, b"g", group_no),
    }
    flip_key_in_place(directory, "groups", keys.index(names[whose]), at)
    store = opened(directory, monkeypatch)
    asked = ("XGROUP", "CREATE", "s", "g", "0") if whose == "g" else ("XGROUP", "CREATECONSUMER", "s", "g", whose)
    for _ in range(2):
        with pytest.raises(DamagedRowError):
            store.run(*asked)
    with pytest.raises(CorruptionError):
        require_sound(TableReader(store.engine.tables, store.txn.lmdb), SCRUBBED_TABLES, lambda rows: None)
    store.kill()


def test_an_entry_under_a_key_of_another_length_is_damage(directory: Path) -> None:
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin(write=True) as txn:
        db = env.open_db(b"entries", txn=txn, create=False)
        key, row = list(txn.cursor(db))[-3]
        txn.delete(key, db=db)
        txn.put(key[:-1], row, db=db)
    env.close()
    store = Store(directory)
    for _ in range(2):
        with pytest.raises(DamagedRowError):
            store.run("XREADGROUP", "GROUP", "g", "Bob", "STREAMS", "s", ">")
    store.kill()


def test_a_count_of_pending_entries_without_one_is_damage(directory: Path) -> None:
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin(write=True) as txn:
        txn.drop(env.open_db(b"pel", txn=txn, create=False), delete=False)
    env.close()
    store = Store(directory)
    with pytest.raises(DamagedRowError):
        store.run("XPENDING", "s", "g")
    store.kill()


@pytest.mark.parametrize("by", ["a query", "a checkpoint", "a part of one"])
def test_acknowledgements_stay_when_a_row_beside_them_is_damaged(tmp_path: Path, by: str) -> None:
    store = Store(tmp_path / "store")
    store.fill(b"s", 30)
    store.run("XGROUP", "CREATE", "s", "g", "0")
    for consumer in ("Alice", "Bob", "Carol"):
        store.run("XREADGROUP", "GROUP", "g", consumer, "COUNT", "10", "STREAMS", "s", ">")
    store.checkpoint()
    store.run("XGROUP", "CREATECONSUMER", "s", "g", "Dave")
    for entry_id in ("5-0", "16-0", "26-0"):
        store.run("XCLAIM", "s", "g", "Dave", 0, entry_id, "JUSTID")
    for entry_id in ("3-0", "15-0", "25-0"):
        assert store.run("XACK", "s", "g", entry_id) == 1
    store.commit()
    pel = store.txn.handles["pel"]
    key, row = list(store.txn.lmdb.cursor(pel))[1]
    store.txn.lmdb.put(key, row[:-1] + bytes((row[-1] ^ 1,)), db=pel)
    meet: dict[str, Callable[[], object]] = {
        "a query": lambda: store.run("XPENDING", "s", "g"),
        "a checkpoint": store.engine.checkpoint,
        "a part of one": store.engine.write_part,
    }
    for _ in range(3):
        with pytest.raises(DamagedRowError):
            meet[by]()
    store.txn.lmdb.put(key, row, db=pel)
    pending = [int(found[0].partition(b"-")[0]) for found in pending_of(store)]
    assert pending == [number for number in range(1, 31) if number not in (3, 15, 25)]
    assert [found[0] for found in pending_of(store) if found[1] == b"Dave"] == [b"5-0", b"16-0", b"26-0"]
    before = store.dump()
    store.crash()
    assert store.dump() == before
    assert store.violations() == []
    store.kill()


def pending_of(store: Store) -> list[tuple[bytes, bytes]]:
    group = store.groups().get(b"g")
    assert group is not None
    names = {consumer.consumer_no: consumer.name for consumer in group.consumers.in_order()}
    return [
        (id_text(unpack_id(packed)), names[run.consumer_no])
        for run in group.pel.runs(MIN_ID, MAX_ID, set(names))
        for packed in run.ids()
    ]


@pytest.mark.parametrize("at", [3, 2, 11, 10])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_name_under_a_damaged_key_is_missed_by_no_list_of_keys(
    directory: Path, number: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(directory)
    for key in ("t", "u"):
        store.run("XADD", key, "1-1", "f", "v")
    store.run("XADD", "elsewhere", "1-1", "f", "v", db=1)
    store.checkpoint()
    assert [list(all_keys(db, 0)) for db in store.txn.databases[:2]] == [[b"s", b"t", b"u"], [b"elsewhere"]]
    store.engine.close()
    flip_key_in_place(directory, "names", number, at)
    store = opened(directory, monkeypatch)
    with pytest.raises(DamagedRowError):
        list(all_keys(store.txn.databases[0], 0))
    store.kill()


@pytest.mark.parametrize("number", [3, 4])
@pytest.mark.parametrize("count", [1, 2, 500])
def test_a_name_that_has_moved_to_another_database_is_missed_by_no_scan(
    directory: Path, number: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(directory)
    for key in ("t", "u"):
        store.run("XADD", key, "1-1", "f", "v")
    for key in ("v", "w"):
        store.run("XADD", key, "1-1", "f", "v", db=1)
    store.checkpoint()
    store.engine.close()
    flip_key_in_place(directory, "names", number, 3, 1)  # of keyspace 1, now of keyspace 0
    store = opened(directory, monkeypatch)
    database = store.txn.databases[1]

    def scan() -> None:
        cursor, _ = scan_keys(database, 0, count, 0)
        while cursor:
            cursor, _ = scan_keys(database, cursor, count, 0)

    with pytest.raises(DamagedRowError):
        scan()
    store.kill()


@pytest.mark.parametrize("bit", [1, 2, 4])
@pytest.mark.parametrize("at", [7, 15, -1])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_pending_entries_are_claimed_by_age_or_an_error(
    directory: Path, number: int, at: int, bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(directory)
    for consumer in ("Alice", "Bob"):
        store.clock.now_ms += 10
        store.run("XREADGROUP", "GROUP", "g", consumer, "COUNT", "5", "STREAMS", "s", ">")
    store.checkpoint()
    store.engine.close()
    flip_key_in_place(directory, "pel_by_time", number, at, bit)
    store = opened(directory, monkeypatch)
    store.clock.now_ms += 100_000

    def claim() -> None:
        reply = store.run("XREADGROUP", "GROUP", "g", "Carol", "COUNT", "100", "CLAIM", "1", "STREAMS", "s", ">")
        assert str(reply).count("-1") >= 20

    with pytest.raises(DamagedRowError):
        claim()
    store.kill()


def exchange_rows(directory: Path, table: str, first: int, second: int) -> None:
    """Exchange the values of two rows, as damage in the directory of a page does."""
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin(write=True) as txn:
        db = env.open_db(table.encode(), txn=txn, create=False)
        rows = list(txn.cursor(db))
        txn.put(rows[first][0], rows[second][1], db=db)
        txn.put(rows[second][0], rows[first][1], db=db)
    env.close()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (3, 7), (-2, -1)])
def test_a_rewrite_makes_no_log_of_entries_out_of_order(directory: Path, first: int, second: int) -> None:
    exchange_rows(directory, "entries", first, second)
    with pytest.raises(CorruptionError):
        rewritten(directory)


def test_pending_entries_out_of_order_are_an_error(directory: Path) -> None:
    store = Store(directory)
    for _ in range(3):
        store.run("XREADGROUP", "GROUP", "g", "Alice", "COUNT", "2", "STREAMS", "s", ">")
        store.run("XREADGROUP", "GROUP", "g", "Bob", "COUNT", "2", "STREAMS", "s", ">")
    store.checkpoint()
    store.engine.close()
    exchange_rows(directory, "pel", 1, 2)
    store = Store(directory)
    for words in (("XPENDING", "s", "g", "-", "+", "100"), ("XPENDING", "s", "g", "IDLE", "0", "-", "+", "100")):
        with pytest.raises(DamagedRowError):
            store.run(*words)
    store.kill()


def refuse_the_first_entry(store: Store) -> None:
    """What asks for the first entry of stream `s`, alone or with others of a pipeline, is refused."""
    stream = store.stream(b"s")
    for low, high in [(MIN_ID, MAX_ID), (stream.first_id, stream.first_id), (sid("2-0"), sid("3-5"))]:
        with pytest.raises(DamagedRowError):
            stream.first_entry(low, high)
        with pytest.raises(DamagedRowError):
            first_entries(store.db, [(b"s", pack_id(low), pack_id(high))], 0)


@pytest.mark.parametrize("node_max_entries", [2, 100])
def test_a_first_entry_that_is_missing_is_refused(tmp_path: Path, node_max_entries: int) -> None:
    store = Store(tmp_path / "store")
    store.txn.configure_nodes(node_max_entries, 4096)
    stream = store.add(b"s", "2-1", "3-1", "4-1")
    entries = store.txn.cursor("entries")
    assert entries.set_key(stream.prefix + pack_id(stream.first_id))
    entries.delete()
    refuse_the_first_entry(store)
    for count, most_bytes in [(None, None), (1, None), (2, 10_000), (40, 10_000)]:
        with pytest.raises(DamagedRowError):
            stream.entries_within(MIN_ID, MAX_ID, count, most_bytes)
    assert stream.first_entry(sid("2-2"), MAX_ID) == stream.rows(sid("3-1"), sid("3-1"))[0][1]
    assert stream.entries_within(sid("2-2"), MAX_ID, None, None) == [row for _, row in stream.rows(sid("2-2"), MAX_ID)]
    store.engine.abandon()


@pytest.mark.parametrize("moved_to", ["1-9", "2-9"])
def test_a_first_entry_that_is_not_where_the_stream_has_it_is_refused(tmp_path: Path, moved_to: str) -> None:
    store = Store(tmp_path / "store")
    stream = store.add(b"s", "2-1", "3-1")
    assert stream.entries_within(MIN_ID, MAX_ID, None, None) == [text for _, text in stream.rows(MIN_ID, MAX_ID)]
    entries = store.txn.cursor("entries")
    assert entries.first()
    key, row = entries.item()
    entries.delete()
    entries.put(key[:8] + pack_id(sid(moved_to)), row)
    for count in (None, 1, 2):
        with pytest.raises(DamagedRowError):
            stream.entries_within(MIN_ID, MAX_ID, count, None)
    refuse_the_first_entry(store)
    with pytest.raises(DamagedRowError):
        stream.entries_within(sid("3-0"), MAX_ID, None, None)  # the row before might be one of these
    assert len(stream.entries_within(sid("3-1"), MAX_ID, None, None) or []) == 1
    store.engine.abandon()


def flip_key_in_use(store: Store, table: str, number: int, at: int) -> None:
    """Flip a bit of the byte `at` in the key of a row, by its place in the table, where it stands in its page."""
    key, row = list(store.txn.lmdb.cursor(store.txn.handles[table]))[number]
    path = store.directory / STATE_DIRECTORY / DATA_NAME
    data = path.read_bytes()
    found = data.find(key + row)
    with path.open("r+b") as file:
        while found >= 0:  # pages that are not used any more have it too
            file.seek(found + at)
            file.write(bytes((data[found + at] ^ 0x10,)))
            found = data.find(key + row, found + 1)


@pytest.mark.parametrize("at", [1, 7, 12, 15])
@pytest.mark.parametrize("command", ["XACK s {} {}", "XCLAIM s {} Carol 0 {} JUSTID"])
def test_a_row_that_is_written_beside_a_damaged_key_hides_no_pending_entry(
    tmp_path: Path, at: int, command: str
) -> None:
    """To write runs again changes the way on which LMDB looks for their places, and may put them before the damage."""
    runs, groups = 12, ("g", "h", "i")
    store = Store(tmp_path / "sound")
    store.fill(b"s", 2 * runs + 4)
    for group in groups:
        store.run("XGROUP", "CREATE", "s", group, "0")
        for number in range(runs):
            store.run("XREADGROUP", "GROUP", group, ("Alice", "Bob")[number % 2], "COUNT", "2", "STREAMS", "s", ">")
    store.checkpoint()
    store.engine.close()
    met = 0
    for damaged in range(len(groups) * runs):
        directory = tmp_path / str(damaged)
        shutil.copytree(store.directory, directory)
        found = Store(directory)
        flip_key_in_use(found, "pel", damaged, at)
        for number in range(len(groups) * runs):
            if number != damaged:
                with contextlib.suppress(DamagedRowError):
                    found.run("XACK", "s", groups[number // runs], f"{2 * (number % runs) + 2}-0")
                    found.engine.write_part()
        for group in groups:
            for consumer in ("Alice", "Bob"):
                with contextlib.suppress(DamagedRowError):
                    found.run("XREADGROUP", "GROUP", group, consumer, "COUNT", "2", "STREAMS", "s", ">")
                    found.engine.write_part()
        group, first = groups[damaged // runs], 2 * (damaged % runs) + 1
        for entry_id in (f"{first}-0", f"{first + 1}-0"):
            try:
                reply = found.run(*command.format(group, entry_id).split())
            except DamagedRowError:
                met += 1
            else:
                text = entry_id.encode()
                assert reply in (1, (b"*1\r\n$%d\r\n%b\r\n" % (len(text), text),)), (damaged, entry_id, reply)
        found.txn.log.clear()
        found.engine.abandon()
        shutil.rmtree(directory)
    assert met > runs


@pytest.mark.parametrize("largest_row", [None, UNBOUNDED_ROW])
@pytest.mark.parametrize("nodes", ["tail", "closed"])
@pytest.mark.parametrize("gone", [range(1, 2), range(1, 21), range(1, 41), range(21, 41), range(40, 41)])
def test_a_range_that_lacks_an_edge_of_its_stream_is_damage(
    tmp_path: Path, nodes: str, gone: range, largest_row: int | None
) -> None:
    """As behind a page that stands in the place of another: the rows that follow are those of another stream."""
    store = Store(tmp_path, node_max_entries=100 if nodes == "tail" else 4)
    for key in (b"r", b"s", b"t"):
        store.fill(key, 40)
    store.checkpoint()
    store.txn.largest_row = largest_row or store.txn.largest_row  # as beside a large entry, rows are measured
    stream = store.stream(b"s")
    for number in gone:
        assert store.txn.lmdb.delete(stream.prefix + pack_id(sid(f"{number}-0")), db=store.txn.handles["entries"])
    reads: dict[str, Callable[[StreamID, StreamID, bool, int | None], Sequence[object] | None]] = {
        "rows": lambda start, end, reverse, count: stream.rows(start, end, count, reverse=reverse),
        "rows_within": lambda start, end, reverse, count: stream.rows_within(
            start, end, count, 1 << 20, reverse=reverse
        ),
        "entries": lambda start, end, reverse, count: stream.entries_within(
            start, end, count, 1 << 20, reverse=reverse
        ),
        "keys": lambda start, end, reverse, count: stream.keys(start, end, count),
    }
    left = 40 - len(gone)
    missing = sid(f"{gone[0]}-0"), sid(f"{gone[-1]}-0")
    for name, read in reads.items():
        for reverse in (False, True) if name != "keys" else (False,):
            begins_there = (40 if reverse else 1) not in gone
            for count in (None, 41, *((1, left) if not begins_there and left else ())):
                with pytest.raises(DamagedRowError):
                    read(MIN_ID, MAX_ID, reverse, count)
            if begins_there:  # what is asked for is there
                assert len(read(MIN_ID, MAX_ID, reverse, left) or ()) == left
            else:
                with pytest.raises(DamagedRowError):
                    read(*missing, reverse, None)
    if 40 in gone:
        first = sid(f"{gone[0]}-0")
        with pytest.raises(DamagedRowError):
            stream.first_row(first)
        with pytest.raises(DamagedRowError):
            stream.first_entry(first, MAX_ID)
    store.kill()
