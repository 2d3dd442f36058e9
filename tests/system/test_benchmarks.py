"""The questions of `python -m benchmarks` are answered, each with little data: a benchmark that hangs measures nothing.

No figure is judged.  Questions that take long however little there is are left out, and those that need Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.__main__ import QUESTIONS
from benchmarks.rig import QUICK, Rig

pytestmark = [pytest.mark.slow, pytest.mark.once]  # what is looked at is the benchmarks

_ASKED = (
    *("append", "read", "checksums", "client", "start", "memory", "disk", "stalls", "syncs", "compact"),
    *("check", "replay", "groups", "pending", "blocked", "connect", "tls", "latency"),
)
_LITTLE = replace(
    QUICK,
    append_requests={1: 500, 16: 1600, 64: 6400},
    read_entries=2_000,
    read_requests=200,
    client_entries=2_000,
    entries=5_000,
    window_s=0.5,
    group_entries=4_000,
    pending=2_000,
    pending_requests=200,
    unread=500,
    connections=20,
    latency_entries=2_000,
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(_LITTLE, tmp_path_factory.mktemp("benchmarks"), lambda text: None) as rig:
        yield rig


@pytest.mark.parametrize("question", _ASKED)
def test_a_question_is_answered(rig: Rig, question: str) -> None:
    answer = QUESTIONS[question](rig)
    assert answer.measurements
    for each in answer.measurements:
        assert each.riverbed or each.redis, each.what
        assert all(value >= 0 for value in (*each.riverbed, *each.redis)), each.what
    assert any(each.riverbed for each in answer.measurements)
