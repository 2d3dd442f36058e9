"""What CLIENT LIST and INFO tell of commands that are queued, refused, or fail: the same as Redis, at every moment."""

from __future__ import annotations

import re

import pytest

from tests.support.raw import RawClient, parse
from tests.support.servers import RedisServer, RiverbedServer

OTHER = "(other)"  # before what another client sends
# Each is sent by one client, a line at a time; `%` separates lines.
SCRIPTS = {
    "executed": "PING % XLEN a % XADD s 1-1 f v % XADD s 1-1 f v % XADD s 0 f v % xlen s",
    "refused": "XLEN % NONSENSE % PING % XLEN a b % CLIENT % CLIENT NONSENSE % CLIENT ID x % client % nonsense % ping",
    "transaction": "MULTI % PING % XLEN a % XADD s 5-1 f v % EXEC % PING",
    "neighbours": "MULTI % XADD s 7-1 f v % XADD s 8-1 f v % XACK s g 1-1 % EXEC",
    "discarded": "MULTI % XLEN a % PING % DISCARD % DISCARD",
    "queued error": "MULTI % XLEN a % NONSENSE % XLEN % PING % XADD s 9-1 f v % EXEC % PING",
    "failing inside": "MULTI % XADD s 0 f v % XADD s 1-1 f v % XLEN s % EXEC",
    "nested": "MULTI % MULTI % WATCH a % XLEN s % EXEC",
    "not in a transaction": "MULTI % MONITOR % SUBSCRIBE x % EXEC",
    "watched key that changed": "WATCH w % (other) XADD w 1-1 f v % MULTI % PING % XADD s 1-1 f v % EXEC % PING % EXEC",
    "EXEC of too many words": "EXEC x % MULTI % PING % EXEC x % PING",
    "subscriber": "SUBSCRIBE x % XLEN a % PING % UNSUBSCRIBE % XLEN a",
    "rights": "AUTH ann pw % XADD a 1-1 f v % XLEN a % MULTI % XLEN a % XADD a 1-1 f v % EXEC % XLEN b % XLEN a",
    "rights to EXEC lost": "AUTH ann pw % MULTI % XLEN a % (other) ACL SETUSER ann -exec % EXEC % PING",
    "rights lost": "AUTH ann pw % MULTI % XLEN a % PING % XLEN a % (other) ACL SETUSER ann -xlen % EXEC % XLEN a",
    "read-only replica": "(other) REPLICAOF 127.0.0.1 1 % XADD a 1-1 f v % MULTI % XADD a 1-1 f v % XLEN a % EXEC",
    "replicas lack": "MULTI % XADD a 1-1 f v % (other) CONFIG SET min-replicas-to-write 1 % EXEC % XADD a 1-1 f v",
    "logins": "AUTH x y % HELLO 2 % HELLO 9 % AUTH % RESET % PING",
    "administration": "CONFIG SET nosuch 1 % CONFIG NOSUCH % CONFIG % CLIENT KILL x y % SELECT 99999 % WAIT x 0",
    "groups": "XGROUP CREATE q g $ % XREADGROUP GROUP h c STREAMS q > % XACK q g x % XINFO STREAM no % XINFO",
}
FIELDS = ("cmd", "multi", "flags", "db", "sub", "psub", "user", "resp")


pytestmark = pytest.mark.usefixtures("primaries")


def line_of(other: RawClient, number: int) -> dict[str, str]:
    """Some fields of a client's line."""
    lines = parse(other.ask("CLIENT", "LIST", "ID", number)).text.decode().split()
    fields = dict(field.split("=", 1) for field in lines)
    return {name: fields[name] for name in FIELDS}


