from __future__ import annotations

from collections.abc import Iterator

import pytest

from riverbed.store.errors import CorruptionError
from riverbed.store.format.streams import StreamRow, entry_key
from riverbed.store.ids import MAX_ID, StreamID, id_text, pack_id
from riverbed.store.model import Strategy, Trim
from riverbed.store.streams import trimming
from riverbed.store.tables.entries import StreamEntries
from riverbed.store.tables.reader import TableReader
from tests.support.store.stores import Store, sid

EMPTY = b"empty"
LIVE = ["1994-0", "1995-0", "1996-0", "1998-0", "1999-0", "2000-0"]


@pytest.fixture
def filled(store: Store) -> Store:
    """Three streams.  The second has dead rows below its floor, and 1997-0 is deleted.  A fourth one is empty."""
    for key in (b"a", b"b", b"c"):
        store.fill(key, 2000)
    trimming.trim(store.stream(b"b"), Trim(Strategy.MAXLEN, len(LIVE) + 1))
    store.stream(b"b").delete_entries([sid("1997-0")])
    store.fill(EMPTY, 1).delete_entries([sid("1-0")])
    store.checkpoint()
    return store


@pytest.fixture
def reader(filled: Store) -> Iterator[TableReader]:
    with filled.engine.tables.env.begin() as txn:
        yield TableReader(filled.engine.tables, txn)


def row_of(store: Store, key: bytes = b"b") -> StreamRow:
    return store.stream(key).row()


def texts(ids: Iterator[StreamID]) -> list[str]:
    return [id_text(entry_id).decode() for entry_id in ids]


def test_dead_rows_and_other_streams_are_not_seen(filled: Store, reader: TableReader) -> None:
    entries = StreamEntries(reader, row_of(filled))
    assert texts(entries.ids()) == LIVE
    assert [row for _, row in entries.rows()] == list(entries.values())
    entries.require_counted()
    assert [row.split(b"\r\n")[1].decode() for row in entries.values()] == LIVE
    assert texts(entries.ids(sid("1995-1"), sid("1998-5"))) == ["1996-0", "1998-0"]
    assert texts(entries.ids(sid("2000-1"))) == texts(entries.ids(last=sid("1993-0"))) == []
    assert [entries.has(pack_id(sid(text))) for text in ("1993-0", "1994-0", "1997-0", "2000-0", "2001-0")] == [
        *(False, True, False, True, False)
    ]
    assert entries.get(sid("1993-0")) is None
    assert entries.get(sid("1998-0")) == filled.stream(b"b").entry(sid("1998-0"))


@pytest.mark.parametrize("key", [b"a", b"b", EMPTY])
def test_the_entries_behind_an_id_are_counted(filled: Store, reader: TableReader, key: bytes) -> None:
    entries = StreamEntries(reader, row_of(filled, key))
    numbers = [entry_id >> 64 for entry_id in entries.ids()]
    for ms in (0, 1, 99, 100, 101, 150, 1500, 1994, 1997, 1999, 2000, 2001):
        assert entries.count_after(sid(f"{ms}-0")) == sum(number > ms for number in numbers), ms
    assert entries.count_after(MAX_ID) == 0


def test_the_youngest_entry_up_to_an_id_is_found(filled: Store, reader: TableReader) -> None:
    entries = StreamEntries(reader, row_of(filled))
    found = {text: entries.last_id(sid(text)) for text in ("1993-9", "1994-0", "1997-0", "1999-7")}
    assert found == {"1993-9": None, "1994-0": sid("1994-0"), "1997-0": sid("1996-0"), "1999-7": sid("1999-0")}
    assert entries.last_id(MAX_ID) == sid("2000-0")
    assert StreamEntries(reader, row_of(filled, b"a")).last_id(sid("0-5")) is None


def test_a_run_is_all_neighbours_and_nothing_between_them(filled: Store, reader: TableReader) -> None:
    entries = StreamEntries(reader, row_of(filled))

    def is_run(*ids: str) -> bool:
        return entries.has_run(b"".join(pack_id(sid(text)) for text in ids))

    assert is_run(*LIVE)
    assert is_run("1999-0")
    assert not is_run("1994-0", "1996-0")
    assert not is_run("1996-0", "1997-0", "1998-0")
    assert not is_run("1993-0", "1994-0")
    assert not is_run("2000-0", "2001-0")


def test_a_stream_without_entries_has_none(filled: Store, reader: TableReader) -> None:
    entries = StreamEntries(reader, row_of(filled, EMPTY))
    assert [*entries.ids(), *entries.rows(), *entries.values()] == []
    entries.require_counted()
    assert not entries.has(pack_id(sid("1-0")))
    assert entries.get(sid("0-0")) is None
    assert entries.last_id(MAX_ID) is None


@pytest.mark.parametrize("lost", ["1994-0", "1996-0", "2000-0"])
def test_entries_that_a_stream_counts_and_lacks_are_an_error(filled: Store, lost: str) -> None:
    row, txn = row_of(filled), filled.txn
    key, table = entry_key(row.stream_no, sid(lost)), txn.handles["entries"]
    value = txn.lmdb.pop(key, db=table)
    assert value is not None
    entries = StreamEntries(TableReader(filled.engine.tables, txn.lmdb), row)

    def read_all() -> None:
        assert value not in list(entries.values())
        entries.require_counted()

    with pytest.raises(CorruptionError, match=f"stream {row.stream_no}: it has not 6 entries up to 2000-0"):
        read_all()
    txn.lmdb.put(key, value, db=table)


def test_an_entry_in_the_place_of_the_first_is_an_error(filled: Store) -> None:
    row, txn = row_of(filled), filled.txn
    key, other = entry_key(row.stream_no, sid("1994-0")), entry_key(row.stream_no, sid("1994-1"))
    table = txn.handles["entries"]
    value = txn.lmdb.pop(key, db=table)
    assert value is not None
    txn.lmdb.put(other, value, db=table)
    entries = StreamEntries(TableReader(filled.engine.tables, txn.lmdb), row)
    assert len(list(entries.values())) == len(LIVE)
    with pytest.raises(CorruptionError, match="its first entry is not there"):
        entries.require_counted()
    txn.lmdb.delete(other, db=table)
    txn.lmdb.put(key, value, db=table)
