from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from riverbed.store.databases.copying import CopyInTheMaking
from tests.conftest import StartRedis, StartRiverbed
from tests.support.in_process import value_of
from tests.support.pair import Pair
from tests.support.raw import RawClient, parse
from tests.support.servers import RiverbedServer
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until

OK = b"+OK\r\n"


@pytest.mark.parametrize("line", ["What", "sleep", "SLEEP 0 0", "ERROR", "JMAP", "PROTOCOL"])
def test_debug_refuses_what_there_is_not(pair: Pair, line: str) -> None:
    word = line.partition(" ")[0]
    assert pair.say(f"DEBUG {line}") == (
        f"-ERR unknown subcommand or wrong number of arguments for '{word}'. Try DEBUG HELP.\r\n".encode()
    )


@pytest.mark.parametrize("seconds", ["0", "0.001", "x", "-1", "1e-3", "", ".001x"])
def test_debug_sleep_takes_what_c_takes_for_a_number(pair: Pair, seconds: str) -> None:
    assert pair.ask("DEBUG", "SLEEP", seconds) == OK


def test_debug_sleep_stalls_everybody(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        begun = time.monotonic()
        other.send("DEBUG", "SLEEP", "0.2")
        time.sleep(0.05)
        client.ask("PING")
        assert time.monotonic() - begun >= 0.2
        assert other.reply() == OK


def test_debug_error_answers_any_error(pair: Pair) -> None:
    assert pair.ask("DEBUG", "ERROR", "CODE some\r\ntext") == b"-CODE some  text\r\n"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", ["string", "integer", "null", "array", "map", "verbatim", "true", "false"])
def test_debug_protocol_shows_each_type_as_redis_does(pair: Pair, protocol: int, kind: str) -> None:
    pair.ours.ask("HELLO", protocol)
    pair.theirs.ask("HELLO", protocol)
    pair.ask("DEBUG", "PROTOCOL", kind)


def test_debug_protocol_names_the_types_there_are(client: RawClient) -> None:
    assert client.ask("DEBUG", "PROTOCOL", "x").endswith(b"|verbatim|true|false\r\n")


def test_the_digest_tells_states_apart_and_nothing_else(client: RawClient) -> None:
    empty = client.ask("DEBUG", "DIGEST")
    assert empty == b"+" + b"0" * 40 + b"\r\n"
    for number in range(1, 1200):
        client.send("XADD", "a", f"{number}-0", "f", "v")
    for _ in range(1, 1200):
        client.reply()
    one = client.ask("DEBUG", "DIGEST")
    client.ask("XADD", "b", "1-1", "f", "v")
    two = client.ask("DEBUG", "DIGEST")
    client.ask("EXPIREAT", "b", 4102444800)
    three = client.ask("DEBUG", "DIGEST")
    assert len({empty, one, two, three}) == 4
    client.ask("DEL", "b")
    assert client.ask("DEBUG", "DIGEST") == one
    client.ask("RENAME", "a", "c")
    assert client.ask("DEBUG", "DIGEST") != one
    client.ask("RENAME", "c", "a")
    client.ask("SAVE")
    assert client.ask("DEBUG", "DIGEST") == one
    client.ask("XDEL", "a", "600-0")
    assert client.ask("DEBUG", "DIGEST") != one


# -- loading the state again -------------------------------------------------------------------------------------------

STATE = """
XADD s 1-1 f v; XADD s 2-1 f v; XADD s 3-1 f v; XADD s 4-1 f v; XGROUP CREATE s g 0; XGROUP CREATE s h 2-1
XREADGROUP GROUP g Alice COUNT 3 STREAMS s >; XACK s g 1-1; XDEL s 2-1; XADD t MAXLEN 0 9-9 f v; XADD u 1-1 f v
PEXPIREAT u 9999999999999; XADD gone 1-1 f v; DEL gone; XGROUP CREATE empty g $ MKSTREAM; XSETID t 10-1 ENTRIESADDED 7
XADD i IDMP p i 1-* f v; SELECT 5; XADD s 7-1 f v; SELECT 0
"""


def state(client: RawClient) -> list[bytes]:
    questions = """
    DEBUG DIGEST; DBSIZE; XRANGE s - +; XINFO STREAM t; XINFO GROUPS s; XPENDING s g; PEXPIRETIME u; EXISTS gone empty
    """
    return [client.ask(*line.split()) for line in questions.replace("\n", ";").split(";") if line.strip()]


@pytest.mark.parametrize("how", ["RELOAD", "LOADAOF"])
@pytest.mark.parametrize("before", ["PING", "SAVE", "BGREWRITEAOF"])
def test_the_state_is_as_before_when_it_was_loaded_again(client: RawClient, how: str, before: str) -> None:
    for line in STATE.replace("\n", ";").split(";"):
        if line.strip():
            client.ask(*line.split())
    client.ask(before)
    until(lambda: b"aof_rewrite_in_progress:0\r\n" in client.ask("INFO", "persistence"), "the rewrite")
    expected = state(client)
    assert client.ask("DEBUG", how) == OK
    assert state(client) == expected
    assert client.ask("XADD", "s", "5-1", "f", "v") == b"$3\r\n5-1\r\n"
    assert client.pipeline([("MULTI",), ("DEBUG", how), ("EXEC",)])[-1].startswith(b"*1\r\n-ERR")
    # in one piece with writes that are not in the log yet
    replies = client.pipeline([("XADD", "v", "1-1", "f", "v"), ("DEBUG", how), ("XLEN", "v"), ("DEL", "v", "s")])
    assert replies == [b"$3\r\n1-1\r\n", OK, b":1\r\n", b":2\r\n"]


def test_loadaof_makes_the_tables_again_and_reload_reads_them(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "XADD s 2-1 f v", "XADD s 3-1 f v", "SAVE")
        txn = ticks.engine.txn
        assert txn.reader.first()
        assert txn.reader.next()
        txn.reader.delete()
        (left,) = await ticks.ask(client, "XRANGE s 0 +")
        assert left.startswith(b"*2\r\n")
        assert await ticks.ask(client, "DEBUG RELOAD", "XRANGE s 0 +") == [OK, left]
        loaded, all_three = await ticks.ask(client, "DEBUG LOADAOF", "XRANGE s 0 +")
        assert (loaded, all_three[:4]) == (OK, b"*3\r\n")
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("how", ["RELOAD", "LOADAOF"])
def test_loading_again_is_no_change(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "XADD s 2-1 f v", f"DEBUG {how}")
        assert ticks.engine.changes_since_checkpoint == 0
        ticks.files.fail("write", errno.ENOSPC)
        (reply,) = await ticks.ask(client, "XADD s 3-1 f v")
        assert reply.startswith(b"-MISCONF")
        assert ticks.engine.changes_since_checkpoint == 0
        ticks.close()

    in_loop(body())


def test_a_damaged_log_is_not_loaded_and_changes_nothing(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    with server.client() as client:
        for line in ("XADD s 1-1 f first", "XADD s 2-1 f second", "SAVE"):
            client.ask(*line.split())
        before = state(client)
        (log,) = server.directory.glob("appendonlydir/*.incr.aof")
        place = log.read_bytes().index(b"first")
        with log.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"worst", place)
            assert b"could not be loaded again, and is as before" in client.ask("DEBUG", "LOADAOF")
            assert state(client) == before
            os.pwrite(file.fileno(), b"first", place)
        assert client.ask("DEBUG", "LOADAOF") == OK
        assert client.ask("XADD", "s", "3-1", "f", "v") == b"$3\r\n3-1\r\n"


@pytest.mark.parametrize("setting", ["no", "local", "yes"])
def test_debug_is_for_those_whom_the_settings_name(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path, setting: str
) -> None:
    allowed = []
    for server in (
        start_riverbed(options={"enable-debug-command": setting, "unixsocket": tmp_path / "ours"}),
        start_redis(options={"enable-debug-command": setting, "unixsocket": tmp_path / "theirs"}),
    ):
        with server.client() as client:
            replies = [client.ask("DEBUG", "SLEEP", 0), client.ask("CONFIG", "GET", "enable-debug-command")]
            replies.append(client.ask("CONFIG", "SET", "enable-debug-command", "yes"))
            replies += client.pipeline([("MULTI",), ("DEBUG", "SLEEP", 0), ("EXEC",)])
            allowed.append(replies)
    assert allowed[0] == allowed[1]
    assert (allowed[0][0] == OK) is (setting != "no")


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("127.0.0.1:99", True),
        ("[::1]:99", True),
        ("/tmp/socket:0", True),
        ("10.0.0.1:99", False),
        ("[fe80::1]:9", False),
    ],
)
def test_local_clients_are_those_of_this_machine(tmp_path: Path, address: str, is_local: bool) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, enable_debug_command="local")
        client = ticks.connect()
        client.address = address
        (reply,) = await ticks.ask(client, "DEBUG SLEEP 0")
        assert (reply == OK) is is_local
        ticks.close()

    in_loop(body())


def test_a_scan_misses_no_key_whose_stream_has_another_number_since(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        db = ticks.engine.txn.databases[0]
        for number in range(40):
            await ticks.ask(client, f"XADD k{number} 1-1 f v")
            stream = db.stream(b"k0", 0)
            assert stream is not None
            CopyInTheMaking(db, stream).close()  # uses up a number that the log has not
        (reply,) = await ticks.ask(client, "SCAN 0 COUNT 20")
        cursor, keys = value_of(parse(reply))
        found = set(keys)
        ticks.engine.checkpoint()
        ticks.engine.reload(from_log=True)
        (reply,) = await ticks.ask(client, f"SCAN {cursor.decode()} COUNT 100")
        cursor, keys = value_of(parse(reply))
        assert cursor == b"0"
        assert len(found.union(keys)) == 40
        ticks.close()

    in_loop(body())
