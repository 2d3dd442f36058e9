"""No secret of a client is shown to another: not by MONITOR, SLOWLOG or the server's log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.redaction import REDACTED
from riverbed.server.commands.table import named
from tests.conftest import StartRiverbed
from tests.support.pair import Pair
from tests.support.raw import Node, RawClient
from tests.support.servers import RedisServer, RiverbedServer, Server

PASSWORD = "p4ssw0rd"

# Sound commands: shown as Redis shows them.
SOUND: list[tuple[str, ...]] = [
    ("AUTH", PASSWORD),
    ("auth", "default", PASSWORD),
    ("AUTH", "nobody", PASSWORD),
    ("HELLO",),
    ("HELLO", "2"),
    ("HELLO", "2", "SETNAME", "me"),
    ("HELLO", "2", "AUTH", "default", PASSWORD, "SETNAME", "me"),
    ("hello", "2", "setname", "me", "auth", "default", PASSWORD),
    ("HELLO", "2", "AUTH", "nobody", PASSWORD),
    ("CONFIG", "SET", "masterauth", PASSWORD),
    ("config", "set", "MASTERUSER", PASSWORD, "slowlog-max-len", "500"),
    ("CONFIG", "SET", "slowlog-max-len", "500", "requirepass", ""),
    ("CONFIG", "SET", "port", "70000", "requirepass", PASSWORD),
    ("CONFIG", "SET", "slowlog-max-len", "500"),
    ("CONFIG", "GET", "slowlog-max-len"),
    ("ECHO", "shown"),
    ("MULTI",),
    ("CONFIG", "SET", "masterauth", PASSWORD),
    ("AUTH", "default", PASSWORD),
    ("HELLO", "2", "AUTH", "default", PASSWORD),
    ("SLOWLOG", "LEN"),
    ("EXEC",),
]
# Mistyped ones, some of which Redis shows: the password stands where none belongs.
MISTYPED: list[tuple[str, ...]] = [
    ("AUTHH", PASSWORD),
    ("AUTH",),
    ("AUTH", "default", PASSWORD, "x"),
    ("HELLO", "AUTH", "default", PASSWORD),
    ("HELLO", "2", "AUHT", "default", PASSWORD),
    ("HELLO", "2", "AUTH", PASSWORD),
    ("HELLO", "2", "SETNAME", "me", PASSWORD),
    ("HELLO", "2", PASSWORD),
    ("HELLO", PASSWORD),
    ("HELLO", "2", "AUTH", "a", "b", "AUTH", "c", PASSWORD),
    ("HELLO", "9", "AUTH", "default", PASSWORD),
    ("CONFIG", "SET", "requirepas", PASSWORD),
    ("CONFIG", "SET", "requirepass", "two", PASSWORD),
    ("CONFIG", "SET", "slowlog-max-len", "requirepass", PASSWORD, "1"),
    ("CONFIG", "SETT", "requirepass", PASSWORD),
    ("CONFIGG", "SET", "requirepass", PASSWORD),
]
# Commands that have another command among their words.
WITHIN: list[tuple[str, ...]] = [
    (*outer, *inner)
    for outer in (
        ("COMMAND", "GETKEYS"),
        ("command", "getkeysandflags"),
        ("COMMAND", "GETKEYS", "command", "getkeys", "COMMAND", "GETKEYSANDFLAGS"),
        ("COMMAND", "GETKEYZ"),
        ("COMMAND", "GETKEYS", "COMMAND", "GETKEYZ"),
        ("ACL", "DRYRUN", "default"),
        ("ACL", "DRYRUN", "default", "COMMAND", "GETKEYS", "acl", "dryrun", "default"),
        ("MULTI",),
        ("EXEC",),
    )
    for inner in (
        ("AUTH", PASSWORD),
        ("auth", "default", PASSWORD),
        ("AUTHH", PASSWORD),
        (PASSWORD, "key"),
        ("HELLO", "2", "AUTH", "default", PASSWORD),
        ("CONFIG", "SET", "requirepass", PASSWORD),
        ("CONFIG", "SETT", "requirepass", PASSWORD),
        ("CONFIG", PASSWORD),
    )
]


@pytest.fixture
def slowlogs(server: RiverbedServer, oracle: RedisServer) -> Iterator[None]:
    """Both servers' slow logs keep everything meanwhile."""
    for each, slower_than in ((server, 0), (oracle, 0)):
        with each.client() as client:
            client.ask("CONFIG", "SET", "slowlog-log-slower-than", slower_than)
            client.ask("CONFIG", "SET", "slowlog-max-len", 500)
            client.ask("SLOWLOG", "RESET")
    yield
    for each in (server, oracle):
        with each.client() as client:
            client.ask("CONFIG", "SET", "slowlog-log-slower-than", 10_000, "masterauth", "", "masteruser", "")
            client.ask("CONFIG", "SET", "slowlog-max-len", 128)
            client.ask("SLOWLOG", "RESET")


