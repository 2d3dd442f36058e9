from __future__ import annotations

import time

import pytest

from tests.conftest import StartRiverbed
from tests.support.client_lines import id_of, lines, own_line
from tests.support.pair import Pair
from tests.support.raw import Frames, RawClient, encode
from tests.support.servers import RedisServer, RiverbedServer
from tests.support.waiting import until

# Answered with the same bytes by redis-server 7.0.
SAME = [
    "CLIENT KILL",
    "CLIENT KILL nobody",
    "CLIENT KILL ID",
    "CLIENT KILL 127.0.0.1:1",
    "CLIENT KILL ID x",
    "CLIENT KILL ID 0",
    "CLIENT KILL ID -1",
    "CLIENT KILL ID 99999999",
    "CLIENT KILL ID 5 ADDR",
    "CLIENT KILL NONSENSE x",
    "CLIENT KILL TYPE NONSENSE",
    "CLIENT KILL TYPE pubsub",
    "CLIENT KILL TYPE normal SKIPME NONSENSE",
    "CLIENT KILL USER nobody",
    "CLIENT KILL ADDR 1:1 LADDR 2:2",
    "CLIENT KILL ADDR 1:1 USER default SKIPME no",
    "CLIENT PAUSE",
    "CLIENT PAUSE x",
    "CLIENT PAUSE -1",
    "CLIENT PAUSE 10 NONSENSE",
    "CLIENT PAUSE x NONSENSE",
    "CLIENT PAUSE 10 ALL x",
    "CLIENT PAUSE 99999999999999999999",
    "CLIENT PAUSE 0",
    "CLIENT UNPAUSE",
    "CLIENT UNPAUSE x",
    "CLIENT UNBLOCK",
    "CLIENT UNBLOCK x",
    "CLIENT UNBLOCK 99999999",
    "CLIENT UNBLOCK -5",
    "CLIENT UNBLOCK 99999999 ERROR",
    "CLIENT UNBLOCK 99999999 NONSENSE",
    "CLIENT UNBLOCK 99999999 ERROR x",
]


def is_closed(client: RawClient) -> bool:
    return client.rest_until_closed() == b""


def answers_within(client: RawClient, seconds: float) -> bool:
    """Whether a byte arrives in time; it stays readable."""
    client.socket.settimeout(seconds)
    try:
        data = client.socket.recv(1 << 16)
    except TimeoutError:
        return False
    finally:
        client.socket.settimeout(60)
    frames = Frames()
    frames.feed(data)
    return frames.next() is not None


@pytest.mark.parametrize("line", SAME)
def test_answers_are_those_of_redis(pair: Pair, line: str) -> None:
    pair.say(line)


