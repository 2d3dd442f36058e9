"""A process that works for the server: what becomes of it is an error with a text, at every moment of its life."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from riverbed.server.background import worker as workers
from riverbed.server.background.tasks import Tasks
from riverbed.server.background.worker import Worker, WorkerError
from riverbed.server.stats.stats import BackgroundStatus
from tests.support.servers import ROOT

Body = Callable[[Worker], Awaitable[None]]

HELLO = 'print(\'{"riverbed": "child_of_a_test"}\', flush=True)\n'
WORK = "from riverbed.server.background.child import work_for_server\n"
ECHO = """
    from riverbed.server.background.child import work_for_server

    def work(server):
        while True:
            server.say(echo=server.listen())

    work_for_server("child_of_a_test", work)
"""

TELL_SHARE = """
import os

from riverbed.server.background.child import work_for_server

def work(server):
    server.listen()
    server.say(niceness=os.getpriority(os.PRIO_PROCESS, 0), policy=os.sched_getscheduler(0))

work_for_server("child_of_a_test", work)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have the worker's process run this code."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(code: str) -> None:
        (tmp_path / "child_of_a_test.py").write_text(textwrap.dedent(code))

    return write


def run(
    body: Body, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None, is_urgent: bool = False
) -> None:
    """Run `body` inside of a worker; afterwards its process has ended, and no task has, by a defect."""

    async def all_of_it() -> None:
        status = BackgroundStatus()
        tasks = Tasks(asyncio.get_running_loop(), status)
        pid = 0
        try:
            async with Worker(tasks, "child_of_a_test", is_urgent=is_urgent) as worker:
                assert worker._process is not None
                pid = worker._process.pid
                await body(worker)
        finally:
            await tasks.close()
            assert (status.running, status.failures) == (0, 0), status.last_failure
            if pid:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)

    import uvloop

    with asyncio.Runner(loop_factory=loop_factory or uvloop.new_event_loop) as runner:
        runner.run(all_of_it())


@pytest.mark.parametrize(
    ("error", "ending"), [("Input/output error", "; a full disk gives this error, too"), ("x", "")]
)
def test_an_error_that_a_full_disk_gives_as_well_says_so(child: Callable[[str], None], error: str, ending: str) -> None:
    child(f"""
        import lmdb
        from riverbed.server.background.child import work_for_server

        def work(server):
            raise lmdb.Error("mdb_txn_commit: {error}")

        work_for_server("child_of_a_test", work)
    """)
    with pytest.raises(WorkerError, match=f"mdb_txn_commit: {error}{ending}$"):
        run(everything)


LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


def factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    return None if loop == "uvloop" else asyncio.new_event_loop


async def everything(worker: Worker) -> None:
    while True:
        await worker.receive()


def pid_of(worker: Worker) -> int:
    assert worker._process is not None
    return worker._process.pid


@LOOPS
def test_orders_are_answered_in_order(child: Callable[[str], None], loop: str) -> None:
    child(ECHO)

    async def body(worker: Worker) -> None:
        for number in range(3):
            worker.send(number=number)
        assert [await worker.receive() for _ in range(3)] == [{"echo": {"number": number}} for number in range(3)]

    run(body, loop_factory=factory(loop))


@LOOPS
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_died_can_be_given_orders_and_says_how_it_died(
    child: Callable[[str], None], number: int, loop: str
) -> None:
    child(ECHO)

    async def body(worker: Worker) -> None:
        os.kill(pid_of(worker), number)
        for _ in range(20):  # whether the loop knows already that it is dead, or not
            worker.send(word="x" * 1000)
            await asyncio.sleep(0.005)
        expected = "killed by signal 9" if number == signal.SIGKILL else "ended with status 1"
        with pytest.raises(WorkerError, match=f"its process (was )?{expected}"):
            await everything(worker)
        worker.send(word="y")
        with pytest.raises(WorkerError, match=expected):
            worker.require_alive()

    run(body, loop_factory=factory(loop))


