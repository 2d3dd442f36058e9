from __future__ import annotations

import pytest

from tests.support.pair import Pair, logged_commands
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer

NO_SUCH_KEY = b"-ERR no such key\r\n"
SAME = b"-ERR source and destination objects are the same\r\n"
DB_RANGE = b"-ERR DB index is out of range\r\n"
NOT_INTEGER = b"-ERR value is not an integer or out of range\r\n"
SYNTAX = b"-ERR syntax error\r\n"
OK = b"+OK\r\n"

COMMANDS = {
    "DEL": "key",
    "UNLINK": "key",
    "EXISTS": "key",
    "TOUCH": "key",
    "TYPE": "key",
    "RENAME": "a b",
    "RENAMENX": "a b",
    "COPY": "a b",
    "MOVE": "a 1",
    "SWAPDB": "0 1",
}


def fill(pair: Pair, *keys: str) -> None:
    for key in keys:
        pair.ask("XADD", key, "1-1", "field", "value")


def fill_ours(client: RawClient, *keys: str) -> None:
    for key in keys:
        client.ask("XADD", key, "1-1", "field", "value")


# -- arity -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_too_few_words_are_refused_as_redis_does(pair: Pair, name: str) -> None:
    reply = pair.ask(name, *COMMANDS[name].split()[:-1])
    assert reply.startswith(b"-ERR wrong number of arguments for '" + name.lower().encode())


@pytest.mark.parametrize("line", ["TYPE a b", "RENAME a b c", "RENAMENX a b c", "MOVE a 1 2", "SWAPDB 0 1 2"])
def test_too_many_words_are_refused_as_redis_does(pair: Pair, line: str) -> None:
    assert pair.say(line).startswith(b"-ERR wrong number of arguments")


# -- DEL, UNLINK, EXISTS, TOUCH, TYPE ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DEL", "UNLINK", "del"])
def test_deleting_counts_the_keys_that_existed_once_each(pair: Pair, name: str) -> None:
    fill(pair, "a", "b", "c")
    assert pair.ask(name, "a", "a", "nope", "b") == b":2\r\n"
    assert pair.ask("EXISTS", "a", "b", "c") == b":1\r\n"
    assert pair.ask("XLEN", "a") == b":0\r\n"


