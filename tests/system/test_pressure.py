"""Crowds that send without end and never read: the server stays small and answers others, before AUTH and after.

The server may not have more than `DATA_LIMIT_BYTES` of private memory, so that a careless one ends here instead of the
machine; what the tests allow is far less.  No test measures time.
"""

from __future__ import annotations

import contextlib
import resource
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import StartRiverbed
from tests.support.raw import RawClient, encode
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

MB = 1 << 20
DATA_LIMIT_BYTES = 1000 * MB
CROWD = 100
PASSWORD = "secret"
PONG = b"+PONG\r\n"
XADD = encode(("XADD", "s", "*", "field", "value"))


@pytest.fixture
def server(start_riverbed: StartRiverbed) -> RiverbedServer:
    server = start_riverbed(options={"requirepass": PASSWORD})
    resource.prlimit(server.pid, resource.RLIMIT_DATA, (DATA_LIMIT_BYTES, DATA_LIMIT_BYTES))
    return server


def connected(server: RiverbedServer, *, authenticated: bool = True) -> RawClient:
    client = server.client(timeout_s=300)
    if authenticated:
        assert client.ask("AUTH", PASSWORD) == b"+OK\r\n"
    return client


class Crowd:
    """Clients that send the same bytes over and over and read nothing, while the `with` block runs."""

    def __init__(self, clients: list[RawClient], data: bytes) -> None:
        self._clients = clients
        self._data = data
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent_bytes = 0
        self.closed = 0

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _send(self) -> None:
        positions: dict[socket.socket, int] = {}
        for client in self._clients:
            client.socket.setblocking(False)
            positions[client.socket] = 0
        while not self._over.is_set() and positions:
            _, writable, _ = select.select([], list(positions), [], 0.05)
            for connection in writable:
                try:
                    size = connection.send(self._data[positions[connection] :])
                except BlockingIOError:
                    continue
                except OSError:
                    del positions[connection]
                    self.closed += 1
                    continue
                self.sent_bytes += size
                positions[connection] = (positions[connection] + size) % len(self._data)


@contextlib.contextmanager
def small(server: RiverbedServer, most_bytes: int) -> Iterator[Callable[[], None]]:
    """The server answers another client whenever what is yielded is called, and has not grown by more than that."""
    before = server.private_bytes()

    def look() -> None:
        assert other.ask("PING") == PONG
        grown = server.private_bytes() - before
        assert grown <= most_bytes, f"grew by {grown / MB:.0f} MB, at most {most_bytes / MB:.0f} MB are allowed"

    with connected(server) as other:
        look()
        yield look
        look()


def kept_bytes(server: RiverbedServer) -> int:
    """What the server says it keeps for its clients."""
    with connected(server) as client:
        return int(client.info("memory")["mem_clients_normal"])


@pytest.mark.parametrize("authenticated", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"a\n" * 50_000, id="junk"),
        pytest.param(encode(["PING"]) * 8_000, id="pings"),
        pytest.param(encode(["ECHO", "x" * 10_000]) * 20, id="echoes"),
        pytest.param(b"\r\n" * 50_000, id="empty lines"),
        pytest.param(b"*0\r\n" * 25_000, id="empty arrays"),
    ],
)
def test_a_crowd_that_streams_and_never_reads_is_bounded(
    server: RiverbedServer, authenticated: bool, data: bytes
) -> None:
    clients = [connected(server, authenticated=authenticated) for _ in range(CROWD)]
    with small(server, 120 * MB if authenticated else 40 * MB) as look, Crowd(clients, data) as crowd:
        for _ in range(100):
            look()

        def has_sent_enough() -> bool:
            look()
            return crowd.sent_bytes > 10 * MB

        until(has_sent_enough, "a crowd that has sent a lot")
    until(lambda: kept_bytes(server) == 0, "the end of what was kept for clients that have gone")


