"""Memory that is short outside of commands, or a defect: the server goes on, or ends, with what was acknowledged."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.background.checkpoints import checkpoints
from riverbed.server.background.checkpoints.manifest_changes import ManifestChanges
from riverbed.server.background.integrity import scrub
from riverbed.server.background.integrity.scrub import Scrub
from riverbed.server.background.log_rewrite import RewriteError
from riverbed.server.execution.line.gathering import Gathering
from riverbed.store.engine import Engine
from riverbed.store.errors import StateLostError
from riverbed.store.groups.pending import pel
from riverbed.store.running.log_keeper import LogKeeper
from riverbed.store.tables.environment import Tables
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until_true


def once(real: Callable[..., Any], error: type[Exception] = MemoryError) -> Callable[..., Any]:
    """`real`, whose first call raises."""
    calls: list[object] = []

    def short(*words: object, **named: object) -> Any:
        calls.append(words)
        if len(calls) == 1:
            raise error
        return real(*words, **named)

    return short


async def restarted(ticks: Ticks, directory: Path) -> bytes:
    """The length of `s` behind a kill."""
    ticks.server.maintenance.stop()
    ticks.server.checkpoints.stop()
    ticks.server.checkpoints.close()
    ticks.engine.abandon()
    again = Ticks(directory, files=ticks.files)
    [length] = await again.ask(again.connect(), "XLEN s")
    again.close()
    return length


def test_no_task_commits_what_a_server_that_gives_up_has_in_memory(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        await ticks.ask(ticks.connect(), "XADD s 1-1 f v")
        db = ticks.engine.txn.databases[0]
        stream = db.stream(b"s", 0)
        assert stream is not None
        db.expire(stream)
        ticks.engine.txn.log.clear()  # memory was short for its line
        ticks.executor.give_up(StateLostError("not enough memory"))
        with pytest.raises(StateLostError):
            await ticks.server.checkpoints.checkpoint_in_thread()
        assert await restarted(ticks, tmp_path) == b":1\r\n"

    in_loop(body())


def test_what_cannot_be_undone_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        await ticks.ask(ticks.connect(), "XADD s 1-1 f v")
        txn = ticks.engine.txn
        stream = txn.databases[0].stream(b"s", 0)
        assert stream is not None
        mark = txn.mark()
        txn.databases[0].expire(stream)
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "commit", once(Engine.commit))
            with pytest.raises(StateLostError, match="nothing could be undone: MemoryError"):
                ticks.engine.rollback(0, mark)
        with pytest.raises(StateLostError):
            ticks.engine.checkpoint()
        assert await restarted(ticks, tmp_path) == b":1\r\n"

    in_loop(body())


def test_a_client_that_cannot_be_cut_off_does_not_keep_a_server_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        monkeypatch.setattr(client, "abort", once(client.abort))
        with pytest.raises(MemoryError):
            ticks.executor.give_up(StateLostError("not enough memory"))
        assert ticks.executor.gave_up
        assert ticks.server.stopping.begun_to_end.is_set()
        assert await restarted(ticks, tmp_path) == b":1\r\n"

    in_loop(body())


@pytest.mark.parametrize("where", [(LogKeeper, "next_file_if_full"), (Engine, "begin_checkpoint")])
def test_a_checkpoint_that_finds_no_memory_is_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    """It may have begun by then; then the disk is to have it as well."""
    monkeypatch.setattr(checkpoints, "RETRY_S", 0.02)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=10)
        client = ticks.connect()
        monkeypatch.setattr(*where, once(getattr(*where)))
        await ticks.ask(client, "XADD s 1-1 f v")
        await until_true(lambda: ticks.engine.txn.position == ticks.engine.log.end)
        await ticks.ask(client, "XADD s 2-1 f v")
        await until_true(lambda: ticks.engine.txn.position == ticks.engine.log.end)
        await until_true(lambda: not ticks.engine.checkpoints.is_syncing)
        assert not ticks.executor.gave_up
        ticks.close()

    in_loop(body())


def test_a_checkpoint_that_memory_is_too_short_to_end_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest lists the next file of the log by then, and the tables are to go on from there."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.server.checkpoints.stop()
        durability = ticks.engine.begin_checkpoint(divides_log=True)
        with monkeypatch.context() as patch:
            patch.setattr(Tables, "sync", once(Tables.sync))
            with pytest.raises(MemoryError):
                durability.run()  # as the thread does
            patch.setattr(Tables, "sync", once(Tables.sync))
            with pytest.raises(MemoryError):
                ticks.engine.end_checkpoint()
        await ticks.ask(client, "XADD s 2-1 f v")
        ticks.engine.checkpoint()
        assert not ticks.engine.log.broken
        assert await restarted(ticks, tmp_path) == b":2\r\n"

    in_loop(body())


def test_a_checkpoint_that_nothing_could_end_is_given_to_the_disk_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its thread nor the loop had the memory for it; others begin behind it alone."""
    monkeypatch.setattr(checkpoints, "RETRY_S", 0.02)
    real, calls = Tables.sync, []

    def short_twice(tables: Tables) -> None:
        calls.append(tables)
        if len(calls) <= 2:
            raise MemoryError
        real(tables)

    monkeypatch.setattr(Tables, "sync", short_twice)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=5)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        await until_true(lambda: len(calls) > 2 and not ticks.engine.checkpoints.is_syncing)
        await ticks.ask(client, "XADD s 2-1 f v")
        await until_true(lambda: ticks.engine.txn.position == ticks.engine.log.end)
        ticks.close()

    in_loop(body())


