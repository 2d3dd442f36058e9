"""Work beside the caller's: in order, one piece at a time, and no error is lost."""

from __future__ import annotations

import threading

import pytest

from riverbed.store.disk.beside import WorkBeside


def test_the_caller_goes_on_while_the_work_is_done() -> None:
    may_end = threading.Event()
    with WorkBeside("work") as beside:
        beside.begin(lambda: None if may_end.wait(60) else pytest.fail("the caller has waited"))
        may_end.set()
        beside.wait()


def test_a_piece_begins_when_the_one_before_is_done() -> None:
    done: list[int] = []
    may_end = threading.Event()

    def first() -> None:
        may_end.wait(60)
        done.append(1)

    with WorkBeside("work") as beside:
        beside.begin(first)
        threading.Timer(0.05, may_end.set).start()
        beside.begin(lambda: done.append(2))
    assert done == [1, 2]


def test_an_error_is_raised_by_every_later_call_and_nothing_is_begun_after_it() -> None:
    done: list[int] = []

    def fail() -> None:
        raise OSError("no space left")

    with WorkBeside("work") as beside:
        beside.begin(fail)
        for _ in range(2):
            with pytest.raises(OSError, match="no space left"):
                beside.begin(lambda: done.append(1))
            with pytest.raises(OSError, match="no space left"):
                beside.wait()
    assert done == []


def test_the_end_waits_for_the_work_and_hides_no_error_of_the_caller() -> None:
    done: list[int] = []
    may_end = threading.Event()

    def fail() -> None:
        may_end.wait(60)
        done.append(1)
        raise OSError("no space left")

    def interrupt() -> None:
        with WorkBeside("work") as beside:
            beside.begin(fail)
            threading.Timer(0.05, may_end.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        interrupt()
    assert done == [1]


def test_without_a_thread_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with WorkBeside("work") as beside:
        beside.begin(lambda: done.append(1))
        assert done == [1]


def test_the_end_waits_for_a_thread_whose_start_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    may_end = threading.Event()
    start = threading.Thread.start

    def interrupt(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "work":
            raise KeyboardInterrupt

    def work() -> None:
        may_end.wait(60)
        done.append(1)

    def begin() -> None:
        with WorkBeside("work") as beside:
            threading.Timer(0.05, may_end.set).start()
            beside.begin(work)

    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        begin()
    assert done == [1]


def test_the_end_waits_for_no_thread_that_never_began(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    def begin() -> None:
        with WorkBeside("work") as beside:
            beside.begin(lambda: None)

    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        begin()
