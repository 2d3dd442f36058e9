"""CLIENT and its subcommands."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.pair import Pair
from tests.raw import Frames, Node, RawClient, encode, parse
from tests.rows import assert_same_row
from tests.servers import RedisServer, RiverbedServer

# Answered with the same bytes by redis-server 7.0; % stands for a client that is not there.
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
    "CLIENT INFO x",
    "CLIENT LIST TYPE",
    "CLIENT LIST TYPE NONSENSE",
    "CLIENT LIST TYPE pubsub",
    "CLIENT LIST TYPE master",
    "CLIENT LIST TYPE replica",
    "CLIENT LIST TYPE normal x",
    "CLIENT LIST ID",
    "CLIENT LIST ID x",
    "CLIENT LIST ID 99999999 88888888",
    "CLIENT LIST NONSENSE",
    "CLIENT LIST NONSENSE x",
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


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def id_of(client: RawClient) -> int:
    return int(client.tree("CLIENT", "ID").text)


def lines(reply: Node) -> list[dict[str, str]]:
    """CLIENT LIST as dictionaries."""
    return [dict(field.split("=", 1) for field in line.split(" ")) for line in reply.text.decode().splitlines()]


def own_line(client: RawClient) -> dict[str, str]:
    (line,) = lines(client.tree("CLIENT", "INFO"))
    return line


def is_closed(client: RawClient) -> bool:
    return client.rest_until_closed() == b""


@pytest.mark.parametrize("line", SAME)
def test_answers_are_those_of_redis(pair: Pair, line: str) -> None:
    pair.say(line)


def test_flags_and_arity_are_those_of_redis(pair: Pair) -> None:
    for name in (
        *("ID", "GETNAME", "SETNAME", "LIST", "INFO", "KILL", "PAUSE", "UNPAUSE", "UNBLOCK", "REPLY", "NO-EVICT"),
        *("TRACKING", "TRACKINGINFO", "CACHING", "GETREDIR", "HELP"),
    ):
        assert_same_row(pair, f"CLIENT|{name}")


# -- oneself -----------------------------------------------------------------------------------------------------------


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


# -- who is there ------------------------------------------------------------------------------------------------------


def test_a_line_has_the_fields_of_redis_in_its_order(pair: Pair) -> None:
    """Redis 7.0 knows fewer; those it knows stand in the same order, but for `watch`, which came in between."""
    ours, theirs = own_line(pair.ours), own_line(pair.theirs)
    assert [name for name in ours if name in theirs] == list(theirs)
    for name in ("fd", "id", "age", "idle", "qbuf", "argv-mem", "tot-mem", "tot-cmds", "tot-net-in"):
        assert int(ours[name]) >= 0
    for name in ("name", "flags", "db", "sub", "psub", "ssub", "multi", "events", "cmd", "user", "redir", "resp"):
        assert ours[name] == theirs[name]
    host, _, port = ours["addr"].rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) == pair.ours.socket.getsockname()[1]
    assert ours["laddr"] == f"127.0.0.1:{pair.ours.socket.getpeername()[1]}"


def test_lists_are_verbatim_text_in_resp3(client: RawClient) -> None:
    client.ask("HELLO", 3)
    for words in (("CLIENT", "INFO"), ("CLIENT", "LIST")):
        reply = client.ask(*words)
        assert reply[:1] == b"="
        assert b"txt:id=" in reply


def test_the_list_shows_everybody(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        other.ask("CLIENT", "SETNAME", "other")
        other.ask("SELECT", 7)
        other.ask("MULTI")
        other.ask("XADD", "k", "*", "f", "v")
        seen = {line["id"]: line for line in lines(client.tree("CLIENT", "LIST"))}
        assert {str(id_of(client))} <= set(seen)
        line = next(line for line in seen.values() if line["name"] == "other")
        assert (line["db"], line["multi"], line["flags"]) == ("7", "1", "x")
        assert int(line["multi-mem"]) > 0
        assert list(seen) == sorted(seen, key=int)
        other_id = line["id"]
        asked = client.tree("CLIENT", "LIST", "ID", other_id, 99999999, id_of(client))
        assert [line["id"] for line in lines(asked)] == [other_id, str(id_of(client))]
        assert len(lines(client.tree("CLIENT", "LIST", "TYPE", "NORMAL"))) == len(seen)


@pytest.mark.parametrize(
    ("script", "flags"),
    [("PING", "N"), ("CLIENT NO-EVICT ON", "e"), ("CLIENT NO-TOUCH ON", "T"), ("MONITOR", "O"), ("MULTI", "x")],
)
def test_flags_tell_what_a_client_does(client: RawClient, server: RiverbedServer, script: str, flags: str) -> None:
    with server.client() as other:
        client_number = id_of(other)
        other.ask(*script.split())
        (line,) = lines(client.tree("CLIENT", "LIST", "ID", client_number))
        assert line["flags"] == flags


def test_a_blocked_client_is_shown_as_such(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        number = id_of(other)
        other.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
        eventually(lambda: lines(client.tree("CLIENT", "LIST", "ID", number))[0]["flags"] == "b")


def test_the_bytes_of_an_unfinished_request_are_shown(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        number = id_of(other)
        other.send_bytes(b"*2\r\n$4\r\nECHO\r\n$100000\r\n" + b"x" * 50_000)
        eventually(lambda: int(lines(client.tree("CLIENT", "LIST", "ID", number))[0]["qbuf"]) >= 50_000)


# -- ending, holding and waking others ---------------------------------------------------------------------------------


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
        assert client.ask("CLIENT", "KILL", "ID", number, "MAXAGE", 1) == b":0\r\n"
        eventually(lambda: client.ask("CLIENT", "KILL", "ID", number, "MAXAGE", 1) == b":1\r\n")
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
        eventually(lambda: lines(client.tree("CLIENT", "LIST", "ID", number))[0]["flags"] == "b")
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
        assert client.ask("CLIENT", "UNPAUSE") == b"+OK\r\n"
        assert other.reply() == b"$3\r\n1-1\r\n"


def test_a_pause_ends_by_itself(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        started = time.monotonic()
        assert client.ask("CLIENT", "PAUSE", 300) == b"+OK\r\n"
        assert other.ask("PING") == b"+PONG\r\n"
        assert time.monotonic() - started > 0.25


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


def test_help_names_every_subcommand(client: RawClient) -> None:
    help_lines = [line.text.split()[0].decode() for line in parse(client.ask("CLIENT", "HELP")).children or ()]
    docs = client.tree("COMMAND", "LIST", "FILTERBY", "PATTERN", "client|*")
    names = {name.text.decode().partition("|")[2].upper() for name in docs.children or ()}
    assert names <= set(help_lines)
