"""A full sync that ends before it has begun, or cannot begin, leaves nothing behind, and its swap takes little time."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from riverbed.server.replication import fullsync
from riverbed.server.replication.fullsync import NEAR_BYTES, FullSync, remove_leftovers
from riverbed.server.replication.link import FullSyncHead
from riverbed.store.disk.removal import Wait, remove_tree
from riverbed.store.layout import SYNC_PREFIX
from riverbed.store.log.streamed.stream import LogStream
from tests.server.replication.test_follower import log_of
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until_true

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


class Process:
    """In the place of the one that makes the tables, and as fast as can be."""

    def __init__(self, *arguments: object, **settings: object) -> None: ...

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    def require_alive(self) -> None: ...

    def send(self, **order: object) -> None: ...

    async def receive(self) -> dict[str, object]:
        await asyncio.sleep(0)
        return {}


def test_the_swap_executes_little_although_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all clients wait in its turn for what has come while gigabytes were synced."""
    monkeypatch.setattr(fullsync, "Worker", Process)
    data, _ = log_of([1] * 4, b"x" * NEAR_BYTES)
    first, _ = log_of([1], b"x" * NEAR_BYTES)
    left: list[int] = []
    failures: list[Exception] = []

    async def body() -> None:
        ticks = Ticks(tmp_path)
        open_files, loop = ticks.files.open_count, asyncio.get_running_loop()
        core, tasks = ticks.executor.context, ticks.server.tasks
        rest = [data[len(first) :]]
        replacement: Any = SimpleNamespace(
            adopt=lambda directory: left.append(sync._behind_bytes), clear_up=lambda: None
        )
        head = FullSyncHead("a" * 40, 0, first.rindex(b"#CK"), 0, 0)
        done: list[LogStream] = []
        sync: Any = FullSync(core, tasks, replacement, head, done.append, failures.append, lambda: None)

        def receive(piece: bytes) -> None:
            sync.received(piece)
            while sync.take_slice(1 << 20, 1000):
                pass

        sync_files = sync._sync_files

        def sync_slowly() -> None:
            if rest:
                has_come = threading.Event()
                piece = rest.pop()
                loop.call_soon_threadsafe(lambda: (receive(piece), has_come.set()))
                assert has_come.wait(60)
            sync_files()

        sync._sync_files = sync_slowly
        receive(first)
        await until_true(lambda: bool(done or failures))
        await assert_nothing_is_left(ticks, open_files)

    in_loop(body())
    assert failures == []
    assert len(left) == 1
    assert left[0] <= NEAR_BYTES
