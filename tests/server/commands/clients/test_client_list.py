from __future__ import annotations

import pytest

from tests.support.client_lines import id_of, lines, own_line
from tests.support.pair import Pair
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

# Answered with the same bytes by redis-server 7.0.
SAME = [
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
]


@pytest.mark.parametrize("line", SAME)
def test_answers_are_those_of_redis(pair: Pair, line: str) -> None:
    pair.say(line)


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
        until(lambda: len(lines(client.tree("CLIENT", "LIST"))) == 2, "two clients")  # those before have gone
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
        until(lambda: lines(client.tree("CLIENT", "LIST", "ID", number))[0]["flags"] == "b", "a client that waits")


def test_the_bytes_of_an_unfinished_request_are_shown(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        number = id_of(other)
        other.send_bytes(b"*2\r\n$4\r\nECHO\r\n$100000\r\n" + b"x" * 50_000)
        until(lambda: int(lines(client.tree("CLIENT", "LIST", "ID", number))[0]["qbuf"]) >= 50_000, "half a request")
