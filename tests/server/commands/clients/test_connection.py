"""AUTH, HELLO, QUIT, RESET, PING, ECHO, SELECT: beside redis-server where it knows them, alone where it is too old."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from riverbed.server.version import REDIS_VERSION
from tests.support.pair import Pair
from tests.support.raw import RawClient, encode
from tests.support.rows import assert_same_row
from tests.support.servers import RedisServer, RiverbedServer
from tests.support.ticks import Ticks, in_loop

PASSWORD = b"sesame open"
NO_PASSWORD = (
    b"-ERR AUTH <password> called without any password configured for the default user. Are you sure your "
    b"configuration is correct?\r\n"
)
HELLO_NEEDS_AUTH = (
    b"-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> "
    b"option can be used to authenticate the client and select the RESP protocol version at the same time\r\n"
)
BAD_NAME = b"-ERR Client names cannot contain spaces, newlines or special characters.\r\n"


@pytest.fixture
def locked(server: RiverbedServer, oracle: RedisServer) -> Iterator[Pair]:
    """Both servers with a password, and a connection to each that has not given it."""
    keepers = [server.client(), oracle.client()]
    for keeper in keepers:
        assert keeper.ask("CONFIG", "SET", "requirepass", PASSWORD) == b"+OK\r\n"
    with server.client() as ours, oracle.client() as theirs:
        yield Pair(ours, theirs)
    for keeper in keepers:
        assert keeper.ask("CONFIG", "SET", "requirepass", "") == b"+OK\r\n"
        keeper.close()


def test_a_client_without_the_password_is_let_in_when_there_is_none_any_more(
    server: RiverbedServer, oracle: RedisServer
) -> None:
    for some in (server, oracle):
        with some.client() as keeper:
            keeper.ask("CONFIG", "SET", "requirepass", PASSWORD)
            with some.client() as stranger:
                assert stranger.ask("PING") == b"-NOAUTH Authentication required.\r\n"
                assert keeper.ask("CONFIG", "SET", "requirepass", "") == b"+OK\r\n"
                assert stranger.ask("PING") == b"+PONG\r\n"


def test_ping_and_echo_answer(pair: Pair) -> None:
    assert pair.say("PING") == b"+PONG\r\n"
    assert pair.ask("PING", b"a\r\nb") == b"$4\r\na\r\nb\r\n"
    assert pair.say("PING a b") == b"-ERR wrong number of arguments for 'ping' command\r\n"
    assert pair.say("ECHO hi") == b"$2\r\nhi\r\n"
    assert pair.ask("ECHO", b"") == b"$0\r\n\r\n"
    assert pair.say("ECHO") == b"-ERR wrong number of arguments for 'echo' command\r\n"


def test_select_takes_the_number_of_a_database(pair: Pair) -> None:
    for index in ("15", "0"):
        assert pair.ask("SELECT", index) == b"+OK\r\n"
    for index in ("16", "-1", "2147483647"):
        assert pair.ask("SELECT", index) == b"-ERR DB index is out of range\r\n"
    for index in ("x", "01", "", "9223372036854775808"):
        assert pair.ask("SELECT", index) == b"-ERR value is not an integer or out of range\r\n"
    assert pair.ask("SELECT", 1 << 31).startswith(b"-ERR value is out of range, value must between -2147483648 and")


def test_select_holds_for_the_next_request_of_the_same_chunk(client: RawClient) -> None:
    script = [
        ("SELECT", 3),
        ("XADD", "k", "1-1", "f", "v"),
        ("SELECT", 0),
        ("EXISTS", "k"),
        ("SELECT", 3),
        ("DEL", "k"),
    ]
    assert client.pipeline(script)[3::2] == [b":0\r\n", b":1\r\n"]


def test_auth_without_a_password_to_give(pair: Pair) -> None:
    assert pair.say("AUTH x") == NO_PASSWORD
    assert pair.say("AUTH default anything") == b"+OK\r\n"
    assert pair.say("AUTH somebody x").startswith(b"-WRONGPASS ")
    assert pair.say("AUTH a b c") == b"-ERR syntax error\r\n"
    assert pair.say("AUTH") == b"-ERR wrong number of arguments for 'auth' command\r\n"


def test_a_password_is_asked_for(locked: Pair) -> None:
    noauth = b"-NOAUTH Authentication required.\r\n"
    assert locked.say("PING") == noauth
    assert locked.say("MULTI") == noauth
    assert locked.say("CLIENT ID") == noauth
    assert locked.say("HELLO") == locked.say("HELLO 3") == HELLO_NEEDS_AUTH
    assert locked.say("HELLO 4") == b"-NOPROTO unsupported protocol version\r\n"
    for attempt in (("wrong",), ("default", "wrong"), ("somebody", PASSWORD)):
        wrong = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        assert locked.ask("AUTH", *attempt) == wrong
    assert locked.ask("AUTH", PASSWORD) == b"+OK\r\n"
    assert locked.say("PING") == b"+PONG\r\n"
    # a failure afterwards takes nothing away, RESET does
    assert locked.say("AUTH wrong").startswith(b"-WRONGPASS")
    assert locked.say("PING") == b"+PONG\r\n"
    assert locked.say("RESET") == b"+RESET\r\n"
    assert locked.say("PING") == noauth
    assert locked.ask("AUTH", "default", PASSWORD) == b"+OK\r\n"


def test_hello_may_give_the_password_and_a_name(locked: Pair) -> None:
    assert locked.ask("HELLO", 3, "AUTH", "default", "wrong").startswith(b"-WRONGPASS")
    assert locked.ask("HELLO", 3, "SETNAME", "a b", "AUTH", "default", PASSWORD) == BAD_NAME
    assert locked.ours.ask("HELLO", 3, "SETNAME", "me", "AUTH", "default", PASSWORD).startswith(b"%7\r\n")
    assert locked.ours.ask("CLIENT", "GETNAME") == b"$2\r\nme\r\n"


def test_a_hello_that_fails_changes_nothing(locked: Pair) -> None:
    ours = locked.ours
    assert ours.ask("HELLO", 3, "SETNAME", "me") == HELLO_NEEDS_AUTH
    assert ours.ask("AUTH", PASSWORD) == b"+OK\r\n"
    assert ours.ask("HELLO", 3, "SETNAME", "me", "NONSENSE").startswith(b"-ERR Syntax error in HELLO option 'NONSENSE'")
    assert ours.ask("CLIENT", "GETNAME") == b"$-1\r\n"  # no name, and still RESP2


def test_a_large_request_may_follow_the_password_at_once(locked: Pair) -> None:
    words = ("DEL", *(f"key{number}" for number in range(50)))
    for client in (locked.ours, locked.theirs):
        client.send_bytes(encode(("AUTH", PASSWORD)) + encode(words) + encode(("PING",)))
        assert [client.reply() for _ in range(3)] == [b"+OK\r\n", b":0\r\n", b"+PONG\r\n"]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*11\r\n", b"-ERR Protocol error: unauthenticated multibulk length\r\n"),
        (b"*2\r\n$16385\r\n", b"-ERR Protocol error: unauthenticated bulk length\r\n"),
    ],
)
def test_without_the_password_requests_are_small(locked: Pair, data: bytes, error: bytes) -> None:
    for client in (locked.ours, locked.theirs):
        client.send_bytes(encode(("AUTH", "wrong")) + data)
        assert client.reply().startswith(b"-WRONGPASS")
        assert client.rest_until_closed() == error


def test_hello_tells_what_the_server_is(client: RawClient, oracle: RedisServer) -> None:
    with oracle.client() as theirs:
        for asked in (("HELLO",), ("HELLO", 2), ("HELLO", 3), ("HELLO",), ("HELLO", 2)):
            ours, model = client.tree(*asked), theirs.tree(*asked)
            assert ours.kind == model.kind
            assert [name for name, _ in ours.pairs()] == [name for name, _ in model.pairs()]
            told = {name.text: value for name, value in ours.pairs()}
            assert told[b"version"].text == REDIS_VERSION.encode()
            assert told[b"id"] == client.tree("CLIENT", "ID")
            for name, value in model.pairs():
                assert name.text in (b"version", b"id") or told[name.text] == value


def test_hello_refuses_what_it_does_not_know(pair: Pair) -> None:
    for version in ("1", "4", "-3"):
        assert pair.ask("HELLO", version) == b"-NOPROTO unsupported protocol version\r\n"
    assert pair.say("HELLO x") == b"-ERR Protocol version is not an integer or out of range\r\n"
    for options in ("FOO", "AUTH", "AUTH x", "SETNAME", "SETNAME a AUTH default"):
        assert pair.say(f"HELLO 2 {options}").startswith(b"-ERR Syntax error in HELLO option '")
    assert pair.ask("HELLO", 2, "SETNAME", "a\nb") == BAD_NAME


def test_null_and_maps_follow_the_protocol_chosen(client: RawClient) -> None:
    assert client.ask("CLIENT", "GETNAME") == b"$-1\r\n"
    client.ask("HELLO", 3)
    assert client.ask("CLIENT", "GETNAME") == b"_\r\n"
    assert client.ask("XREAD", "STREAMS", "k", "0") == b"_\r\n"
    client.ask("HELLO", 2)
    assert client.ask("XREAD", "STREAMS", "k", "0") == b"*-1\r\n"


def test_quit_answers_and_closes(server: RiverbedServer, oracle: RedisServer) -> None:
    for subject in (server, oracle):
        for words in (("QUIT",), ("quit", "a", "b")):
            with subject.client() as client:
                client.send_bytes(encode(("PING",)) + encode(words) + encode(("PING",)))
                assert client.rest_until_closed() == b"+PONG\r\n+OK\r\n"


def test_what_comes_behind_a_protocol_error_is_not_run(server: RiverbedServer) -> None:
    with server.client() as client:
        client.send_bytes(encode(("XADD", "k", "1-1", "f", "v")) + b"*x\r\n" + encode(("DEL", "k")))
        error = b"-ERR Protocol error: invalid multibulk length\r\n"
        assert client.rest_until_closed() == b"$3\r\n1-1\r\n" + error
    with server.client() as client:
        assert client.ask("DEL", "k") == b":1\r\n"


def test_reset_makes_the_connection_as_new(pair: Pair) -> None:
    script = ["SELECT 5", "CLIENT SETNAME me", "CLIENT NO-EVICT ON", "WATCH k", "MULTI", "XADD k * f v", "RESET"]
    assert [pair.say(line) for line in script][-1] == b"+RESET\r\n"
    assert pair.say("EXEC") == b"-ERR EXEC without MULTI\r\n"
    assert pair.say("CLIENT GETNAME") == b"$-1\r\n"
    info = pair.ours.tree("CLIENT", "INFO").text.split()
    assert {b"db=0", b"flags=N", b"resp=2", b"watch=0"} <= set(info)
    assert pair.ours.ask("HELLO", 3)[:1] == b"%"
    assert pair.ours.ask("RESET") == b"+RESET\r\n"
    assert pair.ours.ask("CLIENT", "GETNAME") == b"$-1\r\n"


def test_reset_ends_monitor(client: RawClient, server: RiverbedServer) -> None:
    assert client.ask("MONITOR") == b"+OK\r\n"
    assert client.ask("RESET") == b"+RESET\r\n"
    with server.client() as other:
        other.ask("PING", "seen?")
    assert client.ask("PING") == b"+PONG\r\n"


def test_inline_commands_are_commands(pair: Pair) -> None:
    for client in (pair.ours, pair.theirs):
        client.send_bytes(b"\r\nping\r\n  ECHO \"a\\x00\\n b\"\nPING 'it\\'s'\r\n")
        assert [client.reply() for _ in range(3)] == [b"+PONG\r\n", b"$5\r\na\x00\n b\r\n", b"$4\r\nit's\r\n"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_connects_with_its_defaults(server: RiverbedServer, protocol: int) -> None:
    with redis.Redis(port=server.port, protocol=protocol, client_name="tester", db=2) as client:
        assert client.ping()
        assert client.client_getname() in ("tester", b"tester")
        info = client.client_info()
        assert info["lib-name"].startswith("redis-py")
        assert int(info["db"]) == 2
        assert str(info["id"]) in {entry["id"] for entry in client.client_list()}
        with client.pipeline(transaction=True) as pipe:
            assert pipe.ping().echo("x").execute()[0] is True


def test_redis_py_gives_a_password(server: RiverbedServer, locked: Pair) -> None:
    once = Retry(NoBackoff(), 0)  # by default it tries again, and waits up to ten seconds before it does
    with redis.Redis(port=server.port, password=PASSWORD.decode(), retry=once) as client:
        assert client.ping()
    for wrong in ("wrong", None):
        client = redis.Redis(port=server.port, password=wrong, retry=once)
        with client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_flags_and_arity_are_those_of_redis(pair: Pair) -> None:
    for name in ("PING", "ECHO", "AUTH", "HELLO", "QUIT", "RESET", "SELECT"):
        assert_same_row(pair, name)


# -- guessing passwords ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["AUTH wrong", "HELLO 3 AUTH default wrong"])
def test_a_wrong_password_is_answered_late_and_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, requirepass="right")
        guesser, other = ticks.connect(), ticks.connect()
        guesser.send(*[command] * 3, "AUTH right", command, "PING")
        await ticks.settle()
        for number in range(1, 4):
            for passed_ms, answers in ((100 * number, 0), (1, 1)):
                ticks.clock.now_ms += passed_ms
                ticks.executor.blocking.deadline_passed()
                await ticks.settle()
                replies = guesser.replies()
                assert [reply[:10] for reply in replies[:1]] == [b"-WRONGPASS"] * answers
        assert replies[1:] == [b"+OK\r\n"]
        ticks.clock.now_ms += 101  # the count begins again
        ticks.executor.blocking.deadline_passed()
        await ticks.settle()
        assert len(guesser.replies()) == 2
        assert await ticks.ask(other, "AUTH right") == [b"+OK\r\n"]
        (stats,) = await ticks.ask(other, "INFO stats")
        assert b"acl_access_denied_auth:4\r\n" in stats
        assert [record.getMessage() for record in caplog.records] == [
            "1 wrong passwords since the last such line; the last one from test"
        ]
        ticks.clock.now_ms += 60_000
        await ticks.ask(guesser, command)
        assert "4 wrong passwords" in caplog.text
        ticks.close()

    in_loop(body())


def test_a_reset_makes_the_next_guess_no_faster(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, requirepass="right")
        guesser = ticks.connect()
        guesser.send("AUTH wrong", "RESET", "AUTH wrong")
        await ticks.settle()
        replies: list[list[bytes]] = []
        for passed_ms in (101, 101, 100):
            ticks.clock.now_ms += passed_ms
            ticks.executor.blocking.deadline_passed()
            await ticks.settle()
            replies.append(guesser.replies())
        starts = [[reply[:6] for reply in each] for each in replies]
        assert starts == [[b"-WRONG", b"+RESET"], [], [b"-WRONG"]]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("reason", ["TIMEOUT", "ERROR"])
@pytest.mark.parametrize("guess", ["AUTH wrong", "HELLO 3 AUTH default wrong"])
def test_client_unblock_makes_no_guess_faster(tmp_path: Path, guess: str, reason: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, requirepass="right")
        guesser, helper = ticks.connect(), ticks.connect()
        guesser.send(guess)
        await ticks.settle()
        unblock = f"CLIENT UNBLOCK {guesser.session.id} {reason}"
        assert (await ticks.ask(helper, "AUTH right", unblock))[-1] == b":0\r\n"
        assert guesser.replies() == []
        ticks.clock.now_ms += 101
        ticks.executor.blocking.deadline_passed()
        await ticks.settle()
        assert [reply[:10] for reply in guesser.replies()] == [b"-WRONGPASS"]
        ticks.close()

    in_loop(body())


def test_a_transaction_answers_a_wrong_password_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, requirepass="right")
        replies = await ticks.ask(ticks.connect(), "AUTH right", "MULTI", "AUTH wrong", "EXEC")
        assert replies[-1].startswith(b"*1\r\n-WRONGPASS")
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("guess", ["AUTH boss {}", "HELLO 2 AUTH boss {}"])
def test_a_transaction_guesses_no_faster(tmp_path: Path, guess: str) -> None:
    """Its replies come at once: what is behind a wrong password is not looked at for as long as a reply would wait."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        guesser = ticks.connect()
        await ticks.ask(guesser, "ACL SETUSER boss on >right ~* +@all")
        replies = await ticks.ask(guesser, "MULTI", *(guess.format(word) for word in ("a", "b", "right")), "EXEC")
        assert replies[-1].count(b"-WRONGPASS") == 3
        for passed_ms, is_right in ((50, False), (51, True)):
            ticks.clock.now_ms += passed_ms
            replies = await ticks.ask(guesser, "MULTI", guess.format("right"), "EXEC")
            assert (b"-WRONGPASS" not in replies[-1]) == is_right
        assert await ticks.ask(guesser, "ACL WHOAMI") == [b"$4\r\nboss\r\n"]
        ticks.close()

    in_loop(body())


def test_a_stranger_whose_password_was_wrong_keeps_none_of_its_words(tmp_path: Path) -> None:
    """Ten words of 16 kB wait for nothing while the refusal does."""

    async def body() -> None:
        ticks = Ticks(tmp_path, requirepass="x")
        word = "u" * 16_000
        for _ in range(20):
            stranger = ticks.connect()
            stranger.session.failed_auths = 19
            stranger.send(f"HELLO 3 AUTH {word} {word} SETNAME {word} SETNAME {word}")
        await ticks.settle()
        assert ticks.executor.accounts.strangers.bytes < 20 * 2_000
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("between", ["RESET", "HELLO 3"])
def test_only_the_right_password_makes_the_next_wrong_one_cheap_again(tmp_path: Path, between: str) -> None:
    """`default` needs none here: RESET and HELLO let the client be it without a word."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "ACL SETUSER admin on >right +@all")
        for _ in range(3):
            await ticks.ask(client, "MULTI", "AUTH admin wrong", "EXEC", between)
            ticks.clock.now_ms += 10_000
        assert client.session.failed_auths == 3
        await ticks.ask(client, "AUTH admin right")
        assert client.session.failed_auths == 0
        ticks.close()

    in_loop(body())