def test_a_deleted_key_starts_afresh(pair: Pair) -> None:
    pair.ask("XADD", "a", "5-0", "f", "v")
    pair.ask("DEL", "a")
    assert pair.ask("XADD", "a", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    assert pair.ask("XRANGE", "a", "-", "+").count(b"1-0") == 1


@pytest.mark.parametrize("name", ["EXISTS", "TOUCH"])
def test_keys_given_twice_count_twice(pair: Pair, name: str) -> None:
    fill(pair, "a", "b")
    assert pair.ask(name, "a", "a", "b", "nope") == b":3\r\n"


def test_an_emptied_stream_still_exists(pair: Pair) -> None:
    fill(pair, "a")
    pair.ask("XDEL", "a", "1-1")
    assert pair.ask("EXISTS", "a") == b":1\r\n"
    assert pair.ask("TYPE", "a") == b"+stream\r\n"


def test_type_of_a_missing_key_is_none(pair: Pair) -> None:
    assert pair.ask("TYPE", "a") == b"+none\r\n"


def test_keys_are_any_bytes(pair: Pair) -> None:
    for key in (b"", b"\x00", b"\r\n", b"\xff" * 600, "é".encode()):
        pair.ask("XADD", key, "1-1", "f", "v")
        assert pair.ask("EXISTS", key) == b":1\r\n"
    assert pair.ask("DBSIZE") == b":5\r\n"
    assert pair.ask("DEL", b"\xff" * 600, b"") == b":2\r\n"
    assert pair.ask("DBSIZE") == b":3\r\n"


# -- RENAME, RENAMENX --------------------------------------------------------------------------------------------------


def test_rename_overwrites(pair: Pair) -> None:
    pair.ask("XADD", "a", "7-7", "f", "v")
    pair.ask("EXPIREAT", "a", 4102444800)
    fill(pair, "b")
    assert pair.ask("RENAME", "a", "b") == OK
    assert pair.ask("EXISTS", "a") == b":0\r\n"
    assert b"7-7" in pair.ask("XRANGE", "b", "-", "+")
    assert pair.ask("EXPIRETIME", "b") == b":4102444800\r\n"
    assert pair.ask("DBSIZE") == b":1\r\n"


def test_rename_onto_itself_needs_the_key(pair: Pair) -> None:
    assert pair.ask("RENAME", "a", "a") == NO_SUCH_KEY
    assert pair.ask("RENAMENX", "a", "a") == NO_SUCH_KEY
    fill(pair, "a")
    assert pair.ask("RENAME", "a", "a") == OK
    assert pair.ask("RENAMENX", "a", "a") == b":0\r\n"
    assert pair.ask("XLEN", "a") == b":1\r\n"


def test_renaming_nothing_is_an_error(pair: Pair) -> None:
    fill(pair, "b")
    assert pair.ask("RENAME", "a", "b") == NO_SUCH_KEY
    assert pair.ask("RENAMENX", "a", "b") == NO_SUCH_KEY
    assert pair.ask("XLEN", "b") == b":1\r\n"


def test_renamenx_leaves_an_existing_destination_alone(pair: Pair) -> None:
    fill(pair, "a")
    pair.ask("XADD", "b", "9-9", "f", "v")
    assert pair.ask("RENAMENX", "a", "b") == b":0\r\n"
    assert pair.ask("RENAMENX", "a", "c") == b":1\r\n"
    assert pair.ask("EXISTS", "a", "b", "c") == b":2\r\n"


# -- COPY --------------------------------------------------------------------------------------------------------------


def test_copy_is_independent_of_its_source(pair: Pair) -> None:
    fill(pair, "a")
    pair.ask("XADD", "a", "2-0", "f", "v")
    pair.ask("XDEL", "a", "1-1")
    assert pair.ask("COPY", "a", "b") == b":1\r\n"
    assert pair.ask("XADD", "a", "3-0", "f", "v") == b"$3\r\n3-0\r\n"
    assert pair.ask("XLEN", "b") == b":1\r\n"
    assert pair.ask("XADD", "b", "2-0", "f", "v").startswith(b"-ERR The ID specified in XADD")
    pair.ask("DEL", "a")
    assert b"2-0" in pair.ask("XRANGE", "b", "-", "+")


def test_copy_takes_the_deadline_along(pair: Pair) -> None:
    fill(pair, "a")
    pair.ask("EXPIREAT", "a", 4102444800)
    pair.ask("COPY", "a", "b")
    assert pair.ask("EXPIRETIME", "b") == b":4102444800\r\n"


def test_copy_replaces_only_when_told(pair: Pair) -> None:
    fill(pair, "a")
    pair.ask("XADD", "b", "9-9", "f", "v")
    assert pair.ask("COPY", "a", "b") == b":0\r\n"
    assert pair.ask("COPY", "a", "b", "replace") == b":1\r\n"
    assert b"9-9" not in pair.ask("XRANGE", "b", "-", "+")
    assert pair.ask("DBSIZE") == b":2\r\n"


def test_copy_to_another_database_may_keep_the_name(pair: Pair) -> None:
    fill(pair, "a")
    assert pair.ask("COPY", "a", "a", "DB", 3) == b":1\r\n"
    assert pair.ask("COPY", "a", "a", "DB", 3) == b":0\r\n"
    assert pair.ask("COPY", "a", "a", "REPLACE", "DB", 3) == b":1\r\n"
    assert pair.ask("COPY", "a", "x", "DB", 1, "DB", 2) == b":1\r\n"
    pair.ask("SELECT", 3)
    assert pair.ask("XLEN", "a") == b":1\r\n"
    pair.ask("SELECT", 1)
    assert pair.ask("DBSIZE") == b":0\r\n"


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("COPY a a", SAME),
        ("COPY nope nope", SAME),
        ("COPY a a DB 0", SAME),
        ("COPY nope b", b":0\r\n"),
        ("COPY a b DB", SYNTAX),
        ("COPY a b WHAT", SYNTAX),
        ("COPY a b REPLACE DB", SYNTAX),
        ("COPY a b DB 16", DB_RANGE),
        ("COPY nope b DB 16 WHAT", DB_RANGE),
        ("COPY a b DB -1", DB_RANGE),
        ("COPY a b DB x", NOT_INTEGER),
        ("COPY a b DB 99999999999999999999", NOT_INTEGER),
        ("COPY a b DB 9999999999", b"-ERR value is out of range, value must between -2147483648 and 2147483647\r\n"),
    ],
)
def test_copy_refuses_in_the_order_of_redis(pair: Pair, line: str, reply: bytes) -> None:
    fill(pair, "a")
    assert pair.say(line) == reply


# -- MOVE, SWAPDB ------------------------------------------------------------------------------------------------------


def test_move_takes_key_and_deadline_to_the_other_database(pair: Pair) -> None:
    fill(pair, "a")
    pair.ask("EXPIREAT", "a", 4102444800)
    assert pair.ask("MOVE", "a", 1) == b":1\r\n"
    assert pair.ask("EXISTS", "a") == b":0\r\n"
    assert pair.ask("MOVE", "a", 1) == b":0\r\n"
    pair.ask("SELECT", 1)
    assert pair.ask("XLEN", "a") == b":1\r\n"
    assert pair.ask("EXPIRETIME", "a") == b":4102444800\r\n"


def test_move_leaves_an_existing_key_alone(pair: Pair) -> None:
    fill(pair, "a")
    pair.ask("COPY", "a", "a", "DB", 1)
    assert pair.ask("MOVE", "a", 1) == b":0\r\n"
    assert pair.ask("EXISTS", "a") == b":1\r\n"


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("MOVE a 0", SAME),
        ("MOVE nope 0", SAME),
        ("MOVE nope 1", b":0\r\n"),
        ("MOVE a 16", DB_RANGE),
        ("MOVE a -1", DB_RANGE),
        ("MOVE a x", NOT_INTEGER),
        ("MOVE a 99999999999999999999", NOT_INTEGER),
        ("MOVE a 9999999999", b"-ERR value is out of range, value must between -2147483648 and 2147483647\r\n"),
    ],
)
def test_move_refuses_in_the_order_of_redis(pair: Pair, line: str, reply: bytes) -> None:
    fill(pair, "a")
    assert pair.say(line) == reply