def test_a_crowd_that_writes_and_never_reads_is_bounded(server: RiverbedServer) -> None:
    clients = [connected(server) for _ in range(CROWD)]
    with small(server, 120 * MB) as look, Crowd(clients, XADD * 4_000):
        for _ in range(100):
            look()
    until(lambda: kept_bytes(server) == 0, "the end of what was kept for clients that have gone")


def test_a_crowd_with_unfinished_requests_is_bounded_and_one_after_the_other_is_taken(server: RiverbedServer) -> None:
    size = 20 * MB
    whole = encode(["XADD", "large", "*", "f", b"x" * size])
    begun = [connected(server) for _ in range(40)]
    with small(server, 300 * MB) as look, contextlib.ExitStack() as stack:
        threads = []
        replies: list[bytes] = []
        for client in begun:
            stack.enter_context(client)
            threads.append(threading.Thread(target=lambda each=client: replies.append(_send_and_read(each, whole))))
            threads[-1].start()
        while any(thread.is_alive() for thread in threads):
            look()
        assert len([reply for reply in replies if reply.startswith(b"$")]) == len(begun)
    with connected(server) as client:
        assert client.ask("XLEN", "large") == b":%d\r\n" % len(begun)


def _send_and_read(client: RawClient, data: bytes) -> bytes:
    client.send_bytes(data)
    return client.reply()


def test_strangers_that_leave_much_unread_are_disconnected(server: RiverbedServer) -> None:
    """Not each of them: the kernel may have taken all but a kilobyte of a batch's replies when it takes no more.

    Such a one waits for ever, and a little that is read lets it come to another place in its replies.
    """
    clients = [connected(server, authenticated=False) for _ in range(6)]
    for client in clients:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with Crowd(clients, encode(["PING"]) * 1_000) as crowd:
        sent_bytes, moved_at = 0, time.monotonic()

        def have_ended() -> bool:
            nonlocal sent_bytes, moved_at
            if crowd.sent_bytes > sent_bytes:
                sent_bytes, moved_at = crowd.sent_bytes, time.monotonic()
            elif time.monotonic() > moved_at + 1:
                for client in clients:
                    with contextlib.suppress(OSError):
                        client.socket.recv(20_011)
            return crowd.closed > 1

        until(have_ended, "the end of strangers that do not read")


def test_a_stranger_that_reads_may_go_on(server: RiverbedServer) -> None:
    with connected(server, authenticated=False) as client:
        for _ in range(200):
            assert set(client.pipeline([["PING"]] * 100)) == {b"-NOAUTH Authentication required.\r\n"}
        assert client.ask("AUTH", PASSWORD) == b"+OK\r\n"
        assert client.pipeline([["ECHO", number] for number in range(5_000)])[-1] == b"$4\r\n4999\r\n"
        assert client.ask("RESET") == b"+RESET\r\n"
        assert set(client.pipeline([["PING"]] * 1_000)) == {b"-NOAUTH Authentication required.\r\n"}


def test_a_very_long_pipe_keeps_the_server_flat(server: RiverbedServer, tmp_path: Path) -> None:
    program = shutil.which("redis-cli")
    assert program is not None
    count = 400_000
    commands = tmp_path / "commands"
    commands.write_bytes(encode(["AUTH", PASSWORD]) + XADD * count)
    with small(server, 60 * MB) as look, commands.open("rb") as source:
        pipe = subprocess.Popen(
            [program, "-p", str(server.port), "--pipe"], stdin=source, stdout=subprocess.PIPE, text=True
        )
        while pipe.poll() is None:
            look()
        output, _ = pipe.communicate()
    assert f"errors: 0, replies: {count + 1}" in output
    with connected(server) as client:
        assert client.ask("XLEN", "s") == b":%d\r\n" % count


