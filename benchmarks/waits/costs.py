"""Single commands at a million: how long does the PING of another client wait while each runs, beside redis-server?

A data set is filled in once, then the commands run on it, those that destroy it last.  docs/costs.md says what each
does in one turn; `words.py` asks the same about commands of many words.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from benchmarks.load.probe import Probe
from benchmarks.load.traffic import TIMEOUT_S
from benchmarks.reads.pending import wait_until_purged
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from benchmarks.waits.words import Command, run
from tests.support.servers import Server

MOST: Final = 1_000_000
QUEUED: Final = 100_000
_BATCH: Final = 10_000
_SETTLE_S: Final = 0.3
_MOST_SHOWN: Final = 12  # words of a command


@dataclass(frozen=True)
class Held:
    """A data set, and the commands that run on it; `only_ours` are unknown to redis-server 7.0."""

    what: str
    fill: Iterator[Command]
    commands: tuple[Command, ...]
    only_ours: tuple[Command, ...] = ()
    waits: bool = False  # the commands of the last fill are queued, and not answered


def _pending(count: int) -> Iterator[Command]:
    for number in range(1, count + 1):
        yield "XADD", "s", f"{number}-1", "f", "v"
    yield "XGROUP", "CREATE", "s", "g", "0"
    for _ in range(0, count, 1000):
        yield "XREADGROUP", "GROUP", "g", "c", "COUNT", 1000, "STREAMS", "s", ">"


def _groups(count: int) -> Iterator[Command]:
    yield "XADD", "s", "1-1", "f", "v"
    for number in range(count):
        yield "XGROUP", "CREATE", "s", f"g{number}", "0"


def _consumers(count: int) -> Iterator[Command]:
    yield "XADD", "s", "1-1", "f", "v"
    yield "XGROUP", "CREATE", "s", "g", "0"
    for number in range(count):
        yield "XGROUP", "CREATECONSUMER", "s", "g", f"c{number}"


def _keys(count: int) -> Iterator[Command]:
    for number in range(count):
        yield "XADD", f"k{number}", "1-1", "f", "v"


def _queued(count: int) -> Iterator[Command]:
    yield ("MULTI",)
    for _ in range(count):
        yield "XADD", "s", "*", "f", "v"


def _data_sets(count: int) -> Iterator[Held]:
    reading: tuple[Command, ...] = (
        ("XRANGE", "s", "-", "+"),
        ("XREAD", "STREAMS", "s", "0"),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", count, "STREAMS", "s", "0"),
        ("XPENDING", "s", "g", "-", "+", count),
        ("XINFO", "STREAM", "s", "FULL", "COUNT", 0),
        ("XAUTOCLAIM", "s", "g", "d", 0, "0", "COUNT", count, "JUSTID"),
        ("COPY", "s", "t"),
        ("RENAME", "t", "u"),
        ("DEL", "u"),
    )
    destroying: tuple[Command, ...] = (
        ("XGROUP", "DELCONSUMER", "s", "g", "d"),
        ("XGROUP", "DESTROY", "s", "g"),
        ("XTRIM", "s", "MAXLEN", 0),
    )
    yield Held("pending entries", _pending(count), reading + destroying)
    trims: tuple[Command, ...] = (
        ("XTRIM", "s", "MAXLEN", count // 2, "DELREF"),
        ("XADD", "s", "MAXLEN", 1, "DELREF", "*", "f", "v"),
    )
    yield Held("pending entries", _pending(count), (), only_ours=trims)
    full = ("XINFO", "STREAM", "s", "FULL")
    yield Held("groups", _groups(count), (("XINFO", "GROUPS", "s"), full, ("DEL", "s")))
    yield Held(
        "consumers", _consumers(count), (("XINFO", "CONSUMERS", "s", "g"), full, ("XGROUP", "DESTROY", "s", "g"))
    )
    queued = min(count, QUEUED)
    names = [f"k{number}" for number in range(queued)]
    listing: tuple[Command, ...] = (("KEYS", "*"), ("SCAN", 0, "COUNT", count), ("RANDOMKEY",), ("SWAPDB", 0, 1))
    waiting: Command = ("XREAD", "BLOCK", 1, "STREAMS", *names, *["$"] * queued)  # of the other database: none is there
    yield Held("keys", _keys(count), (*listing, waiting, ("FLUSHALL",)))
    yield Held(f"XADD queued: {queued:,}", _queued(queued), (("EXEC",),), waits=True)


def answer(rig: Rig) -> Answer:
    count = min(MOST, rig.sizes.entries)
    lines: dict[str, Measurement] = {}
    for contender in rig.turns(f"single commands at {count:,}"):
        for held in _data_sets(count):
            with rig.server(contender, "everysec") as server:
                rig.say(f"{held.what}: {contender.value}")
                for what, longest_ms in _stalls(server, held, contender):
                    line = lines.setdefault(what, Measurement(what, "ms", below(20, "ms")))
                    samples_of(line, contender).append(longest_ms)
    return Answer(
        f"Single commands at {count:,}: longest PING of another client",
        "python -m benchmarks.load.probe PORT",
        list(lines.values()),
        (f"{QUEUED:,} keys and commands in one request.",),
    )


def _stalls(server: Server, held: Held, contender: Contender) -> Iterator[tuple[str, float]]:
    """-> what was done, and how long the slowest PING took meanwhile, in ms."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
    commands = held.commands + (held.only_ours if contender is not Contender.REDIS else ())
    with connection:
        while batch := tuple(islice(held.fill, _BATCH)):
            run(connection, batch, waits=held.waits)
        for command in commands:
            time.sleep(_SETTLE_S)
            with Probe(server.port) as probe:
                run(connection, (command,), waits=False)
                wait_until_purged(server)  # of its work, none is to be another line's
                time.sleep(_SETTLE_S)
            yield f"{_shown(command)}, {held.what}", probe.latency.longest_ms


def _shown(command: Command) -> str:
    words = [str(word) for word in command if isinstance(word, str) and word not in ("s", "g", "c")]
    return " ".join(words if len(words) <= _MOST_SHOWN else [*words[:2], f"of {words.count('$'):,} keys"])
