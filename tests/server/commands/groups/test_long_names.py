"""Names of groups and consumers that are as long as clients make them: no reply and no dead letter multiplies them."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from unittest.mock import patch

import pytest

from riverbed.store.databases.copying import CopyInTheMaking
from tests.support.ticks import Client, Ticks, in_loop

NAME = "n" * 100_000
ENTRIES = 300
MOST_BYTES = 3_000_000  # in memory, for a reply of 30 MB
QUESTIONS = (
    f"XPENDING s g - + {ENTRIES}",
    f"XPENDING s g - + {ENTRIES} {NAME}",
    f"XPENDING s g IDLE 1 - + {ENTRIES}",
    "XINFO STREAM s FULL COUNT 0",
)


async def fill(ticks: Ticks) -> Client:
    client = ticks.connect()
    await ticks.ask(client, *["XADD s * f v"] * ENTRIES, "XGROUP CREATE s g 0")
    await ticks.ask(client, f"XREADGROUP GROUP g {NAME} COUNT {ENTRIES} STREAMS s >")
    ticks.clock.now_ms += 10
    return client


class Sent:
    """Counts what a client is sent, and keeps none of it."""

    def __init__(self, client: Client) -> None:
        self.size = self.longest = 0
        client.session.send = self._take

    def _take(self, data: bytes) -> None:
        self.size += len(data)
        self.longest = max(self.longest, len(data))


@pytest.mark.parametrize("question", QUESTIONS, ids=["all", "one consumer", "idle", "full"])
def test_a_name_is_not_in_memory_once_for_each_pending_entry(tmp_path: Path, question: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = await fill(ticks)
        sent = Sent(client)
        tracemalloc.start()
        client.send(question)
        for _ in range(10_000):
            await asyncio.sleep(0)
            if sent.size > ENTRIES * len(NAME):
                break
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sent.size > ENTRIES * len(NAME)
        assert peak < MOST_BYTES
        assert sent.longest < 1_000_000
        ticks.close()

    in_loop(body())


def test_entries_with_long_names_are_shown_like_others(tmp_path: Path) -> None:
    """Names in memory, long and short, with what could be taken for a number."""

    async def answers(ticks: Ticks, names: list[str]) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, "FLUSHALL", *["XADD s 1-* f v"] * 40, "XGROUP CREATE s g 0")
        for name in names * 2:
            await ticks.ask(client, f"XREADGROUP GROUP g {name} COUNT 3 STREAMS s >")
        await ticks.ask(client, "XNACK s g FAIL IDS 2 1-3 1-8", f"XGROUP DELCONSUMER s g {names[1]}")
        ticks.clock.now_ms += 10
        asked = [
            f"XPENDING s g{idle} 1-2 1-33 {count}{owner}"
            for idle in ("", " IDLE 5")
            for count in (1, 7, 100)
            for owner in ("", *(f" {name}" for name in names))
        ]
        return await ticks.ask(client, *asked)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        long = "x" * 1000
        named = ["@1@", "a", long, "@2@b"]
        found = await answers(ticks, named)
        ticks.clock.now_ms -= 10
        short = await answers(ticks, ["@1@", "a", "y", "@2@b"])
        assert [one.replace(f"$1000\r\n{long}".encode(), b"$1\r\ny") for one in found] == short
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("command", ["XAUTOCLAIM s g d 0 0 COUNT 1000", f"XREADGROUP GROUP g {NAME} STREAMS s 0"])
def test_a_command_moves_as_few_dead_letters_as_their_names_are_long(tmp_path: Path, command: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = await fill(ticks)
        await ticks.ask(client, "XGROUP POLICY s g MAXDELIVERIES 1 DEADLETTER dead")
        await ticks.ask(client, command)
        [moved] = await ticks.ask(client, "XLEN dead")
        assert 0 < int(moved[1:]) < 20
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    "command",
    [
        "XAUTOCLAIM s g d 0 0 COUNT 1000",
        "XREADGROUP GROUP g c STREAMS s 0",
        "XREADGROUP GROUP g d CLAIM 0 STREAMS s >",
        f"XCLAIM s g d 0 {' '.join(f'{number}-0' for number in range(1, ENTRIES + 1))}",
    ],
    ids=["xautoclaim", "history", "claim", "xclaim"],
)
def test_a_command_moves_as_few_dead_letters_as_their_key_is_long(tmp_path: Path, command: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD s {number}-0 f v" for number in range(1, ENTRIES + 1)))
        await ticks.ask(client, "XGROUP CREATE s g 0", f"XREADGROUP GROUP g c COUNT {ENTRIES} STREAMS s >")
        await ticks.ask(client, f"XGROUP POLICY s g MAXDELIVERIES 1 DEADLETTER {NAME}")
        before = ticks.engine.log.end.offset
        await ticks.ask(client, command)
        [moved] = await ticks.ask(client, f"XLEN {NAME}")
        assert 0 < int(moved[1:]) <= 40  # of one slice, or of two
        assert ticks.engine.log.end.offset - before < 5_000_000
        ticks.close()

    in_loop(body())


def test_a_long_key_is_not_in_memory_once_for_each_number_of_fields(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        for number in range(1, 100):
            await ticks.ask(client, f"XADD {NAME} MAXLEN 50 * {'f v ' * number}", f"XADD {NAME} * {'f v ' * number}")
        stream = ticks.engine.txn.databases[0].stream(NAME.encode(), 0)
        assert stream is not None
        assert sum(map(len, stream.log_heads.values())) < 3 * len(NAME)
        ticks.close()

    in_loop(body())


async def is_sent_in_pieces(client: Client, question: str, names: int) -> None:
    """Check that the reply, which has so many long names, is never in one piece of a megabyte."""
    sent = Sent(client)
    client.send(question)
    for _ in range(10_000):
        await asyncio.sleep(0)
    assert sent.size > names * len(NAME)
    assert sent.longest < 1_000_000


def test_consumers_with_long_names_are_listed_in_pieces(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM", *["XADD s * f v"] * 200)
        for number in range(200):
            await ticks.ask(client, f"XREADGROUP GROUP g {number}{NAME} COUNT 1 STREAMS s >")
        for question in ("XINFO CONSUMERS s g", "XPENDING s g", "XINFO STREAM s FULL"):
            await is_sent_in_pieces(client, question, 200)
        ticks.close()

    in_loop(body())


def test_a_look_for_consumers_to_delete_reads_no_more_than_a_megabyte_of_names(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM")
        for number in range(100):
            await ticks.ask(client, f"XGROUP CREATECONSUMER s g {number}{NAME}")
        ticks.engine.checkpoint()
        db = ticks.engine.txn.databases[0]
        stream = db.stream(b"s", ticks.clock.now_ms)
        assert stream is not None
        group = db.groups(stream).get(b"g")
        assert group is not None
        consumers = group.consumers
        place: int | None = 0
        found: list[int] = []
        while place is not None:
            part, place = consumers.part(place)
            assert len(part) < 15
            found += [number for number, _ in part]
        assert found == sorted(set(found)) and len(found) == 100
        ticks.close()

    in_loop(body())


def test_groups_with_long_names_are_listed_in_pieces(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s * f v", *[f"XGROUP CREATE s {number}{NAME} 0" for number in range(100)])
        await is_sent_in_pieces(client, "XINFO GROUPS s", 100)
        ticks.close()

    in_loop(body())


def test_a_copy_takes_more_turns_for_long_names(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM")
        for number in range(100):
            await ticks.ask(client, f"XGROUP CREATECONSUMER s g {number}{NAME}")
        with patch.object(CopyInTheMaking, "look", autospec=True, side_effect=CopyInTheMaking.look) as look:
            assert await ticks.ask(client, "COPY s t") == [b":1\r\n"]
        assert look.call_count >= 30
        ticks.close()

    in_loop(body())
