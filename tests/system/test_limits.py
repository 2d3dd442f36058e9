"""Clients that send too much, too little, or never read: memory stays bounded and others are served.

No test here measures time.  "Others are served" means that another client gets its answer at all; "bounded" means that
the server's private memory stays far below what the hostile client would make a careless server allocate.
"""

from __future__ import annotations

import contextlib
import random
import resource
import time
from collections.abc import Iterator

import pytest

from tests.conftest import StartRiverbed
from tests.support.raw import Frames, RawClient, encode, parse
from tests.support.servers import Server
from tests.support.waiting import until

MB = 1 << 20
IDLE_CONNECTIONS = 5_000

pytestmark = pytest.mark.usefixtures("real_start")


def assert_serves(server: Server) -> None:
    """A new client connects, writes and reads."""
    with server.client() as client:
        added = parse(client.ask("XADD", "others", "*", "f", "v"))
        assert added.kind == "$", f"{added}\n{server.log_tail()}"
        assert client.tree("XREVRANGE", "others", "+", "-", "COUNT", 1).children


@contextlib.contextmanager
def bounded(server: Server, most_bytes: int) -> Iterator[None]:
    """The server's private memory grows by at most `most_bytes` inside, and others are served at the end."""
    assert_serves(server)
    before = server.private_bytes()
    yield
    assert_serves(server)
    grown = server.private_bytes() - before
    assert grown <= most_bytes, f"grew by {grown / MB:.1f} MB, at most {most_bytes / MB:.0f} MB are allowed"


def closed_by_server(client: RawClient) -> bytes:
    """What the server says before it closes; fails when it does not close."""
    try:
        return client.rest_until_closed()
    except TimeoutError:
        raise AssertionError("the server did not close the connection") from None


def send_until_refused(client: RawClient, data: bytes) -> None:
    """Send, and do not mind a server that has closed already."""
    with contextlib.suppress(ConnectionError):
        client.send_bytes(data)


# -- announcements that are not kept -----------------------------------------------------------------------------------


def test_a_billion_announced_words_take_no_memory(riverbed: Server) -> None:
    with contextlib.ExitStack() as stack, bounded(riverbed, 32 * MB):
        for _ in range(50):
            client = stack.enter_context(riverbed.client())
            send_until_refused(client, b"*1000000000\r\n$4\r\nXADD\r\n$1\r\nk\r\n")


def test_a_huge_announced_word_takes_no_memory_before_it_comes(riverbed: Server) -> None:
    with contextlib.ExitStack() as stack, bounded(riverbed, 32 * MB):
        for _ in range(50):
            client = stack.enter_context(riverbed.client())
            client.send_bytes(b"*2\r\n$4\r\nECHO\r\n$536870912\r\n" + b"x" * 1000)


def test_a_word_above_the_limit_is_refused(riverbed: Server) -> None:
    with riverbed.client() as client:
        client.send_bytes(b"*2\r\n$4\r\nECHO\r\n$536870913\r\n")
        assert closed_by_server(client) == b"-ERR Protocol error: invalid bulk length\r\n"
    assert_serves(riverbed)


def test_the_limit_of_a_word_can_be_set(riverbed: Server) -> None:
    with riverbed.client() as client:
        assert client.ask("CONFIG", "SET", "proto-max-bulk-len", MB) == b"+OK\r\n"
    with riverbed.client() as client:
        assert client.ask("ECHO", b"x" * MB) == b"$%d\r\n%b\r\n" % (MB, b"x" * MB)
        client.send_bytes(b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % (MB + 1))
        assert closed_by_server(client) == b"-ERR Protocol error: invalid bulk length\r\n"


def test_a_limit_that_is_set_holds_for_clients_that_are_connected(riverbed: Server) -> None:
    with riverbed.client() as connected, riverbed.client() as client:
        assert connected.ask("ECHO", b"x" * (2 * MB)).startswith(b"$%d\r\n" % (2 * MB))
        assert client.ask("CONFIG", "SET", "proto-max-bulk-len", MB) == b"+OK\r\n"
        connected.send_bytes(b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % (2 * MB))
        assert closed_by_server(connected) == b"-ERR Protocol error: invalid bulk length\r\n"