DEATHS = {
    "before its first line": ("import sys; sys.exit(3)", "its process ended with status 3"),
    "while it is imported": ("import no_such_module", "its process ended with status 1: ModuleNotFoundError"),
    "in the middle of its first line": ("print('{\"riverb', end='', flush=True)", "ended with status 0: {.riverb"),
    "in the middle of an answer": (HELLO + "print('{\"a', end='', flush=True)", "ended with status 0: {.a"),
    "after a line that is none": (HELLO + "print('Killed: no memory')", "ended with status 0: Killed: no memory"),
    "after a failure": (HELLO + 'print(\'{"failed": "no room"}\')', "^no room$"),
    "as another program": ("print('{\"hello\": 1}', flush=True); input()", "is not a program of Riverbed"),
    "by an exception in its work": (
        WORK + "work_for_server('child_of_a_test', lambda _: 1 / 0)",
        "ended with status 1: ZeroDivisionError",
    ),
    "by an error that is expected": (
        WORK + "def work(server): raise OSError(28, 'No space')\nwork_for_server('child_of_a_test', work)",
        r"^\[Errno 28\] No space$",
    ),
    "after a line longer than any": (HELLO + "print('x' * 1_000_000)", "ended with status 0"),
}


@pytest.mark.parametrize("when", DEATHS)
def test_a_process_that_ends_is_an_error_with_a_text(child: Callable[[str], None], when: str) -> None:
    code, text = DEATHS[when]
    child(code)

    async def body(worker: Worker) -> None:
        await everything(worker)

    with pytest.raises(WorkerError, match=text):
        run(body)


def test_an_end_is_noticed_by_an_owner_that_waits_for_something_else(child: Callable[[str], None]) -> None:
    child(HELLO + "input()")

    async def body() -> None:
        tasks = Tasks(asyncio.get_running_loop(), BackgroundStatus())
        noticed = asyncio.Event()
        async with Worker(tasks, "child_of_a_test", on_end=noticed.set) as worker:
            os.kill(pid_of(worker), signal.SIGKILL)
            await noticed.wait()
            with pytest.raises(WorkerError, match="killed by signal 9"):
                worker.require_alive()

    asyncio.run(body())


def test_one_that_cannot_be_started_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def body(worker: Worker) -> None: ...

    with pytest.raises(WorkerError, match="its process cannot be started"):
        run(body)


