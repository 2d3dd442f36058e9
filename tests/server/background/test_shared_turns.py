from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from riverbed.server.background.shared_turns import SLICES_A_TURN, SharedTurns
from tests.support.ticks import Ticks, in_loop


class Replica:
    """Reads some slices; the first may fail."""

    def __init__(self, turns: SharedTurns, slices: int, *, fails: bool = False) -> None:
        self._turns = turns
        self._fails = fails
        self.slices = slices
        self.given_up: Exception | None = None

    def take_turn(self) -> None:
        if self._fails:
            raise RuntimeError("no slice")
        self.slices -= 1
        if self.slices:
            self._turns.ask(self)

    def give_up(self, error: Exception) -> None:
        self.given_up = error


def test_many_replicas_have_as_many_slices_in_a_turn_of_the_loop_as_one(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        turns = SharedTurns("reading", ticks.server.tasks)
        replicas: list[Any] = [Replica(turns, 3, fails=number == 7) for number in range(100)]
        for _ in range(2):  # also when they come again after a pause
            for replica in replicas:
                replica.slices = 3
                turns.ask(replica)
            left = 300
            while any(replica.slices for replica in replicas if replica is not replicas[7]):
                await asyncio.sleep(0)
                now = sum(replica.slices for replica in replicas)
                assert left - now <= SLICES_A_TURN
                left = now
                assert max(replica.slices for replica in replicas if replica is not replicas[7]) - 1 <= min(
                    replica.slices for replica in replicas
                )
            await asyncio.sleep(0)
        assert [replica for replica in replicas if replica.given_up] == [replicas[7]]
        ticks.close()

    in_loop(body())
