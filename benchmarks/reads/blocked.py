"""A thousand consumers wait for one group: how long until a consumer has a new entry, and what does it cost?

One at a time: an entry is added when the previous one was delivered and its reader waits again, so each time is that of
one wake-up.  All at once: as many entries in one piece as there are waiting consumers; then the same, while another
client sends a PING every millisecond.  At the end the group is destroyed, and every consumer gets an error.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator
from statistics import median
from typing import Final

from benchmarks.load.consumers import connect
from benchmarks.load.files import allow_files
from benchmarks.load.probe import Probe
from benchmarks.load.traffic import TIMEOUT_S, cpu_seconds, fields, info
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.raw import RawClient, encode
from tests.support.servers import Server

KEY: Final = "events"
GROUP: Final = "workers"
WAITING: Final = 1000
ADDED: Final = 1000
_ADD: Final = encode(("XADD", KEY, "*", *fields(0)))


class Crowd:
    """Clients that wait for entries of one group, each as a consumer of its own."""

    def __init__(self, server: Server, stack: contextlib.ExitStack) -> None:
        self._server = server
        self._poll = stack.enter_context(contextlib.closing(select.epoll()))
        self._sockets: dict[int, socket.socket] = {}
        self._requests: dict[int, bytes] = {}
        for number in range(WAITING):
            one = stack.enter_context(connect(server.port))
            request = encode(("XREADGROUP", "GROUP", GROUP, f"c{number}", "BLOCK", 0, "STREAMS", KEY, ">"))
            self._sockets[one.fileno()] = one
            self._requests[one.fileno()] = request
            self._poll.register(one.fileno(), select.EPOLLIN)
            one.sendall(request)
        self.wait_until_all_wait()

    def wait_until_all_wait(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while info(self._server.port, "clients")["blocked_clients"] != str(WAITING):
            if time.monotonic() > deadline:
                raise AssertionError("not all clients wait")
            time.sleep(0.005)

    def replies(self, least: int) -> Iterator[tuple[int, bytes]]:
        """(client number, reply) of at least `least` clients, as replies arrive."""
        while least > 0:
            ready = self._poll.poll(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"{least} replies do not come")
            for number, _ in ready:
                least -= 1
                yield number, self._sockets[number].recv(1 << 16)

    def wait_again(self, number: int) -> None:
        """Let the client wait for the next entry, after all other clients.  It acknowledges nothing."""
        self._sockets[number].sendall(self._requests[number])

    def deliver_to_all(self, writer: RawClient) -> float:
        """Add an entry for each client in one piece, and read them, which wait for nothing then; -> seconds."""
        begun = time.perf_counter()
        writer.send_bytes(_ADD * WAITING)
        delivered = list(self.replies(WAITING))
        seconds = time.perf_counter() - begun
        for _, reply in delivered:
            _require_entry(reply)
        for _ in range(WAITING):
            writer.reply()
        return seconds

    def all_wait_again(self) -> None:
        for number in self._sockets:
            self.wait_again(number)
        self.wait_until_all_wait()


def answer(rig: Rig) -> Answer:
    allow_files(WAITING + 500)
    usual = Measurement("one at a time: XADD to delivery, median", "ms")
    worst = Measurement("one at a time: XADD to delivery, worst", "ms")
    cpu = Measurement(f"one at a time: server's CPU for {ADDED:,} XADD, delivered", "ms")
    all_at_once = Measurement(f"{WAITING:,} XADD in one piece: until the last is delivered", "ms")
    all_at_once_cpu = Measurement(f"{WAITING:,} XADD in one piece: server's CPU", "ms")
    all_at_once_ping = Measurement(f"{WAITING:,} XADD in one piece: longest PING", "ms", below(20, "ms"))
    told = Measurement("XGROUP DESTROY: until the last is told", "ms")
    told_ping = Measurement("XGROUP DESTROY: longest PING", "ms", below(20, "ms"))
    for contender in rig.turns(f"{WAITING:,} blocked clients"):
        with rig.server(contender, "everysec") as server, contextlib.ExitStack() as stack:
            with server.client() as client:
                client.ask("XGROUP", "CREATE", KEY, GROUP, "$", "MKSTREAM")
            crowd = Crowd(server, stack)
            writer = stack.enter_context(server.client(timeout_s=TIMEOUT_S))

            before = cpu_seconds(server)
            seconds = [_deliver_one(crowd, writer) for _ in range(ADDED)]
            _note(cpu, contender, cpu_seconds(server) - before)
            _note(usual, contender, median(seconds))
            _note(worst, contender, max(seconds))

            crowd.wait_until_all_wait()
            before = cpu_seconds(server)
            _note(all_at_once, contender, crowd.deliver_to_all(writer))
            _note(all_at_once_cpu, contender, cpu_seconds(server) - before)

            crowd.all_wait_again()
            with Probe(server.port) as probe:
                crowd.deliver_to_all(writer)
            samples_of(all_at_once_ping, contender).append(probe.latency.longest_ms)

            crowd.all_wait_again()
            with Probe(server.port) as probe, server.client() as client:
                begun = time.perf_counter()
                client.send("XGROUP", "DESTROY", KEY, GROUP)
                refused = sum(reply.startswith(b"-NOGROUP") for _, reply in crowd.replies(WAITING))
                _note(told, contender, time.perf_counter() - begun)
            samples_of(told_ping, contender).append(probe.latency.longest_ms)
            if refused != WAITING:
                raise AssertionError(f"{refused} of {WAITING} were told that the group is gone")
    return Answer(
        f"{WAITING:,} clients blocked on one group",
        f"XREADGROUP GROUP {GROUP} cN BLOCK 0 STREAMS {KEY} >, {WAITING:,} times; XADD {KEY} '*' ...",
        [usual, worst, cpu, all_at_once, all_at_once_cpu, all_at_once_ping, told, told_ping],
        (f"{ADDED:,} entries one at a time.",),
    )


def _note(measurement: Measurement, contender: Contender, seconds: float) -> None:
    samples_of(measurement, contender).append(seconds * 1000)


def _deliver_one(crowd: Crowd, writer: RawClient) -> float:
    """Add an entry and read it on the client that receives it, which then waits again; -> seconds until it came."""
    begun = time.perf_counter()
    writer.send_bytes(_ADD)
    ((number, reply),) = crowd.replies(1)
    seconds = time.perf_counter() - begun
    _require_entry(reply)
    writer.reply()
    crowd.wait_again(number)
    return seconds


def _require_entry(reply: bytes) -> None:
    if not reply.startswith(b"*1\r\n"):
        raise AssertionError(f"{reply[:200]!r}")
