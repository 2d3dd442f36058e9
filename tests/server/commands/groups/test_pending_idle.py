"""XPENDING IDLE finds idle entries in three ways, and answers what the whole list has of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest

from riverbed.server.commands.groups import pending
from riverbed.store.groups import pending_reads
from tests.support.in_process import HandClock, Product

NOW_MS: Final = 1_700_000_000_000
ENTRIES: Final = 400
READ: Final = ("XREADGROUP", "GROUP", "g")


def scattered(directory: Path, chance: random.Random) -> Product:
    """A list whose entries were delivered one by one, at times in no order, to four consumers; some given back."""
    product = Product(directory, HandClock(NOW_MS))
    for number in range(1, ENTRIES + 1):
        product.run("XADD", "s", f"{number}-0", "f", "v")
    product.run("XGROUP", "CREATE", "s", "g", "0")
    product.run(*READ, "a", "COUNT", 100, "STREAMS", "s", ">")
    product.run(*READ, "b", "STREAMS", "s", ">")
    for number in chance.sample(range(1, ENTRIES + 1), 250):
        consumer, idle_ms = chance.choice("abcd"), chance.choice((1, 50, 1000))
        product.run("XCLAIM", "s", "g", consumer, 0, f"{number}-0", "IDLE", idle_ms, "JUSTID")
    for number in chance.sample(range(1, ENTRIES + 1), 20):
        product.run("XNACK", "s", "g", "SILENT", "IDS", 1, f"{number}-0")
    return product


def filtered(rows: list[Any], min_idle_ms: int) -> list[Any]:
    """What is given back has no owner, and is idle for ever."""
    return [row for row in rows if not row[1] or row[2] >= min_idle_ms]


@pytest.mark.parametrize("few_idle", [0, 64, 1 << 30], ids=["none are few", "some are few", "all are few"])
@pytest.mark.parametrize("slice_cost", [16, 4000], ids=["a glance shows little", "a glance shows much"])
def test_each_way_answers_what_the_whole_list_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_idle: int, slice_cost: int
) -> None:
    chance = random.Random(5)
    product = scattered(tmp_path, chance)
    everything = {
        consumer: product.run("XPENDING", "s", "g", "-", "+", ENTRIES, *consumer) for consumer in ((), ("a",), ("c",))
    }
    assert len(everything[()]) == ENTRIES
    monkeypatch.setattr(pending, "_FEW_IDLE", few_idle)
    monkeypatch.setattr(pending_reads, "_SHOW_COST", slice_cost)
    for consumer, rows in everything.items():
        for min_idle_ms in (1, 2, 51, 1001):
            expected = filtered(rows, min_idle_ms)
            for count in (1, 7, ENTRIES):
                first = chance.randint(1, ENTRIES)
                asked = ("XPENDING", "s", "g", "IDLE", min_idle_ms)
                assert product.run(*asked, "-", "+", count, *consumer) == expected[:count]
                behind = [row for row in expected if int(row[0].partition(b"-")[0]) >= first]
                assert product.run(*asked, first, "+", count, *consumer) == behind[:count]
