"""A consumer-group session as it may really go, over two days: producers, consumers that die, claims, deletions.

The server runs three times on the same data, with its clock two days and then two hours behind, so that what is old is
old, whatever time the test itself takes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import redis

from riverbed.server.version import VERSION
from riverbed.store.snapshot.writer import take_snapshot
from tests.support.servers import RiverbedServer

HOUR_S = 3600
DAY_S = 24 * HOUR_S
HOSTILE = (b"<script>alert(1)</script>|`x`", b"\xff$\\frac{")
# Everything in the server and the store asks one of these two.
_SHIFTED = """
import sys, time
shift_s = int(sys.argv.pop(1))
real, real_ns = time.time, time.time_ns
time.time = lambda: real() - shift_s
time.time_ns = lambda: real_ns() - shift_s * 10**9
from riverbed.server.main import main
main()
"""


class PastServer(RiverbedServer):
    """Our server, so many seconds ago."""

    def __init__(self, directory: Path, log_directory: Path, seconds_ago: int) -> None:
        super().__init__(directory, log_directory)
        self._seconds_ago = seconds_ago

    def program(self) -> list[str]:
        return [sys.executable, "-c", _SHIFTED, str(self._seconds_ago)]


@dataclass
class Session:
    """What was planted; entries by ID, as (group, consumer, ID)."""

    directory: Path
    earlier: Path
    snapshot: Path
    poison: set[tuple[str, str, str]] = field(default_factory=set)
    stuck: set[tuple[str, str, str]] = field(default_factory=set)
    orphaned: set[tuple[str, str, str]] = field(default_factory=set)
    needed: dict[str, str] = field(default_factory=dict)  # the first entry that the pinning group of a stream needs


def play(directory: Path) -> Session:
    """Run the session; afterwards the server is stopped, and two snapshots of its store are there."""
    session = Session(directory / "data", directory / "earlier", directory / "now")
    session.directory.mkdir(parents=True)

    with PastServer(session.directory, directory, 2 * DAY_S) as server:
        client = redis.Redis(port=server.port, decode_responses=True)
        ids = [str(client.xadd("orders", {"n": number})) for number in range(50)]
        for group in ("billing", "shipping"):
            client.xgroup_create("orders", group, id="0")
        client.xgroup_create("orders", "forgotten", id="0")  # nobody ever reads it
        # dead-1 takes ten and acknowledges none of them; dead-2 acknowledges half of its ten.
        client.xreadgroup("billing", "dead-1", {"orders": ">"}, count=10)
        client.xreadgroup("billing", "dead-2", {"orders": ">"}, count=10)
        client.xack("orders", "billing", *ids[10:15])
        client.xreadgroup("shipping", "truck-1", {"orders": ">"}, count=50)
        client.xack("orders", "shipping", *ids)
        server.stop()

    with PastServer(session.directory, directory, 2 * HOUR_S) as server:
        client = redis.Redis(port=server.port, decode_responses=True)
        # A consumer takes over from dead-1, all but the last three entries, and then deletes two of what dead-2 has.
        client.xclaim("orders", "billing", "alive", 0, ids[0:7])
        client.xack("orders", "billing", *ids[0:6])
        client.xdel("orders", ids[15], ids[16])
        more = [str(client.xadd("orders", {"n": 50 + number})) for number in range(10)]
        client.xreadgroup("shipping", "truck-2", {"orders": ">"}, count=2)  # and never acknowledges
        server.stop()
    session.earlier = take_snapshot(session.directory, session.earlier, program=f"riverbed {VERSION}").path

    with RiverbedServer(session.directory, directory) as server:
        client = redis.Redis(port=server.port, decode_responses=True)
        # One entry fails with each consumer: six deliveries.  Another one is on its second.
        for attempt in range(5):
            client.xclaim("orders", "billing", f"victim-{attempt}", 0, [ids[6]])
        client.xclaim("orders", "billing", "alive", 0, [ids[17]])
        client.xreadgroup("shipping", "truck-1", {"orders": ">"}, count=5)
        client.xack("orders", "shipping", *more[2:5])
        raw = redis.Redis(port=server.port)
        for key in HOSTILE:
            raw.xadd(key, {"field": "value"})
            raw.xgroup_create(key, "<i>group</i>", id="0")
            raw.xreadgroup("<i>group</i>", "[red]", {key: ">"})
        server.stop()
    session.snapshot = take_snapshot(session.directory, session.snapshot, program=f"riverbed {VERSION}").path

    session.poison = {("billing", "victim-4", ids[6])}
    session.stuck = {("billing", "dead-1", each) for each in ids[7:10]}
    session.stuck |= {("billing", "dead-2", each) for each in ids[18:20]}
    session.stuck |= {("shipping", "truck-2", each) for each in more[0:2]}
    session.orphaned = {("billing", "dead-2", each) for each in ids[15:17]}
    session.needed = {"orders": "0-1"}
    return session
