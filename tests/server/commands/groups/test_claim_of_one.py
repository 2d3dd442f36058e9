"""XCLAIM of one ID has a path of its own: it does, logs and replies what the way of all claims does.

An option that changes nothing, LASTID 0-0, leads a claim that way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
