"""What costs more when a stream has more entries: appends, reads, groups, claims, a start, a rewrite, a replay?"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.growth.curves import Curve, constant, linear
from benchmarks.load.background import rewrite_log
from benchmarks.load.consumers import drive
from benchmarks.load.traffic import load, measure, read_for
from benchmarks.reads.groups import Reader, ids
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Rig
from benchmarks.upkeep.replaying import LOG, replay_log
from tests.support.servers import Server

_KEY: Final = "events"
_ENTRIES: Final = "entries"
_US: Final = "us of CPU"
_DEPTH: Final = 16
_APPENDS: Final = 100_000
_READS: Final = 20_000
_TURNS: Final = 200  # of a hundred entries, by one consumer
_PENDING_SHARE: Final = 10  # one entry of ten is pending when claims are measured


def curves(rig: Rig) -> Iterator[Curve]:
    costs = {
        name: Curve(f"entries-{name}", title, _ENTRIES, f"{_US} {each}", constant)
        for name, title, each in (
            ("append", "Appending to a stream", "an entry"),
            ("range", "XRANGE COUNT 10 from anywhere", "a read"),
            ("group", "Reading and acknowledging a hundred in a group", "a hundred"),
            ("claim", "XCLAIM of one pending entry of anywhere", "a claim"),
        )
    }
    start = Curve("entries-start", "Starting after kill -9", _ENTRIES, "s", constant)
    rewrite = Curve("entries-rewrite", "Rewriting the log", _ENTRIES, "s", linear)
    replay = Curve("entries-replay", "Replaying a log onto nothing", _ENTRIES, "s", linear)
    for contender in rig.turns("growth with entries"):
        directory = rig.new_directory()
        for size in rig.sizes.growth_entries:
            rig.say(f"{size:,} entries")
            with rig.opened(contender, directory) as server:
                _load_up_to(server, size)
            seconds = _start(rig, contender, directory)
            start.note(contender, size, seconds)
            if contender is Contender.RIVERBED:
                seconds, _ = replay_log(rig, directory / LOG)
            replay.note(contender, size, seconds)  # Redis starts by a replay
            # in a copy: neither log nor tables get what this adds, so that a size is what there is to start and replay
            copied = _copy(rig, directory)
            with rig.opened(contender, copied) as server:
                rewrite.note(contender, size, rewrite_log(server))
                _note_costs(costs, contender, size, server)
            shutil.rmtree(copied)
        shutil.rmtree(directory)
    yield from (*costs.values(), start, rewrite, replay)


def _start(rig: Rig, contender: Contender, directory: Path) -> float:
    """-> seconds until the server answers."""
    server = rig.server(contender, "everysec", directory)
    begun = time.perf_counter()
    server.spawn()
    with server:  # it is killed, whatever happens
        server.wait_ready(LOAD_TIMEOUT_S)
        return time.perf_counter() - begun


def _copy(rig: Rig, directory: Path) -> Path:
    copied = rig.new_directory()
    shutil.copytree(directory, copied, dirs_exist_ok=True)
    os.sync()
    return copied


def _load_up_to(server: Server, size: int) -> None:
    with server.client() as client:
        length = int(client.ask("XLEN", _KEY)[1:])
    load(server.port, _KEY, size, explicit_ids=True, have=length)


def _note_costs(costs: dict[str, Curve], contender: Contender, size: int, server: Server) -> None:
    pending = size // _PENDING_SHARE
    read_for(server.port, _KEY, f"pending-{size}", pending)
    words = ("XCLAIM", _KEY, f"pending-{size}", "taker", "0", "1__rand_int__", "JUSTID")
    costs["claim"].note(contender, size, measure(server, _READS, *words, depth=_DEPTH, random_below=pending).cpu_us)
    words = ("XRANGE", _KEY, "1__rand_int__", "+", "COUNT", "10")
    costs["range"].note(contender, size, measure(server, _READS, *words, depth=_DEPTH, random_below=size).cpu_us)
    with server.client() as client:
        client.ask("XGROUP", "CREATE", _KEY, f"group-{size}", "0")
    batches = [ids(100 * number, 100) for number in range(_TURNS)]
    costs["group"].note(
        contender, size, drive(server, [Reader(f"group-{size}", "reader", 100, _TURNS, batches)]).cpu_us
    )
    with server.client() as client:
        for group in (f"group-{size}", f"pending-{size}"):
            client.ask("XGROUP", "DESTROY", _KEY, group)
    # appended to another stream among the same tables, so that the size of this one stays that of the axis
    words = ("XADD", f"other-{size}", "*", "f1", "v1", "f2", "v2")
    costs["append"].note(contender, size, measure(server, _APPENDS, *words, depth=_DEPTH).cpu_us)
