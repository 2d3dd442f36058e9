from __future__ import annotations

import time

import pytest

from tests.support.pair import Pair, logged_commands
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

YEAR_2100 = 4102444800
NOT_INTEGER = b"-ERR value is not an integer or out of range\r\n"
NX_CLASH = b"-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"
GT_LT_CLASH = b"-ERR GT and LT options at the same time are not compatible\r\n"
SETTERS = ("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT")
ASKERS = ("TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME")


def add(pair: Pair) -> None:
    pair.ask("XADD", "s", "1-1", "f", "v")


# -- arity and missing keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SETTERS, *ASKERS, "PERSIST"])
def test_word_counts_are_checked_as_redis_does(pair: Pair, name: str) -> None:
    expected = f"-ERR wrong number of arguments for '{name.lower()}' command\r\n".encode()
    assert pair.ask(name) == expected
    if name in SETTERS:
        assert pair.ask(name, "s") == expected
    else:
        assert pair.ask(name, "s", "1") == expected


@pytest.mark.parametrize("name", ASKERS)
def test_a_missing_key_and_a_missing_deadline_are_told_apart(pair: Pair, name: str) -> None:
    assert pair.ask(name, "s") == b":-2\r\n"
    add(pair)
    assert pair.ask(name, "s") == b":-1\r\n"


@pytest.mark.parametrize("name", SETTERS)
def test_a_missing_key_gets_no_deadline(pair: Pair, name: str) -> None:
    assert pair.ask(name, "s", YEAR_2100) == b":0\r\n"
    assert pair.ask("EXISTS", "s") == b":0\r\n"


# -- setting -----------------------------------------------------------------------------------------------------------


def test_deadlines_are_told_in_seconds_and_milliseconds(pair: Pair) -> None:
    add(pair)
    assert pair.ask("EXPIREAT", "s", YEAR_2100) == b":1\r\n"
    assert pair.ask("EXPIRETIME", "s") == b":4102444800\r\n"
    assert pair.ask("PEXPIRETIME", "s") == b":4102444800000\r\n"


@pytest.mark.parametrize(("milliseconds", "seconds"), [(4102444800499, 4102444800), (4102444800500, 4102444801)])
def test_seconds_are_rounded(pair: Pair, milliseconds: int, seconds: int) -> None:
    add(pair)
    assert pair.ask("PEXPIREAT", "s", milliseconds) == b":1\r\n"
    assert pair.ask("EXPIRETIME", "s") == b":%d\r\n" % seconds
    assert pair.ask("PEXPIRETIME", "s") == b":%d\r\n" % milliseconds


@pytest.mark.parametrize(("name", "amount"), [("EXPIRE", 100), ("PEXPIRE", 100_000)])
def test_relative_times_count_from_now(client: RawClient, name: str, amount: int) -> None:
    client.ask("XADD", "s", "*", "f", "v")
    before = time.time() * 1000
    assert client.ask(name, "s", amount) == b":1\r\n"
    deadline = int(client.tree("PEXPIRETIME", "s").text)
    assert before - 1 <= deadline - 100_000 <= time.time() * 1000
    left_s, left_ms = (int(client.tree(asked, "s").text) for asked in ("TTL", "PTTL"))
    assert 0 < left_ms <= 100_000
    assert deadline - time.time() * 1000 <= left_ms + 1
    # rounded, and asked for earlier
    assert left_ms - 500 <= left_s * 1000 <= 100_000


@pytest.mark.parametrize("line", ["EXPIRE s 0", "EXPIRE s -1", "PEXPIRE s -1", "EXPIREAT s 1", "PEXPIREAT s -5"])
def test_a_deadline_in_the_past_deletes_the_key(pair: Pair, line: str) -> None:
    add(pair)
    assert pair.say(line) == b":1\r\n"
    assert pair.ask("EXISTS", "s") == b":0\r\n"
    assert pair.say(line) == b":0\r\n"


def test_the_lowest_number_is_a_deadline_in_the_past(pair: Pair) -> None:
    add(pair)
    assert pair.ask("PEXPIRE", "s", -(1 << 63)) == b":1\r\n"
    assert pair.ask("EXISTS", "s") == b":0\r\n"


