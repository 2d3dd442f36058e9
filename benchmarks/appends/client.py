"""How many entries a second does a Python program load with redis-py, in pipelines of a hundred and a thousand?"""

from __future__ import annotations

import time
from importlib.util import find_spec

import redis

from benchmarks.load.traffic import fields
from benchmarks.report import Answer, Measurement
from benchmarks.rig import Rig, samples_of

DEPTHS = (100, 1000)


def answer(rig: Rig) -> Answer:
    by_depth = {depth: Measurement(f"pipelines of {depth}", "entries/s") for depth in DEPTHS}
    for contender in rig.turns("loading with redis-py"):
        with rig.server(contender, "everysec") as server:
            for depth, measurement in by_depth.items():
                samples_of(measurement, contender).append(_load(server.port, depth, rig.sizes.client_entries))
    parser = "with hiredis" if find_spec("hiredis") else "with its Python parser"
    return Answer(
        f"Loading with redis-py {redis.__version__} {parser}: one client, entries of 66 bytes, everysec",
        "pipeline(transaction=False), xadd(...) x depth, execute()",
        list(by_depth.values()),
        ("Most of the time is the client's own.",),
    )


def _load(port: int, depth: int, entries: int) -> float:
    """Entries a second."""
    words = [fields(number) for number in range(1000)]
    samples = [dict(zip(line[::2], line[1::2], strict=True)) for line in words]
    with redis.Redis(port=port) as client:
        begun = time.perf_counter()
        for first in range(0, entries, depth):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, first + depth):
                pipeline.xadd(f"client{depth}", samples[number % 1000])
            pipeline.execute()
        return entries / (time.perf_counter() - begun)