def test_a_request_above_the_query_buffer_limit_ends_the_connection(riverbed: Server) -> None:
    with riverbed.client() as client:
        assert client.ask("CONFIG", "SET", "client-query-buffer-limit", 2 * MB) == b"+OK\r\n"
    with riverbed.client() as client, bounded(riverbed, 32 * MB):
        words = b"".join(b"$%d\r\n%b\r\n" % (MB, b"x" * MB) for _ in range(16))
        send_until_refused(client, b"*17\r\n$4\r\nXDEL\r\n" + words)
        closed_by_server(client)


def test_an_inline_request_without_end_is_refused(riverbed: Server) -> None:
    with riverbed.client() as client, bounded(riverbed, 16 * MB):
        send_until_refused(client, b"x" * (4 * MB))
        assert closed_by_server(client) in (b"-ERR Protocol error: too big inline request\r\n", b"")


def test_commands_that_break_off_are_never_executed(riverbed: Server) -> None:
    whole = encode(["XADD", "broken", "*", "f", "v"])
    for cut in range(1, len(whole)):
        with riverbed.client() as client:
            client.send_bytes(whole[:cut])
    assert_serves(riverbed)
    with riverbed.client() as client:
        assert client.ask("EXISTS", "broken") == b":0\r\n"


@pytest.mark.parametrize("trim", [(), ("MAXLEN", "~", "9")])
def test_a_large_value_costs_three_and_a_half_times_its_size_at_most(riverbed: Server, trim: tuple[str, ...]) -> None:
    size = 40 * MB
    with riverbed.client() as client:
        assert_serves(riverbed)
        before = riverbed.peak_bytes()
        assert client.ask("XADD", "large", *trim, "*", "f", b"x" * size).startswith(b"$")
        grown = riverbed.peak_bytes() - before
        assert client.tree("XLEN", "large").text == b"1"
    assert size < grown < 3.5 * size, f"{grown / size:.2f} times its size"


# -- before AUTH -------------------------------------------------------------------------------------------------------


def test_strangers_may_send_little(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"requirepass": "secret"})
    with server.client() as client:
        client.send_bytes(b"*11\r\n")
        assert closed_by_server(client) == b"-ERR Protocol error: unauthenticated multibulk length\r\n"
    with server.client() as client:
        client.send_bytes(b"*2\r\n$4\r\nECHO\r\n$16385\r\n")
        assert closed_by_server(client) == b"-ERR Protocol error: unauthenticated bulk length\r\n"
    with server.client() as client:
        assert client.ask("XADD", "k", "*", "f", "v") == b"-NOAUTH Authentication required.\r\n"
        assert client.ask("ECHO", b"x" * 16_384) == b"-NOAUTH Authentication required.\r\n"
        assert client.ask("AUTH", "secret") == b"+OK\r\n"
        assert client.ask("ECHO", b"x" * 16_385) == b"$16385\r\n" + b"x" * 16_385 + b"\r\n"
        assert client.tree("XADD", "k", "*", *["f"] * 20).kind == "$"


def test_auth_and_a_large_command_may_come_in_one_piece(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"requirepass": "secret"})
    fields = ["f", b"x" * 20_000] * 20
    with server.client() as client:
        replies = client.pipeline([("AUTH", "secret"), ("XADD", "k", "1-1", *fields), ("XLEN", "k")])
        assert replies == [b"+OK\r\n", b"$3\r\n1-1\r\n", b":1\r\n"]
    with server.client() as client:
        client.send_bytes(encode(["AUTH", "wrong"]) + encode(["XADD", "k", "2-1", *fields]))
        answer = closed_by_server(client)
        assert answer.startswith(b"-WRONGPASS")
        assert answer.endswith(b"-ERR Protocol error: unauthenticated multibulk length\r\n")


# -- clients that do not read ------------------------------------------------------------------------------------------


def fill(server: Server, key: str, *, entries: int, value_bytes: int) -> None:
    with server.client() as client:
        for start in range(0, entries, 100):
            batch = [("XADD", key, "*", "f", b"x" * value_bytes) for _ in range(min(100, entries - start))]
            assert all(reply.startswith(b"$") for reply in client.pipeline(batch))


def test_a_client_that_never_reads_is_not_executed_ahead_of_its_reading(riverbed: Server) -> None:
    fill(riverbed, "big", entries=1_000, value_bytes=8_000)  # one reply: 8 MB; all replies asked for: 2.4 GB
    asked = encode(["XRANGE", "big", "-", "+"]) * 300
    with riverbed.client() as client, bounded(riverbed, 160 * MB):
        client.send_bytes(asked)
        for _ in range(20):
            assert_serves(riverbed)
            time.sleep(0.05)  # gives a careless server the time to grow
    assert_serves(riverbed)


