"""XADD, XLEN, XDEL, XTRIM, XSETID: with the replies of redis-server where it is old enough to know the option.

The tests' names are the sentences of the public command pages, and what 7.0 answers where they say nothing.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from riverbed.server.commands.streams import streams
from tests.support.in_process import HandClock, Product
from tests.support.pair import Pair
from tests.support.raw import RawClient, parse
from tests.support.read_log import LogTail
from tests.support.rows import assert_same_row
from tests.support.servers import RiverbedServer
from tests.support.ticks import Ticks, in_loop

OK = b"+OK\r\n"
NIL = b"$-1\r\n"
SYNTAX = b"-ERR syntax error\r\n"
NOT_INTEGER = b"-ERR value is not an integer or out of range\r\n"
INVALID_ID = b"-ERR Invalid stream ID specified as stream command argument\r\n"
NO_SUCH_KEY = b"-ERR no such key\r\n"
ARITY = b"-ERR wrong number of arguments for 'xadd' command\r\n"
TWO_STRATEGIES = b"-ERR syntax error, MAXLEN and MINID options at the same time are not compatible\r\n"
MAXLEN_NEGATIVE = b"-ERR The MAXLEN argument must be >= 0.\r\n"
LIMIT_NEGATIVE = b"-ERR The LIMIT argument must be >= 0.\r\n"
LIMIT_WITHOUT_STRATEGY = b"-ERR syntax error, LIMIT cannot be used without specifying a trimming strategy\r\n"
LIMIT_WITHOUT_TILDE = b"-ERR syntax error, LIMIT cannot be used without the special ~ option\r\n"
NO_STRATEGY = b"-ERR syntax error, XTRIM must be called with a trimming strategy\r\n"
ZERO_ID = b"-ERR The ID specified in XADD must be greater than 0-0\r\n"
TOO_SMALL = b"-ERR The ID specified in XADD is equal or smaller than the target stream top item\r\n"
EXHAUSTED = b"-ERR The stream has exhausted the last possible ID, unable to add more items\r\n"
MAX = 2**64 - 1


def run(pair: Pair, script: str) -> bytes:
    """Say the lines of `script` to both servers; -> the last reply."""
    reply = b""
    for line in script.split("; "):
        reply = pair.say(line)
    return reply


def fill(pair: Pair, key: str, ids: list[str] | range) -> None:
    commands = [("XADD", key, entry_id if isinstance(entry_id, str) else f"{entry_id}-0", "f", "v") for entry_id in ids]
    assert pair.ours.pipeline(commands) == pair.theirs.pipeline(commands)


def info(client: RawClient, key: str) -> dict[bytes, bytes]:
    """The plain numbers and IDs of XINFO STREAM."""
    return {name.text: value.text for name, value in parse(client.ask("XINFO", "STREAM", key)).pairs()}


COUNTERS = (
    *(b"length", b"last-generated-id", b"max-deleted-entry-id", b"entries-added", b"recorded-first-entry-id"),
    b"radix-tree-keys",
)


def counters(pair: Pair, key: str) -> dict[str, str]:
    """What a stream remembers beyond its entries, which was the same on both servers."""
    ours, theirs = info(pair.ours, key), info(pair.theirs, key)
    assert {name: ours[name] for name in COUNTERS} == {name: theirs[name] for name in COUNTERS}
    return {name.decode(): ours[name].decode() for name in COUNTERS}


def ids(pair: Pair, key: str = "s") -> list[bytes]:
    return [entry.children[0].text for entry in pair.tree("XRANGE", key, "-", "+").children or () if entry.children]


@pytest.mark.parametrize("name", ["XADD", "XLEN", "XDEL", "XTRIM", "XSETID"])
def test_flags_arity_and_keys_are_those_of_redis(pair: Pair, name: str) -> None:
    assert_same_row(pair, name)


@pytest.mark.parametrize(
    "line",
    [
        *("XADD", "XADD s", "XADD s *", "XADD s * f", "XLEN", "XLEN s s", "XDEL", "XDEL s", "XTRIM", "XTRIM s MAXLEN"),
        *("XSETID", "XSETID s", "XLEN a b c", "XTRIM s"),
    ],
)
def test_arity_is_checked_first(pair: Pair, line: str) -> None:
    name = line.split()[0].lower()
    assert pair.say(line) == f"-ERR wrong number of arguments for '{name}' command\r\n".encode()


# -- XADD: the errors --------------------------------------------------------------------------------------------------

XADD_ERRORS = [
    # no pair, odd count
    ("XADD s 1-1 f v g", ARITY),
    ("XADD s NOMKSTREAM 1-1 f", ARITY),
    ("XADD s MAXLEN 5 1-1", ARITY),
    ("XADD s MAXLEN = 5 *", ARITY),
    ("XADD s MAXLEN ~ 5 LIMIT 5 * f", ARITY),
    # two strategies, even the same twice
    ("XADD s MAXLEN 5 MINID 1 * f v", TWO_STRATEGIES),
    ("XADD s MINID 1 MAXLEN 5 * f v", TWO_STRATEGIES),
    ("XADD s MAXLEN 5 MAXLEN 5 * f v", TWO_STRATEGIES),
    ("XADD s MINID 1 MINID 1 * f v", TWO_STRATEGIES),
    # numbers
    ("XADD s MAXLEN -1 * f v", MAXLEN_NEGATIVE),
    ("XADD s MAXLEN ~ -1 * f v", MAXLEN_NEGATIVE),
    ("XADD s MAXLEN x * f v", NOT_INTEGER),
    ("XADD s MAXLEN 1.5 * f v", NOT_INTEGER),
    ("XADD s MAXLEN 007 * f v", NOT_INTEGER),
    ("XADD s MAXLEN +7 * f v", NOT_INTEGER),
    ("XADD s MAXLEN 9223372036854775808 * f v", NOT_INTEGER),
    ("XADD s MAXLEN = ~ 5 * f v", NOT_INTEGER),
    ("XADD s MAXLEN ~ 5 LIMIT -1 * f v", LIMIT_NEGATIVE),
    ("XADD s LIMIT -1 * f v", LIMIT_NEGATIVE),
    ("XADD s MAXLEN ~ 5 LIMIT x * f v", NOT_INTEGER),
    ("XADD s MINID x * f v", INVALID_ID),
    ("XADD s MINID - * f v", INVALID_ID),
    ("XADD s MINID + * f v", INVALID_ID),
    ("XADD s MINID (5 * f v", INVALID_ID),
    ("XADD s MINID $ * f v", INVALID_ID),
    # LIMIT
    ("XADD s LIMIT 5 * f v", LIMIT_WITHOUT_STRATEGY),
    ("XADD s LIMIT 0 * f v", LIMIT_WITHOUT_TILDE),
    ("XADD s MAXLEN 5 LIMIT 5 * f v", LIMIT_WITHOUT_TILDE),
    ("XADD s MAXLEN = 5 LIMIT 5 * f v", LIMIT_WITHOUT_TILDE),
    ("XADD s MAXLEN = 5 LIMIT 0 * f v", LIMIT_WITHOUT_TILDE),
    ("XADD s MINID 5 LIMIT 5 * f v", LIMIT_WITHOUT_TILDE),
    # an option that is not one is an ID
    ("XADD s NONSENSE f v", INVALID_ID),
    ("XADD s NONSENSE * f v", INVALID_ID),
    ("XADD s MAXLEN 5 NONSENSE * f v", INVALID_ID),
    ("XADD s ~ * f v", INVALID_ID),
    ("XADD s = 5 * f v", INVALID_ID),
    # 0-0
    ("XADD s 0 f v", ZERO_ID),
    ("XADD s 0-0 f v", ZERO_ID),
    ("XADD s 00-00 f v", ZERO_ID),
    ("XADD s NOMKSTREAM 0-0 f v", ZERO_ID),
    # two at once: the one that is looked for first
    ("XADD s MAXLEN -1 LIMIT -1 * f v", MAXLEN_NEGATIVE),
    ("XADD s LIMIT -1 MAXLEN -1 * f v", LIMIT_NEGATIVE),
    ("XADD s LIMIT 5 x f v", INVALID_ID),
    ("XADD s LIMIT 5 * f", LIMIT_WITHOUT_STRATEGY),
    ("XADD s 0-0 f", ARITY.replace(b"xadd", b"xadd")),
    ("XADD s 0-0 f v g", ARITY),
    ("XADD s LIMIT 5 0-0 f v", LIMIT_WITHOUT_STRATEGY),
]


@pytest.mark.parametrize(("line", "error"), XADD_ERRORS, ids=[line for line, _ in XADD_ERRORS])
def test_xadd_refuses_as_redis_does_and_makes_no_key(pair: Pair, line: str, error: bytes) -> None:
    assert pair.say(line) == error
    assert pair.ask("EXISTS", "s") == b":0\r\n"


@pytest.mark.parametrize(("line", "error"), XADD_ERRORS, ids=[line for line, _ in XADD_ERRORS])
def test_a_refused_xadd_changes_nothing_and_logs_nothing(
    client: RawClient, server: RiverbedServer, line: str, error: bytes
) -> None:
    client.ask("XADD", "s", "1-1", "f", "v")
    before, tail = client.ask("XINFO", "STREAM", "s", "FULL"), LogTail(server.directory)
    assert client.ask(*line.split()) == error
    assert client.ask("XINFO", "STREAM", "s", "FULL") == before
    assert tail.lines() == []


INVALID_IDS = [
    *("x", "5-", "-", "+", "$", ">", "5-x", "x-5", "5-5-5", "1e3", "1.5", "0x1", "5--1", "--1", "-1", "(5", "(", "*-1"),
    *("*-*", "**", "5-**", "5-*1", "-*", "18446744073709551616", "18446744073709551616-0", "0-18446744073709551616"),
    *("18446744073709551616-*", "9" * 127, "1-" + "0" * 126, "0" * 200),
    *("0" * 125 + "1-*", "0" * 200 + "1-*"),
]


@pytest.mark.parametrize("entry_id", INVALID_IDS)
def test_every_malformed_id_is_refused_in_the_same_words(pair: Pair, entry_id: str) -> None:
    assert pair.ask("XADD", "s", entry_id, "f", "v") == INVALID_ID
    assert pair.ask("EXISTS", "s") == b":0\r\n"


def test_leading_zeros_may_make_an_id_as_long_as_in_redis(pair: Pair) -> None:
    assert pair.ask("XADD", "s", "0" * 124 + "1-*", "f", "v") == b"$3\r\n1-0\r\n"


def test_an_empty_id_is_refused(pair: Pair) -> None:
    assert pair.ask("XADD", "s", "", "f", "v") == INVALID_ID


@pytest.mark.parametrize("entry_id", [" 5", "+5", "5-+1", "5- 1", b"10\x00zz", "9--01"])
def test_blanks_signs_and_nul_bytes_in_ids_are_refused_although_redis_reads_over_them(
    client: RawClient, entry_id: str | bytes
) -> None:
    assert client.ask("XADD", "s", entry_id, "f", "v") == INVALID_ID


def test_exhausted_comes_before_too_small(pair: Pair) -> None:
    assert pair.ask("XADD", "s", f"{MAX}-{MAX}", "f", "v") == f"$41\r\n{MAX}-{MAX}\r\n".encode()
    for entry_id in ("*", "1-1", f"{MAX}-{MAX}", "5-*"):
        assert pair.ask("XADD", "s", entry_id, "f", "v") == EXHAUSTED
    assert counters(pair, "s")["entries-added"] == "1"


def test_an_id_must_be_above_the_last_one(pair: Pair) -> None:
    run(pair, "XADD s 5-5 f v")
    for entry_id in ("5-5", "5-4", "5", "4-9", "0-1", "4-*"):
        assert pair.ask("XADD", "s", entry_id, "f", "v") == TOO_SMALL
    assert pair.ask("XADD", "s", "5-6", "f", "v") == b"$3\r\n5-6\r\n"


def test_auto_sequence_is_refused_when_its_millisecond_is_used_up(client: RawClient) -> None:
    # redis 7.0 chooses between two texts here by what errno happens to hold
    client.ask("XADD", "s", f"5-{MAX}", "f", "v")
    assert client.ask("XADD", "s", "5-*", "f", "v") == TOO_SMALL
    assert client.ask("XADD", "s", "6-*", "f", "v") == b"$3\r\n6-0\r\n"


# -- XADD: ids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        *(("5", "5-0"), ("5-3", "5-3"), ("007-01", "7-1"), ("0-1", "0-1"), ("0-*", "0-1"), ("7-*", "7-0")),
        *((f"{MAX}-{MAX}", f"{MAX}-{MAX}"), (f"{MAX}", f"{MAX}-0"), (f"{MAX}-*", f"{MAX}-0"), ("0" * 120 + "1", "1-0")),
    ],
)
def test_ids_come_back_in_canonical_form(pair: Pair, typed: str, made: str) -> None:
    assert pair.ask("XADD", "s", typed, "f", "v") == f"${len(made)}\r\n{made}\r\n".encode()


def test_auto_sequence_counts_on_within_its_millisecond(pair: Pair) -> None:
    script = "XADD s 5-3 f v; XADD s 5-* f v; XADD s 5-* f v; XADD s 6-* f v; XADD s 4-* f v"
    assert run(pair, script) == TOO_SMALL
    assert ids(pair) == [b"5-3", b"5-4", b"5-5", b"6-0"]


def test_auto_id_is_the_clock(client: RawClient) -> None:
    before = int(time.time() * 1000)
    made = parse(client.ask("XADD", "s", "*", "f", "v")).text
    ms, seq = map(int, made.split(b"-"))
    assert before <= ms <= int(time.time() * 1000) + 1
    assert seq == 0


def test_auto_id_when_last_id_is_in_the_future_is_its_successor(pair: Pair) -> None:
    future = 32503680000000
    run(pair, f"XADD s {future}-7 f v")
    assert run(pair, "XADD s * f v") == f"$16\r\n{future}-8\r\n".encode()
    run(pair, f"XADD s {future}-{MAX} f v")
    # the carry to the next millisecond
    assert run(pair, "XADD s * f v") == f"$16\r\n{future + 1}-0\r\n".encode()


def test_auto_id_reaches_the_largest_and_no_further(pair: Pair) -> None:
    run(pair, f"XADD s {MAX}-{MAX - 1} f v")
    assert run(pair, "XADD s * f v") == f"$41\r\n{MAX}-{MAX}\r\n".encode()
    assert run(pair, "XADD s * f v") == EXHAUSTED


def test_the_clock_is_frozen_for_a_transaction(client: RawClient) -> None:
    # so since Redis 7.2
    client.ask("MULTI")
    for _ in range(200):
        client.ask("XADD", "s", "*", "f", "v")
    made = [reply.text.split(b"-") for reply in parse(client.ask("EXEC")).children or ()]
    assert {ms for ms, _ in made} == {made[0][0]}
    assert [int(seq) for _, seq in made] == list(range(200))


def test_ids_keep_growing_when_many_are_made_in_a_millisecond(client: RawClient) -> None:
    replies = client.pipeline([("XADD", "s", "*", "f", "v")] * 3000)
    made = [tuple(map(int, parse(reply).text.split(b"-"))) for reply in replies]
    assert made == sorted(set(made))


def test_after_xdel_of_the_newest_entry_its_id_and_lower_ones_remain_refused(pair: Pair) -> None:
    run(pair, "XADD s 1-1 f v; XADD s 5-5 f v; XDEL s 5-5")
    for entry_id in ("5-5", "4-1", "1-2", "5-4"):
        assert pair.ask("XADD", "s", entry_id, "f", "v") == TOO_SMALL
    assert counters(pair, "s")["last-generated-id"] == "5-5"
    assert run(pair, "XADD s 5-* f v") == b"$3\r\n5-6\r\n"


# -- XADD: what it stores ----------------------------------------------------------------------------------------------


def test_xadd_of_the_usual_form_appends(pair: Pair) -> None:
    assert run(pair, "XADD s 1-1 f v") == b"$3\r\n1-1\r\n"
    assert run(pair, "XADD s 1-2 g w h x") == b"$3\r\n1-2\r\n"
    assert pair.ask("XRANGE", "s", "-", "+") == (
        b"*2\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
        b"*2\r\n$3\r\n1-2\r\n*4\r\n$1\r\ng\r\n$1\r\nw\r\n$1\r\nh\r\n$1\r\nx\r\n"
    )


def test_fields_and_values_are_any_bytes_in_any_number(pair: Pair) -> None:
    binary = bytes(range(256))
    pair.ask("XADD", "s", "1-1", "", "", "f", "v", "f", "again", binary, binary, "", "")
    pair.ask("XADD", "s", "1-2", b"\r\n$1\r\n", "*", "12345", "-7", "007", "9" * 30)
    pair.ask("XADD", b"\x00\r\n", "1-1", *([b"f", b"x" * 100_000] * 20))
    pair.ask("XADD", "s", "1-3", *(word for number in range(2000) for word in (f"field{number}", str(number))))
    pair.ask("XRANGE", "s", "-", "+")
    pair.ask("XRANGE", b"\x00\r\n", "-", "+")


@pytest.mark.parametrize(
    "line",
    [
        *("xadd s maxlen = 5 nomkstream 5-1 f v", "XADD s NOMKSTREAM NOMKSTREAM MAXLEN ~ 5 5-1 f v"),
        *("XADD s MAXLEN ~ 5 LIMIT 10 LIMIT 20 5-1 f v", "XADD s LIMIT 10 MAXLEN ~ 5 5-1 f v"),
        *("XADD s NoMkStream minid = 0 5-1 f v", "XADD s MINID ~ 1 LIMIT 0 5-1 f v", "XADD s MAXLEN 5 5-1 f v"),
        *("XADD s 5-1 MAXLEN 5", "XADD s 5-1 NOMKSTREAM 1", "XADD s MAXLEN = 9223372036854775807 5-1 f v"),
        *("XADD s MINID 0-0 5-1 f v", f"XADD s MINID {MAX}-{MAX} 5-1 f v", "XADD s MINID = 007-01 5-1 f v"),
    ],
)
def test_options_come_in_any_order_and_case(pair: Pair, line: str) -> None:
    run(pair, "XADD s 1-1 f v")
    assert pair.say(line) == b"$3\r\n5-1\r\n"
    ids(pair)
    counters(pair, "s")


def test_tilde_is_recognised_only_if_another_argument_follows(pair: Pair) -> None:
    assert pair.ask("XTRIM", "s", "MAXLEN", "~") == NOT_INTEGER
    assert pair.ask("XTRIM", "s", "MAXLEN", "=") == NOT_INTEGER
    assert pair.ask("XTRIM", "s", "MINID", "~") == INVALID_ID


def test_nomkstream_on_a_missing_key_is_a_null_bulk(pair: Pair) -> None:
    assert run(pair, "XADD s NOMKSTREAM * f v") == NIL
    assert run(pair, "EXISTS s") == b":0\r\n"
    for line in ("HELLO 3", "XADD s NOMKSTREAM * f v"):
        reply = pair.ours.ask(*line.split())
    assert reply == b"_\r\n"


def test_nomkstream_checks_arity_and_id_first(pair: Pair) -> None:
    assert run(pair, "XADD s NOMKSTREAM * f") == ARITY
    assert run(pair, "XADD s NOMKSTREAM x f v") == INVALID_ID
    assert run(pair, "XADD s NOMKSTREAM 0 f v") == ZERO_ID
    assert run(pair, "XADD s 1-1 f v; XADD s NOMKSTREAM 1-2 f v") == b"$3\r\n1-2\r\n"
    assert run(pair, "XADD s NOMKSTREAM 1-2 f v") == TOO_SMALL


def test_the_new_entry_is_subject_to_its_own_trim(pair: Pair) -> None:
    assert run(pair, "XADD s MAXLEN 0 1-1 a b") == b"$3\r\n1-1\r\n"
    assert run(pair, "EXISTS s") == b":1\r\n"
    assert run(pair, "XLEN s") == b":0\r\n"
    state = counters(pair, "s")
    assert (state["last-generated-id"], state["entries-added"], state["recorded-first-entry-id"]) == ("1-1", "1", "0-0")
    assert run(pair, "XADD s MINID 9 5-1 a b") == b"$3\r\n5-1\r\n"
    assert run(pair, "XLEN s") == b":0\r\n"


def test_xadd_trims_after_appending(pair: Pair) -> None:
    fill(pair, "s", range(1, 11))
    run(pair, "XADD s MAXLEN 3 11-0 f v")
    assert ids(pair) == [b"9-0", b"10-0", b"11-0"]
    run(pair, "XADD s MINID 11 12-0 f v")
    assert ids(pair) == [b"11-0", b"12-0"]
    assert counters(pair, "s")["max-deleted-entry-id"] == "0-0"


def test_an_exhausted_stream_that_is_deleted_starts_afresh(pair: Pair) -> None:
    run(pair, f"XADD s {MAX}-{MAX} f v; DEL s")
    assert run(pair, "XADD s 1-1 f v") == b"$3\r\n1-1\r\n"


def test_an_entry_that_is_too_large_leaves_no_key_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a gigabyte is more than a request may have by default; upstream would leave an empty stream
    monkeypatch.setattr(streams, "MAX_ENTRY_BYTES", 1000)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        client.send_words("XADD", "s", "1-1", "f", "x" * 1000)
        client.send_words("EXISTS", "s")
        client.send_words("XADD", "s", "1-1", "f", "x" * 999)
        await ticks.settle()
        assert client.replies() == [b"-ERR Elements are too large to be stored\r\n", b":0\r\n", b"$3\r\n1-1\r\n"]
        client.send_words("XADD", "s", "*", "f", "x" * (4 << 20))  # short ones are appended natively
        await ticks.settle()
        assert client.replies() == [b"-ERR Elements are too large to be stored\r\n"]
        ticks.close()

    in_loop(body())


# -- XLEN, XDEL --------------------------------------------------------------------------------------------------------


def test_xlen_counts_live_entries(pair: Pair) -> None:
    assert run(pair, "XLEN s") == b":0\r\n"
    fill(pair, "s", range(1, 251))
    assert run(pair, "XLEN s") == b":250\r\n"
    run(pair, "XDEL s 5-0 100-0; XTRIM s MINID 3")
    assert run(pair, "XLEN s") == b":246\r\n"


def test_xdel_counts_what_it_removed_once(pair: Pair) -> None:
    fill(pair, "s", ["1-1", "1-2", "2-0", "3-0"])
    assert run(pair, "XDEL s 1-1 1-1 9-9 2 0-0 18446744073709551615-18446744073709551615") == b":2\r\n"
    assert ids(pair) == [b"1-2", b"3-0"]
    assert run(pair, "XDEL s 1-1") == b":0\r\n"


def test_xdel_on_a_missing_key_does_not_parse_the_ids(pair: Pair) -> None:
    assert run(pair, "XDEL s x y -") == b":0\r\n"


@pytest.mark.parametrize("bad", ["x", "-", "+", "$", "*", "1-*", "(1-1", "1-", "-1"])
def test_xdel_with_one_bad_id_changes_nothing_at_all(pair: Pair, bad: str) -> None:
    fill(pair, "s", ["1-1", "2-1"])
    assert pair.ask("XDEL", "s", "1-1", bad) == INVALID_ID
    assert pair.ask("XDEL", "s", bad, "1-1") == INVALID_ID
    assert ids(pair) == [b"1-1", b"2-1"]


def test_emptying_a_stream_never_deletes_the_key(pair: Pair) -> None:
    for line in ("XDEL s 1-1", "XTRIM s MAXLEN 0", "XTRIM s MINID 2", "XADD s MAXLEN 0 1-2 f v"):
        run(pair, f"DEL s; XADD s 1-1 f v; {line}")
        assert run(pair, "XLEN s") == b":0\r\n"
        assert run(pair, "EXISTS s") == b":1\r\n"
        assert run(pair, "TYPE s") == b"+stream\r\n"
        assert run(pair, "XRANGE s - +") == b"*0\r\n"
        counters(pair, "s")


def test_xdel_moves_max_deleted_and_the_recorded_first_entry(pair: Pair) -> None:
    fill(pair, "s", range(1, 6))
    run(pair, "XDEL s 3")
    state = counters(pair, "s")
    assert (state["max-deleted-entry-id"], state["recorded-first-entry-id"]) == ("3-0", "1-0")
    run(pair, "XDEL s 1 2")
    state = counters(pair, "s")
    assert (state["max-deleted-entry-id"], state["recorded-first-entry-id"]) == ("3-0", "4-0")
    assert (state["last-generated-id"], state["entries-added"]) == ("5-0", "5")
    run(pair, "XDEL s 5 4")
    state = counters(pair, "s")
    assert (state["max-deleted-entry-id"], state["recorded-first-entry-id"]) == ("5-0", "0-0")
    run(pair, "XADD s 9 f v")
    assert counters(pair, "s")["recorded-first-entry-id"] == "9-0"


def test_trimming_does_not_move_max_deleted_but_the_recorded_first_entry(pair: Pair) -> None:
    fill(pair, "s", range(1, 6))
    run(pair, "XTRIM s MAXLEN 2")
    state = counters(pair, "s")
    assert (state["max-deleted-entry-id"], state["recorded-first-entry-id"]) == ("0-0", "4-0")
    assert (state["last-generated-id"], state["entries-added"]) == ("5-0", "5")


# -- XTRIM -------------------------------------------------------------------------------------------------------------

XTRIM_ERRORS = [
    ("XTRIM s MAXLEN x", NOT_INTEGER),
    ("XTRIM s MAXLEN -1", MAXLEN_NEGATIVE),
    ("XTRIM s MAXLEN = -1", MAXLEN_NEGATIVE),
    ("XTRIM s MINID x", INVALID_ID),
    ("XTRIM s MINID ~ -", INVALID_ID),
    ("XTRIM s MAXLEN 5 MINID 1", TWO_STRATEGIES),
    ("XTRIM s MAXLEN 5 MAXLEN 5", TWO_STRATEGIES),
    ("XTRIM s LIMIT 5 LIMIT 5", LIMIT_WITHOUT_STRATEGY),
    ("XTRIM s LIMIT 0", NO_STRATEGY),
    ("XTRIM s MAXLEN 5 LIMIT 5", LIMIT_WITHOUT_TILDE),
    ("XTRIM s MAXLEN = 5 LIMIT 0", LIMIT_WITHOUT_TILDE),
    ("XTRIM s MAXLEN ~ 5 LIMIT -1", LIMIT_NEGATIVE),
    ("XTRIM s MAXLEN ~ 5 LIMIT x", NOT_INTEGER),
    ("XTRIM s MAXLEN ~ 5 LIMIT", SYNTAX),
    ("XTRIM s MAXLEN 5 WHAT", SYNTAX),
    ("XTRIM s WHAT 5", SYNTAX),
    ("XTRIM s 5 MAXLEN", SYNTAX),
    ("XTRIM s MAXLEN 5 6", SYNTAX),
    ("XTRIM s NOMKSTREAM MAXLEN 5", SYNTAX),
]


@pytest.mark.parametrize(("line", "error"), XTRIM_ERRORS, ids=[line for line, _ in XTRIM_ERRORS])
def test_xtrim_refuses_as_redis_does_before_it_looks_for_the_key(pair: Pair, line: str, error: bytes) -> None:
    assert pair.say(line) == error
    fill(pair, "s", range(1, 4))
    assert pair.say(line) == error
    assert pair.ask("XLEN", "s") == b":3\r\n"


def test_xtrim_on_a_missing_key_is_zero(pair: Pair) -> None:
    assert run(pair, "XTRIM s MAXLEN 5") == b":0\r\n"
    assert run(pair, "XTRIM s MINID ~ 5 LIMIT 7") == b":0\r\n"
    assert run(pair, "EXISTS s") == b":0\r\n"


@pytest.mark.parametrize("threshold", [0, 1, 99, 100, 101, 200, 249, 250, 251, 2**63 - 1])
def test_exact_maxlen_leaves_exactly_so_many(pair: Pair, threshold: int) -> None:
    fill(pair, "s", range(1, 251))
    assert pair.ask("XTRIM", "s", "MAXLEN", threshold) == b":%d\r\n" % max(250 - threshold, 0)
    ids(pair)
    counters(pair, "s")


@pytest.mark.parametrize("threshold", ["0", "1", "1-1", "100", "101", "101-1", "200", "250", "250-1", "251", str(MAX)])
def test_minid_keeps_the_threshold_id_itself(pair: Pair, threshold: str) -> None:
    fill(pair, "s", range(1, 251))
    pair.ask("XTRIM", "s", "MINID", threshold)
    assert all(tuple(map(int, entry_id.split(b"-"))) >= _pair_of(threshold) for entry_id in ids(pair))
    counters(pair, "s")


def _pair_of(threshold: str) -> tuple[int, int]:
    ms, _, seq = threshold.partition("-")
    return int(ms), int(seq or 0)  # the threshold's missing sequence is 0


@pytest.mark.parametrize("threshold", [0, 1, 50, 100, 101, 149, 150, 151, 249, 250, 251])
def test_approximate_maxlen_leaves_up_to_a_node_too_many_and_never_too_few(pair: Pair, threshold: int) -> None:
    fill(pair, "s", range(1, 251))
    pair.ask("XTRIM", "s", "MAXLEN", "~", threshold)
    left = int(pair.ask("XLEN", "s")[1:])
    assert min(threshold, 250) <= left <= threshold + 100
    counters(pair, "s")


@pytest.mark.parametrize("threshold", ["1", "100", "100-1", "101", "102", "200", "201", "250", "251", str(MAX)])
def test_approximate_minid_removes_whole_nodes_below_the_threshold(pair: Pair, threshold: str) -> None:
    fill(pair, "s", range(1, 251))
    removed = int(pair.ask("XTRIM", "s", "MINID", "~", threshold)[1:])
    assert removed in (0, 100, 200, 250)
    counters(pair, "s")


@pytest.mark.parametrize("limit", [0, 1, 99, 100, 101, 199, 200, 249, 250, 2**63 - 1])
def test_limit_counts_live_entries_per_whole_node(pair: Pair, limit: int) -> None:
    fill(pair, "s", range(1, 251))
    pair.ask("XTRIM", "s", "MAXLEN", "~", 0, "LIMIT", limit)
    counters(pair, "s")


def test_a_limit_of_one_normally_removes_nothing(pair: Pair) -> None:
    fill(pair, "s", range(1, 251))
    assert run(pair, "XTRIM s MAXLEN ~ 0 LIMIT 1") == b":0\r\n"
    # but a node with one live entry goes
    pair.ask("XDEL", "s", *(f"{number}-0" for number in range(2, 101)))
    assert run(pair, "XTRIM s MAXLEN ~ 0 LIMIT 1") == b":1\r\n"
    counters(pair, "s")


def test_trims_heed_tombstones_in_nodes_as_redis_does(pair: Pair) -> None:
    fill(pair, "s", range(1, 301))
    pair.ask("XDEL", "s", *(f"{number}-0" for number in range(50, 151)), "300-0", "201-0")
    counters(pair, "s")
    for line in (
        *("XTRIM s MAXLEN ~ 150", "XTRIM s MINID ~ 100-1", "XTRIM s MINID 155", "XTRIM s MAXLEN 100"),
        *("XTRIM s MINID ~ 300", "XTRIM s MAXLEN ~ 3", "XTRIM s MINID ~ 300-1", "XTRIM s MAXLEN 0"),
    ):
        pair.say(line)
        ids(pair)
        counters(pair, "s")


def test_the_limit_of_tilde_without_limit_is_a_hundred_nodes(pair: Pair) -> None:
    for client in (pair.ours, pair.theirs):
        assert client.ask("CONFIG", "SET", "stream-node-max-entries", 2) == OK
    try:
        fill(pair, "s", range(1, 1001))
        assert run(pair, "XTRIM s MAXLEN ~ 0") == b":200\r\n"
        assert run(pair, "XTRIM s MAXLEN ~ 0 LIMIT 0") == b":800\r\n"
    finally:
        for client in (pair.ours, pair.theirs):
            client.ask("CONFIG", "SET", "stream-node-max-entries", 100)


def test_nodes_end_by_bytes_too(pair: Pair) -> None:
    for number in range(1, 40):
        pair.ask("XADD", "s", f"{number}-0", "field", "x" * 500)
    counters(pair, "s")
    pair.ask("XTRIM", "s", "MAXLEN", "~", 10)
    counters(pair, "s")


@pytest.mark.parametrize("strategy", ["KEEPREF", "delref", "ACKED"])
def test_reference_strategies_change_nothing_without_groups(client: RawClient, strategy: str) -> None:
    # since Redis 8.2
    for number in range(1, 11):
        client.ask("XADD", "s", f"{number}-0", "f", "v")
    assert client.ask("XTRIM", "s", strategy, "MAXLEN", 8) == b":2\r\n"
    assert client.ask("XTRIM", "s", "MAXLEN", 7, strategy) == b":1\r\n"
    assert client.ask("XADD", "s", strategy, "MAXLEN", 5, "11-0", "f", "v") == b"$4\r\n11-0\r\n"
    assert client.ask("XADD", "s", "MAXLEN", 5, strategy, "12-0", "f", "v") == b"$4\r\n12-0\r\n"
    assert client.ask("XADD", "s", strategy, "13-0", "f", "v") == b"$4\r\n13-0\r\n"
    assert client.ask("XLEN", "s") == b":6\r\n"


def test_a_second_reference_strategy_fails_as_an_id_or_as_syntax(client: RawClient) -> None:
    assert client.ask("XADD", "s", "KEEPREF", "ACKED", "*", "f", "v") == INVALID_ID
    assert client.ask("XTRIM", "s", "MAXLEN", 5, "KEEPREF", "ACKED") == SYNTAX
    assert client.ask("XTRIM", "s", "KEEPREF", "LIMIT", 0) == NO_STRATEGY


# -- XSETID ------------------------------------------------------------------------------------------------------------

SETID_TOP = b"-ERR The ID specified in XSETID is smaller than the target stream top item\r\n"
SETID_LENGTH = b"-ERR The entries_added specified in XSETID is smaller than the target stream length\r\n"
SETID_GIVEN = b"-ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id\r\n"
SETID_DELETED = b"-ERR The ID specified in XSETID is smaller than current max_deleted_entry_id\r\n"
NEGATIVE = b"-ERR entries_added must be positive\r\n"

XSETID_ERRORS = [
    ("XSETID s x", INVALID_ID),
    ("XSETID s -", INVALID_ID),
    ("XSETID s +", INVALID_ID),
    ("XSETID s $", INVALID_ID),
    ("XSETID s *", INVALID_ID),
    ("XSETID s (5", INVALID_ID),
    ("XSETID s 5-1 WHAT", SYNTAX),
    ("XSETID s 5-1 WHAT 5", SYNTAX),
    ("XSETID s 5-1 ENTRIESADDED", SYNTAX),
    ("XSETID s 5-1 MAXDELETEDID", SYNTAX),
    ("XSETID s 5-1 ENTRIESADDED x", NOT_INTEGER),
    ("XSETID s 5-1 ENTRIESADDED -1", NEGATIVE),
    ("XSETID s 5-1 MAXDELETEDID x", INVALID_ID),
    ("XSETID s 5-1 MAXDELETEDID 5-2", SETID_GIVEN),
    ("XSETID s 5-1 MAXDELETEDID 5-2 ENTRIESADDED -1", SETID_GIVEN),
    ("XSETID s 5-1 ENTRIESADDED -1 MAXDELETEDID 5-2", NEGATIVE),
    ("XSETID s 5-1 ENTRIESADDED 5 WHAT", SYNTAX),
]


@pytest.mark.parametrize(("line", "error"), XSETID_ERRORS, ids=[line for line, _ in XSETID_ERRORS])
def test_xsetid_checks_its_words_before_the_key(pair: Pair, line: str, error: bytes) -> None:
    assert pair.say(line) == error
    fill(pair, "s", ["1-1"])
    before = counters(pair, "s")
    assert pair.say(line) == error
    assert counters(pair, "s") == before


def test_xsetid_needs_the_key(pair: Pair) -> None:
    assert run(pair, "XSETID s 5-1 ENTRIESADDED 5 MAXDELETEDID 1-1") == NO_SUCH_KEY
    assert run(pair, "EXISTS s") == b":0\r\n"


def test_xsetid_sets_what_is_given(pair: Pair) -> None:
    fill(pair, "s", ["1-1", "2-1"])
    assert run(pair, "XSETID s 9-9 ENTRIESADDED 100 MAXDELETEDID 7-7") == OK
    state = counters(pair, "s")
    assert (state["last-generated-id"], state["entries-added"], state["max-deleted-entry-id"]) == ("9-9", "100", "7-7")
    assert run(pair, "XSETID s 10-1") == OK
    state = counters(pair, "s")
    assert (state["last-generated-id"], state["entries-added"], state["max-deleted-entry-id"]) == ("10-1", "100", "7-7")
    # it can be lowered, but not cleared
    assert run(pair, "XSETID s 10-1 MAXDELETEDID 3-3") == OK
    assert run(pair, "XSETID s 10-1 MAXDELETEDID 0-0") == OK
    assert counters(pair, "s")["max-deleted-entry-id"] == "3-3"
    assert run(pair, "XSETID s 10-2 maxdeletedid 4-4 entriesadded 7 maxdeletedid 5-5 entriesadded 8") == OK
    state = counters(pair, "s")
    assert (state["entries-added"], state["max-deleted-entry-id"]) == ("8", "5-5")
    assert run(pair, "XADD s 10-2 f v") == TOO_SMALL
    assert run(pair, "XADD s 10-* f v") == b"$4\r\n10-3\r\n"


def test_xsetid_below_the_top_item_is_refused_while_it_lives(pair: Pair) -> None:
    fill(pair, "s", ["1-1", "5-5"])
    assert run(pair, "XSETID s 5-4") == SETID_TOP
    assert run(pair, "XSETID s 5-4 ENTRIESADDED 1") == SETID_TOP
    assert run(pair, "XSETID s 5-5 ENTRIESADDED 1") == SETID_LENGTH
    assert run(pair, "XSETID s 5-5 ENTRIESADDED 2") == OK
    run(pair, "XTRIM s MAXLEN 0")
    # an empty stream may be set back, and needs no entries
    assert run(pair, "XSETID s 0-5 ENTRIESADDED 0") == OK
    assert run(pair, "XADD s 0-6 f v") == b"$3\r\n0-6\r\n"
    assert ids(pair) == [b"0-6"]
    counters(pair, "s")


def test_xsetid_may_lower_the_last_id_when_the_tail_was_deleted(client: RawClient) -> None:
    for entry_id in ("1-1", "2-1", "5-5"):
        client.ask("XADD", "s", entry_id, "f", "v")
    client.ask("XDEL", "s", "5-5")
    # so since Redis 7.2; 7.0 does not look at deleted ids
    assert client.ask("XSETID", "s", "2-1") == SETID_DELETED
    assert client.ask("XSETID", "s", "2-1", "MAXDELETEDID", "1-1") == SETID_DELETED
    # below the top as well: the first complaint is about what was deleted
    assert client.ask("XSETID", "s", "1-0") == SETID_DELETED
    assert client.ask("XSETID", "s", "9-9", "MAXDELETEDID", "1-1") == OK
    assert client.ask("XSETID", "s", "1-5") == SETID_TOP
    assert client.ask("XSETID", "s", "2-1") == OK
    assert client.ask("XADD", "s", "2-2", "f", "v") == b"$3\r\n2-2\r\n"
    assert client.ask("XADD", "s", "5-5", "f", "v") == b"$3\r\n5-5\r\n"
    assert info(client, "s")[b"length"] == b"4"


def test_entries_appended_below_what_was_trimmed_are_found(pair: Pair) -> None:
    fill(pair, "s", range(1, 601))
    run(pair, "XTRIM s MAXLEN 0; XSETID s 1-5")
    fill(pair, "s", ["1-6", "50-0", "700-0"])
    assert ids(pair) == [b"1-6", b"50-0", b"700-0"]
    assert run(pair, "XDEL s 50-0") == b":1\r\n"
    counters(pair, "s")


# -- the log -----------------------------------------------------------------------------------------------------------

LOGGED = [
    # ids are those that were made, trims are exact and stand there only when something went
    ("XADD s 5 f v", ["XADD s 5-0 f v"]),
    ("XADD s 5-* f v", ["XADD s 5-0 f v"]),
    ("XADD s NOMKSTREAM MAXLEN ~ 1000 LIMIT 5 5-1 f v", ["XADD s 5-1 f v"]),
    ("XADD s MAXLEN 2 5-1 f v", ["XADD s MAXLEN = 2 5-1 f v"]),
    ("XADD s MINID 2 5-1 f v", ["XADD s MINID = 2-0 5-1 f v"]),
    ("XADD s MAXLEN 100 5-1 f v", ["XADD s 5-1 f v"]),
    ("XADD s MAXLEN 0 5-1 f v", ["XADD s MAXLEN = 0 5-1 f v"]),
    ("XADD none NOMKSTREAM 5-1 f v", []),
    ("XDEL s 1-0 9-9 2-0 1-0", ["XDEL s 1-0 2-0"]),
    ("XDEL s 1 002", ["XDEL s 1-0 2-0"]),
    ("XDEL s 9-9", []),
    ("XDEL none 1-1", []),
    ("XTRIM s MAXLEN 2", ["XTRIM s MAXLEN = 2"]),
    ("XTRIM s MINID 2", ["XTRIM s MINID = 2-0"]),
    ("XTRIM s MAXLEN 4", []),
    ("XTRIM s MINID 1", []),
    ("XTRIM s MAXLEN ~ 2", []),
    ("XTRIM s MINID ~ 9", ["XTRIM s MINID = 18446744073709551615-18446744073709551615"]),
    ("XTRIM s MAXLEN ~ 0 LIMIT 2", []),
    ("XTRIM none MAXLEN 0", []),
    ("XSETID s 9-9", ["XSETID s 9-9"]),
    ("XSETID s 9 MAXDELETEDID 007 ENTRIESADDED 12", ["XSETID s 9-0 ENTRIESADDED 12 MAXDELETEDID 7-0"]),
    ("XLEN s", []),
]


@pytest.mark.parametrize(("line", "logged"), LOGGED, ids=[line for line, _ in LOGGED])
def test_the_log_has_the_effect_in_its_shortest_form(
    client: RawClient, server: RiverbedServer, line: str, logged: list[str]
) -> None:
    client.pipeline([("XADD", "s", f"{number}-0", "f", "v") for number in range(1, 5)])
    tail = LogTail(server.directory)
    assert not client.ask(*line.split()).startswith(b"-")
    assert tail.lines() == [words.encode() for words in logged]


def test_an_approximate_trim_is_logged_with_the_length_it_left(client: RawClient, server: RiverbedServer) -> None:
    client.pipeline([("XADD", "s", f"{number}-0", "f", "v") for number in range(1, 251)])
    tail = LogTail(server.directory)
    assert client.ask("XTRIM", "s", "MAXLEN", "~", "120") == b":100\r\n"
    assert client.ask("XADD", "s", "MINID", "~", "201", "251-0", "f", "v") == b"$5\r\n251-0\r\n"
    assert tail.lines() == [b"XTRIM s MAXLEN = 150", b"XADD s MINID = 201-0 251-0 f v"]


def test_an_auto_id_is_logged_as_made(client: RawClient, server: RiverbedServer) -> None:
    tail = LogTail(server.directory)
    made = parse(client.ask("XADD", "s", "*", "f", "v")).text
    assert tail.lines() == [b"XADD s %b f v" % made]


def test_the_command_in_lower_case_is_logged_like_the_other(client: RawClient, server: RiverbedServer) -> None:
    tail = LogTail(server.directory)
    client.ask("xadd", "s", "1-1", "f", "v")
    client.ask("xAdD", "s", "1-2", "f", "v")
    assert tail.lines() == [b"XADD s 1-1 f v", b"XADD s 1-2 f v"]


def test_what_was_written_survives_a_kill(server: RiverbedServer, client: RawClient) -> None:
    client.pipeline([("XADD", "s", f"{number}-0", "f", "v") for number in range(1, 501)])
    for line in (
        *("XDEL s 3-0 250-0 500-0", "XTRIM s MAXLEN ~ 390", "XADD s MAXLEN 300 600-1 f v", "XTRIM s MINID ~ 350"),
        *("XSETID s 700-7 ENTRIESADDED 9000 MAXDELETEDID 600-0", "XADD t NOMKSTREAM * f v", "XADD u MAXLEN 0 5-* f v"),
    ):
        client.ask(*line.split())
    before = [client.ask("XINFO", "STREAM", key, "FULL", "COUNT", 0) for key in ("s", "u")]
    digest = client.ask("DEBUG", "DIGEST")
    server.kill()
    server.start()
    with server.client() as again:
        assert again.ask("DEBUG", "DIGEST") == digest
        assert [again.ask("XINFO", "STREAM", key, "FULL", "COUNT", 0) for key in ("s", "u")] == before


def test_after_a_deletion_that_empties_the_last_node_entries_go_into_the_node_before(pair: Pair) -> None:
    run(pair, "XADD s 1-1 f v")
    pair.ask("XADD", "s", "2-1", "f", "x" * 5000)
    run(pair, "XDEL s 2-1; XADD s 3-1 f v; XADD s 4-1 f v")
    assert counters(pair, "s")["radix-tree-keys"] == "1"
    fill(pair, "t", range(1, 203))
    run(pair, "XDEL t 201-0 202-0; XDEL t 150-0; XADD t 203-0 f v; XTRIM t MAXLEN ~ 101; XTRIM t MAXLEN ~ 100")
    pair.ask("XDEL", "t", *[f"{number}-0" for number in range(120, 204)])
    run(pair, "XADD t 204-0 f v; XADD t 205-0 f v; XTRIM t MINID ~ 205-0")
    assert counters(pair, "t")["radix-tree-keys"] == "1"
    assert ids(pair, "t")[-2:] == [b"204-0", b"205-0"]


@pytest.mark.parametrize("line", ["XTRIM s MAXLEN ~ 0", f"XADD s MAXLEN ~ 0 {MAX}-{MAX} f v"])
def test_a_trim_of_everything_is_replayed_where_the_largest_id_was_there(tmp_path: Path, line: str) -> None:
    product = Product(tmp_path / "store", HandClock(), node_max_entries=2)
    product.run("XADD", "s", "1-0", "f", "v")
    product.run("XADD", "s", "5-0", "f", "v")
    if line.startswith("XTRIM"):
        product.run("XADD", "s", f"{MAX}-{MAX}", "f", "v")
    product.run("XDEL", "s", "5-0")
    product.run("XTRIM", "s", "MINID", "=", 3)
    product.run(*line.split())
    assert product.run("XLEN", "s") == 0
    product.kill()
    assert product.run("XLEN", "s") == 0
    product.close()


def test_a_trim_of_nodes_without_entries_is_replayed_beside_the_largest_id(tmp_path: Path) -> None:
    product = Product(tmp_path / "store", HandClock(), node_max_entries=2)
    for entry_id in ("1-0", "2-0", "3-0", "4-0", f"{MAX}-{MAX}"):
        product.run("XADD", "s", entry_id, "f", "v")
    product.run("XDEL", "s", "2-0", "3-0", "4-0", f"{MAX}-{MAX}")
    product.run("XTRIM", "s", "MINID", "=", 2)
    product.run("XTRIM", "s", "MINID", "~", 3)
    found = product.run("XINFO", "STREAM", "s")
    product.kill()
    assert product.run("XINFO", "STREAM", "s") == found
    product.close()
