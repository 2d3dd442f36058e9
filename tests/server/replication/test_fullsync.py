"""A full sync that ends before it has begun, or cannot begin, leaves nothing behind."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from riverbed.server.replication import fullsync
from riverbed.server.replication.fullsync import FullSync, remove_leftovers
from riverbed.server.replication.link import FullSyncHead
from riverbed.store.disk.removal import Wait, remove_tree
from riverbed.store.layout import SYNC_PREFIX
from tests.support.ticks import Ticks, in_loop

HEAD = FullSyncHead("a" * 40, 0, 100, 1000, 500)


def begin(ticks: Ticks) -> FullSync:
    def fails(error: Exception) -> None:
        raise AssertionError(error)

    needs = ticks.server.replication.needs
    return FullSync(needs.core, needs.tasks, needs.replacement, HEAD, lambda stream: None, fails, lambda: None)


async def assert_nothing_is_left(ticks: Ticks, open_files: int) -> None:
    await ticks.settle()
    while ticks.executor.stats.background.running:
        await ticks.settle()
    assert ticks.files.open_count == open_files
    assert not list(ticks.directory.glob(f"{SYNC_PREFIX}*"))
    ticks.close()


def test_one_that_is_given_up_in_the_turn_in_which_it_begins_leaves_nothing_behind(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        open_files = ticks.files.open_count
        begin(ticks).cancel()
        await assert_nothing_is_left(ticks, open_files)

    in_loop(body())


@pytest.mark.parametrize("after", range(3))
def test_one_that_cannot_begin_leaves_nothing_behind(tmp_path: Path, after: int) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        open_files = ticks.files.open_count
        ticks.files.fail("create", errno.ENOSPC, after)
        with pytest.raises(OSError, match="No space left"):
            begin(ticks)
        await assert_nothing_is_left(ticks, open_files)

    in_loop(body())


def test_one_begins_beside_what_an_earlier_process_of_the_same_number_left(tmp_path: Path) -> None:
    """In a container every server has the same number, and to delete gigabytes takes a while."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        for number in range(1, 100):
            (tmp_path / f"{SYNC_PREFIX}{os.getpid()}-{number}").mkdir()
        begin(ticks).cancel()
        await ticks.settle()
        remove_leftovers(tmp_path, ticks.server.tasks)
        await assert_nothing_is_left(ticks, ticks.files.open_count)

    in_loop(body())


def test_a_start_deletes_no_folder_that_only_has_such_a_name(tmp_path: Path) -> None:
    """The data directory is the one that the server is started in, unless it is told another."""
    kept = ("sync-photos/a.jpg", "sync-12/notes.txt", "sync-", "sync-1-2-3/state", "repair/bicycle.txt")
    gone = ("sync-1/state", "sync-12-0af3/appendonlydir", "sync-2", "sync-3-00000000/replaced-state")

    async def body() -> None:
        for name in (*kept, *gone):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "sync-77").symlink_to(tmp_path / "sync-photos")
        ticks = Ticks(tmp_path)
        remove_leftovers(tmp_path, ticks.server.tasks)
        ticks.server.repairs.remove_leftovers()
        await ticks.settle()
        while ticks.executor.stats.background.running:
            await ticks.settle()
        assert all((tmp_path / name).exists() for name in kept)
        assert not any((tmp_path / name.split("/")[0]).exists() for name in gone)
        ticks.close()

    in_loop(body())


def test_leftovers_take_one_thread_however_many_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop has six threads on two processors, and all else that blocks needs them too."""
    threads: set[str] = set()

    def remove(path: Path, wait: Wait) -> None:
        threads.add(threading.current_thread().name)
        time.sleep(0.02)
        remove_tree(path, wait)

    monkeypatch.setattr(fullsync, "remove_tree", remove)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        for number in range(5):
            (tmp_path / f"{SYNC_PREFIX}{number}").mkdir()
        remove_leftovers(tmp_path, ticks.server.tasks)
        await assert_nothing_is_left(ticks, ticks.files.open_count)

    in_loop(body())
    assert len(threads) == 1
