"""What MONITOR shows of commands that are queued, refused or hidden, and in which order: the same as Redis."""

from __future__ import annotations

import re

import pytest

from tests.support.pair import Pair
from tests.support.raw import RawClient
from tests.support.servers import RedisServer, RiverbedServer

LINE = re.compile(rb"\+\d+\.\d{6} \[(\d+) [^]]+\] ")
OTHER = "(other)"  # before what another client sends
# Each is sent by one client, a line at a time; `%` separates lines.
SCRIPTS = {
    "executed": "MULTI % PING % xlen a % XADD a 1-1 f v % EXEC % PING",
    "neighbours": "MULTI % XADD a 1-1 f v % XADD a 2-1 f v % XADD a 3-1 f v % EXEC",
    "empty": "MULTI % EXEC",
    "discarded": "MULTI % PING % DISCARD % DISCARD",
    "queued error": "MULTI % PING % NONSENSE % XLEN % PING % EXEC % PING",
    "watched key that changed": "WATCH a % (other) XADD a 1-1 f v % MULTI % PING % EXEC % UNWATCH",
    "no MULTI": "EXEC % PING",
    "nested": "MULTI % MULTI % WATCH a % PING % EXEC",
    "failing inside": "MULTI % XADD a 0 f v % XADD a 1-1 f v % EXEC",
    "replicas lack": "MULTI % XADD a 1-1 f v % (other) CONFIG SET min-replicas-to-write 1 % EXEC % PING",
    "read-only replica": "(other) REPLICAOF 127.0.0.1 1 % XADD a 1-1 f v % MULTI % XADD a 1-1 f v % EXEC % PING",
    "logins": "AUTH x % AUTH default x % HELLO 2 AUTH default x SETNAME n % HELLO 9 % AUTH % MULTI % AUTH x % EXEC",
    "unknown and short": "NONSENSE a % XLEN % XLEN a b % CLIENT NONSENSE % CLIENT % client % PING a b c",
    "administration": "CONFIG GET port % CLIENT ID % CLIENT KILL ID 999 % ACL WHOAMI % ACL LIST % INFO server",
    "failing": "XADD a 0 f v % XREADGROUP GROUP g c STREAMS a > % XGROUP SETID a g 0 % SELECT 99999 % SELECT 1 % PING",
    "waiting": "XREAD BLOCK 20 STREAMS a $ % PING",
    "rights": "AUTH ann pw % XADD a 1-1 f v % XLEN a % MULTI % XLEN a % XADD a 1-1 f v % EXEC % XLEN b",
    "rights to EXEC lost": "AUTH ann pw % MULTI % XLEN a % (other) ACL SETUSER ann -exec % EXEC % XLEN a",
    "rights lost": "AUTH ann pw % MULTI % XLEN a % (other) ACL SETUSER ann -xlen % PING % EXEC",
}
OWN = {
    "commands": "PING % NONSENSE % ECHO a % EXEC",
    "discarded": "MULTI % PING % DISCARD % PING",
    "queued error": "MULTI % PING % NONSENSE % EXEC % PING",
    "subscriber": "SUBSCRIBE x % PING % UNSUBSCRIBE % RESET % PING",
}


pytestmark = pytest.mark.usefixtures("primaries")


def shown(server: RiverbedServer | RedisServer, script: str) -> list[bytes]:
    """The replies to the lines of a script, and behind each what a monitor has seen by then."""
    with server.client() as other, server.client() as monitor, server.client() as client:
        other.ask("ACL", "SETUSER", "ann", "on", ">pw", "~a", "+@read", "+@connection", "+@transaction")
        assert monitor.ask("MONITOR") == b"+OK\r\n"
        seen: list[bytes] = []
        for number, line in enumerate(script.split(" % ")):
            by = other if line.startswith(OTHER) else client
            seen.append(_without_numbers(by.ask(*line.removeprefix(OTHER).split())))
            other.ask("ECHO", f"end {number}")
            while not (told := monitor.reply()).endswith(b'"ECHO" "end %d"\r\n' % number):
                seen.append(LINE.sub(rb"[\1] ", told))
        return seen


def _without_numbers(reply: bytes) -> bytes:
    """What differs between the two servers is not of interest here: versions, ports, what INFO says."""
    return reply if reply[:1] in b"+-" else reply[:1]


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.usefixtures("pair")
def test_a_monitor_sees_what_redis_shows(server: RiverbedServer, oracle: RedisServer, name: str) -> None:
    assert shown(server, SCRIPTS[name]) == shown(oracle, SCRIPTS[name])


@pytest.mark.usefixtures("pair")
def test_a_monitor_sees_an_exec_of_too_many_words_without_them(server: RiverbedServer, oracle: RedisServer) -> None:
    """Redis shows them; they may be a password."""
    script = "EXEC x % MULTI % PING % EXEC x % PING"
    theirs = [line.replace(b'"EXEC" "x"', b'"EXEC" "(redacted)"') for line in shown(oracle, script)]
    assert shown(server, script) == theirs
    assert theirs.count(b'[0] "EXEC" "(redacted)"\r\n') == 2


def own(client: RawClient, script: str) -> list[bytes]:
    """What a monitor is sent that asks for something itself."""
    assert client.ask("MONITOR") == b"+OK\r\n"
    for line in script.split(" % "):
        client.send(*line.split())
    client.send("ECHO", "end")
    seen: list[bytes] = []
    while not seen or seen[-1] != b"$3\r\nend\r\n":
        seen.append(LINE.sub(rb"[\1] ", client.reply()))
    return seen


@pytest.mark.parametrize("name", OWN)
def test_a_monitor_sees_its_own_commands_behind_their_replies(pair: Pair, name: str) -> None:
    assert own(pair.ours, OWN[name]) == own(pair.theirs, OWN[name])


def test_a_monitor_sees_its_own_command_in_slices_behind_the_reply(client: RawClient) -> None:
    """In Redis monitors may use no keys."""
    many = " ".join(f"{number}-1" for number in range(2, 3000))
    seen = own(client, f"DEL s % XADD s 1-1 f v % XDEL s {many} % PING")
    assert seen[4] == b":0\r\n"
    assert seen[5].startswith(b'[0] "XDEL" "s" "2-1"')
    assert seen[6:8] == [b"+PONG\r\n", b'[0] "PING"\r\n']


def test_a_monitor_sees_its_own_transaction_behind_the_reply(client: RawClient) -> None:
    """Redis sends the commands in the middle of the reply, so that no client can read it."""
    assert own(client, "MULTI % PING % ECHO a % EXEC") == [
        *(b"+OK\r\n", b'[0] "MULTI"\r\n', b"+QUEUED\r\n", b"+QUEUED\r\n", b"*2\r\n+PONG\r\n$1\r\na\r\n"),
        *(b'[0] "PING"\r\n', b'[0] "ECHO" "a"\r\n', b'[0] "EXEC"\r\n', b"$3\r\nend\r\n"),
    ]
