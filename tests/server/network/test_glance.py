"""Clients on sockets are answered while a long transaction keeps the loop from turning."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from riverbed.server.commands import client_state
from riverbed.server.commands.session import Session
from riverbed.server.execution.control import transactions
from riverbed.server.network.connection import Connection
from riverbed.server.network.glance import Glance
from riverbed.server.network.leaving import Leaving
from tests.support.certificates import Certificates
from tests.support.raw import RawClient, encode
from tests.support.servers import RiverbedServer
from tests.support.ticks import Ticks
from tests.support.tls import Start

TIMES = 10
PING = encode([b"PING"])
PONG = b"+PONG\r\n"


class WatchedGlance(Glance):
    """Calls `before` with the number of each look."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__()
        self._before = before
        self.looks = 0

    def read(self) -> None:
        self.looks += 1
        self._before(self.looks)
        super().read()

    @property
    def watched(self) -> int:
        return len(self._fds)


async def connected(path: Path, loop: asyncio.AbstractEventLoop) -> socket.socket:
    """A client of the Unix socket: what it sends is there at once."""
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own.setblocking(False)
    await loop.sock_connect(own, str(path))
    return own


async def reply(loop: asyncio.AbstractEventLoop, client: socket.socket, end: bytes) -> bytes:
    """What comes, up to `end`."""
    got = b""
    async with asyncio.timeout(60):
        while not got.endswith(end):
            got += await loop.sock_recv(client, 1 << 16)
    return got


@pytest.mark.parametrize("small_pieces", [False, True])
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_sockets_are_read_and_written_without_a_turn_of_the_loop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factory: Callable[[], asyncio.AbstractEventLoop],
    small_pieces: bool,
) -> None:
    monkeypatch.setattr(transactions, "TURN_NS", 0)
    monkeypatch.setattr(client_state, "_CHUNK_PARTS", 0)  # queue no runs: no turn ends in the middle of one
    # each look has time for all that has come, however busy the machine is
    monkeypatch.setattr("riverbed.server.network.glance._READ_S", 60.0)
    monkeypatch.setattr("riverbed.server.execution.control.beside.TURN_S", 60.0)
    path = tmp_path / "socket"

    async def body() -> None:
        loop = asyncio.get_running_loop()
        ticks = Ticks(tmp_path / "store")
        ticks.executor.outbox.turn_s = 60.0
        gone = Leaving()
        server = await loop.create_unix_server(lambda: Connection(ticks.executor, gone, "u"), str(path))
        client, other, leaving, waiting = [await connected(path, loop) for _ in range(4)]
        for each in (client, other, leaving, waiting):
            await loop.sock_sendall(each, PING)
            await reply(loop, each, PONG)
        if small_pieces:
            for session in ticks.executor.context.sessions.values():
                session.peer.read_small_pieces(True)
        answers: list[bytes] = []

        def before(look: int) -> None:
            if look == 2:
                assert glance.watched == 3  # not the client of the transaction
                leaving.close()
                waiting.send(encode([b"XLEN", b"s"]))
            elif look == 4:
                assert glance.watched == 1
                waiting.send(PING)
            elif look > 5:
                other.send(PING[:5])
                other.send(PING[5:])
            if look > 6:
                answers.append(other.recv(100))

        glance = WatchedGlance(before)
        ticks.executor.beside.sockets = glance
        ticks.executor.events.disconnected.append(glance.leave)
        queued = [encode([b"XADD", b"s", b"*", b"f", b"v"])] * 20
        await loop.sock_sendall(client, b"".join([encode([b"Multi"]), *queued, encode([b"EXEC"]), PING]))
        assert (await reply(loop, client, PONG)).count(b"+QUEUED") == 20
        assert glance.looks > 20
        assert answers == [PONG] * (glance.looks - 6)
        assert await reply(loop, other, PONG) == PONG
        assert await reply(loop, waiting, PONG) == b":20\r\n+PONG\r\n"
        await ticks.settle()
        assert glance.watched == 1  # which the next transaction need not get to know
        for _ in range(100):
            if len(ticks.executor.context.sessions) == 3:
                break
            await asyncio.sleep(0.01)
        assert len(ticks.executor.context.sessions) == 3
        for each in (client, other, waiting):
            each.close()
        server.close()
        await asyncio.sleep(0.05)
        assert glance.watched == 0
        ticks.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(body())


