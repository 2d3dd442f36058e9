"""How much memory of its own does a server with millions of entries take?

RssAnon of /proc/PID/status: memory that the system cannot take back.  File pages (RssFile) are shown beside it: LMDB's
map is in the system's page cache, which releases it when another process needs memory.
"""

from __future__ import annotations

from pathlib import Path

import redis

from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.servers import Server

MB = 1_000_000
_PAGE = 1000  # entries a request when all are read


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.entries
    budget = below(150, "MB")
    loaded = Measurement("private, after loading", "MB", budget)
    small = Measurement(f"private, after loading {entries // 10:,}", "MB", budget)
    started = Measurement("private, after a start", "MB", budget)
    pending = min(rig.sizes.pending, entries)
    with_pending = Measurement(f"private, after reading {pending:,} for a group", "MB", budget)
    started_with_pending = Measurement(f"private, after a start with {pending:,} pending", "MB", budget)
    read = Measurement("private, after reading all of it", "MB", budget)
    cached = Measurement("file pages, after reading all of it", "MB")
    for contender in Contender:  # once, as a data set is made once: a round would show the same number again
        for measurement, dataset in (
            (small, rig.dataset(contender, entries // 10)),
            (loaded, rig.dataset(contender, entries)),
            (with_pending, rig.with_pending(contender)),
        ):
            samples_of(measurement, contender).append(dataset.loaded_private_bytes / MB)
    for contender in rig.turns(f"memory with {entries:,} entries"):
        with rig.opened(contender, rig.dataset(contender, entries).directory) as server:
            samples_of(started, contender).append(server.private_bytes() / MB)
            _read_all(server)
            samples_of(read, contender).append(server.private_bytes() / MB)
            samples_of(cached, contender).append(_file_bytes(server) / MB)
        with rig.opened(contender, rig.with_pending(contender).directory) as server:
            samples_of(started_with_pending, contender).append(server.private_bytes() / MB)
    return Answer(
        f"Memory with {entries:,} entries of 66 bytes",
        "grep Rss /proc/PID/status",
        [small, loaded, started, read, cached, with_pending, started_with_pending],
    )


def _read_all(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        last_id = b"0"
        while entries := client.xrange("events", b"(" + last_id, "+", _PAGE):
            last_id = entries[-1][0]


def _file_bytes(server: Server) -> int:
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssFile in /proc/PID/status")