@pytest.mark.parametrize(
    "line",
    [
        *("EXPIRE s 9223372036854775807", "EXPIRE s -9223372036854775808", "EXPIRE s 9223372036854775"),
        *("PEXPIRE s 9223372036854775807", "EXPIREAT s 9223372036854775807", "EXPIREAT s -9223372036854775807"),
        *("EXPIRE s 9223372036854775 XX", "expire nope 9223372036854775807"),
    ],
)
def test_deadlines_beyond_64_bits_are_refused(pair: Pair, line: str) -> None:
    add(pair)
    name = line.partition(" ")[0].lower()
    assert pair.say(line) == f"-ERR invalid expire time in '{name}' command\r\n".encode()
    assert pair.ask("TTL", "s") == b":-1\r\n"


def test_the_highest_deadline_is_a_deadline(pair: Pair) -> None:
    add(pair)
    assert pair.ask("PEXPIREAT", "s", (1 << 63) - 1) == b":1\r\n"
    assert pair.ask("PEXPIRETIME", "s") == b":9223372036854775807\r\n"


@pytest.mark.parametrize("amount", ["x", "1.5", "", " 1", "+1", "01", "9223372036854775808", "1e3"])
@pytest.mark.parametrize("name", SETTERS)
def test_times_are_whole_numbers(pair: Pair, name: str, amount: str) -> None:
    assert pair.ask(name, "s", amount) == NOT_INTEGER


# -- conditions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "condition", "amount", "expected"),
    [
        (0, "NX", YEAR_2100, 1),
        (YEAR_2100, "NX", YEAR_2100 + 1, 0),
        (0, "XX", YEAR_2100, 0),
        (YEAR_2100, "xx", YEAR_2100 + 1, 1),
        (0, "GT", YEAR_2100, 0),
        (YEAR_2100, "GT", YEAR_2100, 0),
        (YEAR_2100, "GT", YEAR_2100 - 1, 0),
        (YEAR_2100, "GT", YEAR_2100 + 1, 1),
        (0, "LT", YEAR_2100, 1),
        (YEAR_2100, "LT", YEAR_2100, 0),
        (YEAR_2100, "LT", YEAR_2100 + 1, 0),
        (YEAR_2100, "LT", YEAR_2100 - 1, 1),
        (0, "XX LT", YEAR_2100, 0),
        (YEAR_2100, "XX LT", YEAR_2100 - 1, 1),
        (YEAR_2100, "GT XX", YEAR_2100 + 1, 1),
        (0, "NX NX", YEAR_2100, 1),
    ],
)
def test_conditions_compare_with_the_deadline_there_is(
    pair: Pair, current: int, condition: str, amount: int, expected: int
) -> None:
    add(pair)
    if current:
        pair.ask("EXPIREAT", "s", current)
    assert pair.ask("EXPIREAT", "s", amount, *condition.split()) == b":%d\r\n" % expected
    assert pair.ask("EXPIRETIME", "s") == b":%d\r\n" % (amount if expected else current or -1)


@pytest.mark.parametrize(("condition", "survives"), [("XX", 1), ("GT", 1), ("LT", 0), ("NX", 0)])
def test_conditions_come_before_the_past(pair: Pair, condition: str, survives: int) -> None:
    add(pair)
    assert pair.ask("EXPIRE", "s", -1, condition) == b":%d\r\n" % (not survives)
    assert pair.ask("EXISTS", "s") == b":%d\r\n" % survives


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("EXPIRE s 10 NX XX", NX_CLASH),
        ("EXPIRE s 10 GT NX", NX_CLASH),
        ("EXPIRE s 10 GT LT NX", NX_CLASH),
        ("EXPIRE s 10 GT LT", GT_LT_CLASH),
        ("EXPIRE s 10 XX GT LT", GT_LT_CLASH),
        ("EXPIRE s 10 What", b"-ERR Unsupported option What\r\n"),
        ("EXPIRE s x What", b"-ERR Unsupported option What\r\n"),
        ("EXPIRE nope 10 What", b"-ERR Unsupported option What\r\n"),
        ("EXPIRE s 10 NX XX What", b"-ERR Unsupported option What\r\n"),
        ("EXPIRE s x NX XX", NX_CLASH),
    ],
)
def test_options_are_refused_in_the_order_of_redis(pair: Pair, line: str, reply: bytes) -> None:
    add(pair)
    assert pair.say(line) == reply
    assert pair.ask("TTL", "s") == b":-1\r\n"


