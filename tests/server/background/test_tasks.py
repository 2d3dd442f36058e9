"""Background tasks: their ends are noticed, and nothing else in the server starts any."""

from __future__ import annotations

import ast
import asyncio
import logging
import os
import warnings
from collections.abc import Callable, Iterator

import pytest

from riverbed.server.background.tasks import THREADS, Tasks
from riverbed.server.stats.stats import BackgroundStatus
from tests.conftest import StartRiverbed
from tests.support.servers import ROOT
from tests.support.ticks import in_loop
from tests.support.waiting import rewritten, until

SERVER = ROOT / "server"
# What begins something that may go on, or end, unnoticed.
STARTING = {
    "Popen",
    "Thread",
    "TaskGroup",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "create_task",
    "ensure_future",
    "fork",
    "gather",
    "posix_spawn",
    "run_coroutine_threadsafe",
    "run_in_executor",
    "start_new_thread",
    "subprocess_exec",
    "subprocess_shell",
    "to_thread",
}
STARTING_MODULES = {"_thread", "multiprocessing", "subprocess"}


def starts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a module starts a task, a thread or a process."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in STARTING:
                yield node.lineno, name
            case ast.Import(names=names):
                yield from ((node.lineno, each.name) for each in names if each.name in STARTING_MODULES)
            case ast.ImportFrom(module=module, names=names):
                yield from ((node.lineno, each.name) for each in names if each.name in STARTING)
                if module in STARTING_MODULES:
                    yield node.lineno, str(module)


def test_only_the_background_package_starts_tasks_threads_and_processes() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted(SERVER.rglob("*.py"))
        if path.parent != SERVER / "background"
        for line, name in starts(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "loop.create_task(work())",
        "asyncio.ensure_future(work())",
        "asyncio.to_thread(work)",
        "from asyncio import create_task",
        "import subprocess",
        "from subprocess import run",
        "threading.Thread(target=work).start()",
        "await asyncio.gather(work(), work())",
    ],
)
def test_the_search_for_such_starts_finds_them(code: str) -> None:
    assert list(starts(ast.parse(f"async def body():\n    {code}")))


# -- how they end ------------------------------------------------------------------------------------------------------


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """What the server's log is told."""
    told: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(f"{record.getMessage()}{' with a traceback' if record.exc_info else ''}")

    log, handler = logging.getLogger("riverbed"), Handler()
    log.addHandler(handler)
    yield told
    log.removeHandler(handler)


def in_tasks(body: Callable[[Tasks, BackgroundStatus], object]) -> None:
    async def run() -> None:
        status = BackgroundStatus()
        tasks = Tasks(asyncio.get_running_loop(), status)
        result = body(tasks, status)
        if asyncio.iscoroutine(result):
            await result
        assert status.running == 0

    in_loop(run())


async def broken(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


def test_a_defect_is_logged_counted_and_reported_to_the_owner(messages: list[str]) -> None:
    async def body(tasks: Tasks, status: BackgroundStatus) -> None:
        reported: list[Exception] = []
        task = tasks.start("work", broken(RuntimeError("the handler is closed")), failed=reported.append)
        assert status.running == 1
        await asyncio.wait([task])
        assert [str(error) for error in reported] == ["the handler is closed"]
        assert (status.failures, status.last_failure) == (1, "work: RuntimeError: the handler is closed")
        assert messages == ["work failed with a traceback"]

    in_tasks(body)


def test_an_expected_error_goes_to_the_owner_alone(messages: list[str]) -> None:
    async def body(tasks: Tasks, status: BackgroundStatus) -> None:
        reported: list[Exception] = []
        task = tasks.start("work", broken(OSError("full")), failed=reported.append, expected=(OSError,))
        await asyncio.wait([task])
        assert [str(error) for error in reported] == ["full"]
        assert (status.failures, messages) == (0, [])

    in_tasks(body)


def test_an_owner_that_fails_as_well_is_noticed(messages: list[str]) -> None:
    def failed(error: Exception) -> None:
        raise KeyError("owner")

    async def body(tasks: Tasks, status: BackgroundStatus) -> None:
        await asyncio.wait([tasks.start("work", broken(OSError("full")), failed=failed, expected=(OSError,))])
        assert status.last_failure == "the end of work: KeyError: 'owner'"

    in_tasks(body)


def test_those_that_await_a_task_get_its_result_or_its_error() -> None:
    async def body(tasks: Tasks, status: BackgroundStatus) -> None:
        assert await tasks.in_thread("thread", lambda: 7) == 7
        with pytest.raises(OSError, match="full"):
            await tasks.start("work", broken(OSError("full")), expected=(OSError,))
        assert status.failures == 0

    in_tasks(body)


def test_a_thread_and_a_callback_that_fail_are_noticed(messages: list[str]) -> None:
    async def body(tasks: Tasks, status: BackgroundStatus) -> None:
        reported: list[Exception] = []
        await asyncio.wait([tasks.in_thread("thread", int, "x", failed=reported.append)])
        tasks.soon("callback", int, "y", failed=reported.append)
        await asyncio.sleep(0.01)
        assert len(reported) == status.failures == 2
        assert messages == ["thread failed with a traceback", "callback failed with a traceback"]

    in_tasks(body)


def test_a_timer_that_fails_is_noticed(messages: list[str]) -> None:
    async def body(tasks: Tasks, status: BackgroundStatus) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(tasks.noticed)
        loop.call_later(0, int, "x")
        await asyncio.sleep(0.01)
        assert status.failures == 1
        assert "ValueError" in status.last_failure
        assert [message.endswith("with a traceback") for message in messages] == [True]

    in_tasks(body)


def test_a_task_that_is_cancelled_before_its_first_step_ends_like_any_other(messages: list[str]) -> None:
    async def body(tasks: Tasks, status: BackgroundStatus) -> None:
        ended: list[bool] = []
        task = tasks.start("work", broken(OSError("full")))
        task.add_done_callback(lambda task: ended.append(task.cancelled()))
        task.cancel()
        await asyncio.wait([task])
        assert ended == [True]
        assert (status.failures, messages) == (0, [])

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that is never awaited is one
        in_tasks(body)


def test_closing_cancels_what_runs_and_waits_for_it() -> None:
    async def body(tasks: Tasks, status: BackgroundStatus) -> None:
        ended = False

        async def work() -> None:
            nonlocal ended
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0)
                ended = True

        tasks.start("work", work())
        await asyncio.sleep(0)
        await tasks.close()
        assert ended and status.failures == 0

    in_tasks(body)


def test_a_server_starts_no_thread_later(start_riverbed: StartRiverbed) -> None:
    """Where memory is short by then, one may end as it begins, and Python waits for it for ever."""

    def threads() -> int:
        return len(os.listdir(f"/proc/{server.pid}/task"))

    server = start_riverbed()
    with server.client() as client:
        assert client.ask("PING") == b"+PONG\r\n"
        before = threads()
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("RIVERBED", "SNAPSHOT")
        client.ask("RIVERBED", "SNAPSHOTS")
        client.ask("SAVE")
        rewritten(server)
        client.ask("REPLICAOF", "localhost", server.port)
        until(lambda: "is down" in server.log_text(), "a name that was looked up")
    assert threads() == before > THREADS
