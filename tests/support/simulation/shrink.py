"""Finds the smallest part of a failing seed's plan that still fails in the same way: what to read first.

A part leaves out faults, clients, machines and the end of the time; what each client asks for depends on the seed and
its own name alone.  Each trial has a process of its own, as the replay will have, so that a part that is found replays.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tests.support.simulation.plan import SENTINEL, Event, Plan

_MOST_HANGING_S = 120.0
# What differs between two violations of one kind: names, IDs, numbers, times.
_VARIABLE = re.compile(r"b?'[^']*'|\b[abc]\b|[0-9]+")
_TIMES = (0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Part:
    """The faults of a plan that are caused, by number, how many clients and machines there are, and for how long."""

    events: tuple[int, ...]
    clients: int
    machines: int
    seconds: float

    @classmethod
    def all_of(cls, plan: Plan) -> Part:
        return cls(tuple(range(len(plan.events))), plan.clients, len(plan.machines), plan.seconds)

    @classmethod
    def read(cls, text: str) -> Part:
        """Undo `str`."""
        events, clients, machines, seconds = text.split("/")
        return cls(tuple(map(int, events.split(","))) if events else (), int(clients), int(machines), float(seconds))

    def __str__(self) -> str:
        return f"{','.join(map(str, self.events))}/{self.clients}/{self.machines}/{self.seconds:.3f}"

    def plan(self, whole: Plan) -> Plan:
        """This part of a plan; faults of machines that are not there are left out."""
        machines = whole.machines[: self.machines]
        there = {"", SENTINEL, *machines}
        gone = set(whole.machines) - there

        def is_there(event: Event) -> bool:
            return event.machine in there and event.other not in gone

        events = [event for number in self.events if is_there(event := whole.events[number])]
        return replace(whole, machines=machines, events=events, clients=self.clients, seconds=self.seconds)


@dataclass
class Trials:
    """Whether parts of a seed fail; none does any more when the time is over."""

    seed: int
    kinds: set[str]  # of violations, of which a failing part has one
    most_s: float
    count: int = 0
    _begun_s: float = field(default_factory=time.monotonic)

    def fails(self, part: Part) -> bool:
        if time.monotonic() - self._begun_s > self.most_s:
            return False
        self.count += 1
        words = ["-m", "tests.support.simulation", "--seed", str(self.seed), "--part", str(part)]
        try:
            done = subprocess.run(
                [sys.executable, *words], capture_output=True, text=True, check=False, timeout=_MOST_HANGING_S
            )
        except subprocess.TimeoutExpired:
            return False
        return not self.kinds.isdisjoint(kinds_of(line[2:] for line in done.stdout.splitlines() if line[:2] == "  "))


def kinds_of(violations: Iterator[str] | list[str]) -> set[str]:
    return {_VARIABLE.sub("_", line) for line in violations}


def shrink(whole: Part, fails: Callable[[Part], bool]) -> Part:
    """A part of `whole`, which fails, of which no smaller one was found that fails too."""
    part = replace(whole, events=fewest(whole.events, lambda events: fails(replace(whole, events=events))))
    for machines in range(1, part.machines):
        if fails(smaller := replace(part, machines=machines)):
            part = smaller
            break
    for clients in range(part.clients):
        if fails(smaller := replace(part, clients=clients)):
            part = smaller
            break
    for share in _TIMES:
        if fails(smaller := replace(part, seconds=round(part.seconds * share, 3))):
            part = smaller
            break
    # clients or time that are gone may have been what a fault was needed for
    return replace(part, events=fewest(part.events, lambda events: fails(replace(part, events=events))))


def fewest(items: tuple[int, ...], fails: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """Leave out halves, quarters, ... of the items as long as the rest fails (Zeller's delta debugging)."""
    if items and fails(()):
        return ()
    parts = 2
    while len(items) > 1:
        size = -(-len(items) // parts)
        for at in range(0, len(items), size):
            rest = items[:at] + items[at + size :]
            if rest and fails(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(items))
    return items
