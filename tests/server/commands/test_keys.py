from __future__ import annotations

import pytest

from tests.pair import Pair, logged_commands
from tests.raw import RawClient
from tests.servers import RiverbedServer

NO_SUCH_KEY = b"-ERR no such key\r\n"
SAME = b"-ERR source and destination objects are the same\r\n"
DB_RANGE = b"-ERR DB index is out of range\r\n"
NOT_INTEGER = b"-ERR value is not an integer or out of range\r\n"
SYNTAX = b"-ERR syntax error\r\n"
OK = b"+OK\r\n"
NIL = b"$-1\r\n"

COMMANDS = {
    "DEL": "key",
    "UNLINK": "key",
    "EXISTS": "key",
    "TOUCH": "key",
    "TYPE": "key",
    "KEYS": "pattern",
    "SCAN": "0",
    "RENAME": "a b",
    "RENAMENX": "a b",
    "COPY": "a b",
    "MOVE": "a 1",
    "SWAPDB": "0 1",
    "OBJECT": "HELP",
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


@pytest.mark.parametrize("line", ["TYPE a b", "KEYS a b", "RENAME a b c", "RENAMENX a b c", "MOVE a 1 2"])
def test_too_many_words_are_refused_as_redis_does(pair: Pair, line: str) -> None:
    assert pair.say(line).startswith(b"-ERR wrong number of arguments")


@pytest.mark.parametrize("line", ["RANDOMKEY a", "DBSIZE a", "SWAPDB 0 1 2", "OBJECT ENCODING", "OBJECT HELP a"])
def test_commands_of_fixed_length_take_no_more(pair: Pair, line: str) -> None:
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


# -- KEYS, SCAN, RANDOMKEY, DBSIZE -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["*", "a*", "?", "[ab]1", "[^a]1", "a\\*", "nope", "", "**"])
def test_keys_lists_what_matches(pair: Pair, pattern: str) -> None:
    fill(pair, "a", "a1", "b1", "c1", "a*", "")
    ours, theirs = pair.ours.tree("KEYS", pattern), pair.theirs.tree("KEYS", pattern)
    assert sorted(map(str, ours.children or ())) == sorted(map(str, theirs.children or ()))


def scan_all(client: RawClient, *options: str) -> list[bytes]:
    """Every key of a whole iteration."""
    keys = []
    cursor = b"0"
    while True:
        page, found = client.tree("SCAN", cursor, *options).children or ()
        keys += [key.text for key in found.children or ()]
        cursor = page.text
        if cursor == b"0":
            return keys


def test_scan_returns_each_key_once(client: RawClient) -> None:
    names = [f"key{number}" for number in range(57)]
    fill_ours(client, *names)
    for count in ("1", "7", "57", "100000", str((1 << 63) - 1)):
        assert sorted(scan_all(client, "COUNT", count)) == sorted(name.encode() for name in names)


def test_scan_returns_ten_keys_unless_asked_otherwise(client: RawClient) -> None:
    fill_ours(client, *(f"key{number}" for number in range(30)))
    _, found = client.tree("SCAN", "0").children or ()
    assert len(found.children or ()) == 10


def test_keys_that_stay_are_seen_while_others_come_and_go(client: RawClient) -> None:
    stay = {f"stay{number}".encode() for number in range(40)}
    fill_ours(client, *(name.decode() for name in stay))
    seen: list[bytes] = []
    cursor, number = b"0", 0
    while True:
        page, found = client.tree("SCAN", cursor, "COUNT", "3").children or ()
        seen += [key.text for key in found.children or ()]
        cursor = page.text
        if cursor == b"0":
            break
        number += 1
        fill_ours(client, f"come{number}")
        client.ask("DEL", f"come{number - 1}")
        if number > 200:
            break
    assert stay <= set(seen)
    assert all(seen.count(key) == 1 for key in stay)


def test_scan_filters_by_pattern_and_type(client: RawClient) -> None:
    fill_ours(client, "a1", "a2", "b1")
    assert sorted(scan_all(client, "MATCH", "a*")) == [b"a1", b"a2"]
    assert sorted(scan_all(client, "match", "*1", "type", "STREAM", "count", "1")) == [b"a1", b"b1"]
    assert scan_all(client, "TYPE", "string") == []
    assert scan_all(client, "MATCH", "a*", "MATCH", "b*") == [b"b1"]


@pytest.mark.parametrize("cursor", ["x", "1x", "-", " 1", "18446744073709551616", "1.0", "0x0"])
def test_scan_refuses_what_is_no_cursor(pair: Pair, cursor: str) -> None:
    assert pair.ask("SCAN", cursor) == b"-ERR invalid cursor\r\n"


@pytest.mark.parametrize("cursor", ["", "007", "+1", "-1", "18446744073709551615", "12345"])
def test_scan_takes_any_number_as_cursor_on_an_empty_database(pair: Pair, cursor: str) -> None:
    assert pair.ask("SCAN", cursor) == b"*2\r\n$1\r\n0\r\n*0\r\n"


@pytest.mark.parametrize(
    "options",
    [
        *("MATCH", "COUNT", "COUNT 0", "COUNT -1", "COUNT x", "TYPE", "WHAT", "WHAT 1", "COUNT 99999999999999999999"),
        *("MATCH a COUNT", "COUNT x MATCH", "TYPE stream COUNT 0", "COUNT 0 COUNT x"),
    ],
)
def test_scan_refuses_options_as_redis_does(pair: Pair, options: str) -> None:
    assert pair.say(f"SCAN 0 {options}") in (SYNTAX, NOT_INTEGER)
    assert pair.say(f"SCAN x {options}") == b"-ERR invalid cursor\r\n"


def test_random_key_is_one_of_the_keys(client: RawClient) -> None:
    assert client.ask("RANDOMKEY") == NIL
    fill_ours(client, "a", "b", "c")
    client.ask("DEL", "b")
    assert {client.tree("RANDOMKEY").text for _ in range(100)} == {b"a", b"c"}


def test_dbsize_counts_the_keys_of_this_database(pair: Pair) -> None:
    fill(pair, "a", "b")
    assert pair.ask("DBSIZE") == b":2\r\n"
    pair.ask("SELECT", 1)
    assert pair.ask("DBSIZE") == b":0\r\n"


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


# -- OBJECT ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subcommand", ["ENCODING", "REFCOUNT", "IDLETIME", "FREQ", "encoding"])
def test_object_answers_as_redis_does(pair: Pair, subcommand: str) -> None:
    assert pair.ask("OBJECT", subcommand, "a") == NIL
    fill(pair, "a")
    pair.ask("OBJECT", subcommand, "a")


def test_object_names_the_encoding(client: RawClient) -> None:
    fill_ours(client, "a")
    assert client.ask("OBJECT", "ENCODING", "a") == b"$6\r\nstream\r\n"


def test_object_refuses_unknown_subcommands(pair: Pair) -> None:
    assert pair.ask("OBJECT", "What", "a") == b"-ERR unknown subcommand 'What'. Try OBJECT HELP.\r\n"


def test_object_help_is_lines(client: RawClient) -> None:
    lines = client.tree("OBJECT", "HELP")
    assert lines.kind == "*"
    assert {line.kind for line in lines.children or ()} == {"+"}


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
        assert sorted(scan_all(again)) == [b"c", b"d"]
