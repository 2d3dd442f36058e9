"""A read of many streams that hold a little each: a slice has as much work as one of a long stream has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from riverbed.server.execution import sliced_commands
from tests.support.ticks import Client, Ticks, in_loop

STREAMS = [f"s{number}" for number in range(12)]  # fewer than a slice looks up
EACH = 19
SLICE = 20
POLICY = "XGROUP POLICY {0} g MAXDELIVERIES 1 DEADLETTER dead"
# What is asked, what comes before it, and the first words of the lines by which its work is counted.
READS = {
    "new": ("XREADGROUP GROUP g c STREAMS {keys} {news}", (), b"XCLAIM"),
    "history": ("XREADGROUP GROUP g c STREAMS {keys} {zeros}", ("XREADGROUP GROUP g c STREAMS {0} >",), b"XCLAIM"),
    "taken over": (
        "XREADGROUP GROUP g d CLAIM 0 STREAMS {keys} {news}",
        ("XREADGROUP GROUP g c STREAMS {0} >",),
        b"XCLAIM",
    ),
    "dead letters": (
        "XREADGROUP GROUP g c STREAMS {keys} {zeros}",
        ("XREADGROUP GROUP g c STREAMS {0} >", POLICY),
        b"XADD dead",
    ),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small slices, one a tick."""
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)
    for name in ("SLICE_ENTRIES", "_SLICE_HISTORY", "_MAX_TAKEN_OVER"):
        monkeypatch.setattr(f"riverbed.server.commands.groups.stream_read.{name}", SLICE)


async def asked(ticks: Ticks, name: str) -> Client:
    """A client that is about to ask; the streams are there."""
    client = ticks.connect()
    for key in STREAMS:
        await ticks.ask(client, *(f"XADD {key} {number}-0 f v" for number in range(1, EACH + 1)))
        await ticks.ask(client, f"XGROUP CREATE {key} g 0")
        for line in READS[name][1]:
            await ticks.ask(client, line.format(key))
    ticks.clock.now_ms += 10
    return client


async def finished(client: Client) -> tuple[bytes, int]:
    """The reply, and how many turns of the loop it took."""
    for turns in range(1, 10_000):
        await asyncio.sleep(0)
        if replies := client.replies():
            return replies[0], turns
    raise AssertionError("no reply")


def entries_in(line: bytes) -> int:
    """How many entries a line of the log changes."""
    words = line.split()
    return 1 if words[0] == b"XADD" else words.index(b"TIME") - 5


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", READS)
def test_no_slice_does_more_than_one_of_a_long_stream(tmp_path: Path, name: str) -> None:
    line, _, counted = READS[name]
    filled = line.format(keys=" ".join(STREAMS), news="> " * len(STREAMS), zeros="0 " * len(STREAMS))

    async def body() -> None:
        sliced, whole = Ticks(tmp_path / "sliced"), Ticks(tmp_path / "whole")
        first, second = await asked(sliced, name), await asked(whole, name)
        before = len(sliced.batches())
        first.send(filled)
        reply, _ = await finished(first)
        batches = sliced.batches()[before:]
        sizes = [sum(entries_in(line) for line in batch if line.startswith(counted)) for batch in batches]
        assert sum(sizes) == len(STREAMS) * EACH
        assert max(sizes) < 2 * SLICE
        *_, executed = await whole.ask(second, "MULTI", filled, "EXEC")
        assert executed == b"*1\r\n" + reply
        sliced.close()
        whole.close()

    in_loop(body())


@pytest.mark.usefixtures("small")
def test_a_slice_measures_no_more_entries_than_of_a_long_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverbed.server.commands.streams.reads._SIZED_ENTRIES", SLICE)
    monkeypatch.setattr("riverbed.server.commands.request.LONG_BYTES", 1000)
    line = f"STREAMS {' '.join(STREAMS)} {'0 ' * len(STREAMS)}"

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = await asked(ticks, "new")
        client.send(f"XREAD {line}")
        reply, unmeasured = await finished(client)
        client.send(f"XREAD MAXSIZE 1000000 {line}")
        measured, turns = await finished(client)
        assert measured == reply
        assert turns - unmeasured >= len(STREAMS) // 2 - 1
        ticks.close()

    in_loop(body())
