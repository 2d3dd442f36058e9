"""Connections that come and go: whatever a client does while it is accepted, nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.config.config import Config
from riverbed.server.network import listener
from riverbed.server.network.addresses import Addresses
from riverbed.server.network.connection import Connection
from riverbed.server.network.guarded import TOO_MANY_CLIENTS
from riverbed.server.network.leaving import Leaving
from riverbed.server.network.listener import Listener
from tests.conftest import StartRiverbed
from tests.support.faults.silence import UnixClient
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer, StartError, free_port
from tests.support.ticks import Client, Ticks, in_loop
from tests.support.trees import tree
from tests.support.waiting import rewritten, until


def reset(port: int) -> None:
    """Connect, and be gone at once, with RST."""
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.connect(("127.0.0.1", port))


def descriptors(server: RiverbedServer) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def connected_clients(client: RawClient | UnixClient) -> int:
    return len(client.tree("CLIENT", "LIST").text.splitlines())


def descriptors_beside(client: RawClient | UnixClient, server: RiverbedServer) -> int:
    """How many the server has when `client` is the only one: the connection that waited for the start has gone."""
    until(lambda: connected_clients(client) == 1, "a server with one client")
    return descriptors(server)


def test_three_thousand_resets_leave_nothing_behind(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        before = descriptors_beside(client, riverbed)
        for _ in range(3000):
            reset(riverbed.port)
        until(lambda: connected_clients(client) == 1, "that no client but this one is left")
        until(lambda: descriptors(riverbed) == before, "that no descriptor is left")
    assert "Traceback" not in riverbed.log_text()
    assert riverbed.log_path.stat().st_size < 10_000


def test_resets_use_up_no_place_of_maxclients(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"maxclients": 200})
    for _ in range(300):
        reset(server.port)

    def is_served() -> bool:
        with server.client() as client, contextlib.suppress(ConnectionError):
            return client.ask("PING") == b"+PONG\r\n"
        return False

    until(is_served, "a client that is let in")


def test_resets_before_a_client_without_keepalive_or_protection_leave_nothing_behind(
    start_riverbed: StartRiverbed,
) -> None:
    server = start_riverbed(options={"tcp-keepalive": 0, "protected-mode": "no"})
    with server.client() as client:
        for _ in range(300):
            reset(server.port)
        until(lambda: connected_clients(client) == 1, "that no client but this one is left")


def test_more_clients_than_allowed_are_refused_even_when_they_come_at_once(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"maxclients": 20})
    with server.client() as first, contextlib.ExitStack() as stack:
        first.send("DEBUG", "SLEEP", 1)  # until then all of these wait to be accepted
        others = [stack.enter_context(server.client()) for _ in range(60)]
        for other in others:
            other.send("PING")
        first.reply()
        answers = [one_line(other) for other in others]
        assert answers.count(b"+PONG\r\n") == 19
        assert answers.count(TOO_MANY_CLIENTS) == 41
        assert b"rejected_connections:41\r\n" in first.ask("INFO", "stats")


def one_line(client: RawClient) -> bytes:
    """The first reply; nothing when the server has cut the connection instead."""
    with contextlib.suppress(ConnectionError):
        return client.reply()
    return b""


def test_resets_on_the_port_of_metrics_leave_nothing_behind(start_riverbed: StartRiverbed) -> None:
    port = free_port()
    server = start_riverbed(options={"metrics-port": port})
    with server.client() as watcher:
        before = descriptors_beside(watcher, server)
        for _ in range(300):
            reset(port)
        until(lambda: descriptors(server) == before, "that no descriptor is left")
    assert "Traceback" not in server.log_text()


def test_clients_of_a_unix_socket_come_and_go(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"s\xff")
    server = start_riverbed(options={"unixsocket": path, "slowlog-log-slower-than": 0})
    with UnixClient(path, 60) as client:
        before = descriptors_beside(client, server)
        for _ in range(100):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(path))
        until(lambda: descriptors(server) == before, "that no descriptor is left")
        assert b" addr=%b:0 " % os.fsencode(path) in client.tree("CLIENT", "LIST").text
        assert b"%b:0" % os.fsencode(path) in client.ask("SLOWLOG", "GET")
        assert client.ask("CLIENT", "KILL", "LADDR", b"/other\xff:0") == b":0\r\n"


def test_a_unix_socket_has_its_permissions_before_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    def looked_at(path: str, mode: int) -> None:
        with socket.socket(socket.AF_UNIX) as early:
            refused.append(early.connect_ex(path))
        real(path, mode)

    real = os.chmod
    monkeypatch.setattr(os, "chmod", looked_at)
    config = Config.load(["--unixsocket", str(tmp_path / "s"), "--unixsocketperm", "700"])
    sock = listener.make_unix_socket(config)
    assert refused == [errno.ECONNREFUSED]
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    sock.close()


def test_a_server_does_not_take_the_unix_socket_of_another(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = start_riverbed(options={"unixsocket": path})
    before = path.lstat()
    told = f"{path}: Address already in use; stop the program that listens there, or choose another --unixsocket"
    with pytest.raises(StartError, match=re.escape(told)):
        start_riverbed(tmp_path / "second", options={"unixsocket": path})
    assert path.lstat().st_ino == before.st_ino
    with UnixClient(path, 60) as client:
        assert client.ask("PING") == b"+PONG\r\n"
    server.kill()
    assert path.is_socket()
    start_riverbed(tmp_path / "third", options={"unixsocket": path})
    with UnixClient(path, 60) as client:
        assert client.ask("PING") == b"+PONG\r\n"


def test_a_server_that_stops_removes_its_unix_socket(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = start_riverbed(options={"unixsocket": path})
    assert path.is_socket()
    server.stop()
    assert not os.path.lexists(path)


def test_a_server_that_stops_leaves_what_has_taken_the_place_of_its_unix_socket(
    start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    server = start_riverbed(options={"unixsocket": path})
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        server.stop()
        assert path.is_socket()
    path.unlink()
    server.start()
    path.unlink()
    server.stop()
    assert "the Unix socket was not removed" not in server.log_text()


def test_a_unix_socket_that_cannot_be_removed_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        config = Config.load(["--port", "0", "--unixsocket", str(tmp_path / "s")])
        opened = listener.Listener(config, ticks.server, Addresses(config))
        await opened.listen()

        def forbidden(path: str) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

        monkeypatch.setattr(os, "unlink", forbidden)
        opened.close()
        monkeypatch.undo()
        ticks.close()

    in_loop(body())
    warned = f"the Unix socket was not removed: [Errno 13] Permission denied: '{tmp_path / 's'}'"
    assert caplog.messages.count(warned) == 1


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_a_path_that_is_no_socket_is_not_removed(start_riverbed: StartRiverbed, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    match kind:
        case "file":
            path.write_text("dear")
        case "link":
            path.symlink_to("target")
        case _:
            path.mkdir()
    before = tree(tmp_path)
    told = f"cannot start: {path} is there, and is no socket; choose another --unixsocket"
    with pytest.raises(StartError, match=re.escape(told)):
        start_riverbed(tmp_path / "d", options={"unixsocket": path})
    assert tree(tmp_path)["s"] == before["s"]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_whose_program_accepts_nothing_just_now_is_in_use(tmp_path: Path, kind: socket.SocketKind) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, kind) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(path)
        if kind is socket.SOCK_STREAM:
            busy.listen(0)
            waiting.connect(path)  # that is all that may wait
        with pytest.raises(OSError, match="Address already in use"):
            listener.make_unix_socket(Config.load(["--unixsocket", path]))
    listener.make_unix_socket(Config.load(["--unixsocket", path])).close()


# -- descriptors are scarce ----------------------------------------------------------------------------------------


class ScarceServer(RiverbedServer):
    """A server that may open 64 files."""

    def program(self) -> list[str]:
        return ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *super().program()]


@pytest.fixture
def scarce(tmp_path: Path) -> Iterator[RiverbedServer]:
    with ScarceServer(tmp_path / "data", tmp_path / "logs") as server:
        yield server


def test_a_server_of_64_descriptors_keeps_what_it_needs_itself(scarce: RiverbedServer) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(scarce.client()) for _ in range(100)]
        for client in clients:
            with contextlib.suppress(OSError):
                client.send("PING")
        answers = [one_line(client) for client in clients]
        assert answers.count(b"+PONG\r\n") == 32
        assert clients[0].ask("XADD", "s", "*", "f", "v").startswith(b"$")
        assert b"specified number of clients, try with 32" in clients[0].ask("CONFIG", "SET", "maxclients", 100)
    until(lambda: descriptors(scarce) < 30, "that the clients are gone")
    rewritten(scarce)


def test_files_of_long_transactions_leave_descriptors_for_clients_and_the_log(scarce: RiverbedServer) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(scarce.client()) for _ in range(32)]
        for _ in range(60):
            clients[0].ask("XADD", "s", "*", "f", "x" * 100_000)
        for client in clients[1:]:
            for words in (("MULTI",), ("XADD", "t", "*", "f", "v"), ("XRANGE", "s", "-", "+"), ("EXEC",)):
                client.send(*words)
        outcomes = []
        for client in clients[1:]:
            assert [client.reply() for _ in range(3)] == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
            outcomes.append(client.reply())
        refused = [outcome for outcome in outcomes if outcome.startswith(b"-")]
        assert all(b"too many files are open (see ulimit -n)" in outcome for outcome in refused)
        assert all(outcome.startswith(b"*2\r\n") for outcome in outcomes if outcome not in refused)
        assert clients[0].ask("XLEN", "t") == b":%d\r\n" % (len(outcomes) - len(refused))


def test_clients_without_a_descriptor_are_cut_off_and_others_served(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        taken = descriptors_beside(client, riverbed)
        before = resource.prlimit(riverbed.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(riverbed.pid, resource.RLIMIT_NOFILE, (taken + 5, before[1]))
        with contextlib.ExitStack() as stack:
            others = [stack.enter_context(riverbed.client()) for _ in range(100)]
            for other in others:
                with contextlib.suppress(OSError):
                    other.send("PING")
            answers = [one_line(other) for other in others]
            assert answers.count(b"+PONG\r\n") == 5
            assert answers.count(b"") == 95
            assert client.ask("PING") == b"+PONG\r\n"
        until(lambda: descriptors(riverbed) == taken, "that the others are gone")
        with riverbed.client() as later:
            assert later.ask("PING") == b"+PONG\r\n"
        resource.prlimit(riverbed.pid, resource.RLIMIT_NOFILE, before)
    assert riverbed.log_path.stat().st_size < 10_000


# -- what goes wrong while a connection begins -----------------------------------------------------------------------


class Transport(asyncio.Transport):
    """A connection whose socket fails in the way `ask` does."""

    def __init__(self, ask: Callable[[str], Any]) -> None:
        super().__init__()
        self.get_extra_info = lambda name, default=None: ask(name)
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Socket:
    family = socket.AF_INET

    def fileno(self) -> int:
        return 7


def no_such_peer(name: str) -> Any:
    return {"socket": Socket(), "peername": None}[name]


def no_socket(name: str) -> Any:
    raise OSError(107, "Transport endpoint is not connected")


def no_sense(name: str) -> Any:
    raise ValueError(name)


@pytest.mark.parametrize("ask", [no_such_peer, no_socket, no_sense, lambda name: None])
def test_a_connection_that_cannot_begin_is_aborted_and_has_no_session(
    tmp_path: Path, ask: Callable[[str], Any]
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        connection = Connection(ticks.executor, Leaving())
        transport = Transport(ask)
        connection.connection_made(transport)
        assert transport.is_aborted
        connection.connection_lost(None)  # asks nothing of either
        assert not ticks.executor.context.sessions
        ticks.close()

    in_loop(body())


def test_clients_have_the_keep_alive_that_is_set_when_they_come(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        address = ("127.0.0.1", free_port())
        own = Listener(
            ticks.config, ticks.server, Addresses(Config.load(["--bind", address[0], "--port", str(address[1])]))
        )
        await own.listen()

        async def options() -> tuple[int, ...]:
            """Of the server's end of a new connection."""
            with socket.create_connection(address) as client:
                client.setblocking(False)
                client.sendall(b"PING\r\n")
                await asyncio.get_running_loop().sock_recv(client, 100)
                session = max(ticks.executor.context.sessions.values(), key=lambda session: session.id)
                with socket.socket(fileno=os.dup(session.peer.fd)) as end:
                    is_on = end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                    return is_on, *(end.getsockopt(socket.IPPROTO_TCP, name) for name in names)

        assert await options() == (1, 300, 100, 3)
        ticks.config.set([("tcp-keepalive", "60")])
        assert await options() == (1, 60, 20, 3)
        ticks.config.set([("tcp-keepalive", "100000")])
        assert await options() == (1, 32767, 10922, 3)  # no more than the system takes
        ticks.config.set([("tcp-keepalive", "0")])
        assert (await options())[0] == 0
        own.close()
        ticks.config.set([("tcp-keepalive", "90")])  # no socket listens any more
        ticks.close()

    in_loop(body())


