"""What goes wrong in one simulation, and when; drawn from the seed, and a list, so that it can be made shorter."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class Event:
    """A fault."""

    at_s: float
    kind: str
    machine: str
    number: int = 0
    seconds: float = 0.0

    @property
    def shown(self) -> str:
        return " ".join(
            str(value) for value in (self.number or "", f"{self.seconds:.3f}" if self.seconds else "") if value
        )


@dataclass
class Plan:
    """One simulation; `seconds` without the rest at its end."""

    seed: int
    seconds: float
    clients: int
    machines: list[str]
    settings: list[str]
    events: list[Event] = field(default_factory=list)


def make_plan(seed: int) -> Plan:
    random = Random(f"{seed}/plan")
    settings = ["--port", "6379", "--protected-mode", "no", "--scrub-interval", "0", "--enable-debug-command", "yes"]
    settings += ["--lmdb-map-size", "64mb", "--auto-aof-rewrite-percentage", "0"]
    settings += ["--checkpoint-interval-ms", str(random.choice((20, 50, 200, 1000)))]
    settings += ["--stream-node-max-entries", str(random.choice((3, 20, 100)))]
    settings += ["--log-segment-bytes", str(random.choice((1 << 20, 1 << 20, 1 << 30)))]
    plan = Plan(seed, random.uniform(4, 10), random.randint(2, 6), ["a"], settings)
    at_s = 0.3
    while (at_s := at_s + random.expovariate(1.0)) < plan.seconds:
        plan.events.append(_event(random, at_s, random.choice(plan.machines)))
    return plan


def _event(random: Random, at_s: float, machine: str) -> Event:
    kind = random.choice(("kill", "power cut", "power cut at work", "power cut at work", "stop", "pause", "reset"))
    match kind:
        case "power cut at work":
            return Event(at_s, kind, machine, random.randint(1, 300))
        case "stop":
            return Event(at_s, kind, machine, int(random.choice((signal.SIGTERM, signal.SIGINT))))
        case "pause":
            return Event(at_s, kind, machine, 0, random.uniform(0.01, 4.0))
    return Event(at_s, kind, machine)