def test_a_silent_process_is_given_up(child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    child(ECHO)

    async def body(worker: Worker) -> None:
        os.kill(pid_of(worker), signal.SIGSTOP)
        monkeypatch.setattr(workers, "SILENCE_S", 0.5)  # the start of a process may take longer
        with pytest.raises(WorkerError, match="its process has been silent for"):
            await worker.receive()

    monkeypatch.setattr(workers, "TERM_S", 0.1)
    run(body)


@pytest.mark.parametrize(
    "code",
    [
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HELLO + "time.sleep(3600)",
        # work that never looks whether it is to end, below Python
        WORK + "import threading\nwork_for_server('child_of_a_test', lambda server: threading.Event().wait())",
    ],
)
def test_a_process_that_does_not_listen_is_ended(child: Callable[[str], None], code: str) -> None:
    child(code)

    async def body(worker: Worker) -> None: ...

    run(body)


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_work_that_never_looks_up_ends_with_its_server(child: Callable[[str], None], tmp_path: Path, how: str) -> None:
    child(WORK + "import threading\nwork_for_server('child_of_a_test', lambda server: threading.Event().wait())")
    process = subprocess.Popen(
        [sys.executable, "-m", "child_of_a_test"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b'{"riverbed": "child_of_a_test"}\n'
    if how == "SIGTERM":
        process.terminate()
    else:
        process.stdin.close()
    try:
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_process_that_outlives_its_server_does_no_work(child: Callable[[str], None], tmp_path: Path) -> None:
    """The next server deletes what such a process works in: it must not make that again."""
    child(WORK + f"work_for_server('child_of_a_test', lambda server: open({str(tmp_path / 'work')!r}, 'x'))")
    command = [sys.executable, "-m", "child_of_a_test"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()  # before it has said its first line
        process.wait(60)
    assert process.returncode == 1
    assert not (tmp_path / "work").exists()


def test_no_order_of_a_server_that_has_gone_is_followed(child: Callable[[str], None], tmp_path: Path) -> None:
    child(f"""
        import contextlib, time
        from riverbed.server.background.child import Ended, work_for_server

        def work(server):
            with contextlib.suppress(Ended):
                while True:
                    server.go_on()
                    time.sleep(0.001)
            server.listen()
            open({str(tmp_path / "work")!r}, "x")

        work_for_server("child_of_a_test", work)
    """)
    command = [sys.executable, "-m", "child_of_a_test"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b'{"riverbed": "child_of_a_test"}\n'
        process.stdin.write(b"{}\n")
    assert process.returncode == 1
    assert not (tmp_path / "work").exists()


def test_a_directory_that_the_next_server_may_have_made_is_not_worked_in(
    child: Callable[[str], None], tmp_path: Path
) -> None:
    child(f"""
        from pathlib import Path
        from riverbed.server.background.child import work_for_server

        def work(server):
            server.listen()
            server.work_in(Path({str(tmp_path)!r}))
            open("work", "x")

        work_for_server("child_of_a_test", work)
    """)
    command = [sys.executable, "-m", "child_of_a_test"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b'{"riverbed": "child_of_a_test"}\n'
        process.stdout.close()
        process.stdin.write(b"{}\n")
        process.stdin.flush()
        process.wait(60)
    assert process.returncode == 1
    assert not (tmp_path / "work").exists()


def test_one_that_is_killed_while_it_is_started_is_never_waited_for(child: Callable[[str], None]) -> None:
    child("import time; time.sleep(3600)")

    async def body() -> None:
        tasks = Tasks(asyncio.get_running_loop(), BackgroundStatus())
        worker = Worker(tasks, "child_of_a_test")
        worker.kill()
        with pytest.raises(WorkerError, match="killed by signal 9"):
            async with worker:
                raise AssertionError("it never says a word")

    asyncio.run(body())


def test_packages_of_the_working_directory_are_none_of_ours(
    child: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(ECHO)
    elsewhere = tmp_path / "elsewhere"
    for name in ("server", "store"):
        (elsewhere / name).mkdir(parents=True)
        (elsewhere / name / "__init__.py").write_text("raise SystemExit('a foreign package')")
    (elsewhere / "json.py").write_text("raise SystemExit('a foreign module')")
    monkeypatch.chdir(elsewhere)

    async def body(worker: Worker) -> None:
        worker.send(number=1)
        assert await worker.receive() == {"echo": {"number": 1}}

    run(body)


@pytest.mark.parametrize("is_urgent", [False, True])
def test_a_process_gives_way_to_the_server_unless_it_is_urgent(child: Callable[[str], None], is_urgent: bool) -> None:
    child(TELL_SHARE)

    async def body(worker: Worker) -> None:
        worker.send()
        answer = await worker.receive()
        ours = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
        expected = ours if is_urgent else (19, os.SCHED_IDLE)
        assert (answer["niceness"], answer["policy"]) == expected

    run(body, is_urgent=is_urgent)


def test_a_process_for_which_no_processor_is_free_takes_a_small_share_of_one(
    child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # one that is never given a processor says nothing: this one stops itself as soon as it has the lowest share
    stop = """
import os, signal, time

while os.getpriority(os.PRIO_PROCESS, 0) != 10:
    if os.sched_getscheduler(0) == os.SCHED_IDLE:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.001)
"""
    child(stop + TELL_SHARE)

    async def body(worker: Worker) -> None:
        worker.send()
        answer = await worker.receive()
        assert (answer["niceness"], answer["policy"]) == (10, os.SCHED_OTHER)

    monkeypatch.setattr(workers, "STARVED_S", 0.5)
    run(body)


def test_a_word_that_comes_as_its_time_is_over_counts(child: Callable[[str], None]) -> None:
    """Else another process takes the place of one whose first word is there, and is heard for its own."""
    child(ECHO)

    async def body(worker: Worker) -> None:
        def say_it_late() -> None:
            time.sleep(0.1)  # the loop sees the end of the wait and the word in one turn
            worker._news.set()

        waiting = asyncio.ensure_future(worker._has_news(0.05))
        asyncio.get_running_loop().call_soon(say_it_late)
        assert await waiting

    run(body)
