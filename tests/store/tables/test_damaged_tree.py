"""A flipped bit in a key inside of a table's tree sends searches to the wrong page: they end well, or in an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lmdb
import pytest

from riverbed.store.errors import DamagedRowError
from riverbed.store.groups.group import Group
from riverbed.store.ids import MAX_ID, MIN_ID, pack_id
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.environment import TABLES
from tests.store.test_damaged_keys import MAP_BYTES, opened
from tests.support.store.stores import Store, sid

BRANCH = 1  # the flag of a page of LMDB that holds other pages' first keys
LEAF = 2
PAGE_BYTES = 4096


def keys_in_branches(directory: Path, table: str) -> list[int]:
    """Where in the data file the keys of a table stand in pages that lead to other pages."""
    env = lmdb.open(str(directory / STATE_DIRECTORY), map_size=MAP_BYTES, max_dbs=len(TABLES) + 3)
    with env.begin() as txn:
        keys = list(txn.cursor(env.open_db(table.encode(), txn=txn, create=False)).iternext(values=False))
    env.close()
    data = (directory / STATE_DIRECTORY / DATA_NAME).read_bytes()
    found = []
    for page in range(0, len(data), PAGE_BYTES):
        flags = int.from_bytes(data[page + 10 : page + 12], "little")
        if flags == BRANCH:
            text = data[page : page + PAGE_BYTES]
            found += [page + text.find(key) + len(key) for key in keys if key in text]
    return found


# The lengths of keys; what stands before one in a page is another page's number.
KEY_BYTES = {"keys": 12, "entries": 24, "pel": 24, "pel_by_consumer": 28, "pel_by_time": 32}


@pytest.mark.parametrize(
    ("table", "back"),
    [(table, back) for table, size in KEY_BYTES.items() for back in (1, 2, 3, 8, 16, 17, 24) if back < size],
)
def test_a_flipped_bit_in_the_tree_leads_to_the_right_row_or_an_error(
    tmp_path: Path, table: str, back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "store"
    store = Store(place)
    for number in range(300):
        store.run("XADD", f"key-{number:03}", "1-1", "f", "v" * 40)
    store.fill(b"s", 400)
    store.run("XGROUP", "CREATE", "s", "g", "0")
    for number in range(400):
        store.run("XREADGROUP", "GROUP", "g", f"c{number % 3}", "COUNT", "1", "STREAMS", "s", ">")
        store.clock.now_ms += 1
    store.checkpoint()
    store.engine.close()
    path = place / STATE_DIRECTORY / DATA_NAME
    sound = path.read_bytes()
    ends = keys_in_branches(place, table)
    assert len(ends) > 3, "a table of several pages"
    for end in ends[:: max(len(ends) // 4, 1)]:
        for bit in (1, 16):
            data = bytearray(sound)
            data[end - back] ^= bit
            path.write_bytes(data)
            store = opened(place, monkeypatch)
            assert wrong_answers(store) == []
            store.kill()


def entries_of(group: Group, consumer_no: int) -> int:
    return sum(len(run) for run in group.pel.owned(consumer_no, MIN_ID, MAX_ID))


def wrong_answers(store: Store) -> list[object]:
    """The lookups that found something else than what is there, errors left out."""
    group = None
    with contextlib.suppress(DamagedRowError, lmdb.Error):
        group = store.groups().get(b"g")
    questions: list[tuple[object, Callable[[], object], object]] = []
    for number in range(0, 300, 7):
        key = b"key-%03d" % number
        questions.append((key, lambda key=key: store.db.stream(key, 0) is not None, True))
    for number in range(1, 401, 7):
        entry_id = sid(f"{number}-0")
        questions.append((number, lambda entry_id=entry_id: store.stream().has(entry_id), True))
        questions.append((number, lambda entry_id=entry_id: len(store.stream().rows(entry_id, entry_id)), 1))
        if group is not None:
            packed = pack_id(entry_id)
            questions.append((number, lambda packed=packed: group.pel.standing(packed) is not None, True))
    for first in (1, 100, 250):
        start = sid(f"{first}-0")
        questions.append((first, lambda start=start: len(store.stream().rows(start, MAX_ID)), 401 - first))
        questions.append(
            (
                first,
                lambda start=start: len(store.stream().entries_within(start, MAX_ID, None, None) or ()),
                401 - first,
            )
        )
    if group is not None:
        questions.append(("by age", lambda: sum(len(run) for _, run in group.pel.by_time(b"")), 400))
        questions += [
            (consumer.name, partial(entries_of, group, consumer.consumer_no), consumer.pel_count)
            for consumer in group.consumers.in_order()
        ]
    wrong = []
    for name, ask, right in questions:
        try:
            answer = ask()
        except (DamagedRowError, lmdb.Error):
            continue
        if answer != right:
            wrong.append((name, answer))
    return wrong


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_entry_is_not_missing_because_its_page_stands_in_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    place = tmp_path / "store"
    store = Store(place)
    store.fill(b"r", 5)
    prefix = store.fill(b"s", 500).prefix
    store.fill(b"t", 100)
    store.checkpoint()
    store.engine.close()
    path = place / STATE_DIRECTORY / DATA_NAME
    sound = path.read_bytes()
    leaves = [at for at in range(0, len(sound), PAGE_BYTES) if sound[at + 10 : at + 12] == bytes((LEAF, 0))]
    leaves = [at for at in leaves if sound.count(prefix, at, at + PAGE_BYTES) > 20]
    assert len(leaves) > 5
    errors = 0
    for number in range(len(leaves) - 1):
        first, second = leaves[number], leaves[-1 - number if number % 2 else number + 1]
        data = bytearray(sound)
        for at, other in ((first, second), (second, first))[: 1 if is_lost else 2]:
            data[at + 8 : at + PAGE_BYTES] = sound[other + 8 : other + PAGE_BYTES]  # without the number of the page
        path.write_bytes(data)
        store = opened(place, monkeypatch)
        for entry in range(1, 501, 7):
            try:
                assert store.run("XDEL", "s", f"{entry}-0") == 1, (number, entry)
            except DamagedRowError:
                errors += 1
        store.txn.log.clear()
        store.kill()
    assert errors > 50
