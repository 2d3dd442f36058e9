"""What a scrub makes of tables and logs that are replaced while it reads them: their damage is not that of the new."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from riverbed.server.background.integrity import scrub as module
from riverbed.server.background.integrity.scrub import log_walks
from riverbed.server.background.worker import DamageMetError, WorkerError
from riverbed.store.engine import Engine
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import DATA_NAME, LOG_MANIFEST
from tests.support.read_log import unpadded
from tests.support.rewriter import rewrite_here
from tests.support.ticks import Ticks, in_loop


class Tables:
    """The engine's tables by another name; it counts how often LMDB's table of readers is cleared."""

    def __init__(self, tables: Any) -> None:
        self._tables = tables
        self.env = self
        self.checks = 0

    def reader_check(self) -> int:
        self.checks += 1
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


class Process:
    """Gives `answers`, or ends with `failure`; `meanwhile` happens before."""

    meanwhile: Callable[[], None]
    answers: list[dict[str, Any]]
    failure: WorkerError | None

    def __init__(self, *arguments: object) -> None:
        self._left = list(self.answers)

    async def __aenter__(self) -> Self:
        Process.meanwhile()
        if self.failure is not None:
            raise self.failure
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def receive(self) -> dict[str, Any]:
        return self._left.pop(0)


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Worker", Process)
    Process.meanwhile, Process.failure = staticmethod(lambda: None), None
    Process.answers = [{"damage": "a row is wrong"}, {"damaged": 1, "rows": 2}]


async def scrub_tables(ticks: Ticks, *, replaced: bool) -> tuple[int | None, Tables]:
    """Scrub the tables, which others replace meanwhile or not; -> the rows, and the tables it began with."""
    real = ticks.engine.tables
    tables = Tables(real)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "tables", tables)

        def meanwhile() -> None:
            if replaced:
                patch.setattr(Engine, "tables", Tables(real))

        Process.meanwhile = staticmethod(meanwhile)
        rows = await ticks.server.scrub._scrub_tables()
    return rows, tables


@pytest.mark.parametrize("replaced", [False, True])
def test_damaged_rows_count_for_the_tables_that_were_read(tmp_path: Path, replaced: bool) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        rows, _ = await scrub_tables(ticks, replaced=replaced)
        assert rows == 2
        status = ticks.server.scrub._status
        assert (status.damaged_rows, status.damage) == ((0, {}) if replaced else (1, {DATA_NAME: "a row is wrong"}))
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("replaced", [False, True])
def test_so_does_an_end_over_broken_pages_and_the_place_among_the_readers_is_cleared(
    tmp_path: Path, replaced: bool
) -> None:
    Process.failure = DamageMetError("its process was killed by signal 7")

    async def body() -> None:
        ticks = Ticks(tmp_path)
        rows, tables = await scrub_tables(ticks, replaced=replaced)
        assert rows is None
        assert list(ticks.server.scrub._status.damage) == ([] if replaced else [DATA_NAME])
        assert tables.checks == (0 if replaced else 1)
        ticks.close()

    in_loop(body())


def test_a_process_that_cannot_work_is_no_damage(tmp_path: Path) -> None:
    Process.failure = WorkerError("its process cannot be started")

    async def body() -> None:
        ticks = Ticks(tmp_path)
        rows, tables = await scrub_tables(ticks, replaced=False)
        assert (rows, tables.checks) == (None, 1)
        assert ticks.server.scrub._status.damage == {}
        ticks.close()

    in_loop(body())


def test_tables_that_cannot_be_looked_at_are_not_called_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Process.failure = WorkerError("it cannot open the tables")
    stat = os.stat

    def failing(path: Any, **how: Any) -> os.stat_result:
        if str(path).endswith(DATA_NAME):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return stat(path, **how)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", failing)
            rows, _ = await scrub_tables(ticks, replaced=False)
        assert rows is None
        assert ticks.server.scrub._status.damage == {}
        ticks.close()

    in_loop(body())


def damage_log(ticks: Ticks) -> str:
    """Write something, and make its bytes in the log wrong; -> the file's name."""
    (path,) = [path for path in ticks.files.paths() if ".incr." in path.name]
    data = ticks.files.data(path)
    data[len(unpadded(bytes(data))) // 2] ^= 1
    return path.name


@pytest.mark.parametrize("replaced", [False, True])
def test_a_damaged_file_counts_for_the_log_that_was_read(tmp_path: Path, replaced: bool) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="always")
        await ticks.ask(ticks.connect(), "XADD k 1-1 f v", "XADD k 1-2 f v")
        engine: Any = ticks.engine
        name = damage_log(ticks)
        (walk,) = [walk for walk in log_walks(engine) if walk.name == name]
        real = engine.log
        if replaced:
            engine.keeper.log = object()
            assert list(walk.steps()) == []
        else:
            with pytest.raises(CorruptionError):
                list(walk.steps())
        engine.keeper.log = real
        ticks.close()

    in_loop(body())


def test_a_file_that_a_rewrite_has_replaced_since_it_was_listed_is_called_a_kept_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="always")
        await ticks.ask(ticks.connect(), "XADD k 1-1 f v", "XADD k 1-2 f v")
        walks = log_walks(ticks.engine)
        name = damage_log(ticks)
        rewrite_here(monkeypatch, ticks.engine)
        await ticks.server.rewriting.start()
        ticks.server.scrub._walk(walks)
        assert list(ticks.server.scrub._status.damage) == [name]
        assert "Only replicas that are away would need it" in caplog.text
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_opened_for_want_of_something_else_is_not_damaged(tmp_path: Path, number: int) -> None:
    def steps() -> Iterator[int]:
        yield 0
        raise OSError(number, os.strerror(number), "some.aof")

    async def body() -> None:
        ticks = Ticks(tmp_path)
        (walk, *_) = log_walks(ticks.engine)
        scrub = ticks.server.scrub
        scrub._walk([walk._replace(name="some.aof", steps=steps)])
        assert list(scrub._status.damage) == (["some.aof"] if number == errno.EIO else [])
        assert scrub._unread == ([] if number == errno.EIO else ["some.aof"])
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("written", [False, True])
def test_a_manifest_that_differs_is_damaged_unless_another_was_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="always")
        await ticks.ask(ticks.connect(), "XADD k 1-1 f v")
        home = ticks.engine.log.home
        known = home.manifest

        def load(*arguments: object) -> None:
            if written:
                home.manifest = replace(known)

        (walk,) = [walk for walk in log_walks(ticks.engine) if walk.name == LOG_MANIFEST]
        monkeypatch.setattr(module.manifests, "load", load)
        if written:
            assert list(walk.steps()) == [0]
        else:
            with pytest.raises(CorruptionError, match="the manifest is missing"):
                list(walk.steps())
        ticks.close()

    in_loop(body())
