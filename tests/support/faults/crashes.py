"""Rounds of producers and crashes, in each of which the server is held to what it had acknowledged.

What every round checks is in `ledger.py`, what the producers do in `producers.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from tests.support.faults.ledger import Fate, Ledger
from tests.support.faults.producers import SHARED, finish, read_streams, start_workers, until_acknowledged
from tests.support.servers import Server

# Acknowledged in a round before it crashes.  They are counted and not timed: how fast the machine is proves nothing.
FEWEST, MOST = 25, 1_000


def options_for(chance: random.Random) -> dict[str, object]:
    """Always durable; checkpoints and log files so small that the rounds meet their edges."""
    return {
        "appendfsync": "always",
        "checkpoint-interval-ms": chance.choice((1, 5, 50, 200)),
        "log-segment-bytes": chance.choice((1 << 16, 1 << 18, 1 << 26)),
    }


def crash_while_writing(server: Server, seed: int, number: int, crash: Callable[[], None]) -> Ledger:
    """Let producers write some, few or many, crash, and return what they noted."""
    ledger = Ledger()
    workers = start_workers(server, ledger, seed, number)
    until_acknowledged(workers, random.Random(seed).randint(FEWEST, MOST))
    crash()
    finish(workers)
    return ledger


def hold_to_its_word(server: Server, ledger: Ledger, streams: set[bytes], what: str) -> None:
    complaints = list(ledger.verify(read_streams(server, streams), streams))
    if complaints:
        shown = "\n".join(complaints[:20])
        pytest.fail(f"{what}: {len(complaints)} complaints\n{shown}\n{server.log_tail()}", pytrace=False)


class Rounds:
    """The ledgers of a loop of crashes.  Each round has streams of its own; one stream is shared by all rounds."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ledgers: list[Ledger] = []

    def check(self, numbers: Sequence[int], what: str) -> None:
        for number in dict.fromkeys(numbers):
            ledger = self.ledgers[number]
            hold_to_its_word(self.server, ledger, ledger.streams() - {SHARED}, what)

    def check_all(self, what: str) -> None:
        self.check(range(len(self.ledgers)), what)
        all_accounts = Ledger(account for ledger in self.ledgers for account in ledger.accounts)
        hold_to_its_word(self.server, all_accounts, {SHARED}, what)

    def total(self, fate: Fate) -> int:
        return sum(ledger.count(fate) for ledger in self.ledgers)

    def assert_they_prove_something(self) -> None:
        assert self.total(Fate.ACKNOWLEDGED) >= FEWEST * len(self.ledgers)
        assert self.total(Fate.UNKNOWN) > 0, "no crash met a write"
