"""XREAD BLOCK: who is woken, by what, in which order and with what.

What a blocked client gets differs between Redis 7.0 and the later ones, which run its whole command again; where 7.0
still agrees it is compared with, by a `Pair` of both servers.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pair import Pair
from tests.support.raw import RawClient, encode, parse
from tests.support.servers import RedisServer, RiverbedServer, Server
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until, until_blocked

NULL_ARRAY = b"*-1\r\n"
MAX = 2**64 - 1
NOGROUP = b"-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option\r\n"
UNBLOCKED = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"
MANY = 1000


def entries(*entry_ids: str) -> bytes:
    """The array of entries with these IDs and the fields `f v`."""
    return b"*%d\r\n" % len(entry_ids) + b"".join(
        b"*2\r\n$%d\r\n%b\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n" % (len(entry_id), entry_id.encode())
        for entry_id in entry_ids
    )


def stream(key: str, *entry_ids: str) -> bytes:
    return b"*2\r\n$%d\r\n%b\r\n" % (len(key), key.encode()) + entries(*entry_ids)


def streams(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(parts)


def say(client: RawClient, script: str) -> list[bytes]:
    return [client.ask(*line.split()) for line in script.split("; ")]


def is_silent(reader: RawClient, client: RawClient) -> bool:
    """Whether `reader` was sent nothing although `client` has been answered."""
    assert client.ask("PING") == b"+PONG\r\n"
    reader.socket.settimeout(0.02)
    try:
        return not reader.socket.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        reader.socket.settimeout(60)


@contextlib.contextmanager
def blocked(server: Server, client: RawClient, line: str, *, before: str = "PING") -> Iterator[RawClient]:
    """A client that has said `before` and waits with `line`."""
    with server.client() as reader:
        say(reader, before)
        reader.send(*line.split())
        until_blocked(client, 1)
        yield reader
    until_blocked(client, 0)


# -- what wakes --------------------------------------------------------------------------------------------------------

WAKING = [
    # what is there before, the blocking read, what another client does
    ("PING", "XREAD BLOCK 0 STREAMS s $", "XADD s 1-1 f v"),
    ("PING", "XREAD BLOCK 0 STREAMS s 0", "XADD s 1-1 f v"),
    ("XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s $", "XADD s 1-2 f v"),
    ("XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s 5-5", "XADD s 2-1 f v; XADD s 5-5 f v; XADD s 5-6 f v"),
    ("XADD s 1-1 f v; XDEL s 1-1", "XREAD BLOCK 0 STREAMS s 0", "XADD s 1-2 f v"),
    ("PING", "XREAD BLOCK 60000 COUNT 1 STREAMS s $", "XADD s 1-1 f v"),
    ("PING", "XREAD BLOCK 0 STREAMS a s b $ $ $", "XADD s 1-1 f v"),
    ("PING", "XREAD BLOCK 0 STREAMS s $", "MULTI; XADD s 1-1 f v; XADD s 1-2 f v; EXEC"),
    ("PING", "XREAD BLOCK 0 COUNT 2 STREAMS s $", "MULTI; XADD s 1-1 f v; XADD s 1-2 f v; XADD s 1-3 f v; EXEC"),
    # the key comes by another way
    ("XADD t 1-1 f v", "XREAD BLOCK 0 STREAMS s 0", "RENAME t s"),
    ("XADD t 1-1 f v", "XREAD BLOCK 0 STREAMS s 0", "RENAMENX t s"),
    ("XADD t 1-1 f v", "XREAD BLOCK 0 STREAMS s 0", "COPY t s"),
    ("XADD t 1-1 f v; XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s 1-0", "PING"),
    ("SELECT 1; XADD s 1-1 f v; SELECT 0", "XREAD BLOCK 0 STREAMS s 0", "SELECT 1; MOVE s 0; SELECT 0"),
    ("SELECT 1; XADD s 1-1 f v; SELECT 0", "XREAD BLOCK 0 STREAMS s 0", "SWAPDB 0 1"),
    ("SELECT 1; XADD s 1-1 f v; SELECT 0", "XREAD BLOCK 0 STREAMS s 0", "SELECT 1; COPY s s DB 0; SELECT 0"),
    ("XADD s 1-1 f v; XADD t 9-9 f v", "XREAD BLOCK 0 STREAMS s $", "RENAME t s"),
    ("XADD s 1-1 f v; XADD t 9-9 f v", "XREAD BLOCK 0 STREAMS s $", "COPY t s REPLACE"),
]


@pytest.mark.parametrize(("before", "read", "then"), WAKING, ids=[f"{read} | {then}" for _, read, then in WAKING])
def test_a_reader_is_woken_as_by_redis(
    pair: Pair, server: RiverbedServer, oracle: RedisServer, before: str, read: str, then: str
) -> None:
    replies = []
    for client, subject in ((pair.ours, server), (pair.theirs, oracle)):
        for protocol in (2, 3):
            say(client, "FLUSHALL; " + before)
            with subject.client() as reader:
                reader.ask("HELLO", protocol)
                reader.send(*read.split())
                if then != "PING":
                    until_blocked(client, 1)
                say(client, then)
                replies.append(reader.reply())
                assert reader.ask("PING") == b"+PONG\r\n"
    assert replies[:2] == replies[2:]
    assert replies[0].startswith(b"*1\r\n*2\r\n")


def test_entries_that_are_there_already_are_read_without_waiting(pair: Pair) -> None:
    pair.say("XADD s 1-1 f v")
    assert pair.say("XREAD BLOCK 0 STREAMS none s 0 0") == streams(stream("s", "1-1"))


def test_every_reader_gets_every_entry(client: RawClient, server: RiverbedServer) -> None:
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(server.client()) for _ in range(10)]
        for reader in readers:
            reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until_blocked(client, 10)
        client.ask("XADD", "s", "1-1", "f", "v")
        assert {reader.reply() for reader in readers} == {streams(stream("s", "1-1"))}
        until_blocked(client, 0)


def test_one_wake_up_may_return_several_streams_in_argument_order(client: RawClient, server: RiverbedServer) -> None:
    with blocked(server, client, "XREAD BLOCK 0 STREAMS c none a b $ $ $ $") as reader:
        say(client, "MULTI; XADD a 1-1 f v; XADD b 1-1 f v; XADD a 1-2 f v; XADD c 9-9 f v; EXEC")
        assert reader.reply() == streams(stream("c", "9-9"), stream("a", "1-1", "1-2"), stream("b", "1-1"))


def test_a_key_listed_twice_is_answered_twice(client: RawClient, server: RiverbedServer) -> None:
    # Redis 7.0 answers for the key that was signalled alone, and once
    with blocked(server, client, "XREAD BLOCK 0 STREAMS s s 0 5") as reader:
        client.ask("XADD", "s", "7-1", "f", "v")
        assert reader.reply() == streams(stream("s", "7-1"), stream("s", "7-1"))


def test_caps_hold_after_a_wake_up(client: RawClient, server: RiverbedServer) -> None:
    with blocked(server, client, "XREAD BLOCK 0 MAXCOUNT 3 COUNT 2 STREAMS a b $ $") as reader:
        say(
            client,
            "MULTI; " + "; ".join(f"XADD {key} {number}-0 f v" for key in "ba" for number in (1, 2, 3)) + "; EXEC",
        )
        assert reader.reply() == streams(stream("a", "1-0", "2-0"), stream("b", "1-0"))


def test_a_reader_waits_in_the_database_it_was_in(client: RawClient, server: RiverbedServer) -> None:
    with blocked(server, client, "XREAD BLOCK 0 STREAMS s 0", before="SELECT 3") as reader:
        client.ask("XADD", "s", "1-1", "f", "v")
        assert is_silent(reader, client)
        say(client, "SELECT 3; XADD s 2-1 f v")
        assert reader.reply() == streams(stream("s", "2-1"))
    say(client, "SELECT 0")


# -- what does not wake ------------------------------------------------------------------------------------------------

NOT_WAKING = [
    # nothing is left of what was added: Redis 7.0 would answer with an empty list
    ("PING", "XREAD BLOCK 0 STREAMS s $", "MULTI; XADD s 1-1 f v; XDEL s 1-1; EXEC", "1-2"),
    ("PING", "XREAD BLOCK 0 STREAMS s $", "XADD s MAXLEN 0 1-1 f v", "1-2"),
    ("PING", "XREAD BLOCK 0 STREAMS s $", "MULTI; XADD s 1-1 f v; DEL s; EXEC", "1-2"),
    ("PING", "XREAD BLOCK 0 STREAMS s $", "MULTI; XADD s 1-1 f v; RENAME s t; EXEC", "1-2"),
    ("PING", "XREAD BLOCK 0 STREAMS s $", "MULTI; XADD s 1-1 f v; FLUSHALL; EXEC", "1-2"),
    # `$` is what it was when the call arrived
    ("XADD s 5-0 f v", "XREAD BLOCK 0 STREAMS s $", "DEL s; XADD s 2-0 f v", "6-0"),
    ("XADD s 5-0 f v", "XREAD BLOCK 0 STREAMS s $", "RENAME s t; XADD s 5-0 f v", "5-1"),
    ("XADD s 5-0 f v", "XREAD BLOCK 0 STREAMS s $", "FLUSHALL; XADD s 4-0 f v", "5-1"),
    ("XADD s 5-0 f v; XADD t 2-0 f v", "XREAD BLOCK 0 STREAMS s $", "COPY t s REPLACE", "6-0"),
    ("XADD s 5-0 f v; XADD t 2-0 f v", "XREAD BLOCK 0 STREAMS s $", "RENAME t s", "6-0"),
    ("XADD s 5-0 f v", "XREAD BLOCK 0 STREAMS s $", "SWAPDB 0 1; XADD s 1-0 f v", "6-0"),
    ("XADD s 5-0 f v; XDEL s 5-0", "XREAD BLOCK 0 STREAMS s $", "XSETID s 5-7", "5-8"),
    # no entries come
    ("XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s $", "DEL s", "1-2"),
    ("XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s $", "UNLINK s", "1-2"),
    ("XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s $", "FLUSHDB", "1-2"),
    ("XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s $", "MOVE s 1", "1-2"),
    ("XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s $", "XDEL s 1-1; XTRIM s MAXLEN 0; XSETID s 3-3", "3-4"),
    ("PING", "XREAD BLOCK 0 STREAMS s $", "XGROUP CREATE s g $ MKSTREAM; XGROUP DESTROY s g", "1-2"),
    ("XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s $", "XADD t 1-1 f v; COPY s u; XADD s 1-1 f v; XADD s x f v", "1-2"),
    ("XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s $", "XADD s NOMKSTREAM 1-1 f v; EXPIRE s 100; PERSIST s", "1-2"),
]


@pytest.mark.parametrize(
    ("before", "read", "then", "waking"), NOT_WAKING, ids=[f"{read} | {then}" for _, read, then, _ in NOT_WAKING]
)
def test_a_reader_stays_blocked_until_an_entry_comes_that_it_asked_for(
    client: RawClient, server: RiverbedServer, before: str, read: str, then: str, waking: str
) -> None:
    say(client, before)
    with blocked(server, client, read) as reader:
        say(client, then)
        assert is_silent(reader, client)
        until_blocked(client, 1)
        client.ask("XADD", "s", waking, "f", "v")
        assert reader.reply() == streams(stream("s", waking))


def test_a_key_that_expires_does_not_end_the_wait(client: RawClient, server: RiverbedServer) -> None:
    client.ask("XADD", "s", "5-0", "f", "v")
    with blocked(server, client, "XREAD BLOCK 0 STREAMS s $") as reader:
        client.ask("PEXPIRE", "s", 10)
        until(lambda: client.ask("DBSIZE") == b":0\r\n", "the end of the key")
        assert is_silent(reader, client)
        client.ask("XADD", "s", "4-0", "f", "v")
        assert is_silent(reader, client)
        client.ask("XADD", "s", "6-0", "f", "v")
        assert reader.reply() == streams(stream("s", "6-0"))


def test_a_refused_transaction_wakes_nobody(client: RawClient, server: RiverbedServer) -> None:
    with blocked(server, client, "XREAD BLOCK 0 STREAMS s $") as reader:
        say(client, "MULTI; XADD s 1-1 f v; NONSENSE; EXEC; MULTI; XADD s 1-1 f v; DISCARD")
        assert is_silent(reader, client)
        client.ask("XADD", "s", "1-1", "f", "v")
        assert reader.reply() == streams(stream("s", "1-1"))


# -- `$` and `+` -------------------------------------------------------------------------------------------------------


def test_dollar_of_a_missing_key_is_zero(client: RawClient, server: RiverbedServer) -> None:
    with blocked(server, client, "XREAD BLOCK 0 STREAMS s $") as reader:
        client.ask("XADD", "s", "0-1", "f", "v")
        assert reader.reply() == streams(stream("s", "0-1"))


def test_dollar_is_remembered_across_re_evaluations(client: RawClient, server: RiverbedServer) -> None:
    say(client, "XADD a 5-0 f v; XADD b 5-0 f v")
    with blocked(server, client, "XREAD BLOCK 0 STREAMS a b $ $") as reader:
        # tried and found nothing, again and again; then the key is older than it was
        for script in ("XADD a MAXLEN 0 6-0 f v", "DEL a; XADD a 4-0 f v", "MULTI; XADD b 6-0 f v; XDEL b 6-0; EXEC"):
            say(client, script)
            assert is_silent(reader, client)
        client.ask("XADD", "a", "6-5", "f", "v")
        assert reader.reply() == streams(stream("a", "6-5"))


def test_plus_is_looked_up_again_on_wake_up(client: RawClient, server: RiverbedServer) -> None:
    with blocked(server, client, "XREAD BLOCK 0 STREAMS s +") as reader:
        say(client, "MULTI; XADD s 1-1 f v; XADD s 2-1 f v; XADD s 3-1 f v; XDEL s 3-1; EXEC")
        assert reader.reply() == streams(stream("s", "2-1"))


def test_plus_waits_only_for_a_stream_without_entries(client: RawClient, server: RiverbedServer) -> None:
    say(client, "XADD s 1-1 f v; XDEL s 1-1")
    with blocked(server, client, "XREAD BLOCK 0 COUNT 5 STREAMS t s $ +") as reader:
        client.ask("XADD", "s", "1-2", "f", "v")
        assert reader.reply() == streams(stream("s", "1-2"))
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "t", "s", "$", "+")
        assert reader.reply() == streams(stream("s", "1-2"))


# -- timeouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_ms", [1, 2, 5, 10, 37, 150])
def test_a_timeout_is_never_early(client: RawClient, block_ms: int) -> None:
    for _ in range(max(60 // block_ms, 2)):
        begun = time.monotonic()
        assert client.ask("XREAD", "BLOCK", block_ms, "STREAMS", "s", "$") == NULL_ARRAY
        assert time.monotonic() - begun >= block_ms / 1000
    client.ask("HELLO", 3)
    assert client.ask("XREAD", "BLOCK", block_ms, "STREAMS", "s", "$") == b"_\r\n"


def test_many_timeouts_end_in_the_order_of_their_deadlines(client: RawClient, server: RiverbedServer) -> None:
    with contextlib.ExitStack() as stack:
        readers = {ms: stack.enter_context(server.client()) for ms in (240, 30, 120, 180, 60, 1)}
        begun = time.monotonic()
        for block_ms, reader in readers.items():
            reader.send("XREAD", "BLOCK", block_ms, "STREAMS", "s", "$")
        for block_ms in sorted(readers):
            assert readers[block_ms].reply() == NULL_ARRAY
            assert time.monotonic() - begun >= block_ms / 1000
        until_blocked(client, 0)


def test_a_try_that_finds_nothing_keeps_the_deadline(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, writer = ticks.connect(), ticks.connect()
        assert await ticks.ask(reader, "XREAD BLOCK 400 STREAMS s $") == []
        for number in range(1, 6):
            ticks.clock.now_ms += 80
            await ticks.ask(writer, f"XADD s MAXLEN 0 {number}-0 f v")
            ticks.executor.blocking.deadline_passed()
            await ticks.settle()
            assert reader.replies() == []
        ticks.clock.now_ms += 1
        ticks.executor.blocking.deadline_passed()
        await ticks.settle()
        assert reader.replies() == [NULL_ARRAY]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("command", ["XREAD BLOCK 400 STREAMS s $", "WAIT 1 400"])
def test_a_clock_that_is_set_lengthens_and_shortens_no_wait(tmp_path: Path, command: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, hasty = ticks.connect(), ticks.connect()
        assert await ticks.ask(reader, command) == []
        ticks.clock.set_back_ms = 3_600_000
        assert await ticks.ask(hasty, command.replace("400", "300")) == []
        for passed_ms, answered in ((300, 0), (1, 1), (99, 1), (1, 2)):
            ticks.clock.now_ms += passed_ms
            ticks.clock.set_back_ms = -ticks.clock.set_back_ms
            ticks.executor.blocking.deadline_passed()
            await ticks.settle()
            assert ticks.executor.control.blocked_clients() == 2 - answered
        assert [len(client.replies()) for client in (reader, hasty)] == [1, 1]
        ticks.close()

    in_loop(body())


def test_an_enormous_timeout_is_a_long_one(client: RawClient, server: RiverbedServer) -> None:
    with blocked(server, client, "XREAD BLOCK 9000000000000000000 STREAMS s $") as reader:
        with server.client() as other:
            assert other.ask("XREAD", "BLOCK", 5, "STREAMS", "s", "$") == NULL_ARRAY
        client.ask("XADD", "s", "1-1", "f", "v")
        assert reader.reply() == streams(stream("s", "1-1"))


def test_a_served_client_is_not_timed_out_later(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, writer = ticks.connect(), ticks.connect()
        assert await ticks.ask(reader, "XREAD BLOCK 50 STREAMS a b $ $") == []
        await ticks.ask(writer, "XADD a 1-1 f v")
        assert reader.replies() == [streams(stream("a", "1-1"))]
        await ticks.ask(writer, "XADD b 1-1 f v")
        ticks.clock.now_ms += 100
        ticks.executor.blocking.deadline_passed()
        await ticks.settle()
        assert reader.replies() == []
        assert await ticks.ask(reader, "XREAD STREAMS b 0") == [streams(stream("b", "1-1"))]
        ticks.close()

    in_loop(body())


# -- CLIENT UNBLOCK, CLIENT KILL, leaving ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reply"), [((), NULL_ARRAY), (("TIMEOUT",), NULL_ARRAY), (("error",), UNBLOCKED), (("ERROR",), UNBLOCKED)]
)
def test_client_unblock_ends_the_wait(
    client: RawClient, server: RiverbedServer, words: tuple[str, ...], reply: bytes
) -> None:
    with server.client() as reader:
        number = parse(reader.ask("CLIENT", "ID")).text
        assert client.ask("CLIENT", "UNBLOCK", number, *words) == b":0\r\n"
        for block_ms in (0, 60_000):
            reader.send("XREAD", "BLOCK", block_ms, "STREAMS", "s", "t", "$", "$")
            until_blocked(client, 1)
            assert client.ask("CLIENT", "UNBLOCK", number, *words) == b":1\r\n"
            assert reader.reply() == reply
            until_blocked(client, 0)
            assert client.ask("CLIENT", "UNBLOCK", number, *words) == b":0\r\n"
        client.ask("XADD", "s", "1-1", "f", "v")
        assert is_silent(reader, client)
        assert reader.ask("PING") == b"+PONG\r\n"


def test_a_blocked_client_is_listed_as_such(client: RawClient, server: RiverbedServer) -> None:
    with blocked(server, client, "XREAD BLOCK 0 STREAMS s $", before="CLIENT SETNAME waiting"):
        lines = client.ask("CLIENT", "LIST").splitlines()
        (line,) = [line for line in lines if b" name=waiting " in line]
        assert b" flags=b " in line
        assert b" cmd=xread " in line


def test_a_client_that_is_killed_while_it_waits_is_gone(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as reader:
        number = parse(reader.ask("CLIENT", "ID")).text
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until_blocked(client, 1)
        assert client.ask("CLIENT", "KILL", "ID", number) == b":1\r\n"
        assert reader.rest_until_closed() == b""
        until_blocked(client, 0)
        assert client.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"


def test_a_client_that_leaves_while_it_waits_leaves_nothing(client: RawClient, server: RiverbedServer) -> None:
    for block_ms in (0, 20_000, 60_000):
        for _ in range(10):
            with server.client() as reader:
                # what it sent behind the read is not run any more
                reader.send_bytes(
                    encode(("XREAD", "BLOCK", block_ms, "STREAMS", "s", "t", "$", "$"))
                    + encode(("XADD", "u", "*", "f", "v"))
                )
                until_blocked(client, 1)
            until_blocked(client, 0)
    assert client.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
    assert client.ask("EXISTS", "u") == b":0\r\n"


def test_reset_and_other_commands_wait_behind_the_read(client: RawClient, server: RiverbedServer) -> None:
    with blocked(server, client, "XREAD BLOCK 0 STREAMS s $") as reader:
        reader.send("RESET")
        assert is_silent(reader, client)
        client.ask("XADD", "s", "1-1", "f", "v")
        assert [reader.reply(), reader.reply()] == [streams(stream("s", "1-1")), b"+RESET\r\n"]


# -- transactions and pipelines ----------------------------------------------------------------------------------------


def test_inside_a_transaction_a_read_never_blocks(pair: Pair) -> None:
    for protocol, null in ((2, NULL_ARRAY), (3, b"_\r\n")):
        for client in (pair.ours, pair.theirs):
            client.ask("HELLO", protocol)
        for line in ("MULTI", "XREAD BLOCK 0 STREAMS s $", "XREAD BLOCK 100000 STREAMS s 0", "PING"):
            pair.say(line)
        assert pair.say("EXEC") == b"*3\r\n" + null * 2 + b"+PONG\r\n"


def test_commands_behind_a_blocking_one_run_after_it_in_order(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as reader:
        commands = [
            ("XLEN", "s"),
            ("XREAD", "BLOCK", 0, "STREAMS", "s", "$"),
            ("XADD", "t", "1-1", "f", "v"),
            ("XREAD", "BLOCK", 0, "STREAMS", "s", "$"),
            ("XLEN", "t"),
            ("XREAD", "BLOCK", 1, "STREAMS", "none", "0"),
            ("XADD", "s", "3-1", "f", "v"),
            ("XLEN", "s"),
        ]
        reader.send_bytes(b"".join(map(encode, commands)))
        until_blocked(client, 1)
        assert client.ask("EXISTS", "t") == b":0\r\n"
        client.ask("XADD", "s", "1-1", "f", "v")
        until(lambda: client.ask("EXISTS", "t") == b":1\r\n", "the key")
        until_blocked(client, 1)
        # more of the same client, while it waits
        reader.send("PING")
        client.ask("XADD", "s", "2-1", "f", "v")
        assert [reader.reply() for _ in range(9)] == [
            b":0\r\n",
            streams(stream("s", "1-1")),
            b"$3\r\n1-1\r\n",
            streams(stream("s", "2-1")),
            b":1\r\n",
            NULL_ARRAY,
            b"$3\r\n3-1\r\n",
            b":3\r\n",
            b"+PONG\r\n",
        ]


def test_readers_that_wake_each_other_in_turn(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as first, server.client() as second:
        # first: waits for a, then writes b; second: waits for b, then writes c
        first.send_bytes(encode(("XREAD", "BLOCK", 0, "STREAMS", "a", "$")) + encode(("XADD", "b", "1-1", "f", "v")))
        second.send_bytes(encode(("XREAD", "BLOCK", 0, "STREAMS", "b", "$")) + encode(("XADD", "c", "1-1", "f", "v")))
        until_blocked(client, 2)
        replies = client.pipeline(
            [("XADD", "a", "1-1", "f", "v"), ("XREAD", "BLOCK", 0, "STREAMS", "c", "0"), ("DBSIZE",)]
        )
        assert replies == [b"$3\r\n1-1\r\n", streams(stream("c", "1-1")), b":3\r\n"]
        assert [first.reply(), second.reply()] == [streams(stream("a", "1-1")), streams(stream("b", "1-1"))]


def test_a_writer_may_wake_itself_never_but_reads_its_own_entries(client: RawClient) -> None:
    replies = client.pipeline([("XADD", "s", "1-1", "f", "v"), ("XREAD", "BLOCK", 0, "STREAMS", "s", 0)])
    assert replies[1] == streams(stream("s", "1-1"))


def test_commands_behind_an_unblocked_read_run(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as reader:
        number = parse(reader.ask("CLIENT", "ID")).text
        reader.send_bytes(encode(("XREAD", "BLOCK", 0, "STREAMS", "s", "$")) + encode(("XADD", "s", "1-1", "f", "v")))
        until_blocked(client, 1)
        client.ask("CLIENT", "UNBLOCK", number, "ERROR")
        assert [reader.reply(), reader.reply()] == [UNBLOCKED, b"$3\r\n1-1\r\n"]


def test_a_stop_ends_every_wait(server: RiverbedServer, client: RawClient) -> None:
    with server.client() as reader:
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until_blocked(client, 1)
        server.restart()
        assert reader.rest_until_closed() == b""
    with server.client() as again:
        until_blocked(again, 0)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_waiters_of_one_group_are_served_in_order_of_arrival(client: RawClient, server: RiverbedServer) -> None:
    client.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(server.client()) for _ in range(6)]
        for number, reader in enumerate(readers):
            # the last of them takes all that is left
            count = ("COUNT", 1) if number < 4 else ()
            reader.send("XREADGROUP", "GROUP", "g", f"c{number}", *count, "BLOCK", 0, "STREAMS", "s", ">")
            until_blocked(client, number + 1)
        client.ask("XADD", "s", "1-0", "f", "v")
        assert readers[0].reply() == streams(stream("s", "1-0"))
        # they are served after the whole transaction
        say(client, "MULTI; " + "; ".join(f"XADD s {number}-0 f v" for number in range(2, 8)) + "; EXEC")
        assert [reader.reply() for reader in readers[1:5]] == [
            *(streams(stream("s", "2-0")), streams(stream("s", "3-0")), streams(stream("s", "4-0"))),
            streams(stream("s", "5-0", "6-0", "7-0")),
        ]
        until_blocked(client, 1)
        assert is_silent(readers[5], client)
        client.ask("XADD", "s", "8-0", "f", "v")
        assert readers[5].reply() == streams(stream("s", "8-0"))


def test_a_waiter_that_finds_nothing_keeps_its_place(client: RawClient, server: RiverbedServer) -> None:
    client.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    with server.client() as first, server.client() as second:
        for number, reader in enumerate((first, second)):
            reader.send("XREADGROUP", "GROUP", "g", f"c{number}", "BLOCK", 0, "STREAMS", "s", ">")
            until_blocked(client, number + 1)
        say(client, "XADD s MAXLEN 0 1-0 f v; XADD s 2-0 f v")
        assert first.reply() == streams(stream("s", "2-0"))
        assert is_silent(second, client)


GROUP_EVENTS = [
    ("DEL s", NOGROUP),
    ("UNLINK s", NOGROUP),
    ("FLUSHALL", NOGROUP),
    ("FLUSHDB", NOGROUP),
    ("RENAME s t", NOGROUP),
    ("MOVE s 1", NOGROUP),
    ("SWAPDB 0 1", NOGROUP),
    ("PEXPIREAT s 1", NOGROUP),
    ("XGROUP DESTROY s g", NOGROUP),
    ("XADD t 5-0 f v; RENAME t s", NOGROUP),
    ("XADD t 5-0 f v; COPY t s REPLACE", NOGROUP),
    ("XGROUP CREATE t g 0 MKSTREAM; XADD t 5-0 f v; RENAME t s", streams(stream("s", "5-0"))),
    ("MULTI; XGROUP DESTROY s g; XGROUP CREATE s g 0; EXEC", streams(stream("s", "1-0"))),
    ("XGROUP DELCONSUMER s g c; XADD s 2-0 f v", streams(stream("s", "2-0"))),
    ("XGROUP SETID s g 0; XADD s 2-0 f v", streams(stream("s", "1-0", "2-0"))),
]


@pytest.mark.parametrize(("then", "reply"), GROUP_EVENTS, ids=[then for then, _ in GROUP_EVENTS])
def test_what_a_client_blocked_on_a_group_gets(
    client: RawClient, server: RiverbedServer, then: str, reply: bytes
) -> None:
    say(client, "XADD s 1-0 f v; XGROUP CREATE s g $")
    with blocked(server, client, "XREADGROUP GROUP g c BLOCK 0 STREAMS s >") as reader:
        say(client, then)
        assert reader.reply() == reply


# -- many --------------------------------------------------------------------------------------------------------------


def test_a_thousand_blocked_clients_are_all_served(client: RawClient, server: RiverbedServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY + 200
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(server.client()) for _ in range(MANY)]
        for number, reader in enumerate(readers):
            reader.send("XREAD", "BLOCK", 0 if number % 2 else 600_000, "STREAMS", "all", f"own{number}", "$", "$")
        until_blocked(client, MANY)
        # each by its own key, every third one
        client.pipeline([("XADD", f"own{number}", "1-1", "f", "v") for number in range(0, MANY, 3)])
        for number in range(0, MANY, 3):
            assert readers[number].reply() == streams(stream(f"own{number}", "1-1"))
        rest = [reader for number, reader in enumerate(readers) if number % 3]
        until_blocked(client, len(rest))
        # and the others all at once
        client.ask("XADD", "all", "1-1", "f", "v")
        assert {reader.reply() for reader in rest} == {streams(stream("all", "1-1"))}
        until_blocked(client, 0)


# -- what it counts for ------------------------------------------------------------------------------------------------


def _counted(client: RawClient) -> tuple[dict[str, str], list[str]]:
    """The counters of XREADGROUP without its times, and the counts of errors."""
    lines = parse(client.ask("INFO", "commandstats", "errorstats")).text.decode().splitlines()
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith("cmdstat_xreadgroup:"):
            found = dict(pair.split("=") for pair in line.partition(":")[2].split(","))
    return (
        {name: found[name] for name in ("calls", "rejected_calls", "failed_calls")},
        [line for line in lines if line.startswith("errorstat_")],
    )


@pytest.mark.parametrize("end", ["served", "time-out", "unblocked", "unblocked with an error", "group destroyed"])
@pytest.mark.parametrize("attempts", [1, 4])
def test_a_blocked_command_is_one_call_and_one_entry_of_the_slow_log(
    server: RiverbedServer, oracle: RedisServer, pair: Pair, end: str, attempts: int
) -> None:
    found = []
    for its, asking in ((server, pair.ours), (oracle, pair.theirs)):
        say(asking, "XGROUP CREATE s g $ MKSTREAM; CONFIG SET slowlog-log-slower-than 0; SLOWLOG RESET")
        say(asking, "CONFIG RESETSTAT")
        with its.client() as reader:
            number = reader.ask("CLIENT", "ID")[1:-2]
            words = ["XREADGROUP", "GROUP", "g", "Alice", "BLOCK", 300 if end == "time-out" else 0]
            reader.send(*words, "STREAMS", "s", ">")
            until_blocked(asking, 1)
            for _ in range(attempts - 1):  # a try that finds nothing: the entry is gone before the client's turn
                say(asking, "MULTI; XADD s * f v; XGROUP SETID s g $; EXEC")
            if end == "served":
                say(asking, "XADD s * f v")
            elif end.startswith("unblocked"):
                asking.ask("CLIENT", "UNBLOCK", number, *(["ERROR"] if "error" in end else []))
            elif end == "group destroyed":
                say(asking, "XGROUP DESTROY s g")
            reader.reply()
        counters, errors = _counted(asking)
        slow = asking.ask("SLOWLOG", "GET", 99).count(b"$5\r\nAlice\r\n")
        say(asking, "CONFIG SET slowlog-log-slower-than 10000; CONFIG RESETSTAT")
        found.append((counters, errors))
        if its is server:
            assert slow == 1
    if end == "unblocked":  # Redis 7.0 calls this a failure, later ones do not
        found[1][0]["failed_calls"] = "0"
    assert found[0] == found[1]
    assert found[0][0]["calls"] == "1"
