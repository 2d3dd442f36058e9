"""What does a million pending entries cost: to look at, to take over portion by portion, to drop?

redis-benchmark measures the reads, from random places of the list.  Commands that may take long are sent once or a few
times while a process of its own PINGs every millisecond (probe.py): no other client should wait for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.load.consumers import ask, drive, exchange
from benchmarks.load.probe import Probe
from benchmarks.load.traffic import FIRST_MS, info, load, measure, read_for
from benchmarks.reads.groups import KEY, bulk, entry_bytes, entry_id, ids
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.raw import Word, encode
from tests.support.servers import Server

GROUP: Final = "workers"
_SOMEWHERE: Final = "1__rand_int__"  # see traffic.FIRST_MS
_NEVER_MS: Final = 10**9  # longer than anything here has been idle
_IDS: Final = 10_000
_TIMES: Final = 3
_SETTLE_S: Final = 0.5
_PURGE_TIMEOUT_S: Final = 300.0

# what -> command
_LOOKS: Final[dict[str, tuple[str, ...]]] = {
    "XPENDING, summary": ("XPENDING", KEY, GROUP),
    "XPENDING, 100 from somewhere": ("XPENDING", KEY, GROUP, _SOMEWHERE, "+", "100"),
    "XPENDING, 100 of one consumer": ("XPENDING", KEY, GROUP, _SOMEWHERE, "+", "100", "consumer3"),
    "XPENDING IDLE, 100 from somewhere": ("XPENDING", KEY, GROUP, "IDLE", "1", _SOMEWHERE, "+", "100"),
    "XINFO STREAM": ("XINFO", "STREAM", KEY),
    "XINFO STREAM FULL": ("XINFO", "STREAM", KEY, "FULL"),
    "XINFO GROUPS": ("XINFO", "GROUPS", KEY),
    "XINFO CONSUMERS": ("XINFO", "CONSUMERS", KEY, GROUP),
}


class Sweeper:
    """Goes through the whole list with XAUTOCLAIM, from cursor to cursor."""

    def __init__(self, pending: int, count: int, name: str, *, just_id: bool) -> None:
        self.rounds = 0
        self._most = pending // count
        words: tuple[Word, ...] = ("XAUTOCLAIM", KEY, GROUP, name, 0, "0-0", "COUNT", count)
        request = encode((*words, "JUSTID") if just_id else words)
        self._before, _, self._after = request.partition(bulk(b"0-0"))
        claimed = b"*%d\r\n" % count
        entry = len(bulk(entry_id(0))) if just_id else entry_bytes()
        self._rest = len(claimed) + count * entry + len(b"*0\r\n")
        self._cursor = bulk(b"0-0")

    def first(self) -> tuple[bytes, int]:
        is_last = self.rounds == self._most - 1
        cursor = bulk(b"0-0" if is_last else entry_id(0))
        return self._before + self._cursor + self._after, len(b"*3\r\n") + len(cursor) + self._rest

    def next(self, reply: memoryview) -> tuple[bytes, int] | None:
        self.rounds += 1
        self._cursor = bytes(reply[len(b"*3\r\n") : len(reply) - self._rest])
        if (self.rounds == self._most) != (self._cursor == bulk(b"0-0")):
            raise AssertionError(f"after {self.rounds} of {self._most} portions the cursor is {self._cursor!r}")
        return None if self.rounds == self._most else self.first()


@dataclass(frozen=True)
class Burden:
    """One command that may take long: requests to send one after the other."""

    what: str
    requests: list[bytes]
    is_ours: bool = False  # redis-server 7 does not know it


def answer(rig: Rig) -> Answer:
    pending = rig.sizes.pending
    lines: dict[str, Measurement] = {}

    def note(what: str, unit: str, contender: Contender, value: float, limit: float | None = None) -> None:
        budget = None if limit is None else below(limit, unit)
        samples_of(lines.setdefault(what, Measurement(what, unit, budget)), contender).append(value)

    for contender in rig.turns(f"{pending:,} pending entries"):
        with rig.server(contender, "everysec") as server:
            rig.say(f"{pending:,} entries are read for a group: {contender.value}")
            load(server.port, KEY, pending, explicit_ids=True)
            read_for(server.port, KEY, GROUP, pending)
            for what, words in _LOOKS.items():
                rig.say(f"{what}: {contender.value}")
                rate = measure(server, rig.sizes.pending_requests, *words, random_below=pending - 100)
                note(what, "requests/s", contender, rate.a_second)
                note(f"{what}: server's CPU", "us/request", contender, rate.cpu_us)
            for what, count, just_id in (
                ("XAUTOCLAIM of everything, COUNT 100", 100, False),
                ("XAUTOCLAIM of everything, COUNT 1000", 1000, False),
                ("XAUTOCLAIM of everything, COUNT 1000 JUSTID", 1000, True),
            ):
                rig.say(f"{what}: {contender.value}")
                rate = drive(server, [Sweeper(pending, count, "sweeper", just_id=just_id)])
                with Probe(server.port) as probe:  # once more, by another: the processor time is not to hold the PINGs
                    drive(server, [Sweeper(pending, count, "another", just_id=just_id)])
                note(what, "calls/s", contender, rate.a_second)
                note(f"{what}: server's CPU", "us/call", contender, rate.cpu_us)
                note(f"{what}: longest PING", "ms", contender, probe.latency.longest_ms, 20)
            for burden in _burdens(rig, server):
                if burden.is_ours and contender is Contender.REDIS:
                    continue
                rig.say(f"{burden.what}: {contender.value}")
                took_ms, longest_ms = _bear(server, burden)
                note(burden.what, "ms", contender, took_ms)
                note(f"{burden.what}: longest PING", "ms", contender, longest_ms, 20)
    return Answer(
        f"A group with {pending:,} pending entries",
        f"redis-benchmark -c 50 -n {rig.sizes.pending_requests} -r {pending - 100} "
        f"XPENDING {KEY} {GROUP} {_SOMEWHERE} + 100, and so on",
        list(lines.values()),
        ("Ten consumers, a hundred entries at a time in turns; `COUNT n` sweeps are one client's.",),
    )


def _burdens(rig: Rig, server: Server) -> Iterator[Burden]:
    """What may keep others waiting, in an order in which one does not take from the other what it needs."""
    pending = rig.sizes.pending
    yield Burden(
        "XPENDING IDLE that finds nothing", [encode(("XPENDING", KEY, GROUP, "IDLE", _NEVER_MS, "-", "+", 10))]
    )
    yield Burden("XINFO STREAM FULL COUNT 0", [encode(("XINFO", "STREAM", KEY, "FULL", "COUNT", 0))])
    yield Burden("XAUTOCLAIM that finds nothing, COUNT 10000", [_autoclaim(_NEVER_MS)])
    portions = [ids(first, _IDS) for first in range(0, _TIMES * _IDS, _IDS)]
    yield Burden(f"XCLAIM of {_IDS:,}", [_of_ids(("XCLAIM", KEY, GROUP, "c", 0), part) for part in portions])
    yield Burden(
        f"XCLAIM of {_IDS:,} JUSTID",
        [_of_ids(("XCLAIM", KEY, GROUP, "d", 0), part, (b"JUSTID",)) for part in portions],
    )
    yield Burden(f"XACK of {_IDS:,}", [_of_ids(("XACK", KEY, GROUP), part) for part in portions])
    portions = [ids(first, _IDS) for first in range(_TIMES * _IDS, 2 * _TIMES * _IDS, _IDS)]
    yield Burden(
        f"XNACK of {_IDS:,}",
        [_of_ids(("XNACK", KEY, GROUP, "FAIL", "IDS", _IDS), part) for part in portions],
        is_ours=True,
    )
    yield Burden(
        f"XACKDEL of {_IDS:,} that were given back",
        [_of_ids(("XACKDEL", KEY, GROUP, "DELREF", "IDS", _IDS), part) for part in portions],
        is_ours=True,
    )
    portions = [ids(first, _IDS) for first in range(2 * _TIMES * _IDS, 3 * _TIMES * _IDS, _IDS)]
    yield Burden(
        f"XDELEX of {_IDS:,} DELREF",
        [_of_ids(("XDELEX", KEY, "DELREF", "IDS", _IDS), part) for part in portions],
        is_ours=True,
    )
    trimmed = rig.sizes.unread
    # of what was claimed and acknowledged the entries are still there, and would be trimmed as well
    ask(server.port, "XTRIM", KEY, "MINID", FIRST_MS + 3 * _TIMES * _IDS)
    for number, references in enumerate(("DELREF", "ACKED"), 1):
        least = FIRST_MS + 3 * _TIMES * _IDS + number * trimmed // 2
        if references == "ACKED":
            ask(server.port, "XGROUP", "DESTROY", KEY, GROUP)
            ask(server.port, "XGROUP", "CREATE", KEY, GROUP, "$")
        wait_until_purged(server)
        yield Burden(
            f"XTRIM of {trimmed // 2:,} {references}",
            [encode(("XTRIM", KEY, "MINID", least, references))],
            is_ours=True,
        )
    load(server.port, "unread", rig.sizes.unread, explicit_ids=True)
    ask(server.port, "XGROUP", "CREATE", "unread", GROUP, 0)
    for start, what in ((">", "that is new"), ("0", "of a consumer's history")):
        request = encode(("XREADGROUP", "GROUP", GROUP, "c", "STREAMS", "unread", start))
        yield Burden(f"XREADGROUP without COUNT, {rig.sizes.unread:,} {what}", [request])
    ask(server.port, "XGROUP", "DESTROY", KEY, GROUP)
    wait_until_purged(server)
    ask(server.port, "DEL", KEY)
    load(server.port, KEY, pending, explicit_ids=True)
    read_for(server.port, KEY, "one", pending, consumers=1)
    yield Burden("XGROUP DELCONSUMER", [encode(("XGROUP", "DELCONSUMER", KEY, "one", "consumer0"))])
    read_for(server.port, KEY, "gone", pending)
    yield Burden("XGROUP DESTROY", [encode(("XGROUP", "DESTROY", KEY, "gone"))])
    read_for(server.port, KEY, "gone", pending)
    yield Burden("DEL of the stream and its group", [encode(("DEL", KEY))])


def _autoclaim(min_idle_ms: int) -> bytes:
    return encode(("XAUTOCLAIM", KEY, GROUP, "c", min_idle_ms, 0, "COUNT", 10_000))


def _of_ids(words: tuple[Word, ...], part: bytes, options: tuple[bytes, ...] = ()) -> bytes:
    """A request with many IDs, given as bytes."""
    head = encode(words).partition(b"\r\n")[2]
    return b"*%d\r\n" % (len(words) + _IDS + len(options)) + head + part + b"".join(map(bulk, options))


def _bear(server: Server, burden: Burden) -> tuple[float, float]:
    """-> (milliseconds until the reply was there, the longest PING until all was done and purged)."""
    time.sleep(_SETTLE_S)
    with Probe(server.port) as probe:
        seconds = [exchange(server.port, request).seconds for request in burden.requests]
        wait_until_purged(server)
    return median(seconds) * 1000, probe.latency.longest_ms


def wait_until_purged(server: Server) -> None:
    """Wait for the end of the background work of a deletion."""
    deadline = time.monotonic() + _PURGE_TIMEOUT_S
    while info(server.port, "memory")["lazyfree_pending_objects"] != "0":
        if time.monotonic() > deadline:
            raise AssertionError(f"{server.name} is still purging after {_PURGE_TIMEOUT_S:.0f} s")
        time.sleep(0.05)
