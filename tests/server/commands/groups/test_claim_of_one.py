"""XCLAIM of one ID has a path of its own: it does, logs and replies what the way of all claims does.

An option that changes nothing, LASTID 0-0, leads a claim that way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from riverbed.server.commands.dispatch import fast_commands
from riverbed.server.stats.stats import Stats
from riverbed.store.ids import make_id, pack_id
from tests.support.in_process import HandClock, Product, answer

BEFORE = [
    *(f"XADD s {number}-0 f {number}" for number in range(1, 10)),
    "XGROUP CREATE s g 0",
    "XREADGROUP GROUP g Alice COUNT 4 STREAMS s >",
    "XREADGROUP GROUP g Bob COUNT 1 STREAMS s >",
    "XREADGROUP GROUP g Bob COUNT 1 STREAMS s >",
    "XCLAIM s g Bob 0 4-0 RETRYCOUNT 9223372036854775807 LASTID 0-0",
    "XNACK s g FAIL IDS 1 3-0",
    "XDEL s 2-0",
]
POLICY = "XGROUP POLICY s g MAXDELIVERIES 1 DEADLETTER dead"
IDS = ["1-0", "1", "2-0", "3-0", "4-0", "5-0", "6-0", "7-0", "99-0", "01-0", "1-0x", "18446744073709551615-0"]
CLAIMS = [
    *(f"XCLAIM s g Carol {min_idle} {entry_id}" for entry_id in IDS for min_idle in (0, 500, 5000)),
    "XCLAIM s g Alice 0 1-0",
    "XCLAIM s g Carol -5 1-0",
    "XCLAIM s g Carol x 1-0",
    "XCLAIM t g Carol 0 1-0",
    "XCLAIM s h Carol 0 1-0",
]


def outcome(directory: Path, line: str, ending: str, *, is_written: bool, has_policy: bool) -> list[Any]:
    clock = HandClock()
    product = Product(directory, clock)
    for words in [*BEFORE, *[POLICY] * has_policy]:
        product.run(*words.split())
    if is_written:
        product.checkpoint()
    clock.now_ms += 1000
    offset = product.engine.log.end.offset
    reply = answer(lambda: product.run(*line.split(), *ending.split()))
    found = [reply, product.engine.log.end.offset - offset]
    looks = ["XPENDING s g", "XPENDING s g - + 10", "XINFO CONSUMERS s g", "XINFO STREAM s FULL", "XRANGE dead - +"]
    found += [product.run(*words.split()) for words in looks]
    product.kill()
    product.replay()
    found += [product.run(*words.split()) for words in looks]
    product.close()
    return found


@pytest.mark.parametrize("ending", ["", "JUSTID"])
@pytest.mark.parametrize("line", CLAIMS)
def test_a_claim_of_one_does_what_any_claim_does(tmp_path: Path, line: str, ending: str) -> None:
    for number, (is_written, has_policy) in enumerate([(True, False), (False, False), (True, True)]):
        short, full = (
            outcome(tmp_path / f"{number}{name}", line, words, is_written=is_written, has_policy=has_policy)
            for name, words in (("short", ending), ("full", f"{ending} LASTID 0-0"))
        )
        assert short == full


@pytest.mark.parametrize("ending", ["", "JUSTID"])
def test_an_entry_that_was_trimmed_is_not_claimed_while_its_row_is_there(tmp_path: Path, ending: str) -> None:
    product = Product(tmp_path, HandClock())
    for words in BEFORE:
        product.run(*words.split())
    for number in range(10, 2010):
        product.run("XADD", "s", f"{number}-0", "f", number)
    product.run("XREADGROUP", "GROUP", "g", "Bob", "COUNT", "2000", "STREAMS", "s", ">")
    product.run("XTRIM", "s", "MINID", "2000-0")
    stream = product.engine.txn.databases[0].stream(b"s", 0)
    assert stream is not None
    assert product.engine.txn.reader.set_key(stream.prefix + pack_id(make_id(50, 0)))
    assert product.run("XCLAIM", "s", "g", "Carol", "0", "50-0", *ending.split()) == []
    assert product.run("XCLAIM", "s", "g", "Carol", "0", "2000-0", "JUSTID") == [b"2000-0"]
    product.close()


def test_claims_of_one_run_between_two_looks_at_the_clock() -> None:
    table = fast_commands(Stats())
    assert len(b"XCLAIM s g Carol 0 1-0 JUSTID".split()) <= table[b"XCLAIM"].fast_words
    for words in (b"XCLAIM s g Carol 0 1-0 2-0 JUSTID", b"XAUTOCLAIM s g Carol 0 0", b"XNACK s g FAIL IDS 1 1-0"):
        assert len(words.split()) > table[words.split()[0]].fast_words