def test_many_clients_that_never_read_are_bounded_together(riverbed: Server) -> None:
    fill(riverbed, "big", entries=1_000, value_bytes=1_000)  # one reply: 1 MB
    with contextlib.ExitStack() as stack, bounded(riverbed, 200 * MB):
        for _ in range(50):
            client = stack.enter_context(riverbed.client())
            client.send_bytes(encode(["XRANGE", "big", "-", "+"]) * 100)
        for _ in range(10):
            assert_serves(riverbed)
            time.sleep(0.05)


def test_a_slow_reader_gets_every_reply_in_order(riverbed: Server) -> None:
    fill(riverbed, "big", entries=500, value_bytes=2_000)
    with riverbed.client() as client:
        expected = client.ask("XRANGE", "big", "-", "+")
    frames = Frames()
    asked = 20
    with riverbed.client() as client:
        for number in range(asked):
            client.send_bytes(encode(["ECHO", number]) + encode(["XRANGE", "big", "-", "+"]))
        time.sleep(0.3)  # until the sockets are full and the server has to wait
        got = 0
        while got < 2 * asked:
            frames.feed(client.socket.recv(3000))
            while (reply := frames.next()) is not None:
                number, is_range = divmod(got, 2)
                assert reply == (expected if is_range else b"$%d\r\n%d\r\n" % (len(str(number)), number))
                got += 1


def test_the_output_buffer_limit_ends_a_connection(riverbed: Server) -> None:
    with riverbed.client() as client:
        limit = "normal 1048576 0 0"
        assert client.ask("CONFIG", "SET", "client-output-buffer-limit", limit) == b"+OK\r\n"
    with riverbed.client() as client:
        client.send("ECHO", b"x" * (16 * MB))  # a range would be sent in pieces, and no more of it kept than one
        until(lambda: clients_connected(riverbed) == 1, "the end of the client that does not read")
        with riverbed.client() as other:
            assert b"client_output_buffer_limit_disconnections:1\r\n" in other.ask("INFO", "stats")
    assert_serves(riverbed)


def clients_connected(server: Server) -> int:
    with server.client() as client:
        return len(parse(client.ask("CLIENT", "LIST")).text.splitlines())


def test_a_client_that_leaves_without_reading_hurts_nobody(riverbed: Server) -> None:
    fill(riverbed, "big", entries=1_000, value_bytes=1_000)
    for _ in range(30):
        with riverbed.client() as client:
            client.send_bytes(encode(["XRANGE", "big", "-", "+"]) * 50)
    assert_serves(riverbed)


def test_a_monitor_that_never_reads_is_bounded(riverbed: Server) -> None:
    with riverbed.client() as monitor, riverbed.client() as writer:
        assert monitor.ask("MONITOR") == b"+OK\r\n"
        with bounded(riverbed, 160 * MB):
            batch = [("ECHO", b"x" * 10_000)] * 100
            for _ in range(400):  # 400 MB
                assert len(writer.pipeline(batch)) == 100


def test_what_is_sent_behind_a_blocking_read_stays_with_the_sender(riverbed: Server) -> None:
    with riverbed.client(timeout_s=1) as client, bounded(riverbed, 100 * MB):
        client.send("XREAD", "BLOCK", 0, "STREAMS", "nothing", "$")
        batch = encode(["ECHO", b"x" * 100_000]) * 10
        with contextlib.suppress(TimeoutError, ConnectionError):
            for _ in range(400):  # 400 MB
                client.send_bytes(batch)


def test_what_is_queued_by_multi_counts_towards_the_query_buffer_limit(riverbed: Server) -> None:
    with riverbed.client() as client:
        assert client.ask("CONFIG", "SET", "client-query-buffer-limit", 8 * MB) == b"+OK\r\n"
    with riverbed.client() as client, bounded(riverbed, 100 * MB):
        client.send("MULTI")
        batch = encode(["ECHO", b"x" * 100_000]) * 10
        with contextlib.suppress(ConnectionError, TimeoutError):
            for _ in range(300):  # 300 MB
                client.send_bytes(batch)
                for _ in range(10):
                    client.reply()


