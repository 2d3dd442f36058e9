"""Files of the log begin and end while the disk does not answer: no client waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from riverbed.server.background.integrity.scrub import log_walks
from riverbed.store.log.home import TEMPORARY_PREFIX
from tests.support.rewriter import rewrite_here
from tests.support.ticks import Client, Files, Ticks, in_loop
from tests.support.waiting import until_true

_HOUR_MS = 3_600_000


class StuckFiles(Files):
    """A disk that answers a thread when it is told to, and notes what the loop's thread asks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = False
        self.released = threading.Semaphore(0)
        self.begun = 0
        self.waited: list[str] = []
        self._loop = threading.current_thread()
        self._of_children: set[int] = set()  # files that a process of its own writes, outside of tests

    def create(self, path: Path, /) -> int:
        fd = super().create(path)
        if path.name.startswith(TEMPORARY_PREFIX):
            self._of_children.add(fd)
        return fd

    def sync(self, fd: int, /) -> None:
        if fd not in self._of_children:
            self._wait("sync")
        super().sync(fd)

    def sync_directory(self, path: Path, /) -> None:
        self._wait("sync_directory")
        super().sync_directory(path)

    def _wait(self, what: str) -> None:
        if not self.is_stuck:
            return
        if threading.current_thread() is self._loop:
            self.waited.append(what)
        else:
            self.begun += 1
            self.released.acquire()


@pytest.fixture
def files() -> Iterator[StuckFiles]:
    files = StuckFiles()
    yield files
    files.is_stuck = False
    files.released.release(1000)


async def serve(ticks: Ticks, client: Client, number: int) -> None:
    """See that clients are served."""
    entry_id = b"%d-1" % number
    expected = [b"$%d\r\n%b\r\n" % (len(entry_id), entry_id), b"+PONG\r\n"]
    assert await ticks.ask(client, f"XADD s {number}-1 f v", "PING") == expected


async def between_files(directory: Path, files: StuckFiles, fsync: str) -> tuple[Ticks, Client, int]:
    """A server that begins the next file of its log on a disk that does not answer, a client, and how many entries."""
    ticks = Ticks(directory, files=files, segment_bytes=2000, checkpoint_interval_ms=_HOUR_MS, appendfsync=fsync)
    client = ticks.connect()
    files.is_stuck = True
    number = 0
    while not files.begun:
        number += 1
        await serve(ticks, client, number)
    return ticks, client, number


@pytest.mark.parametrize("fsync", ["everysec", "no"])
def test_no_client_waits_while_the_next_file_is_begun(tmp_path: Path, files: StuckFiles, fsync: str) -> None:
    async def body() -> None:
        ticks, client, number = await between_files(tmp_path, files, fsync)
        engine = ticks.engine
        for step in range(1, 6):  # both files, the new manifest, and twice its directory
            await until_true(lambda step=step: files.begun == step)
            number += 1
            await serve(ticks, client, number)
            assert engine.log.end.file_seq == 1
            files.released.release()
        await until_true(lambda: engine.log.end.file_seq == 2)
        number += 1
        await serve(ticks, client, number)
        assert files.waited == []
        files.is_stuck = False
        files.released.release(1000)
        assert sum(len(batch) for batch in ticks.batches()) == number
        ticks.close()

    in_loop(body())


def test_no_client_waits_for_any_manifest_of_a_rewrite(
    tmp_path: Path, files: StuckFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        settings = {"checkpoint_interval_ms": _HOUR_MS, "appendfsync": "everysec", "repl_backlog_size": 0}
        ticks = Ticks(tmp_path, files=files, **settings)
        client, engine = ticks.connect(), ticks.engine
        rewrite_here(monkeypatch, engine)
        number = 1
        await serve(ticks, client, number)
        files.is_stuck = True
        adopted = ticks.server.rewriting.start()

        async def serve_until(is_over: Callable[[], bool]) -> None:
            nonlocal number
            while not is_over():
                number += 1
                await serve(ticks, client, number)
                files.released.release()

        await serve_until(adopted.done)
        assert engine.log.base == await adopted
        assert [file.seq for file in engine.log.home.manifest.incrs] == [2]
        before = files.begun
        (replaced,) = engine.log.home.manifest.history
        files.remove(engine.log.home.path / replaced.name)  # the removal finds it on no disk
        ticks.server.rewriting.remove_leftovers()
        await serve_until(lambda: not engine.log.home.manifest.history)
        assert files.begun == before + 3  # the new manifest, and twice its directory
        assert files.waited == []
        files.is_stuck = False
        files.released.release(1000)
        assert (await ticks.ask(client, "XLEN s")) == [b":%d\r\n" % number]
        ticks.close()

    in_loop(body())


def test_a_save_waits_for_the_disk_and_has_the_next_file(tmp_path: Path, files: StuckFiles) -> None:
    async def body() -> None:
        ticks, client, _ = await between_files(tmp_path, files, "everysec")
        engine = ticks.engine
        releasing = threading.Timer(0.05, files.released.release, (1000,))
        releasing.start()
        assert await ticks.ask(client, "SAVE") == [b"+OK\r\n"]
        releasing.join()
        assert engine.log.end.file_seq == 2
        assert engine.log.synced == engine.log.end
        ticks.close()

    in_loop(body())


def test_a_scrub_beside_a_manifest_that_is_being_replaced_finds_no_damage(tmp_path: Path, files: StuckFiles) -> None:
    async def body() -> None:
        ticks, client, number = await between_files(tmp_path, files, "everysec")
        engine = ticks.engine
        files.released.release(4)  # the new manifest is there, and not known to be durable
        await until_true(lambda: files.begun == 5)
        number += 1
        await serve(ticks, client, number)
        for walk in log_walks(engine):
            assert list(walk.steps())
        files.released.release(1000)
        await until_true(lambda: engine.log.end.file_seq == 2)
        for walk in log_walks(engine):
            assert list(walk.steps())
        ticks.close()

    in_loop(body())
