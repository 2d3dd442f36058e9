"""CLIENT and its subcommands, but for those that show other clients or do something to them."""

from __future__ import annotations

import socket

import pytest

from tests.support.client_lines import id_of, lines, own_line
from tests.support.pair import Pair
from tests.support.raw import RawClient, encode, parse
from tests.support.rows import assert_same_row
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

# Answered with the same bytes by redis-server 7.0.
SAME = [
    "CLIENT",
    "CLIENT NONSENSE",
    "CLIENT ID x",
    "CLIENT GETNAME",
    "CLIENT GETNAME x",
    "CLIENT SETNAME",
    "CLIENT SETNAME me",
    "CLIENT GETREDIR",
    "CLIENT TRACKING OFF",
    "CLIENT TRACKING NONSENSE",
    "CLIENT TRACKINGINFO",
    "CLIENT CACHING YES",
    "CLIENT CACHING",
    "CLIENT REPLY ON",
    "CLIENT REPLY NONSENSE",
    "CLIENT REPLY",
    "CLIENT NO-EVICT ON",
    "CLIENT NO-EVICT OFF",
    "CLIENT NO-EVICT NONSENSE",
]


@pytest.mark.parametrize("line", SAME)
def test_answers_are_those_of_redis(pair: Pair, line: str) -> None:
    pair.say(line)


def test_flags_and_arity_are_those_of_redis(pair: Pair) -> None:
    for name in (
        *("ID", "GETNAME", "SETNAME", "LIST", "INFO", "KILL", "PAUSE", "UNPAUSE", "UNBLOCK", "REPLY", "NO-EVICT"),
        *("TRACKING", "TRACKINGINFO", "CACHING", "GETREDIR", "HELP"),
    ):
        assert_same_row(pair, f"CLIENT|{name}")


def test_help_names_every_subcommand(client: RawClient) -> None:
    help_lines = [line.text.split()[0].decode() for line in parse(client.ask("CLIENT", "HELP")).children or ()]
    docs = client.tree("COMMAND", "LIST", "FILTERBY", "PATTERN", "client|*")
    names = {name.text.decode().partition("|")[2].upper() for name in docs.children or ()}
    assert names <= set(help_lines)


def test_names_have_no_blanks_and_can_be_taken_back(client: RawClient) -> None:
    assert client.ask("CLIENT", "SETNAME", "a-b_c.1") == b"+OK\r\n"
    for name in (b"a b", b"a\n", b"\x7f", "ä".encode()):
        assert client.ask("CLIENT", "SETNAME", name).startswith(b"-ERR Client names cannot contain spaces")
    assert client.ask("CLIENT", "GETNAME") == b"$7\r\na-b_c.1\r\n"
    assert client.ask("CLIENT", "SETNAME", "") == b"+OK\r\n"
    assert client.ask("CLIENT", "GETNAME") == b"$-1\r\n"


def test_the_library_is_remembered(client: RawClient) -> None:
    assert client.ask("CLIENT", "SETINFO", "lib-name", "redis-py(x_v1)") == b"+OK\r\n"
    assert client.ask("CLIENT", "SETINFO", "LIB-VER", "8.1.0") == b"+OK\r\n"
    assert client.ask("RESET") == b"+RESET\r\n"
    line = own_line(client)
    assert (line["lib-name"], line["lib-ver"]) == ("redis-py(x_v1)", "8.1.0")
    error = b"-ERR lib-ver cannot contain spaces, newlines or special characters.\r\n"
    assert client.ask("CLIENT", "SETINFO", "lib-ver", "1 2") == error
    assert client.ask("CLIENT", "SETINFO", "lib-x", "1") == b"-ERR Unrecognized option 'lib-x'\r\n"
    assert client.ask("CLIENT", "SETINFO", "lib-ver").startswith(b"-ERR wrong number of arguments for 'client|setinfo'")


def test_names_are_bounded(client: RawClient) -> None:
    most = b"n" * 65536
    for words in (("SETNAME",), ("SETINFO", "LIB-NAME"), ("SETINFO", "lib-ver")):
        assert client.ask("CLIENT", *words, most) == b"+OK\r\n"
        assert client.ask("CLIENT", *words, most + b"n").endswith(b" cannot be longer than 65536 bytes\r\n")
    error = b"-ERR Client names cannot be longer than 65536 bytes\r\n"
    assert client.ask("HELLO", 3, "SETNAME", most + b"n") == error
    assert client.ask("CLIENT", "GETNAME") == b"$65536\r\n%b\r\n" % most