# -- many clients, small pieces ----------------------------------------------------------------------------------------


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for our ends of the connections; the server takes care of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE_CONNECTIONS + 500
    assert hard == resource.RLIM_INFINITY or hard >= wanted, f"ulimit -Hn is {hard}, this test needs {wanted}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_five_thousand_idle_connections_are_cheap(riverbed: Server) -> None:
    with contextlib.ExitStack() as stack, bounded(riverbed, 100 * MB):
        idle = []
        for _ in range(IDLE_CONNECTIONS):
            client = stack.enter_context(riverbed.client())
            client.send("PING")
            idle.append(client)
        for client in idle:
            assert client.reply() == b"+PONG\r\n"
        assert clients_connected(riverbed) == IDLE_CONNECTIONS + 1
        for client in idle[::50]:
            assert client.ask("XADD", "idle", "*", "f", "v").startswith(b"$")
    assert_serves(riverbed)


def test_more_clients_than_allowed_are_told_so(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"maxclients": 10})
    until(lambda: clients_connected(server) == 1, "the end of who asked whether it is ready")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(10)]
        for client in clients:
            assert client.ask("PING") == b"+PONG\r\n"
        with server.client() as late:
            assert closed_by_server(late) == b"-ERR max number of clients reached\r\n"
        clients[0].close()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with server.client() as late, contextlib.suppress(ConnectionError):
                if late.ask("PING") == b"+PONG\r\n":
                    return
    raise AssertionError("a place that became free is not given away")


def test_commands_may_come_byte_by_byte(riverbed: Server) -> None:
    commands = [["XADD", "k", "1-1", "f", b"a\r\nb\x00"], ["XRANGE", "k", "-", "+"], ["NOSUCH"], ["PING"]]
    wire = b"".join(map(encode, commands)) + b'ECHO "in line"\r\n'
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(riverbed.client()) for _ in range(5)]
        for client in clients[1:]:
            client.send_bytes(b"*2\r\n$4\r\nECHO\r\n$10\r\n")  # the others wait inside a word meanwhile
        for place in range(len(wire)):
            clients[0].send_bytes(wire[place : place + 1])
            if place < 10:
                for client in clients[1:]:
                    client.send_bytes(b"x")
        replies = [clients[0].reply() for _ in range(len(commands) + 1)]
        assert replies[0] == b"$3\r\n1-1\r\n"
        assert replies[1] == b"*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$5\r\na\r\nb\x00\r\n"
        assert replies[2].startswith(b"-ERR unknown command 'NOSUCH'")
        assert replies[3:] == [b"+PONG\r\n", b"$7\r\nin line\r\n"]
        for client in clients[1:]:
            client.send_bytes(b"\r\n")
            assert client.reply() == b"$10\r\nxxxxxxxxxx\r\n"


def test_a_hundred_thousand_commands_in_one_piece_are_all_answered(riverbed: Server) -> None:
    count = 100_000
    with riverbed.client() as client, bounded(riverbed, 128 * MB):
        client.socket.setblocking(False)
        left = memoryview(encode(["PING"]) * count)
        answered = 0
        while answered < count * len(b"+PONG\r\n"):
            with contextlib.suppress(BlockingIOError):
                left = left[client.socket.send(left) :] if left else left
            with contextlib.suppress(BlockingIOError):
                data = client.socket.recv(1 << 16)
                assert data, "closed by the server"
                answered += len(data)
                continue
            time.sleep(0.001)
        assert answered == count * len(b"+PONG\r\n")


def test_garbage_ends_at_most_the_connection_it_came_from(riverbed: Server) -> None:
    source = random.Random(1)
    with riverbed.client() as bystander:
        for number in range(200):
            with riverbed.client() as client:
                alphabet = bytes(range(256)) if number % 2 else b"*$+-:1234\r\n \"'\\xPINGX"
                send_until_refused(client, bytes(source.choices(alphabet, k=source.randrange(1, 3_000))))
            assert bystander.ask("PING") == b"+PONG\r\n"
    assert_serves(riverbed)


def test_blocked_clients_that_vanish_leave_nothing_behind(riverbed: Server) -> None:
    with bounded(riverbed, 16 * MB):
        for _ in range(300):
            with riverbed.client() as client:
                client.send("XREAD", "BLOCK", 0, "STREAMS", "nothing", "$")
        until(lambda: clients_connected(riverbed) == 1, "the end of the clients")
    with riverbed.client() as client:
        assert client.ask("XADD", "nothing", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