class SlowClient(asyncio.Protocol):
    """Session, peer and protocol of a client: to take what it has sent takes longer than a look has."""

    is_reading, must_wait = True, False

    def __init__(self, own: socket.socket) -> None:
        self.fd = own.fileno()
        self.peer = self.receiver = self
        self.taken = 0

    def data_received(self, data: bytes) -> None:
        self.taken += len(data)
        time.sleep(0.002)


def test_a_look_begins_where_the_time_of_the_last_one_was_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverbed.server.network.glance._READ_S", 0.001)
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(4)]
        for end in itertools.chain(*pairs):
            stack.enter_context(end)
        clients = [SlowClient(own) for own, _ in pairs]
        glance = Glance()
        glance.begin(cast(list[Session], clients))
        for _ in range(8):
            for _, far in pairs:
                far.send(b"x")
            glance.read()
        assert min(client.taken for client in clients) >= 5
        glance.leave(cast(Session, clients[0]))
        glance.read()
        glance.end()


class FailingClient(SlowClient):
    """One whose bytes there is no memory for."""

    is_cut_off = False

    def data_received(self, data: bytes) -> None:
        raise MemoryError

    def abort(self) -> None:
        self.is_cut_off = True


def test_a_client_whose_bytes_are_lost_is_cut_off() -> None:
    """What it sends next would be taken for requests, as if it followed what came before."""
    own, far = socket.socketpair()
    with own, far:
        client, glance = FailingClient(own), Glance()
        glance.begin(cast(list[Session], [client]))
        far.send(b"x")
        with pytest.raises(MemoryError):
            glance.read()
        assert client.is_cut_off
        glance.end()


class CountingClient(SlowClient):
    """One that counts how often its socket is asked for."""

    def __init__(self, own: socket.socket) -> None:
        self.asked = 0
        super().__init__(own)

    @property
    def fd(self) -> int:
        self.asked += 1
        return self._fd

    @fd.setter
    def fd(self, number: int) -> None:
        self._fd = number

    def data_received(self, data: bytes) -> None:
        self.taken += len(data)


def test_sockets_become_known_little_by_little_and_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverbed.server.network.glance._LEARN_S", 0.0)  # one in each look
    monkeypatch.setattr("riverbed.server.network.glance._READ_S", 60.0)
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(4)]
        for end in itertools.chain(*pairs):
            stack.enter_context(end)
        clients = [CountingClient(own) for own, _ in pairs]
        sessions = cast(list[Session], clients)
        glance = Glance()
        for _, far in pairs:
            far.send(b"x")
        glance.begin(sessions)
        for known in range(1, 4):
            glance.read()
            assert [client.taken for client in clients] == [1] * known + [0] * (4 - known)
        glance.end()
        glance.begin(sessions)
        glance.read()
        glance.read()
        assert [client.taken for client in clients] == [1] * 4
        assert [client.asked for client in clients] == [1] * 4
        # one that has gone, and whose number another has before it is missed
        newcomer = CountingClient(pairs[0][0])
        pairs[0][1].send(b"yz")
        glance.end()
        glance.begin(cast(list[Session], [newcomer, *clients[1:]]))
        glance.read()
        glance.leave(sessions[0])
        assert newcomer.taken == 2
        assert clients[0].taken == 1
        pairs[0][1].send(b"z")
        glance.read()
        assert newcomer.taken == 3
        glance.end()


def are_answered_meanwhile(client: RawClient, other: RawClient, count: int = 50_000) -> bool:
    """Whether some PINGs of another client were answered before the transaction of this one."""
    client.ask("MULTI")
    client.pipeline([["XTRIM", "s", "MAXLEN", "10"]] * count)  # each is executed by itself
    client.send("EXEC")
    for _ in range(3):  # the first may have come with the EXEC, the second behind it
        assert other.ask("PING") == PONG
    is_earlier = not select.select([client.socket], [], [], 0)[0]
    assert client.reply().startswith(b"*%d\r\n" % count)
    return is_earlier


def test_another_client_is_answered_while_a_transaction_is_under_way(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client, riverbed.client() as other:
        assert any(are_answered_meanwhile(client, other) for _ in range(TIMES))


def test_so_is_one_that_speaks_tls(start_tls: Start, certificates: Certificates) -> None:
    server = start_tls()
    with contextlib.ExitStack() as stack:
        client, other = (stack.enter_context(server.client()) for _ in range(2))
        assert any(are_answered_meanwhile(client, other) for _ in range(TIMES))
