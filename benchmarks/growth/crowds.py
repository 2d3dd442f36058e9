"""What costs more when there are more streams, more groups, more connections, or more bytes in an entry?"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.growth.curves import Curve, constant, linear, linear_from
from benchmarks.growth.tables import append_rows
from benchmarks.load.consumers import exchange
from benchmarks.load.files import allow_files
from benchmarks.load.traffic import cpu_seconds, measure
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Rig
from benchmarks.upkeep.replaying import LOG, load_log, replay_log
from tests.support.raw import encode
from tests.support.servers import Server

_DEPTH: Final = 16
_REQUESTS: Final = 200_000
_ENTRIES: Final = 2_000  # of the stream that has many groups
_LOOKS: Final = 1_000  # at all groups
_FORGET_S: Final = 1.0  # until a server has forgotten the clients of the size before
_SENT_BYTES: Final = 64_000_000  # by size of entry
_STARTS: Final = 3  # the quickest is taken off: one that is disturbed takes longer than a replay of short entries
_ENTRY_LEAST: Final = 200  # bytes, which cost what a request costs besides: 0.5 us, and 2.5 us for each 1,000 bytes


def streams(rig: Rig) -> Iterator[Curve]:
    append = Curve("streams-append", "Appending to one of many streams", "streams", "us of CPU an entry", constant)
    read = Curve("streams-read", "XRANGE COUNT 10 of one of many streams", "streams", "us of CPU a read", constant)
    start = Curve("streams-start", "Starting after kill -9 with many streams", "streams", "s", constant)
    title = "The rows of such appends, by LMDB alone"
    rows = Curve("streams-rows", title, "streams", "us of CPU an entry", constant, is_judged=False)
    for contender in rig.turns("growth with streams"):
        for count in rig.sizes.growth_streams:
            rig.say(f"{count:,} streams")
            if contender is Contender.RIVERBED:
                rows.note(contender, count, append_rows(rig.new_directory(), count))
            with rig.server(contender, "everysec") as server:
                add = ("XADD", "stream:__rand_int__", "*", "f1", "v1", "f2", "v2")
                measure(server, 3 * count, *add, depth=_DEPTH, random_below=count)  # nearly all exist now
                rate = measure(server, _REQUESTS, *add, depth=_DEPTH, random_below=count)
                append.note(contender, count, rate.cpu_us)
                _settle(server)
                words = ("XRANGE", "stream:__rand_int__", "-", "+", "COUNT", "10")
                rate = measure(server, _REQUESTS // 5, *words, depth=_DEPTH, random_below=count)
                read.note(contender, count, rate.cpu_us)
                server.kill()
                begun = time.perf_counter()
                server.spawn()
                server.wait_ready(LOAD_TIMEOUT_S)
                start.note(contender, count, time.perf_counter() - begun)
    yield from (append, rows, _beside_the_tables(append, rows), read, start)


def _beside_the_tables(append: Curve, rows: Curve) -> Curve:
    """The same appends; theory says that one to many streams costs more by as much as LMDB alone takes more."""
    costs, of_rows = dict(append.points(Contender.RIVERBED)), dict(rows.points(Contender.RIVERBED))
    least = min(costs)
    title = "Appending to one of many streams, beside LMDB alone"
    theory = {size: costs[least] + of_rows[size] - of_rows[least] for size in costs}.__getitem__
    curve = Curve("streams-append-and-rows", title, "streams", "us of CPU an entry", theory)
    curve.samples[Contender.RIVERBED] = append.samples[Contender.RIVERBED]
    return curve


def _settle(server: Server) -> None:
    """Have the server put what was appended into its tables: otherwise the first reads of each stream do so."""
    with server.client() as client:
        if client.ask("SAVE") != b"+OK\r\n":
            raise AssertionError("the server does not save")


def groups(rig: Rig) -> Iterator[Curve]:
    append = Curve("groups-append", "Appending to a stream of many groups", "groups", "us of CPU an entry", constant)
    deliver = Curve("groups-deliver", "Delivering a stream to all its groups", "groups", "us of CPU", linear)
    look = Curve("groups-look", "XINFO GROUPS", "groups", "us of CPU", linear_from(10))
    for contender in rig.turns("growth with groups"):
        for count in rig.sizes.growth_groups:
            rig.say(f"{count:,} groups")
            with rig.server(contender, "everysec") as server:
                with server.client() as client:
                    client.pipeline([("XGROUP", "CREATE", "events", f"g{n}", "0", "MKSTREAM") for n in range(count)])
                words = ("XADD", "events", "*", "f1", "v1", "f2", "v2")
                append.note(contender, count, measure(server, _REQUESTS, *words, depth=_DEPTH).cpu_us)
                deliver.note(contender, count, _deliver(server, count))
                look.note(contender, count, measure(server, _LOOKS, "XINFO", "GROUPS", "events", depth=1).cpu_us)
    yield from (append, deliver, look)


def _deliver(server: Server, count: int) -> float:
    """Twenty hundreds of entries to every group; -> microseconds of CPU for each hundred entries of the stream."""
    turns = _ENTRIES // 100
    request = b"".join(
        encode(("XREADGROUP", "GROUP", f"g{n}", "reader", "COUNT", 100, "NOACK", "STREAMS", "events", ">"))
        for n in range(count)
    )
    before = cpu_seconds(server)
    for _ in range(turns):
        exchange(server.port, request)
    return (cpu_seconds(server) - before) / turns * 1e6


def connections(rig: Rig) -> Iterator[Curve]:
    allow_files(max(rig.sizes.growth_connections) + 500)
    append = Curve("connections-append", "Appending by many clients", "connections", "us of CPU an entry", constant)
    for contender in rig.turns("growth with connections"):
        with rig.server(contender, "everysec") as server:
            for count in rig.sizes.growth_connections:
                rig.say(f"{count:,} connections")
                append.note(contender, count, _append_by(server, count))
    yield append


def _append_by(server: Server, count: int) -> float:
    """-> microseconds of CPU an entry, without those that it takes to accept so many clients with one entry each."""
    of_all, of_one_each = (_cpu_us(server, count + more, count) for more in (_REQUESTS, 0))
    return (of_all - of_one_each) / _REQUESTS


def _cpu_us(server: Server, entries: int, clients: int) -> float:
    time.sleep(_FORGET_S)
    words = ("XADD", "events", "*", "f1", "v1", "f2", "v2")
    return measure(server, entries, *words, clients=clients).cpu_us * entries


def sizes(rig: Rig) -> Iterator[Curve]:
    append, read, replay = (
        Curve(f"bytes-{name}", title, "bytes", "us of CPU an entry", linear_from(_ENTRY_LEAST))
        for name, title in (
            ("append", "Appending an entry"),
            ("read", "Reading an entry by XRANGE"),
            ("replay", "Replaying an entry of a log"),
        )
    )
    for contender in rig.turns("growth with the size of entries"):
        start_s = min(_replay_of_one(rig, contender) for _ in range(_STARTS))
        for size in rig.sizes.growth_bytes:
            rig.say(f"entries of {size:,} bytes")
            count = max(min(_SENT_BYTES // size, _REQUESTS), 20)
            with rig.server(contender, "everysec") as server:
                add = encode(("XADD", "events", "*", "f", b"x" * size))
                append.note(contender, size, _cost(server, add, count))
                with server.client() as client:
                    first = client.tree("XRANGE", "events", "-", "+", "COUNT", 1).children[0].children[0].text
                    count = int(client.ask("XLEN", "events")[1:])
                read.note(contender, size, _cost(server, encode(("XRANGE", "events", first, first)), count))
            replay.note(contender, size, (_replay(rig, contender, server) - start_s) / count * 1e6)
    yield from (append, read, replay)


def _replay_of_one(rig: Rig, contender: Contender) -> float:
    """-> seconds of CPU of a replay that has one entry to execute."""
    with rig.server(contender, "everysec") as server, server.client() as client:
        client.ask("XADD", "events", "*", "f", "v")
    return _replay(rig, contender, server)


def _replay(rig: Rig, contender: Contender, server: Server) -> float:
    """Replay the log of a server that has ended onto nothing, and delete it; -> seconds of CPU."""
    _, seconds = (replay_log if contender is Contender.RIVERBED else load_log)(rig, server.directory / LOG)
    shutil.rmtree(server.directory)
    return seconds


def _cost(server: Server, request: bytes, count: int) -> float:
    """-> microseconds of CPU for each of `count` requests, sent in pieces of a megabyte."""
    together = max(min(1_000_000 // len(request), count), 1)
    before = cpu_seconds(server)
    for _ in range(count // together):
        exchange(server.port, request * together)
    return (cpu_seconds(server) - before) / (count // together * together) * 1e6
