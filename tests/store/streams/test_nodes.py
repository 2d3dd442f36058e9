"""A flipped bit in the key of a node is an error, whichever node it is, and makes no command remove other entries."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.streams import NodeRow
from riverbed.store.ids import pack_id
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.model import Strategy, Trim
from riverbed.store.streams import trimming
from riverbed.store.streams.stream import Stream
from riverbed.store.tables.environment import TABLES, Tables
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import nodes_of, stream_row
from tests.support.store.stores import Store, sid

MAP_BYTES = 1 << 30
NODES = 12
ENTRIES = 50


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three streams of 50 entries in nodes of four: 12 are closed."""
    directory = tmp_path_factory.mktemp("nodes") / "store"
    store = Store(directory, node_max_entries=4)
    for key in (b"r", b"s", b"t"):
        store.fill(key, ENTRIES)
    store.checkpoint()
    store.engine.close()
    return directory


def keys_of(directory: Path) -> list[tuple[bytes, bytes]]:
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3, readonly=True)
    with env.begin() as txn:
        found = list(txn.cursor(env.open_db(b"nodes", txn=txn, create=False)))
    env.close()
    return found


def flip(directory: Path, number: int, at: int, bit: int) -> None:
    """Flip a bit in the key of one of the nodes of `s`, where it stands in its page."""
    key, row = keys_of(directory)[NODES + number]
    changed = bytearray(key)
    changed[at] ^= bit
    path = directory / STATE_DIRECTORY / DATA_NAME
    data = path.read_bytes()
    assert data.count(key + row) >= 1
    path.write_bytes(data.replace(key + row, bytes(changed) + row))


def trim_to(length: int) -> Callable[[Stream], object]:
    return lambda stream: trimming.trim(stream, Trim(Strategy.MAXLEN, length))


def trim_nearly(length: int) -> Callable[[Stream], object]:
    return lambda stream: trimming.trim(stream, Trim(Strategy.MAXLEN, length, approximate=True))


def delete(*entry_ids: str) -> Callable[[Stream], object]:
    return lambda stream: stream.delete_entries([sid(entry_id) for entry_id in entry_ids])


# With the numbers of the nodes that the change reads, or passes by.
CHANGES = {
    "a trim of the first node": (trim_to(46), [0]),
    "a trim of half": (trim_to(25), [0, 1, 3, 6]),
    "a trim into the tail": (trim_to(1), [0, 11]),
    "an approximate trim": (trim_nearly(25), [0, 5]),
    "a deletion in the first node": (delete("1-0"), [0]),
    "a deletion in the middle": (delete("22-0"), [5]),
    "a deletion of the whole tail": (delete("49-0", "50-0"), [11]),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("bit", [1, 2, 4])
@pytest.mark.parametrize("at", [0, 7, 8, 15, 23])
def test_a_change_that_meets_a_damaged_key_is_refused(
    filled: Path, tmp_path: Path, what: str, at: int, bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverbed.store.tables.environment._WALKED_AT_START_BYTES", 0)  # as if it were large
    change, numbers = CHANGES[what]
    for number in numbers:
        directory = tmp_path / str(number)
        shutil.copytree(filled, directory)
        flip(directory, number, at, bit)
        store = Store(directory, node_max_entries=4)
        with pytest.raises(DamagedRowError):
            change(store.stream())
        store.kill()


@pytest.mark.parametrize("what", CHANGES)
def test_sound_nodes_are_no_damage(filled: Path, tmp_path: Path, what: str) -> None:
    shutil.copytree(filled, tmp_path / "copy")
    store = Store(tmp_path / "copy", node_max_entries=4)
    change, _ = CHANGES[what]
    change(store.stream())
    assert store.stream().length == sum(1 for _ in store.stream().rows(sid("0-0"), sid("99-0"))) < ENTRIES
    store.kill()


@pytest.mark.parametrize("number", [0, 5, 11])
@pytest.mark.parametrize("at", [0, 7, 8, 23])
def test_a_list_of_nodes_lacks_none(filled: Path, tmp_path: Path, at: int, number: int) -> None:
    shutil.copytree(filled, tmp_path / "copy")
    flip(tmp_path / "copy", number, at, 2)
    tables = Tables(tmp_path / "copy", MAP_BYTES, readonly=True)
    with tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        row = stream_row(reader, 0, b"s")
        assert row is not None
        with pytest.raises(DamagedRowError):
            list(nodes_of(reader, row))
    tables.close()


def test_the_nodes_of_a_copy_belong_to_it(filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path / "copy")
    store = Store(tmp_path / "copy", node_max_entries=4)
    store.run("COPY", "s", "copy")
    assert trimming.trim(store.stream(b"copy"), Trim(Strategy.MAXLEN, 10)) == ENTRIES - 10
    store.kill()


class CountedPuts:
    """A cursor that counts what is put by it."""

    def __init__(self, cursor: lmdb.Cursor[bytes]) -> None:
        self._cursor = cursor
        self.count = 0

    def put(self, key: bytes, row: bytes) -> bool:
        self.count += 1
        return self._cursor.put(key, row)

    def __getattr__(self, name: str) -> object:
        return getattr(self._cursor, name)


@pytest.mark.parametrize("step", [1, -1])
def test_a_node_is_written_once_for_neighbours_that_are_deleted(
    store: Store, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.engine.txn.configure_nodes(100, 0)
    stream = store.fill(b"s", 1000)
    puts = CountedPuts(store.txn.nodes)
    entry_ids = [sid(f"{number}-0") for number in range(50, 250)][::step]
    with monkeypatch.context() as patch:
        patch.setattr(store.txn, "nodes", puts)
        assert stream.delete_entries(entry_ids) == [True] * 200
    assert puts.count == 2  # the one between is empty, and is gone
    assert (stream.length, stream.node_count) == (800, 8)


def test_a_node_that_counts_fewer_entries_than_are_there_is_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stream = store.fill(b"s", 1000)
    key = stream.prefix + pack_id(sid("101-0"))
    row = store.txn.lmdb.get(key, db=store.txn.handles["nodes"])
    assert row is not None
    store.txn.nodes.put(key, NodeRow.unpack(key, row)._replace(live=2).pack(key))
    with pytest.raises(DamagedRowError) as caught:
        stream.delete_entries([sid(f"{number}-0") for number in range(110, 113)])
    assert (caught.value.what, caught.value.stream_no) == ("a node", stream.stream_no)
    store.kill()


@pytest.mark.parametrize("what", CHANGES)
def test_damage_in_a_node_is_named_by_its_stream(filled: Path, tmp_path: Path, what: str) -> None:
    change, numbers = CHANGES[what]
    shutil.copytree(filled, tmp_path / "copy")
    store = Store(tmp_path / "copy", node_max_entries=4)
    stream = store.stream()
    keys = [key for key, _ in keys_of(filled)[NODES : 2 * NODES]]
    for number in numbers:
        row = store.txn.lmdb.get(keys[number], db=store.txn.handles["nodes"])
        assert row is not None
        store.txn.nodes.put(keys[number], bytes([row[0] ^ 1]) + row[1:])
    with pytest.raises(DamagedRowError) as caught:
        change(stream)
    assert (caught.value.what, caught.value.stream_no) == ("a node", stream.stream_no)
    store.kill()