# -- taking away and running out ---------------------------------------------------------------------------------------


def test_persist_takes_a_deadline_away_once(pair: Pair) -> None:
    assert pair.ask("PERSIST", "s") == b":0\r\n"
    add(pair)
    assert pair.ask("PERSIST", "s") == b":0\r\n"
    pair.ask("EXPIREAT", "s", YEAR_2100)
    assert pair.ask("PERSIST", "s") == b":1\r\n"
    assert pair.ask("TTL", "s") == b":-1\r\n"


def test_appending_keeps_the_deadline_and_deleting_drops_it(pair: Pair) -> None:
    add(pair)
    pair.ask("EXPIREAT", "s", YEAR_2100)
    pair.ask("XADD", "s", "2-0", "f", "v")
    assert pair.ask("EXPIRETIME", "s") == b":4102444800\r\n"
    pair.ask("DEL", "s")
    add(pair)
    assert pair.ask("TTL", "s") == b":-1\r\n"


def test_a_key_is_gone_at_its_deadline_for_every_command(pair: Pair) -> None:
    add(pair)
    assert pair.ask("PEXPIRE", "s", 20) == b":1\r\n"
    time.sleep(0.03)
    assert pair.ask("EXISTS", "s") == b":0\r\n"
    assert pair.ask("TYPE", "s") == b"+none\r\n"
    assert pair.ask("XLEN", "s") == b":0\r\n"
    assert pair.ask("KEYS", "*") == b"*0\r\n"
    assert pair.ask("RENAME", "s", "t") == b"-ERR no such key\r\n"
    assert pair.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
    assert pair.ask("TTL", "s") == b":-1\r\n"


def test_keys_nobody_asks_for_expire_as_well(client: RawClient) -> None:
    for number in range(20):
        client.ask("XADD", f"s{number}", "*", "f", "v")
        client.ask("PEXPIRE", f"s{number}", 10)
    until(lambda: client.ask("DBSIZE") == b":0\r\n", "the end of all keys")


# -- the log -----------------------------------------------------------------------------------------------------------


def test_the_log_holds_moments_not_durations(client: RawClient, server: RiverbedServer) -> None:
    client.ask("XADD", "s", "1-1", "f", "v")
    before = len(logged_commands(server.directory))
    client.ask("EXPIRE", "s", 100)
    deadline = client.tree("PEXPIRETIME", "s").text
    client.ask("EXPIRE", "s", 50, "GT")
    client.ask("PERSIST", "s")
    client.ask("PERSIST", "s")
    client.ask("EXPIRE", "s", -1)
    assert logged_commands(server.directory)[before:] == [
        [b"PEXPIREAT", b"s", deadline],
        [b"PERSIST", b"s"],
        [b"DEL", b"s"],
    ]


def test_expiry_is_logged_as_a_deletion(client: RawClient, server: RiverbedServer) -> None:
    client.ask("XADD", "s", "1-1", "f", "v")
    client.ask("PEXPIRE", "s", 5)
    time.sleep(0.01)
    assert client.ask("EXISTS", "s") == b":0\r\n"
    assert logged_commands(server.directory)[-1] == [b"DEL", b"s"]


def test_deadlines_survive_a_kill_and_pass_while_the_server_is_away(server: RiverbedServer, client: RawClient) -> None:
    for key in ("long", "short", "none"):
        client.ask("XADD", key, "1-1", "f", "v")
    client.ask("EXPIREAT", "long", YEAR_2100)
    client.ask("PEXPIRE", "short", 1)
    server.kill()
    server.start()
    with server.client() as again:
        assert again.ask("EXPIRETIME", "long") == b":4102444800\r\n"
        assert again.ask("EXISTS", "short") == b":0\r\n"
        assert again.ask("TTL", "none") == b":-1\r\n"