def test_what_is_remembered_for_a_client_counts(client: RawClient) -> None:
    before = int(own_line(client)["tot-mem"])
    client.ask("CLIENT", "SETNAME", "n" * 1000)
    client.ask("WATCH", "k" * 1000)
    assert int(own_line(client)["tot-mem"]) >= before + 2000


@pytest.mark.parametrize(
    ("said", "least"),
    [
        pytest.param([b"*2\r\n$4\r\nECHO\r\n$2000000\r\n" + b"x" * 1_000_000], 1_000_000, id="half a request"),
        pytest.param([encode(["MULTI"]), encode(["ECHO", "x" * 1_000_000])], 1_000_000, id="a queued command"),
        pytest.param([encode(["ECHO", "x" * 20_000_000])], 10_000_000, id="an unread reply"),
        pytest.param(
            [encode(["XREAD", "BLOCK", 0, "STREAMS", "k", "$"]), encode(["ECHO", "x" * 50_000])],
            50_000,
            id="behind a wait",
        ),
        pytest.param([encode(["SUBSCRIBE", "c" * 100_000])], 100_000, id="a channel"),
    ],
)
def test_total_memory_counts_what_a_client_holds(
    server: RiverbedServer, client: RawClient, said: list[bytes], least: int
) -> None:
    with server.client() as holder:
        number = id_of(holder)
        holder.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for chunk in said:
            holder.send_bytes(chunk)

        def total() -> int:
            (line,) = lines(client.tree("CLIENT", "LIST", "ID", number))
            return int(line["tot-mem"])

        until(lambda: total() >= least, f"{least} bytes")
        assert int(client.info("memory")["mem_clients_normal"]) >= least


def test_tracking_is_refused(client: RawClient) -> None:
    assert client.ask("CLIENT", "TRACKING", "ON").startswith(b"-ERR Client side caching is not supported")
    client.ask("HELLO", 3)
    info = client.ask("CLIENT", "TRACKINGINFO")
    assert info == b"%3\r\n$5\r\nflags\r\n~1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n"


@pytest.mark.parametrize(
    ("script", "replies"),
    [
        ("PING; CLIENT REPLY OFF; PING; NONSENSE; CLIENT REPLY ON; ECHO a", [b"+PONG\r\n", b"+OK\r\n", b"$1\r\na\r\n"]),
        ("CLIENT REPLY SKIP; PING; ECHO a", [b"$1\r\na\r\n"]),
        ("CLIENT REPLY SKIP; NONSENSE; ECHO a", [b"$1\r\na\r\n"]),
        ("CLIENT REPLY SKIP; RESET; ECHO a", [b"$1\r\na\r\n"]),
        ("CLIENT REPLY OFF; RESET; ECHO a", [b"+RESET\r\n", b"$1\r\na\r\n"]),
        ("CLIENT REPLY OFF; CLIENT REPLY SKIP; PING; CLIENT REPLY ON; ECHO a", [b"+OK\r\n", b"$1\r\na\r\n"]),
        ("CLIENT REPLY OFF; CLIENT REPLY NONSENSE; RESET; ECHO a", [b"+RESET\r\n", b"$1\r\na\r\n"]),
        ("CLIENT REPLY SKIP; XADD k 1-1 f v; XLEN k", [b":1\r\n"]),
    ],
)
def test_replies_can_be_switched_off(pair: Pair, script: str, replies: list[bytes]) -> None:
    commands = [line.split() for line in script.split("; ")]
    for client in (pair.ours, pair.theirs):
        client.send_bytes(b"".join(map(encode, commands)))
        assert [client.reply() for _ in replies] == replies
        assert client.ask("PING") == b"+PONG\r\n"


def test_a_transaction_is_answered_whole_whatever_it_says_about_replies(client: RawClient) -> None:
    replies = client.pipeline([("MULTI",), ("CLIENT", "REPLY", "SKIP"), ("PING",), ("EXEC",), ("ECHO", "a")])
    assert replies[3:] == [b"*2\r\n+OK\r\n+PONG\r\n", b"$1\r\na\r\n"]