def test_a_transaction_of_a_hundred_thousand_commands_is_run_whole(server: RiverbedServer) -> None:
    count = 100_000
    with small(server, 250 * MB) as look, connected(server) as client:
        assert client.ask("MULTI") == b"+OK\r\n"
        for _ in range(100):
            assert set(client.pipeline([["XADD", "s", "*", "f", "v"]] * (count // 100))) == {b"+QUEUED\r\n"}
            look()
        assert kept_bytes(server) > count * 100
        assert client.ask("EXEC").startswith(b"*%d\r\n" % count)
        assert client.ask("XLEN", "s") == b":%d\r\n" % count
        until(lambda: kept_bytes(server) == 0, "the end of a transaction in the accounts")


def test_a_slow_reader_of_a_long_pipeline_gets_every_reply_in_order(server: RiverbedServer) -> None:
    count = 30_000
    with small(server, 60 * MB) as look, connected(server) as client:
        sender = threading.Thread(
            target=client.send_bytes, args=(b"".join(encode(["ECHO", f"{number:05}" * 40]) for number in range(count)),)
        )
        sender.start()
        for number in range(count):
            assert client.reply() == b"$200\r\n%b\r\n" % (b"%05d" % number * 40)
            if number % 3_000 == 0:
                look()
        sender.join()
    until(lambda: kept_bytes(server) == 0, "the end of what was kept")


def test_what_is_sent_while_a_client_is_blocked_or_paused_runs_in_order_afterwards(server: RiverbedServer) -> None:
    count = 50_000
    with small(server, 60 * MB), connected(server) as client, connected(server) as other:
        behind = threading.Thread(
            target=client.send_bytes,
            args=(
                encode(["XREAD", "BLOCK", 0, "STREAMS", "wake", "$"])
                + b"".join(encode(["ECHO", number]) for number in range(count)),
            ),
        )
        behind.start()
        until(lambda: kept_bytes(server) > 10_000, "what is kept behind a blocked command")
        assert other.ask("CLIENT", "PAUSE", 200, "ALL") == b"+OK\r\n"
        assert other.ask("XADD", "wake", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
        assert b"1-1" in client.reply()
        for number in range(count):
            assert client.reply() == b"$%d\r\n%d\r\n" % (len(str(number)), number)
        behind.join()


def test_a_request_without_memory_for_it_costs_its_client_alone(server: RiverbedServer) -> None:
    with connected(server) as other, connected(server) as client:
        before = server.private_bytes()
        most = before + 150 * MB
        resource.prlimit(server.pid, resource.RLIMIT_DATA, (most, most))
        with contextlib.suppress(OSError):
            client.send_bytes(b"*2\r\n$4\r\nECHO\r\n$400000000\r\n")
            for _ in range(400):
                client.send_bytes(b"x" * 1_000_000)
        assert client.rest_until_closed() == b""
        assert other.ask("ECHO", "still here") == b"$10\r\nstill here\r\n"
        until(lambda: server.private_bytes() < before + 20 * MB, "the end of what was kept")
    assert "Traceback" not in server.log_text()


# -- all clients together ----------------------------------------------------------------------------------------------

LIMIT_BYTES = 16 * MB
# What is left of the crowds otherwise is 90 MB at least, and 30 MB of connections.
MAX_BYTES = 80 * MB
LONG = b"n" * 500_000

CROWDS = {
    "unfinished requests": (1_500, [b"*2\r\n$4\r\nECHO\r\n$70000\r\n" + b"x" * 60_000], 0),
    "transactions": (1_500, [encode(["MULTI"]), encode(["ECHO", "x" * 60_000])], 2),
    "watched keys": (200, [encode(["WATCH", LONG])], 1),
    "many watched keys": (50, [encode(["WATCH", *range(20_000)])], 1),
    "channels": (200, [encode(["SUBSCRIBE", LONG])], 1),
    "patterns": (200, [encode(["PSUBSCRIBE", LONG])], 1),
    "shard channels": (200, [encode(["SSUBSCRIBE", LONG])], 1),
    "names": (1_500, [encode(["CLIENT", "SETNAME", LONG[:60_000]])], 1),
    "libraries": (1_500, [encode(["CLIENT", "SETINFO", "LIB-NAME", LONG[:60_000]])], 1),
    "keys they wait for": (200, [encode(["XREAD", "BLOCK", 0, "STREAMS", LONG, "$"])], 0),
    "many keys they wait for": (80, [encode(["XREAD", "BLOCK", 0, "STREAMS", *range(2_000), *["$"] * 2_000])], 0),
    "requests behind one that waits": (
        1_500,
        [encode(["XREAD", "BLOCK", 0, "STREAMS", "k", "$"]) + encode(["ECHO", LONG[:60_000]])],
        0,
    ),
}


@pytest.mark.parametrize(("count", "chunks", "replies"), CROWDS.values(), ids=CROWDS)
def test_what_all_clients_hold_together_is_bounded_and_those_that_hold_most_are_evicted(
    server: RiverbedServer, count: int, chunks: list[bytes], replies: int
) -> None:
    with connected(server) as client:
        assert client.ask("CONFIG", "SET", "maxmemory-clients", LIMIT_BYTES) == b"+OK\r\n"
    with small(server, MAX_BYTES) as look, contextlib.ExitStack() as stack:
        for number in range(count):
            client = stack.enter_context(connected(server))
            with contextlib.suppress(OSError, EOFError):  # evicted
                for chunk in chunks:
                    client.send_bytes(chunk)
                for _ in range(replies):
                    client.reply()
            if number % 100 == 0:
                look()
        look()
        until(lambda: info(server, "mem_clients_normal") < LIMIT_BYTES, "the end of those that held most")
        assert 0 < info(server, "evicted_clients") < count
    until(lambda: kept_bytes(server) == 0, "the end of what was kept for clients that have gone")
    until(lambda: "clients held more: evicted" in server.log_text(), "a line in the log")


def test_without_a_setting_the_total_is_bounded_as_well(server: RiverbedServer) -> None:
    with small(server, 400 * MB) as look, contextlib.ExitStack() as stack:
        for _ in range(50):
            client = stack.enter_context(connected(server))
            with contextlib.suppress(OSError, EOFError):
                client.ask("WATCH", b"k" * 10 * MB)
            look()
        assert info(server, "evicted_clients") > 20


def info(server: RiverbedServer, field: str) -> int:
    with connected(server) as client:
        return int(client.info("memory", "stats")[field])


def test_subscribers_that_never_read_are_bounded_together(server: RiverbedServer) -> None:
    """Each counts for all that it has not read, although they share the bytes of a message."""
    with connected(server) as client:
        assert client.ask("CONFIG", "SET", "maxmemory-clients", LIMIT_BYTES) == b"+OK\r\n"
    message = b"x" * 100_000
    with small(server, MAX_BYTES) as look, contextlib.ExitStack() as stack, connected(server) as publisher:
        for _ in range(50):
            subscriber = stack.enter_context(connected(server))
            subscriber.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            subscriber.ask("SUBSCRIBE", "news")
        for _ in range(4 * LIMIT_BYTES // len(message)):
            publisher.ask("PUBLISH", "news", message)
            look()
        assert info(server, "evicted_clients") > 0
    until(lambda: kept_bytes(server) == 0, "the end of what was kept for subscribers that have gone")


def test_replies_of_a_transaction_that_are_never_read_are_bounded(server: RiverbedServer) -> None:
    """Together they would be a gigabyte."""
    with connected(server) as client:
        for _ in range(100):
            assert client.ask("XADD", "large", "*", "f", b"x" * 100_000).startswith(b"$")
    with small(server, MAX_BYTES) as look, connected(server) as hoarder:
        hoarder.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert hoarder.ask("MULTI") == b"+OK\r\n"
        for _ in range(100):
            assert hoarder.ask("XRANGE", "large", "-", "+") == b"+QUEUED\r\n"
        hoarder.send("EXEC")
        assert hoarder.socket.recv(1, socket.MSG_PEEK) == b"*"  # the replies have begun
        for _ in range(50):
            look()
