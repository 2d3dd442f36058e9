"""How many reads of a hundred entries a second does a large stream give to 50 clients?  XLEN and PING for reference."""

from __future__ import annotations

from benchmarks.load.traffic import FIRST_MS, load, measure
from benchmarks.report import Answer, Budget, Measurement, at_least
from benchmarks.rig import Rig, samples_of

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


def answer(rig: Rig) -> Answer:
    by_name = {what: Measurement(what, "requests/s", budget) for what, (_, _, budget) in COMMANDS.items()}
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
    return Answer(
        f"Reading: a stream of {entries:,} entries of 66 bytes, 50 clients, P=1",
        f"redis-benchmark -c 50 -n {rig.sizes.read_requests} -r {entries - 100} XRANGE events {_SOMEWHERE} + COUNT 100",
        [*by_name.values(), *cpu_by_name.values()],
        (f"Entries have the IDs {FIRST_MS}-0 and up, so `1__rand_int__` is the ID of a random one.",),
    )
