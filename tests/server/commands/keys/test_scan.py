from __future__ import annotations

import pytest

from tests.support.pair import Pair
from tests.support.raw import RawClient

NOT_INTEGER = b"-ERR value is not an integer or out of range\r\n"
SYNTAX = b"-ERR syntax error\r\n"


def fill(client: Pair | RawClient, *keys: str) -> None:
    for key in keys:
        client.ask("XADD", key, "1-1", "field", "value")


@pytest.mark.parametrize("line", ["KEYS", "KEYS a b", "SCAN", "RANDOMKEY a", "DBSIZE a"])
def test_word_counts_are_checked_as_redis_does(pair: Pair, line: str) -> None:
    assert pair.say(line).startswith(b"-ERR wrong number of arguments for '")


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
    fill(client, *names)
    for count in ("1", "7", "57", "100000", str((1 << 63) - 1)):
        assert sorted(scan_all(client, "COUNT", count)) == sorted(name.encode() for name in names)


def test_scan_returns_ten_keys_unless_asked_otherwise(client: RawClient) -> None:
    fill(client, *(f"key{number}" for number in range(30)))
    _, found = client.tree("SCAN", "0").children or ()
    assert len(found.children or ()) == 10


def test_keys_that_stay_are_seen_while_others_come_and_go(client: RawClient) -> None:
    stay = {f"stay{number}".encode() for number in range(40)}
    fill(client, *(name.decode() for name in stay))
    seen: list[bytes] = []
    cursor, number = b"0", 0
    while True:
        page, found = client.tree("SCAN", cursor, "COUNT", "3").children or ()
        seen += [key.text for key in found.children or ()]
        cursor = page.text
        if cursor == b"0":
            break
        number += 1
        fill(client, f"come{number}")
        client.ask("DEL", f"come{number - 1}")
        if number > 200:
            break
    assert stay <= set(seen)
    assert all(seen.count(key) == 1 for key in stay)


def test_scan_filters_by_pattern_and_type(client: RawClient) -> None:
    fill(client, "a1", "a2", "b1")
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
    assert client.ask("RANDOMKEY") == b"$-1\r\n"
    fill(client, "a", "b", "c")
    client.ask("DEL", "b")
    assert {client.tree("RANDOMKEY").text for _ in range(100)} == {b"a", b"c"}


def test_dbsize_counts_the_keys_of_this_database(pair: Pair) -> None:
    fill(pair, "a", "b")
    assert pair.ask("DBSIZE") == b":2\r\n"
    pair.ask("SELECT", 1)
    assert pair.ask("DBSIZE") == b":0\r\n"
