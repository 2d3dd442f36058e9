"""How many entries a second can be appended, one at a time and pipelined, under either fsync policy?

Fifty clients append to one stream, then entries of other shapes: to a thousand streams, with five fields of mixed
sizes, and with an approximate length.  A client of redis-py sends pipelines in which XADD and XACK alternate, also as
transactions, which its pipelines are unless told otherwise; it is slower than both servers, so that their CPU is the
figure to look at.
"""

from __future__ import annotations

from typing import Final

import redis

from benchmarks.load.traffic import FIRST_MS, Rate, cpu_seconds, load, measure, read_for
from benchmarks.report import Answer, Budget, Measurement, at_least
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.servers import Server

BUDGETS: Final[dict[int, Budget]] = {1: at_least(0.97), 16: at_least(1.5), 64: at_least(2.0)}
PIPELINES: Final = (16, 64)
_BUDGET: Final = at_least(1.0)
STREAMS: Final = 1000
_MIXED: Final = (
    *("device", "sensor-17", "temperature", "21.5", "payload", "x" * 120, "n", "1"),
    *("note", "a text of some fifty bytes that a person has written"),
)
SHAPES: Final = {
    "1,000 streams": ("stream:__rand_int__", "*", "f1", "v1"),
    "five fields": ("five", "*", *_MIXED),
    "MAXLEN ~ 1000": ("short", "MAXLEN", "~", "1000", "*", "f1", "v1", "f2", "v2"),
}
_ACKED: Final = 20_000  # entries that a group has pending, to be acknowledged


class Figures:
    """The rows of the table, made when they are first needed."""

    def __init__(self) -> None:
        self._rates: dict[str, Measurement] = {}
        self._cpu: dict[str, Measurement] = {}

    def note(self, what: str, unit: str, budget: Budget, contender: Contender, rate: Rate) -> None:
        a_second = self._rates.setdefault(what, Measurement(what, f"{unit}/s", budget))
        cpu = self._cpu.setdefault(what, Measurement(f"{what}: server's CPU", f"us/{unit}"))
        samples_of(a_second, contender).append(rate.a_second)
        samples_of(cpu, contender).append(rate.cpu_us)

    def rows(self) -> list[Measurement]:
        return [*self._rates.values(), *self._cpu.values()]


def answer(rig: Rig) -> Answer:
    measurements: list[Measurement] = []
    for fsync in ("everysec", "always"):
        figures, shaped = Figures(), Figures()
        for contender in rig.turns(f"XADD, appendfsync {fsync}"):
            with rig.server(contender, fsync) as server:
                for depth, requests in rig.sizes.append_requests.items():
                    words = ("XADD", f"stream{depth}", "*", "f1", "v1", "f2", "v2")
                    rate = measure(server, requests, *words, depth=depth)
                    figures.note(f"P={depth}, {fsync}", "XADD", BUDGETS[depth], contender, rate)
            with rig.server(contender, fsync) as server:
                for depth in PIPELINES:
                    requests = rig.sizes.append_requests[depth] // 2
                    for shape, words in SHAPES.items():
                        rate = measure(server, requests, "XADD", *words, depth=depth, random_below=STREAMS)
                        shaped.note(f"{shape}, P={depth}, {fsync}", "XADD", _BUDGET, contender, rate)
                    for in_multi in (False, True):
                        what = f"redis-py: XADD and XACK{' in MULTI' * in_multi}, P={depth}, {fsync}"
                        rate = mixed(server, depth, f"mixed{depth}{in_multi}", in_multi=in_multi)
                        shaped.note(what, "command", _BUDGET, contender, rate)
        measurements += [*figures.rows(), *shaped.rows()]
    sizes = ", ".join(f"{depth}: {requests:,}" for depth, requests in rig.sizes.append_requests.items())
    return Answer(
        "Appending: XADD with two small fields, 50 clients; then other shapes",
        "redis-benchmark -c 50 -n N -P depth [-r 1000] XADD stream [options] '*' f1 v1 f2 v2",
        measurements,
        (f"N by depth: {sizes}; half of that for other shapes.",),
    )


def mixed(server: Server, depth: int, key: str, *, in_multi: bool) -> Rate:
    """Add entries, and acknowledge as many others, in pipelines or transactions of `depth` commands of redis-py."""
    load(server.port, key, _ACKED, explicit_ids=True)
    read_for(server.port, key, "group", _ACKED)
    before = cpu_seconds(server)
    with redis.Redis(port=server.port) as client:
        begun = client.time()
        for first in range(0, _ACKED, depth // 2):
            pipeline = client.pipeline(transaction=in_multi)
            for number in range(first, first + depth // 2):
                pipeline.xadd(key, {"f1": "v1", "f2": "v2"})
                pipeline.xack(key, "group", f"{FIRST_MS + number}-0")
            pipeline.execute()
        ended = client.time()
    seconds = (ended[0] - begun[0]) + (ended[1] - begun[1]) / 1e6
    return Rate(2 * _ACKED / seconds, (cpu_seconds(server) - before) / (2 * _ACKED) * 1e6)
