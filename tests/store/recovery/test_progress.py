from __future__ import annotations

import shutil

import pytest

from riverbed.store.layout import STATE_DIRECTORY
from riverbed.store.recovery.replay import EXECUTING, STEP_BYTES
from tests.support.store.stores import Store


@pytest.mark.parametrize("lose_tables", [False, True])
def test_a_start_reports_each_step_of_the_log(store: Store, lose_tables: bool) -> None:
    for number in range(1, 6):
        store.add(b"s", f"{number}-0", words=(b"f", bytes(STEP_BYTES)))
        store.commit()
    told: list[tuple[str, int, int]] = []
    store.kill()
    if lose_tables:
        shutil.rmtree(store.directory / STATE_DIRECTORY)
    store.open(lambda *words: told.append(words))
    assert [step for step, _, _ in told] == [EXECUTING] * len(told)
    assert len(told) >= 5
    assert told[-1][1] == told[-1][2] > told[0][1] > 0
