from __future__ import annotations

import itertools
from pathlib import Path

from riverbed.store.disk.files import OsFiles
from riverbed.store.format.log_lines import encode_command
from riverbed.store.ids import MAX_ID, MIN_ID
from riverbed.store.options import Fsync
from tests.store.conftest import OpenStore
from tests.support.read_log import logged_batches
from tests.support.store.stores import Store, ids_of, text_of


def test_a_rollback_behind_a_new_file_still_begins_it_with_its_database(open_store: OpenStore) -> None:
    store = open_store(segment_bytes=200)
    store.checkpoint()
    store.add(b"s", "1-0", words=(b"f", b"x" * 300), db=3)
    store.commit()
    assert store.engine.log.end.file_seq == 2
    store.add(b"s", "2-0", db=3)
    store.engine.rollback(store.clock.now_ms)
    store.add(b"s", "3-0", db=3)
    assert store.txn.log[0].startswith(b"*5\r\n$4\r\nXADD\r\n")
    store.commit()
    assert logged_batches(store.directory)[1:] == [[b"SELECT 3"], [b"XADD s 3-0 f v"]]
    assert store.violations() == []
    store.rebuild()
    assert [text_of(key) for key, _ in store.stream(b"s", 3).rows(MIN_ID, MAX_ID)] == ["1-0", "3-0"]


def test_every_file_but_the_first_begins_with_a_preface_that_does_not_count(open_store: OpenStore) -> None:
    store = open_store(segment_bytes=200)
    for number in range(1, 6):
        store.add(b"s", f"{number}-0", words=(b"f", b"x" * 300), db=number)
        store.commit()
    end = store.engine.log.end
    batches = logged_batches(store.directory)
    assert batches[0][0] == b"SELECT 1"
    assert [batch for batch in batches if len(batch) == 1] == [[b"SELECT %d" % number] for number in range(1, 6)]
    commands = [words.split(b" ") for batch in batches if len(batch) > 1 for words in batch]
    assert end.offset == sum(len(encode_command(words)) for words in commands)
    expected = store.dump()
    for start_again in (store.crash, store.restart, store.rebuild):
        start_again()
        assert store.dump() == expected
        assert store.engine.log.end.offset == end.offset


def test_a_preface_is_durable_before_a_batch_comes_behind_it(open_store: OpenStore) -> None:
    store = open_store(segment_bytes=200, fsync=Fsync.ALWAYS)
    store.add(b"s", "1-0", words=(b"f", b"x" * 300), db=3)
    store.commit()
    assert store.engine.log.end.position > 0
    assert store.engine.log.unsynced_bytes == 0


class CountingFiles(OsFiles):
    """Files that know which bytes a caller waited for: those that were appended since the last sync."""

    def __init__(self) -> None:
        self.appended = 0
        self.waits: list[int] = []

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        self.appended += len(data)
        return super().write_at(fd, data, position)

    def sync(self, fd: int, /) -> None:
        self.waits.append(self.appended)
        self.appended = 0
        super().sync(fd)


def test_a_full_file_ends_with_a_checkpoint_and_no_tick_waits_for_the_disk(tmp_path: Path) -> None:
    files = CountingFiles()
    store = Store(tmp_path, files=files, fsync=Fsync.NO, segment_bytes=40_000)
    numbers = itertools.count(1)

    def add() -> None:
        files.waits.clear()
        store.add(b"s", f"{next(numbers)}-0", words=(b"f", b"x" * 900))
        store.commit()
        assert files.waits == []

    for _ in range(42):
        add()
    assert store.engine.log.is_full
    durability = store.engine.begin_checkpoint()
    assert files.waits == []
    add()
    durability.run()
    add()
    assert store.engine.log.end.file_seq == 1, "what the thread has done is not known yet"
    store.engine.end_checkpoint()
    assert store.engine.log.end.file_seq == 2
    add()
    expected = store.dump()
    store.crash()
    assert store.dump() == expected
    store.engine.close()


def test_a_file_begins_although_one_checkpoint_closely_follows_another(open_store: OpenStore) -> None:
    store = open_store(segment_bytes=10_000)
    store.engine.begin_checkpoint()
    store.add(b"s", "1-0", words=(b"f", b"x" * 10_100))
    store.commit()
    store.engine.begin_checkpoint()
    store.engine.begin_checkpoint()
    assert store.engine.log.end.file_seq == 2
    store.engine.end_checkpoint()
    assert ids_of(store) == ["1-0"]


def test_a_file_that_is_far_too_long_ends_without_a_checkpoint(tmp_path: Path) -> None:
    store = Store(tmp_path, fsync=Fsync.NO, segment_bytes=8000)
    sizes: list[int] = []
    while store.engine.log.end.file_seq == 1:
        sizes.append(store.engine.log.end.position)
        store.add(b"s", f"{len(sizes)}-0", words=(b"f", b"x" * 100))
        store.commit()
    assert 8000 <= max(sizes) < 9000
    store.engine.close()