def counts(other: RawClient) -> dict[str, str]:
    """What INFO says of commands and errors, but for what this asks itself."""
    found = {}
    for line in parse(other.ask("INFO", "everything")).text.decode().split("\r\n"):
        name, _, value = line.partition(":")
        if name.startswith("cmdstat_"):
            found[name] = re.sub(r"usec=\d+,usec_per_call=[\d.]+,", "", value)
        elif name.startswith("latency_percentiles_usec_"):
            found[name] = ""
        elif name.startswith(("errorstat_", "keyspace_")) or name in (
            "total_error_replies",
            "total_commands_processed",
        ):
            found[name] = value
    return found


def told(server: RiverbedServer | RedisServer, script: str) -> list[object]:
    """What the servers tell behind each line of a script."""
    with server.client() as other, server.client() as client:
        other.ask("FLUSHALL")
        other.ask("ACL", "SETUSER", "ann", "on", ">pw", "~a", "+@read", "+@connection", "+@transaction")
        number = int(client.ask("CLIENT", "ID")[1:])
        other.ask("CONFIG", "RESETSTAT")
        seen: list[object] = []
        for line in script.split(" % "):
            by = other if line.startswith(OTHER) else client
            by.ask(*line.removeprefix(OTHER).split())
            seen.append((line, line_of(other, number), counts(other)))
        return seen


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_counts_and_the_line_of_the_client_are_those_of_redis(
    server: RiverbedServer, oracle: RedisServer, name: str
) -> None:
    assert told(server, SCRIPTS[name]) == told(oracle, SCRIPTS[name])


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_counts_behind_a_pipeline_are_those_of_redis(
    server: RiverbedServer, oracle: RedisServer, name: str
) -> None:
    """The commands of the client arrive together, so that they are run together."""
    lines = [line.split() for line in SCRIPTS[name].split(" % ") if not line.startswith(OTHER)]
    found = []
    for each in (server, oracle):
        with each.client() as other, each.client() as client:
            other.ask("FLUSHALL")
            other.ask("ACL", "SETUSER", "ann", "on", ">pw", "~a", "+@read", "+@connection", "+@transaction")
            number = int(client.ask("CLIENT", "ID")[1:])
            other.ask("CONFIG", "RESETSTAT")
            client.pipeline(lines)
            found.append((line_of(other, number), counts(other)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "script",
    [
        "NONSENSE % " * 20 + "INFO stats",
        "XLEN a % NONSENSE % XLEN a % XADD s * f v % XLEN % INFO stats",
        "MULTI % " + "PING % " * 30 + "DISCARD % INFO stats",
        "MULTI % XADD s * f v % XADD s * f v % EXEC % INFO stats",
        "NONSENSE % " * 20 + "CONFIG RESETSTAT % NONSENSE % PING % INFO stats",
    ],
)
def test_a_pipeline_that_asks_how_many_commands_were_processed_is_told_what_redis_tells(
    server: RiverbedServer, oracle: RedisServer, script: str
) -> None:
    found = []
    for each in (server, oracle):
        with each.client() as other, each.client() as client:
            other.ask("CONFIG", "RESETSTAT")
            *_, told = client.pipeline([line.split() for line in script.split(" % ")])
            found.append(re.findall(rb"total_commands_processed:(\S+)", told))
    assert found[0] == found[1]


def test_a_client_that_asks_inside_of_exec_sees_itself_as_in_redis(server: RiverbedServer, oracle: RedisServer) -> None:
    for words in (["CLIENT", "INFO"], ["CLIENT", "LIST"]):
        found = []
        for each in (server, oracle):
            with each.client() as client:
                client.pipeline([["MULTI"], ["PING"], words, ["XADD", "s", "*", "f", "v"]])
                reply = client.ask("EXEC")
                found.append(re.findall(rb"(?:cmd|multi|flags)=\S+", reply.split(b"flags=x")[1]))
                client.ask("DISCARD")
                assert re.findall(rb"multi=\S+", client.ask("CLIENT", "INFO")) == [b"multi=-1"]
        assert found[0] == found[1] == [b"multi=3", b"cmd=exec"]
