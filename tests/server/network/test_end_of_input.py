"""A client may stop sending and still wait for its replies: it gets them all, and then the end of the connection."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from tests.conftest import StartRiverbed
from tests.support.raw import Frames, RawClient, encode
from tests.support.servers import RedisServer, RiverbedServer, Server
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until

PIPELINE = 20_000
"""Requests: more than run in one tick."""


def adds(count: int) -> bytes:
    return encode(["XADD", "s", "*", "f", "v" * 30]) * count


def answers(client: RawClient) -> list[bytes]:
    """All replies until the server closes."""
    frames = Frames()
    frames.feed(client.rest_until_closed())
    replies = []
    while (reply := frames.next()) is not None:
        replies.append(reply)
    assert not frames.pending()
    return replies


def answers_to(server: Server, data: bytes) -> list[bytes]:
    """All replies to a client that sends `data` and hangs up on its sending side."""
    with server.client() as client:
        client.send_bytes(data)
        client.end()
        return answers(client)


def length(server: Server) -> int:
    with server.client() as client:
        return int(client.tree("XLEN", "s").text)


def clients(server: Server) -> int:
    with server.client() as client:
        return len(client.tree("CLIENT", "LIST").text.splitlines()) - 1


def test_all_of_a_long_pipeline_is_run_and_answered(riverbed: RiverbedServer) -> None:
    replies = answers_to(riverbed, adds(PIPELINE) + encode(["PING"]))
    assert len(replies) == PIPELINE + 1
    assert replies[-1] == b"+PONG\r\n"
    assert length(riverbed) == PIPELINE


def test_all_is_run_for_a_client_that_wants_no_replies_and_closes(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.send_bytes(encode(["CLIENT", "REPLY", "OFF"]) + adds(PIPELINE))
    until(lambda: length(riverbed) == PIPELINE, "that all of it is run")
    until(lambda: clients(riverbed) == 0, "that the client is let go")


@pytest.mark.parametrize(
    "end",
    [
        b"",
        b"\r\n",
        b"*2\r\n$4\r\nECHO\r\n$900\r\nabc",
        b"XADD s *",
        encode(["MULTI"]) + encode(["XADD", "s", "*", "f", "v"]),
    ],
    ids=["nothing", "an empty line", "half a request", "half a line", "half a transaction"],
)
def test_what_is_not_ended_is_dropped_as_by_redis(
    redis_server: RedisServer, riverbed: RiverbedServer, end: bytes
) -> None:
    data = encode(["XADD", "s", "1-1", "f", "v"]) + encode(["XLEN", "s"]) + end
    assert answers_to(riverbed, data) == answers_to(redis_server, data)
    assert length(riverbed) == length(redis_server) == 1
    until(lambda: clients(riverbed) == 0, "that the client is let go")


def test_what_is_no_request_is_named_although_nothing_follows(
    redis_server: RedisServer, riverbed: RiverbedServer
) -> None:
    data = encode(["PING"]) * 100 + b"*1\r\n+x\r\n"
    assert answers_to(riverbed, data) == answers_to(redis_server, data)


@pytest.mark.parametrize(
    "waiting",
    [
        ["XREAD", "BLOCK", "0", "STREAMS", "s", "$"],
        ["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">"],
        ["WAIT", "1", "0"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("is_parked", [True, False])
def test_a_client_that_waits_for_others_is_let_go_as_by_redis(
    redis_server: RedisServer, riverbed: RiverbedServer, waiting: list[str], *, is_parked: bool
) -> None:
    for server in (redis_server, riverbed):
        with server.client() as setup, server.client() as client:
            setup.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
            client.send_bytes(
                encode(["XADD", "t", "1-1", "f", "v"]) + encode(waiting) + encode(["XADD", "t", "2-2", "f", "v"])
            )
            if is_parked:
                until(lambda: b"blocked_clients:1" in setup.tree("INFO", "clients").text, "that the client waits")
            client.end()
            assert client.rest_until_closed() == b"$3\r\n1-1\r\n"
            assert setup.ask("XLEN", "t") == b":1\r\n"
            setup.ask("XADD", "s", "9-9", "f", "v")
            assert setup.tree("XPENDING", "s", "g").children[0].text == b"0"


@pytest.mark.parametrize("waiting", [["SUBSCRIBE", "news"], ["MONITOR"]], ids=lambda words: words[0])
def test_a_client_that_listens_is_let_go_as_by_redis(
    redis_server: RedisServer, riverbed: RiverbedServer, waiting: list[str]
) -> None:
    data = encode(["PING"]) + encode(waiting)
    assert answers_to(riverbed, data) == answers_to(redis_server, data)


def test_a_long_reply_is_sent_to_its_end(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.pipeline([["XADD", "s", "*", "f", "v" * 1000] for _ in range(10_000)])
    data = encode(["XRANGE", "s", "-", "+"]) * 2 + encode(["XADD", "s", "*", "f", "v"])
    first, second, third = answers_to(riverbed, data)
    assert first == second
    assert len(first) > 10_000_000
    assert third.startswith(b"$")
    assert length(riverbed) == 10_001


def test_a_command_in_slices_and_those_behind_it_are_run_and_answered(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        ids = [reply.split()[1] for reply in client.pipeline([["XADD", "s", "*", "f", "v"]] * 3000)]
    data = encode(["XDEL", "s", *ids]) + encode(["XLEN", "s"])
    assert answers_to(riverbed, data) == [b":3000\r\n", b":0\r\n"]


def test_a_snapshot_is_answered(riverbed: RiverbedServer) -> None:
    replies = answers_to(riverbed, adds(1) + encode(["RIVERBED", "SNAPSHOT", "one"]) + adds(1))
    assert len(replies) == 3
    assert b"one" in replies[1]


def test_requests_that_a_pause_holds_up_are_run_when_it_ends(riverbed: RiverbedServer) -> None:
    with riverbed.client() as other, riverbed.client() as client:
        other.ask("CLIENT", "PAUSE", "1000000", "WRITE")
        client.send_bytes(adds(3))
        client.end()
        assert other.ask("XLEN", "s") == b":0\r\n"
        other.ask("CLIENT", "UNPAUSE")
        assert len(answers(client)) == 3
        assert other.ask("XLEN", "s") == b":3\r\n"


def test_requests_that_come_in_small_pieces_are_all_answered(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"requirepass": "secret"})
    pings = encode(["AUTH", "secret"]) + encode(["PING"]) * 5000
    assert answers_to(server, pings) == [b"+OK\r\n"] + [b"+PONG\r\n"] * 5000
    assert answers_to(server, encode(["PING"]) * 10) == [b"-NOAUTH Authentication required.\r\n"] * 10


def test_a_client_that_sends_all_and_never_reads_is_let_go_when_it_leaves(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.pipeline([["XADD", "s", "*", "f", "v" * 10_000] for _ in range(3_000)])
        client.send_bytes(encode(["XRANGE", "s", "-", "+"]) * 10 + encode(["ECHO", "x" * 9_000]) * 10)
        client.end()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: clients(riverbed) == 0, "that the client is let go")


def test_a_unix_socket_is_answered_to_the_end(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    start_riverbed(options={"unixsocket": path})
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        peer.sendall(encode(["PING"]) * PIPELINE)
        peer.shutdown(socket.SHUT_WR)
        size = 0
        while piece := peer.recv(1 << 16):
            size += len(piece)
    assert size == PIPELINE * len(b"+PONG\r\n")


def test_the_end_comes_behind_all_ticks(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path / "d")
        ticks.executor.fast_path.most_requests = 8
        ended, other, empty = ticks.connect(), ticks.connect(), ticks.connect()
        ended.send(*["PING"] * 1000)
        ended.send_bytes(encode(["PING"])[:-3])
        other.send(*["PING"] * 1000)
        for client in (ended, empty):
            client.end()
        assert not ended.is_closed
        await ticks.settle()
        while not ended.is_closed:
            await ticks.settle()
        assert empty.is_closed
        assert len(ended.replies()) == 1000
        while len(other.replies()) or ticks.executor.queue:
            await ticks.settle()
        assert not other.is_closed
        ended.leave()
        empty.leave()
        ticks.check_accounts()
        ticks.close()

    in_loop(body())
