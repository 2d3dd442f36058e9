"""The gate: why the server refuses commands just now, whichever client sends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.server.commands.table import Flag
from riverbed.server.errors import CommandError
from riverbed.server.execution.gate import MISCONF, Gate
from riverbed.store.errors import Refusal
from tests.support.ticks import Ticks, in_loop

WRITE = Flag.WRITE
NEEDS_SPACE = Flag.WRITE | Flag.DENYOOM
READ = Flag.READONLY
ALWAYS = Flag.STALE


def refusals(gate: Gate) -> list[str]:
    """What the gate says to a write, to one that needs space, to a read, and to a command of the server's own."""
    said = []
    for flags in (WRITE, NEEDS_SPACE, READ, ALWAYS):
        try:
            gate.check(flags)
        except CommandError as error:
            said.append(error.text.decode())
        else:
            said.append("")
    return said


def test_a_gate_that_nothing_closes_lets_everything_pass(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        gate = ticks.executor.gate
        assert refusals(gate) == ["", "", "", ""]
        assert not gate.refuses_writes and not gate.closes_fast_path
        ticks.close()

    in_loop(body())


def test_replication_refuses_writes_and_what_needs_the_state(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        gate = ticks.executor.gate
        gate.replicate(no_writes="READONLY", no_reads="")
        assert refusals(gate) == ["READONLY", "READONLY", "", ""]
        assert gate.refuses_writes and not gate.closes_fast_path
        gate.replicate(no_writes="READONLY", no_reads="MASTERDOWN")
        assert refusals(gate) == ["READONLY", "READONLY", "MASTERDOWN", ""]
        assert gate.closes_fast_path
        gate.replicate(no_writes="", no_reads="")
        assert refusals(gate) == ["", "", "", ""]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    ("refusal", "refuses_all_writes"),
    [(Refusal.DISK_NEARLY_FULL, False), (Refusal.DISK_FULL, False), (Refusal.LOG_FAILED, True)],
)
def test_the_error_of_the_store_comes_before_that_of_replication(
    tmp_path: Path, refusal: Refusal, refuses_all_writes: bool
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        gate = ticks.executor.gate
        gate.replicate(no_writes="READONLY", no_reads="")
        ticks.engine.refusals.reason = refusal
        text = MISCONF[refusal]
        assert refusals(gate) == [text if refuses_all_writes else "READONLY", text, "", ""]
        assert gate.refuses_writes and gate.closes_fast_path
        ticks.engine.refusals.reason = None
        ticks.close()

    in_loop(body())


def test_monitors_and_pauses_close_the_fast_path_and_refuse_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        gate, client = ticks.executor.gate, ticks.connect()
        await ticks.ask(client, "MONITOR")
        assert gate.is_monitored and gate.closes_fast_path
        assert not ticks.executor.fast_path.commands
        client.leave()
        assert not gate.closes_fast_path and ticks.executor.fast_path.commands
        ticks.executor.pauses.pause(ticks.clock.now_ms + 1000, writes_only=True)
        assert gate.is_paused and not ticks.executor.fast_path.commands
        assert refusals(gate) == ["", "", "", ""]
        ticks.executor.pauses.unpause()
        assert not gate.is_paused and ticks.executor.fast_path.commands
        ticks.close()

    in_loop(body())
