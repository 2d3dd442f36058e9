"""The attacks of `python -m benchmarks hostile`, each by a tenth of its crowd: memory keeps the bound that is stated.

No test measures time: the good client gets its answers, on one connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.rig import QUICK, Contender, Rig
from benchmarks.threats.attacked import CROWDS, Crowd, attack
from tests.support.certificates import Certificates

LIMIT_MB = 32
# What the good client and a busy server take in any case.
USUAL_MB = 20


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(replace(QUICK, window_s=2.0), tmp_path_factory.mktemp("attacks"), lambda text: None) as rig:
        yield rig


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("crowd", CROWDS, ids=[crowd.kind for crowd in CROWDS])
def test_an_attack_keeps_the_bound_on_memory_and_the_good_client(
    rig: Rig, certificates: Certificates, crowd: Crowd
) -> None:
    count = crowd.count // 10
    grown_mb, latency = attack(rig, Contender.RIVERBED, certificates, crowd.kind, count, LIMIT_MB)
    assert grown_mb <= crowd.bound_mb(LIMIT_MB, count) + USUAL_MB
    assert latency.count > 0
    assert latency.closed == 0
