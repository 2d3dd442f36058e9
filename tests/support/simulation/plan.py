"""What goes wrong in one simulation, and when; drawn from the seed, and a list, so that it can be made shorter."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

SENTINEL = "sentinel"
_MACHINES = ["a", "b", "c"]
_WITH_REPAIRS = 1 / 3
# One run of so many has a slow disk, whose syncs take one of these times.
_SLOW = 5
_SYNCS_S = (0.001, 0.003, 0.01)


@dataclass(frozen=True)
class Event:
    """A fault; `other` is another machine, an operation, or a command."""

    at_s: float
    kind: str
    machine: str
    number: int = 0
    seconds: float = 0.0
    other: str = ""

    @property
    def shown(self) -> str:
        words = [self.other] if self.other else []
        words += [str(self.number)] if self.number else []
        words += [f"{self.seconds:.3f}"] if self.seconds else []
        return " ".join(words)


@dataclass
class Plan:
    """One simulation; `seconds` without the rest at its end."""

    seed: int
    seconds: float
    clients: int
    machines: list[str]
    settings: list[str]
    events: list[Event] = field(default_factory=list)
    syncs_late: bool = False  # a power cut may lose what was acknowledged
    sync_s: float = 0.0  # what a sync takes


def make_plan(seed: int) -> Plan:
    random = Random(f"{seed}/plan")
    machines = _MACHINES if random.random() < 0.6 else _MACHINES[:1]
    log = Random(f"{seed}/log")
    fsync = log.choice(("always", "always", "always", "everysec", "no"))
    settings = [*_settings(random), "--appendfsync", fsync]
    if log.random() < 0.3:
        settings += ["--log-segment-bytes", str(64 << 10)]  # in place of the one before
    plan = Plan(seed, random.uniform(4, 10), random.randint(2, 6), machines, settings, syncs_late=fsync != "always")
    if seed % _SLOW == 0:
        plan.sync_s = Random(f"{seed}/sync").choice(_SYNCS_S)
    kinds = _kinds(machines)
    if plan.syncs_late:
        del kinds["clock jump"]  # an entry that a power cut takes may have had an ID of the future, which comes again
    # a run has some kinds of faults, so that there are runs without the ones that end everything
    chosen = random.sample(sorted(kinds), random.randint(2, min(6, len(kinds))))
    pace_s = random.choice((0.3, 1.0, 2.0))
    at_s = random.uniform(0.0, 1.0)
    while (at_s := at_s + random.expovariate(1 / pace_s)) < plan.seconds:
        plan.events.append(_event(random, at_s, random.choice(chosen), random.choice(machines), kinds))
    _add_repairs(plan)
    return plan


def _add_repairs(plan: Plan) -> None:
    """Have a third of all runs make tables again of the log now and then."""
    random = Random(f"{plan.seed}/mend")
    if random.random() < _WITH_REPAIRS:
        for _ in range(random.randint(1, 4)):
            at_s = random.uniform(0.0, plan.seconds)
            plan.events.append(
                Event(at_s, "command", random.choice(plan.machines), other="RIVERBED REPAIR", seconds=5.0)
            )
        plan.events.sort(key=lambda event: event.at_s)


def _settings(random: Random) -> list[str]:
    values = {
        "port": 6379,
        "protected-mode": "no",
        "scrub-interval": 0,
        "enable-debug-command": "yes",
        "slowlog-log-slower-than": -1,  # how long a command takes is real time
        "lmdb-map-size": "64mb",
        "auto-aof-rewrite-percentage": random.choice((0, 0, 50)),
        "auto-aof-rewrite-min-size": "16kb",
        "checkpoint-interval-ms": random.choice((20, 50, 200, 1000)),
        "stream-node-max-entries": random.choice((3, 20, 100)),
        "log-segment-bytes": random.choice((1 << 20, 1 << 30)),
        "disk-reserve-bytes": random.choice((0, 1 << 20)),
        "repl-timeout": random.choice((2, 60)),
        "repl-backlog-size": random.choice(("16kb", "1mb")),
        "repl-ping-replica-period": 1,
        "shutdown-timeout": random.choice((0, 1, 10)),
    }
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


Maker = Callable[[Random], dict[str, object]]


def _kinds(machines: list[str]) -> dict[str, Maker]:
    """Each kind of fault, and what is drawn for it."""
    kinds: dict[str, Maker] = {
        "kill": lambda random: {},
        "power cut": lambda random: {},
        "power cut at work": lambda random: {"number": random.randint(1, 300)},
        "power cut after a rewrite": lambda random: {"other": "BGREWRITEAOF", "seconds": random.uniform(0.0, 0.4)},
        "stop": lambda random: {"number": int(random.choice((signal.SIGTERM, signal.SIGINT)))},
        "pause": lambda random: {"seconds": random.uniform(0.01, 4.0)},
        "clock jump": lambda random: {"seconds": random.choice((-1, 1)) * 10 ** random.uniform(-2, 4)},
        "disk full": lambda random: {"number": random.randint(0, 20_000), "seconds": random.uniform(0.1, 3.0)},
        "broken disk": lambda random: {"seconds": random.uniform(0.01, 1.0)},
        "failed operation": lambda random: {"other": random.choice(_OPERATIONS), "number": random.randint(1, 2)},
        "command": lambda random: {"other": random.choice(_COMMANDS), "seconds": 5.0},
        "child killed": lambda random: {},
        "no child": lambda random: {},
    }
    if len(machines) > 1:
        kinds["reset"] = lambda random: {"other": random.choice([*machines, SENTINEL])}
        kinds["partition"] = lambda random: {
            "other": random.choice([*machines, SENTINEL]),
            "seconds": random.uniform(0.1, 5.0),
        }
        kinds["isolation"] = lambda random: {"seconds": random.uniform(0.1, 5.0)}
        kinds["failover"] = lambda random: {"other": "FAILOVER TIMEOUT 1000", "seconds": 5.0}
    return kinds


_OPERATIONS = (
    "sync",
    "sync",
    "sync",
    "write",
    "create",
    "rename",
    "sync_directory",
    "sync_tables",
    "truncate",
    "unlink",
    "open",
)
_COMMANDS = (
    "BGREWRITEAOF",
    "BGREWRITEAOF",
    "BGREWRITEAOF",
    "RIVERBED SNAPSHOT",
    "BGSAVE",
    "SAVE",
    "SHUTDOWN",
    "SHUTDOWN NOSAVE",
    "SHUTDOWN NOW",
    "SHUTDOWN SAVE",
    "DEBUG RELOAD",
    "DEBUG LOADAOF",
    "CLIENT PAUSE 500 WRITE",
    "CLIENT PAUSE 300 ALL",
)


def _event(random: Random, at_s: float, kind: str, machine: str, kinds: dict[str, Maker]) -> Event:
    drawn = kinds[kind](random)
    return Event(at_s, "command" if kind == "failover" else kind, machine, **drawn)