def test_swapdb_swaps_what_clients_see(pair: Pair) -> None:
    fill(pair, "a")
    pair.ask("EXPIREAT", "a", 4102444800)
    pair.ask("COPY", "a", "b", "DB", 1)
    pair.ask("PERSIST", "a")
    assert pair.ask("SWAPDB", 0, 1) == OK
    assert pair.ask("EXISTS", "a", "b") == b":1\r\n"
    assert pair.ask("EXPIRETIME", "b") == b":4102444800\r\n"
    pair.ask("SELECT", 1)
    assert pair.ask("EXPIRETIME", "a") == b":-1\r\n"
    assert pair.ask("SWAPDB", 1, 1) == OK
    assert pair.ask("EXISTS", "a") == b":1\r\n"


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("SWAPDB x 0", b"-ERR invalid first DB index\r\n"),
        ("SWAPDB 0 x", b"-ERR invalid second DB index\r\n"),
        ("SWAPDB x y", b"-ERR invalid first DB index\r\n"),
        ("SWAPDB 9999999999 x", b"-ERR invalid first DB index\r\n"),
        ("SWAPDB 0 9999999999", b"-ERR invalid second DB index\r\n"),
        ("SWAPDB 16 x", b"-ERR invalid second DB index\r\n"),
        ("SWAPDB 0 16", DB_RANGE),
        ("SWAPDB -1 0", DB_RANGE),
    ],
)
def test_swapdb_refuses_in_the_order_of_redis(pair: Pair, line: str, reply: bytes) -> None:
    assert pair.say(line) == reply


# -- FLUSHDB, FLUSHALL -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["", "ASYNC", "sync"])
def test_flushdb_empties_one_database(pair: Pair, mode: str) -> None:
    fill(pair, "a", "b")
    pair.ask("COPY", "a", "a", "DB", 1)
    assert pair.say(f"FLUSHDB {mode}") == OK
    assert pair.ask("DBSIZE") == b":0\r\n"
    assert pair.ask("XADD", "a", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
    pair.ask("SELECT", 1)
    assert pair.ask("DBSIZE") == b":1\r\n"


@pytest.mark.parametrize("mode", ["", "async", "SYNC"])
def test_flushall_empties_all_databases(pair: Pair, mode: str) -> None:
    fill(pair, "a")
    pair.ask("COPY", "a", "a", "DB", 15)
    assert pair.say(f"FLUSHALL {mode}") == OK
    for number in (0, 15):
        pair.ask("SELECT", number)
        assert pair.ask("DBSIZE") == b":0\r\n"


@pytest.mark.parametrize("line", ["FLUSHDB WHAT", "FLUSHDB ASYNC SYNC", "FLUSHALL WHAT", "FLUSHALL SYNC SYNC"])
def test_flushing_refuses_other_modes(pair: Pair, line: str) -> None:
    fill(pair, "a")
    assert pair.say(line) == SYNTAX
    assert pair.ask("DBSIZE") == b":1\r\n"


# -- the log -----------------------------------------------------------------------------------------------------------


def test_the_log_holds_effects(client: RawClient, server: RiverbedServer) -> None:
    fill_ours(client, "a", "b")
    before = len(logged_commands(server.directory))
    for line in (
        *("UNLINK b nope", "DEL nope", "RENAME a a", "RENAME a b", "RENAMENX b c", "COPY c d", "COPY c c DB 1"),
        *("MOVE d 2", "SWAPDB 1 2", "SWAPDB 1 1", "FLUSHALL"),
    ):
        client.ask(*line.split())
    logged = [b" ".join(words) for words in logged_commands(server.directory)[before:]]
    assert [line for line in logged if not line.startswith(b"SELECT")] == [
        *(b"DEL b", b"RENAME a b", b"RENAME b c", b"COPY c d DB 0 REPLACE", b"COPY c c DB 1 REPLACE"),
        *(b"MOVE d 2", b"SWAPDB 1 2", b"MULTI", b"FLUSHDB", b"FLUSHDB", b"FLUSHDB", b"EXEC"),
    ]


def test_keys_survive_a_kill(server: RiverbedServer, client: RawClient) -> None:
    fill_ours(client, "a", "b", "c")
    for line in ("RENAME a d", "COPY b e DB 4", "MOVE b 3", "SWAPDB 3 4", "EXPIREAT c 4102444800", "DEL nope"):
        client.ask(*line.split())
    digest = client.ask("DEBUG", "DIGEST")
    server.kill()
    server.start()
    with server.client() as again:
        assert again.ask("DEBUG", "DIGEST") == digest
        _, found = again.tree("SCAN", 0).children or ()
        assert sorted(key.text for key in found.children or ()) == [b"c", b"d"]