def test_kill_by_address_is_answered_ok(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        assert client.ask("CLIENT", "KILL", own_line(other)["addr"]) == b"+OK\r\n"
        assert is_closed(other)


@pytest.mark.parametrize("name", ["ID", "ADDR", "LADDR", "TYPE", "USER"])
def test_kill_by_filter_counts(server: RiverbedServer, name: str) -> None:
    with server.client() as client, server.client() as other:
        mine, others = own_line(client), own_line(other)
        value = {
            "ID": others["id"],
            "ADDR": others["addr"],
            "LADDR": others["laddr"],
            "TYPE": "normal",
            "USER": "default",
        }
        reply = client.tree("CLIENT", "KILL", name, value[name])
        everybody = name in ("LADDR", "TYPE", "USER")  # which other tests' connections have in common
        assert int(reply.text) >= 1 if everybody else int(reply.text) == 1
        assert is_closed(other)
        assert own_line(client)["id"] == mine["id"]


@pytest.mark.parametrize("unread", ["short replies", "a long reply", "a transaction's long reply"])
def test_kill_does_not_wait_for_a_client_that_does_not_read(start_riverbed: StartRiverbed, unread: str) -> None:
    """Neither its place nor the file and the view of its reply are kept."""
    server = start_riverbed(options={"maxclients": 2})
    read = encode(("XRANGE", "s", "-", "+"))
    with server.client() as client, server.client() as other:
        for seq in range(1, 21):
            client.ask("XADD", "s", f"{seq}-0", "f", "v" * 1_000_000)
        number = id_of(other)
        requests = {
            "short replies": encode(("XRANGE", "s", "20-0", "+")) * 30,
            "a long reply": read,
            "a transaction's long reply": encode(("MULTI",)) + encode(("XDEL", "s", "1-0")) + read + encode(("EXEC",)),
        }
        other.send_bytes(requests[unread])
        until(
            lambda: any(int(line["omem"]) for line in lines(client.tree("CLIENT", "LIST"))), "a reply that is not read"
        )
        assert client.ask("CLIENT", "KILL", "ID", number) == b":1\r\n"
        until(lambda: client.ask("CLIENT", "LIST").count(b"id=") == 1, "one client")
        with server.client() as another:
            assert another.ask("PING") == b"+PONG\r\n"


def test_all_filters_must_fit(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        line = own_line(other)
        wrong = (("ADDR", "1.2.3.4:5"), ("TYPE", "replica"), ("MAXAGE", 1000), ("ID", id_of(client)))
        for name, value in wrong:
            filters = {"ID": line["id"], name: value}
            words = [word for pair in filters.items() for word in pair]
            assert client.ask("CLIENT", "KILL", "LADDR", line["laddr"], *words) == b":0\r\n"
        assert other.ask("PING") == b"+PONG\r\n"
        assert client.ask("CLIENT", "KILL", "ID", line["id"], "TYPE", "normal", "SKIPME", "yes") == b":1\r\n"


def test_kill_by_age(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        number = id_of(other)
        assert client.ask("CLIENT", "KILL", "ID", number, "MAXAGE", 600) == b":0\r\n"
        until(lambda: client.ask("CLIENT", "KILL", "ID", number, "MAXAGE", 1) == b":1\r\n", "a client of a second")
        assert is_closed(other)
    for value, error in ((0, b"should be greater than 0"), ("x", b"is not an integer or out of range")):
        assert client.ask("CLIENT", "KILL", "MAXAGE", value) == b"-ERR maxage " + error + b"\r\n"


def test_who_kills_itself_is_answered_first(server: RiverbedServer, oracle: RedisServer) -> None:
    for subject in (server, oracle):
        with subject.client() as client:
            number = id_of(client)
            assert client.ask("CLIENT", "KILL", "ID", number) == b":0\r\n"
            client.send_bytes(encode(("CLIENT", "KILL", "ID", number, "SKIPME", "no")) + encode(("PING",)))
            assert client.rest_until_closed() == b":1\r\n"
        with subject.client() as client:
            client.send("CLIENT", "KILL", own_line(client)["addr"])
            assert client.rest_until_closed() == b"+OK\r\n"


def test_a_blocked_client_can_be_killed(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        number = id_of(other)
        other.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
        until(lambda: lines(client.tree("CLIENT", "LIST", "ID", number))[0]["flags"] == "b", "a client that waits")
        assert client.ask("CLIENT", "KILL", "ID", number) == b":1\r\n"
        assert is_closed(other)
        assert client.ask("XADD", "k", "1-1", "f", "v") == b"$3\r\n1-1\r\n"


@pytest.mark.parametrize(
    ("reason", "reply"),
    [
        ((), b"*-1\r\n"),
        (("TIMEOUT",), b"*-1\r\n"),
        (("error",), b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
    ],
)
def test_a_blocked_client_can_be_woken(
    server: RiverbedServer, oracle: RedisServer, reason: tuple[str, ...], reply: bytes
) -> None:
    for subject in (server, oracle):
        with subject.client() as client, subject.client() as waiting:
            unblock = encode(("CLIENT", "UNBLOCK", id_of(waiting), *reason))
            client.send_bytes(unblock)
            assert client.reply() == b":0\r\n"
            waiting.send_bytes(encode(("XREAD", "BLOCK", 0, "STREAMS", "nothing", "$")) + encode(("ECHO", "next")))
            client.send_bytes(unblock)
            while client.reply() == b":0\r\n":  # not blocked yet
                time.sleep(0.01)
                client.send_bytes(unblock)
            assert [waiting.reply(), waiting.reply()] == [reply, b"$4\r\nnext\r\n"]


def test_a_pause_holds_everybody_back(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        assert client.ask("CLIENT", "PAUSE", 60_000) == b"+OK\r\n"
        other.send_bytes(encode(("PING",)) + encode(("ECHO", "a")))
        assert not answers_within(other, 0.2)
        assert client.ask("CLIENT", "UNPAUSE") == b"+OK\r\n"
        assert [other.reply(), other.reply()] == [b"+PONG\r\n", b"$1\r\na\r\n"]


def test_a_pause_of_writes_lets_reads_pass(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        assert client.ask("CLIENT", "PAUSE", 60_000, "WRITE") == b"+OK\r\n"
        assert other.ask("XLEN", "k") == b":0\r\n"
        other.send("XADD", "k", "1-1", "f", "v")
        assert not answers_within(other, 0.2)
        assert client.ask("XLEN", "k") == b":0\r\n"
        # nor does a transaction wait in which nothing is written
        assert client.pipeline([("MULTI",), ("XLEN", "k"), ("EXEC",)])[-1] == b"*1\r\n:0\r\n"
        assert client.ask("CLIENT", "UNPAUSE") == b"+OK\r\n"
        assert other.reply() == b"$3\r\n1-1\r\n"


def test_a_pause_ends_by_itself(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        started = time.monotonic()
        assert client.ask("CLIENT", "PAUSE", 300) == b"+OK\r\n"
        assert other.ask("PING") == b"+PONG\r\n"
        assert time.monotonic() - started > 0.25
