from __future__ import annotations

import logging

import pytest

from riverbed.server.loading import LoadingLog
from riverbed.store.recovery.replay import EXECUTING


def test_a_line_comes_every_two_seconds(caplog: pytest.LogCaptureFixture) -> None:
    moment = 100.0
    loading = LoadingLog(lambda: moment)
    with caplog.at_level(logging.INFO, "riverbed"):
        for moment in (100.5, 101.9, 102.0, 103.9, 104.1, 110.0):
            loading.note(EXECUTING, int(moment * 1e6), 200_000_000)
    assert [record.getMessage() for record in caplog.records] == [
        "loading, executing the log: 51 % of 200.0 MB",
        "loading, executing the log: 52 % of 200.0 MB",
        "loading, executing the log: 55 % of 200.0 MB",
    ]
