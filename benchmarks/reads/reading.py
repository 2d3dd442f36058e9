"""How many reads of a hundred entries a second does a large stream give to 50 clients?  XLEN and PING for reference.

redis-benchmark takes replies apart, which costs it more than such a reply costs a server: its rates are its own.  So
reads of a hundred are also asked for by clients that only count the bytes of the replies.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.load.consumers import drive
from benchmarks.load.traffic import CLIENTS, FIRST_MS, load, measure
from benchmarks.report import Answer, Budget, Measurement, at_least
from benchmarks.rig import Rig, samples_of
from tests.support.raw import encode
from tests.support.servers import Server

_SOMEWHERE = "1__rand_int__"  # see traffic.FIRST_MS
# what -> command, requests for each request of a hundred entries, budget
COMMANDS: dict[str, tuple[tuple[str, ...], int, Budget | None]] = {
    "XRANGE COUNT 100, random start": (("XRANGE", "events", _SOMEWHERE, "+", "COUNT", "100"), 1, at_least(1.0)),
    "XREAD COUNT 100, random start": (("XREAD", "COUNT", "100", "STREAMS", "events", _SOMEWHERE), 1, at_least(1.0)),
    "XRANGE COUNT 100, from the first": (("XRANGE", "events", "-", "+", "COUNT", "100"), 1, None),
    "XREVRANGE COUNT 100, from the last": (("XREVRANGE", "events", "+", "-", "COUNT", "100"), 1, None),
    "XRANGE COUNT 1, random start": (("XRANGE", "events", _SOMEWHERE, "+", "COUNT", "1"), 4, None),
    "XLEN": (("XLEN", "events"), 4, None),
    "PING": (("PING",), 4, None),
}
_COUNTED = "{}, replies only counted"


class Counting:
    """Sends requests that have replies of the same length, one after the other."""

    def __init__(self, requests: Sequence[bytes], reply_bytes: int) -> None:
        self.rounds = 0
        self._requests = requests
        self._reply_bytes = reply_bytes

    def first(self) -> tuple[bytes, int]:
        return self._requests[0], self._reply_bytes

    def next(self, reply: memoryview) -> tuple[bytes, int] | None:
        self.rounds += 1
        return (self._requests[self.rounds], self._reply_bytes) if self.rounds < len(self._requests) else None


def counting(server: Server, words: Sequence[str], entries: int, requests: int) -> list[Counting]:
    """As many clients as redis-benchmark has, which ask for a hundred from a random one of `entries` entries."""
    rng = random.Random(1)
    places = [f"{FIRST_MS + rng.randrange(entries - 100)}" for _ in range(requests // CLIENTS * CLIENTS)]
    sent = [encode([place if word == _SOMEWHERE else word for word in words]) for place in places]
    with server.client() as client:
        client.send_bytes(sent[0])
        reply_bytes = len(client.reply())
    return [Counting(sent[number::CLIENTS], reply_bytes) for number in range(CLIENTS)]


def answer(rig: Rig) -> Answer:
    by_name = {what: Measurement(what, "requests/s", budget) for what, (_, _, budget) in COMMANDS.items()}
    by_name |= {
        _COUNTED.format(what): Measurement(_COUNTED.format(what), "requests/s", at_least(1.0))
        for what in COMMANDS
        if "COUNT 100" in what
    }
    cpu_by_name = {what: Measurement(f"{what}: server's CPU", "us/request") for what in COMMANDS}
    entries = rig.sizes.read_entries
    for contender in rig.turns(f"reading a stream of {entries:,}"):
        with rig.server(contender, "everysec") as server:
            load(server.port, "events", entries, explicit_ids=True)
            for what, (words, factor, _) in COMMANDS.items():
                requests = rig.sizes.read_requests * factor
                rate = measure(server, requests, *words, random_below=entries - 100)
                samples_of(by_name[what], contender).append(rate.a_second)
                samples_of(cpu_by_name[what], contender).append(rate.cpu_us)
                if (what_counted := _COUNTED.format(what)) in by_name:
                    rate = drive(server, counting(server, words, entries, requests))
                    samples_of(by_name[what_counted], contender).append(rate.a_second)
    return Answer(
        f"Reading: a stream of {entries:,} entries of 66 bytes, 50 clients, P=1",
        f"redis-benchmark -c 50 -n {rig.sizes.read_requests} -r {entries - 100} XRANGE events {_SOMEWHERE} + COUNT 100",
        [*by_name.values(), *cpu_by_name.values()],
        (f"Entries have the IDs {FIRST_MS}-0 and up, so `1__rand_int__` is the ID of a random one.",),
    )