def test_a_checkpoint_that_cannot_be_ended_is_tried_after_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "RETRY_S", 0.05)
    real, calls = Tables.sync, []
    is_short = True

    def short(tables: Tables) -> None:
        calls.append(tables)
        if is_short:
            raise MemoryError
        real(tables)

    monkeypatch.setattr(Tables, "sync", short)

    async def body() -> None:
        nonlocal is_short
        ticks = Ticks(tmp_path, checkpoint_interval_ms=5)
        begun = time.monotonic()
        await ticks.ask(ticks.connect(), "XADD s 1-1 f v")
        await until_true(lambda: len(calls) >= 6)
        # its thread and the loop call it, in each try
        assert len(calls) <= 2 * ((time.monotonic() - begun) / checkpoints.RETRY_S + 2)
        turns, begun = 0, time.monotonic()
        while time.monotonic() < begun + 4 * checkpoints.RETRY_S:
            await ticks.server.checkpoints.wait_for_disk()
            turns += 1
        assert turns <= 12  # one for the thread, and one for the pause behind it
        is_short = False
        await until_true(lambda: not ticks.engine.checkpoints.is_syncing)
        ticks.close()

    in_loop(body())


def test_a_stop_tries_a_checkpoint_that_could_not_be_ended_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what waits for the next file of the log to be listed would wait for ever, and the stop for that."""
    monkeypatch.setattr(checkpoints, "RETRY_S", 0.02)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        await ticks.ask(ticks.connect(), "XADD s 1-1 f v")
        ticks.engine.begin_checkpoint(divides_log=True)
        ticks.server.checkpoints.stop()
        async with asyncio.timeout(10):
            await ManifestChanges(ticks.engine, ticks.server.checkpoints).wait()
        assert not ticks.engine.checkpoints.is_syncing
        ticks.close()

    in_loop(body())


def test_a_commit_that_ends_early_logs_its_batch_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="always")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        keeper = ticks.engine.keeper
        keeper.on_sync = once(keeper.on_sync)
        await ticks.ask(client, "XADD s 2-1 f v", "SAVE")
        assert ticks.executor.gave_up
        assert await restarted(ticks, tmp_path) == b":2\r\n"

    in_loop(body())


@pytest.mark.parametrize("by_request", [True, False])
def test_a_tick_that_the_loop_has_no_memory_for_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_request: bool
) -> None:
    """No client was answered any more: all believed that it would come."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_soon", once(loop.call_soon))
        ask = partial(client.send, "XADD s 1-1 f v") if by_request else ticks.executor.want_tick
        with pytest.raises(MemoryError):
            ask()
        assert await ticks.ask(other, "PING") == [b"+PONG\r\n"]
        assert client.replies() == ([b"$3\r\n1-1\r\n"] if by_request else [])
        ticks.close()

    in_loop(body())


def test_requests_behind_a_wait_for_others_that_meets_a_defect_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        ticks.executor._gathering.is_on = True
        monkeypatch.setattr(Gathering, "waits", once(Gathering.waits, RuntimeError))
        for _ in range(2):
            assert await ticks.ask(client, "PING") == [b"+PONG\r\n"]
        ticks.close()

    in_loop(body())