def monitored(server: Server, commands: list[tuple[str, ...]]) -> list[bytes]:
    """What a monitor is shown of `commands`: the words of each line, quoted."""
    with server.client() as monitor, server.client() as client:
        assert monitor.ask("MONITOR") == b"+OK\r\n"
        for words in commands:
            client.ask(*words)
        client.ask("ECHO", "the last one")
        shown = []
        while not shown or b"the last one" not in shown[-1]:
            shown.append(monitor.reply().partition(b"] ")[2].rstrip())
        return shown


def slow(client: RawClient) -> list[list[bytes]]:
    """The words of what is in the slow log, oldest first."""
    calls = client.tree("SLOWLOG", "GET", -1).children or ()
    return [[word.text for word in _words(call)] for call in reversed(calls)]


def _words(call: Node) -> tuple[Node, ...]:
    return tuple((call.children or ())[3].children or ())


def test_monitors_are_shown_what_monitors_of_redis_are(server: RiverbedServer, oracle: RedisServer) -> None:
    ours, theirs = monitored(server, SOUND), monitored(oracle, SOUND)
    assert ours == theirs
    assert b"(redacted)" in b"".join(ours)
    assert PASSWORD.encode() not in b"".join(ours)


@pytest.mark.parametrize("depth", [1, 2, 3, 5_000])
@pytest.mark.parametrize("inner", ["COMMAND GETKEYS", "COMMAND GETKEYSANDFLAGS", "ACL DRYRUN default", "ACL DRYRUN"])
def test_commands_inside_of_commands_are_shown_to_any_depth_and_may_lack_the_last_one(inner: str, depth: int) -> None:
    load_commands()
    words = [word.encode() for word in inner.split()] * depth
    row = named(words)
    assert row is not None
    shown = row.shown(words)
    assert len(shown) == len(words)
    assert shown[:2] == words[:2]
    mixed = [*words, b"COMMAND", b"GETKEYS", b"AUTH", PASSWORD.encode()]
    if inner != "ACL DRYRUN":
        assert row.shown(mixed) == [*mixed[:-1], REDACTED]
    assert PASSWORD.encode() not in row.shown(mixed)


@pytest.mark.usefixtures("slowlogs")
def test_a_command_without_its_inner_one_is_answered_beside_a_monitor(server: RiverbedServer) -> None:
    before = len(server.log_text())
    asked = [("COMMAND", "GETKEYS", "COMMAND", "GETKEYS"), ("ACL", "DRYRUN", *("ACL", "DRYRUN", "u") * 2_000)]
    assert len(monitored(server, asked)) == 2  # as in Redis, none is shown of ACL
    with server.client() as client:
        assert {words[0] for words in slow(client)} >= {b"COMMAND", b"ACL"}
    assert "Exception" not in server.log_text()[before:]


def test_a_mistyped_password_reaches_no_monitor(server: RiverbedServer) -> None:
    shown = b"".join(monitored(server, [*MISTYPED, *WITHIN]))
    assert b"HELLO" in shown
    assert PASSWORD.encode() not in shown


