from __future__ import annotations

import logging

import pytest

from riverbed.server.loading import Loading
from riverbed.store.recovery.replay import EXECUTING, VERIFYING
from tests.support.in_process import HandClock


def test_a_line_comes_every_two_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock(100_000)
    loading = Loading(clock)
    with caplog.at_level(logging.INFO, "riverbed"):
        for clock.now_ms in (100_500, 101_900, 102_000, 103_900, 104_100, 110_000):
            loading.note(EXECUTING, clock.now_ms * 1000, 200_000_000)
    assert [record.getMessage() for record in caplog.records] == [
        "loading, executing the log: 51 % of 200.0 MB",
        "loading, executing the log: 52 % of 200.0 MB",
        "loading, executing the log: 55 % of 200.0 MB",
    ]


def test_the_rest_is_estimated_from_the_step_under_way() -> None:
    clock = HandClock(100_000)
    loading = Loading(clock)
    assert (loading.begun_s, loading.percent, loading.eta_s) == (100, 0.0, 1)
    clock.now_ms += 5000
    loading.note(VERIFYING, 1000, 1000)
    assert (loading.percent, loading.eta_s) == (100.0, 1), "a step that has just begun is no measure"
    loading.note(EXECUTING, 0, 1000)
    clock.now_ms += 2000
    loading.note(EXECUTING, 200, 1000)
    assert (loading.percent, loading.eta_s) == (20.0, 8)