def test_a_rewrite_waits_for_no_tick_of_a_server_that_stops(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        rewriting = ticks.server.rewriting
        ticks.executor.give_up(StateLostError("not enough memory"))
        ticks.engine.txn.log.append(b"a line that no tick takes")
        waiting = asyncio.create_task(rewriting._reach_end_of_tick())
        await asyncio.sleep(0)
        await rewriting.stop()
        with pytest.raises(RewriteError, match="stopping"):
            await asyncio.wait_for(waiting, 60)
        ticks.engine.txn.log.clear()
        ticks.close(save=False)

    in_loop(body())


def test_a_rewrite_whose_file_cannot_be_deleted_is_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave_a_file(path: Path) -> None:
        os.makedirs(path.parent, exist_ok=True)
        os.close(os.open(path, os.O_CREAT))
        raise RewriteError("the process has ended")

    async def body() -> None:
        ticks = Ticks(tmp_path)
        rewriting = ticks.server.rewriting
        with monkeypatch.context() as patch:
            patch.setattr(rewriting, "_rewrite", leave_a_file)
            patch.setattr(rewriting._tasks, "in_thread", once(rewriting._tasks.in_thread, RuntimeError))
            with pytest.raises(RewriteError):
                await rewriting.start()
        assert not rewriting.in_progress
        await ticks.ask(ticks.connect(), "XADD s 1-1 f v")
        await rewriting.stop()
        ticks.close()

    in_loop(body())


def test_a_scrub_that_fails_is_followed_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Scrub] = []

    async def fail(of: Scrub) -> None:
        passes.append(of)
        monkeypatch.setattr(of._core.config, "scrub_interval", 0.01)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(scrub, "FIRST_S", 0.0)
    monkeypatch.setattr(Scrub, "_pass", fail)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        ticks.server.scrub.start()
        await until_true(lambda: len(passes) > 1)
        ticks.server.scrub.stop()
        ticks.close()

    in_loop(body())


@pytest.mark.once  # it is not seen which function the compiled form calls
@pytest.mark.parametrize("function", ["replace_runs", "change_rows"])
def test_a_read_that_memory_is_too_short_for_loses_neither_deliveries_nor_acknowledgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """It puts what no table has yet into the tables first."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD s {number}-0 f v" for number in range(1, 9)), "XGROUP CREATE s g 0")
        await ticks.ask(client, "XREADGROUP GROUP g Alice COUNT 4 STREAMS s >")
        ticks.engine.checkpoint()
        await ticks.ask(client, "XREADGROUP GROUP g Bob COUNT 3 STREAMS s >")
        assert await ticks.ask(client, "XACK s g 2-0", "XACK s g 3-0") == [b":1\r\n", b":1\r\n"]
        with monkeypatch.context() as patch:
            patch.setattr(pel, function, once(getattr(pel, function)))
            [reply] = await ticks.ask(client, "XPENDING s g - + 10")
            assert reply.startswith(b"-OOM ")
        ids = b"".join(b"$3\r\n%d-0\r\n" % number for number in (5, 6, 7))
        assert await ticks.ask(client, "XCLAIM s g Bob 0 5-0 6-0 7-0 JUSTID") == [b"*3\r\n" + ids]
        [reply] = await ticks.ask(client, "XPENDING s g - + 10")
        assert reply.startswith(b"*5\r\n")
        ticks.close()
        again = Ticks(tmp_path, files=ticks.files)
        [reply] = await again.ask(again.connect(), "XPENDING s g - + 10")
        assert reply.startswith(b"*5\r\n")
        again.close()

    in_loop(body())


@pytest.mark.once  # it is not seen which function the compiled form calls
@pytest.mark.parametrize("function", ["replace_runs"])
def test_a_long_command_that_a_stop_ends_finds_what_memory_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Rows that were to be put into the tables between two of its slices."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        ids = [f"{number}-0" for number in range(1, 2001)]
        await ticks.ask(client, *(f"XADD s {entry_id} f v" for entry_id in ids), "XGROUP CREATE s g 0")
        await ticks.ask(client, "XREADGROUP GROUP g Alice COUNT 1000 STREAMS s >")
        ticks.engine.checkpoint()
        await ticks.ask(client, "XREADGROUP GROUP g Bob COUNT 1000 STREAMS s >")
        client.send(f"XACK s g {' '.join(ids)}")
        await asyncio.sleep(0)
        assert ticks.executor.sliced_commands.is_writing()
        with monkeypatch.context() as patch:
            patch.setattr(pel, function, once(getattr(pel, function)))
            with pytest.raises(MemoryError):
                ticks.engine.checkpoint()
        ticks.executor.let_go()
        assert client.replies() == [b":2000\r\n"]
        ticks.close()

    in_loop(body())
