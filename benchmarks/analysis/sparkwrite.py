"""How many rows a second does one task of Spark append to a server, each once whatever happens to its connection?

Measures the sender of a task alone, without Spark and the costs of a query.  Every pipeline is a transaction that also
notes the names of its rows in a journal, so a part of the time of the server and of the files is for the journal.
"""

from __future__ import annotations

import time

from benchmarks.load.traffic import cpu_seconds
from benchmarks.report import Answer, Measurement
from benchmarks.rig import Rig, samples_of
from riverbed.tools.live.redisclient import Address
from riverbed.tools.spark.writing.journal import Job
from riverbed.tools.spark.writing.options import WriteOptions
from riverbed.tools.spark.writing.rows import Entry
from riverbed.tools.spark.writing.server import Connection, Sender
from tests.support.servers import Server

_STREAMS = 8


def answer(rig: Rig) -> Answer:
    rate, cpu = Measurement("rows", "rows/s"), Measurement("server's CPU", "us/row")
    size = Measurement("state/ or the log alone", "B/row")
    rows = rig.sizes.client_entries
    for contender in rig.turns("writing as a task of Spark does"):
        with rig.server(contender, "everysec") as server:
            seconds, busy_seconds = _write(server, rows)
            samples_of(rate, contender).append(rows / seconds)
            samples_of(cpu, contender).append(busy_seconds / rows * 1e6)
            server.stop()
            state = server.directory / "state"
            files = (state if state.exists() else server.directory).rglob("*")
            samples_of(size, contender).append(sum(file.stat().st_blocks for file in files) * 512 / rows)
    return Answer(
        f"Writing from Spark: {rows:,} rows of three fields to {_STREAMS} streams, one task",
        "MULTI; XADD stream * ... x 500; XADD journal * ...; EXEC; WATCH; XLEN",
        [rate, cpu, size],
    )


def _write(server: Server, count: int) -> tuple[float, float]:
    """-> seconds it took, seconds of the server's CPU."""
    rows = [
        Entry(
            b"s%d" % (number % _STREAMS),
            None,
            [b"user", b"u%06d" % (number % 50_000), b"amount", b"%d.25" % number, b"action", b"click"],
        )
        for number in range(count)
    ]
    options = WriteOptions(server=Address("127.0.0.1", server.port))
    before = cpu_seconds(server)
    begun = time.perf_counter()
    with Connection(options) as connection:
        sender = Sender(connection, Job("benchmark"), 0)
        for first in range(0, count, options.pipeline_rows):
            sender.send(rows[first : first + options.pipeline_rows])
        sender.finish()
    return time.perf_counter() - begun, cpu_seconds(server) - before