def test_a_client_that_leaves_is_closed_without_a_tick_of_its_own(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        idle, busy, torn = Client(ticks), Client(ticks), Client(ticks)
        idle.send("PING")
        await ticks.settle()
        torn.send_bytes(b"*1\r\n$4\r\nPI")
        await ticks.settle()
        busy.send("PING")
        before = ticks.executor.stats.tick.count
        for client in (idle, busy, torn):
            client.end()
        assert [idle.is_closed, busy.is_closed, torn.is_closed] == [True, False, False]
        await ticks.settle()
        assert idle.replies() == busy.replies() == [b"+PONG\r\n"]
        assert torn.replies() == []
        assert busy.is_closed
        assert torn.is_closed
        assert ticks.executor.stats.tick.count == before + 1
        ticks.close()

    in_loop(body())


def test_the_list_of_clients_names_the_socket_of_each(riverbed: RiverbedServer) -> None:
    with riverbed.client() as first, riverbed.client() as second:
        until(lambda: connected_clients(first) == 2, "a server with two clients")
        rows = first.tree("CLIENT", "LIST").text.splitlines()
        listed = [re.search(rb" fd=(\d+) ", row)[1].decode() for row in rows]
        assert second.ask("PING") == b"+PONG\r\n"
        links = [os.readlink(f"/proc/{riverbed.pid}/fd/{fd}") for fd in listed]
    assert len(set(links)) == 2
    assert all(link.startswith("socket:") for link in links)