def test_the_command_that_getkeys_is_asked_about_is_shown_as_it_is_elsewhere(server: RiverbedServer) -> None:
    asked = [
        ("COMMAND", "GETKEYS", "XADD", "key", "*", "field", "value"),
        ("COMMAND", "GETKEYS", "AUTH", "default", PASSWORD),
        ("COMMAND", "GETKEYSANDFLAGS", "CONFIG", "SET", "slowlog-max-len", "5"),
        ("COMMAND", "GETKEYS", "COMMAND", "GETKEYS", "HELLO", "2", "AUTH", "me", PASSWORD),
        ("COMMAND", "GETKEYS", "none", "key"),
    ]
    assert monitored(server, asked)[:-1] == [
        b'"COMMAND" "GETKEYS" "XADD" "key" "*" "field" "value"',
        b'"COMMAND" "GETKEYS" "AUTH" "(redacted)" "(redacted)"',
        b'"COMMAND" "GETKEYSANDFLAGS" "CONFIG" "SET" "slowlog-max-len" "5"',
        b'"COMMAND" "GETKEYS" "COMMAND" "GETKEYS" "HELLO" "2" "AUTH" "(redacted)" "(redacted)"',
        b'"COMMAND" "GETKEYS" "(redacted)" "(redacted)"',
    ]


def test_a_command_within_many_others_is_shown_all_the_same(server: RiverbedServer) -> None:
    [line, _] = monitored(server, [("COMMAND", "GETKEYS") * 20_000 + ("AUTH", PASSWORD)])
    assert line.endswith(b' "COMMAND" "GETKEYS" "AUTH" "(redacted)"')


@pytest.mark.usefixtures("slowlogs")
def test_slow_commands_are_shown_as_in_redis(pair: Pair) -> None:
    # of a transaction Redis keeps each command, and Riverbed the transaction
    sound = SOUND[: SOUND.index(("MULTI",))]
    for each in (pair.ours, pair.theirs):
        each.ask("SLOWLOG", "RESET")
        for words in sound:
            each.ask(*words)
    ours = slow(pair.ours)
    assert ours == slow(pair.theirs)
    assert [b"CONFIG", b"SET", b"masterauth", b"(redacted)"] in ours


@pytest.mark.usefixtures("slowlogs")
def test_a_mistyped_password_reaches_no_slow_log(server: RiverbedServer, client: RawClient) -> None:
    with server.client() as other:
        for words in (*SOUND, *MISTYPED, *WITHIN):
            other.ask(*words)
    shown = slow(client)
    assert [b"CONFIG", b"SET", b"(redacted)", b"(redacted)"] in shown
    assert PASSWORD not in repr(shown)


def test_other_pages_name_commands_alone(server: RiverbedServer, client: RawClient) -> None:
    client.ask("CONFIG", "SET", "latency-monitor-threshold", 1)
    with server.client() as other:
        for words in (*SOUND, *MISTYPED, *WITHIN):
            other.ask(*words)
            for page in (("CLIENT", "LIST"), ("INFO", "everything"), ("LATENCY", "DOCTOR"), ("COMMAND", "LIST")):
                assert PASSWORD.encode() not in client.ask(*page), page
    client.ask("CONFIG", "SET", "masterauth", "", "masteruser", "", "latency-monitor-threshold", 0)
    assert PASSWORD not in server.log_text()


def test_a_password_is_not_in_what_is_said_of_the_settings(start_riverbed: StartRiverbed) -> None:
    options = {"requirepass": PASSWORD, "masterauth": PASSWORD, "loglevel": "debug"}
    server = start_riverbed(options=options)
    with server.client() as client:
        client.ask("AUTH", PASSWORD)
        assert PASSWORD.encode() not in client.ask("INFO", "everything")
    server.stop()
    assert PASSWORD not in server.log_text()
