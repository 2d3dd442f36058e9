"""How many entries a second can 50 clients append, one at a time and pipelined, under either fsync policy?"""

from __future__ import annotations

from benchmarks.report import Answer, Budget, Measurement, at_least
from benchmarks.rig import Rig, samples_of
from benchmarks.traffic import measure

BUDGETS: dict[int, Budget] = {1: at_least(0.97), 16: at_least(1.5), 64: at_least(2.0)}


def answer(rig: Rig) -> Answer:
    measurements: list[Measurement] = []
    for fsync in ("everysec", "always"):
        by_depth = {depth: Measurement(f"P={depth}, {fsync}", "XADD/s", budget) for depth, budget in BUDGETS.items()}
        cpu_by_depth = {depth: Measurement(f"P={depth}, {fsync}: server's CPU", "us/XADD") for depth in BUDGETS}
        for contender in rig.turns(f"XADD, appendfsync {fsync}"):
            with rig.server(contender, fsync) as server:
                for depth, requests in rig.sizes.append_requests.items():
                    words = ("XADD", f"stream{depth}", "*", "f1", "v1", "f2", "v2")
                    rate = measure(server, requests, *words, depth=depth)
                    samples_of(by_depth[depth], contender).append(rate.a_second)
                    samples_of(cpu_by_depth[depth], contender).append(rate.cpu_us)
        measurements += [*by_depth.values(), *cpu_by_depth.values()]
    return Answer(
        "Appending: XADD with two small fields, 50 clients",
        "redis-benchmark -c 50 -n N -P depth XADD stream '*' f1 v1 f2 v2",
        measurements,
        (f"N by depth: {', '.join(f'{depth}: {n:,}' for depth, n in rig.sizes.append_requests.items())}.",),
    )
