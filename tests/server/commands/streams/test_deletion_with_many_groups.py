"""Deletions that ask all groups of a stream: the more of them have something pending, the fewer entries to a slice."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from riverbed.server.execution import sliced_commands
from riverbed.store.groups.groups import RECORDS_A_SLICE
from tests.support.store.stores import dump_database
from tests.support.ticks import Client, Ticks, in_loop

ENTRIES = 200
GROUPS = 50
A_SLICE = RECORDS_A_SLICE // GROUPS
IDS = " ".join(f"{number}-0" for number in range(1, ENTRIES + 1))
# With the number of entries that a slice takes at most.
LINES = {
    "XDELEX DELREF": (f"XDELEX s DELREF IDS {ENTRIES} {IDS}", A_SLICE),
    "XDELEX ACKED": (f"XDELEX s ACKED IDS {ENTRIES} {IDS}", A_SLICE),
    "XACKDEL DELREF": (f"XACKDEL s g0 DELREF IDS {ENTRIES} {IDS}", A_SLICE),
    "XTRIM DELREF": ("XTRIM s MAXLEN 7 DELREF", A_SLICE),
    "XTRIM MINID DELREF": ("XTRIM s MINID 190 DELREF", A_SLICE),
    "XTRIM ~ DELREF": ("XTRIM s MAXLEN ~ 7 DELREF", 100),  # whole nodes
    "XADD DELREF": ("XADD s MAXLEN 7 DELREF 999-0 f v", A_SLICE),
}


async def filled(ticks: Ticks) -> Client:
    """A stream whose groups have every other entry pending."""
    client = ticks.connect()
    await ticks.ask(client, *(f"XADD s {number}-0 f v" for number in range(1, ENTRIES + 1)))
    for number in range(GROUPS):
        await ticks.ask(client, f"XGROUP CREATE s g{number} 0", f"XREADGROUP GROUP g{number} c STREAMS s >")
        await ticks.ask(client, f"XACK s g{number} {' '.join(IDS.split()[::2])}")
    return client


@pytest.mark.parametrize("name", LINES)
def test_a_slice_takes_few_entries_where_many_groups_have_them_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)  # one slice a tick
    line, most = LINES[name]

    async def body() -> None:
        sliced, whole = Ticks(tmp_path / "sliced"), Ticks(tmp_path / "whole")
        first, second = await filled(sliced), await filled(whole)
        lengths = [ENTRIES]
        database = sliced.engine.txn.databases[0]
        first.send(line)
        replies: list[bytes] = []
        for _ in range(10_000):
            await asyncio.sleep(0)
            stream = database.stream(b"s", sliced.clock.now_ms)
            assert stream is not None
            lengths.append(stream.length)
            if replies := first.replies():
                break
        assert max(before - after for before, after in itertools.pairwise(lengths)) <= most
        assert len(set(lengths)) > 2
        *_, executed = await whole.ask(second, "MULTI", line, "EXEC")
        assert executed == b"*1\r\n" + replies[0]
        assert dump_database(database) == dump_database(whole.engine.txn.databases[0])
        sliced.close()
        whole.close()

    in_loop(body())
