"""XRANGE, XREVRANGE and XREAD without waiting; waiting is in test_blocking.py.

What redis-server 7.0 knows is compared with it; `+`, MAXCOUNT and MAXSIZE are newer.
"""

from __future__ import annotations

import re
import socket

import pytest

from tests.support.pair import Pair
from tests.support.raw import Node, RawClient, parse
from tests.support.rows import assert_same_row
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

SYNTAX = b"-ERR syntax error\r\n"
NOT_INTEGER = b"-ERR value is not an integer or out of range\r\n"
INVALID_ID = b"-ERR Invalid stream ID specified as stream command argument\r\n"
NULL_ARRAY = b"*-1\r\n"
EMPTY = b"*0\r\n"
MAX = 2**64 - 1
LONG = 50_000
# The ID that begins an entry, where no field and no value looks like one.
ID = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n")


def entry(entry_id: str | bytes, *words: str) -> bytes:
    """One entry as it is sent; `f v` unless told otherwise."""
    entry_id = entry_id if isinstance(entry_id, bytes) else entry_id.encode()
    fields = b"".join(b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words or ("f", "v"))
    return b"*2\r\n$%d\r\n%b\r\n*%d\r\n%b" % (len(entry_id), entry_id, len(words) or 2, fields)


def entries(*entry_ids: str | bytes) -> bytes:
    return b"*%d\r\n" % len(entry_ids) + b"".join(map(entry, entry_ids))


def fill(pair: Pair, key: str, *entry_ids: str) -> None:
    commands = [("XADD", key, entry_id, "f", "v") for entry_id in entry_ids]
    assert pair.ours.pipeline(commands) == pair.theirs.pipeline(commands)


def fill_ours(client: RawClient, key: str, *entry_ids: str) -> None:
    client.pipeline([("XADD", key, entry_id, "f", "v") for entry_id in entry_ids])


def ids_of(node: Node) -> list[bytes]:
    return [child.children[0].text for child in node.children or () if child.children]


@pytest.mark.parametrize("name", ["XRANGE", "XREVRANGE", "XREAD"])
def test_flags_arity_and_keys_are_those_of_redis(pair: Pair, name: str) -> None:
    assert_same_row(pair, name)


@pytest.mark.parametrize("line", ["XRANGE", "XRANGE s", "XRANGE s -", "XREVRANGE s +", "XREAD", "XREAD STREAMS s"])
def test_arity_is_checked_first(pair: Pair, line: str) -> None:
    name = line.split()[0].lower()
    assert pair.say(line) == f"-ERR wrong number of arguments for '{name}' command\r\n".encode()


@pytest.mark.parametrize("line", ["XREAD STREAMS s 0", "XREAD COUNT 5 STREAMS a b 0 0", "XREAD BLOCK 5 STREAMS a 0"])
def test_the_keys_of_a_read_are_the_first_half_after_streams(pair: Pair, line: str) -> None:
    pair.ask("COMMAND", "GETKEYS", *line.split())


# -- XRANGE and XREVRANGE ----------------------------------------------------------------------------------------------

EDGES = [
    *("-", "+", "0", "0-0", "1", "1-1", "1-2", "2", "2-0", "3-5", "4", f"{MAX}", f"{MAX}-{MAX}", "(0", "(1", "(1-1"),
    *("(1-2", "(2", "(3-5", "(3-4", "007-01", f"5-{MAX}", f"(5-{MAX}", f"1-{MAX}"),
]


@pytest.mark.parametrize("start", EDGES)
def test_every_pair_of_edges_selects_what_redis_selects(pair: Pair, start: str) -> None:
    fill(pair, "s", "0-1", "1-1", "1-2", "2-0", "2-7", "3-5", "5-0", f"5-{MAX}", "6-0", f"{MAX}-{MAX}")
    pair.say("XDEL s 2-7")
    for end in EDGES:
        forward = pair.ask("XRANGE", "s", start, end)
        backward = pair.ask("XREVRANGE", "s", end, start)
        if not forward.startswith(b"-"):
            assert ids_of(parse(forward)) == ids_of(parse(backward))[::-1]
        pair.ask("XRANGE", "s", start, end, "COUNT", 2)
        pair.ask("XREVRANGE", "s", end, start, "COUNT", 2)


def test_an_exclusive_end_with_an_incomplete_id_excludes_only_the_last_of_its_millisecond(pair: Pair) -> None:
    fill(pair, "s", "5-0", "5-1", f"5-{MAX - 1}", f"5-{MAX}", "6-0")
    assert pair.say("XRANGE s - (5") == entries("5-0", "5-1", f"5-{MAX - 1}")
    assert pair.say("XRANGE s (5 +") == entries("5-1", f"5-{MAX - 1}", f"5-{MAX}", "6-0")
    assert pair.say("XREVRANGE s (5 -") == entries(f"5-{MAX - 1}", "5-1", "5-0")


def test_a_start_above_the_end_is_empty_and_no_error(pair: Pair) -> None:
    fill(pair, "s", "1-1", "2-1")
    for line in ("XRANGE s 2 1", "XRANGE s + -", "XREVRANGE s - +", "XREVRANGE s 1 2", "XRANGE s (1-1 (1-2"):
        assert pair.say(line) == EMPTY


@pytest.mark.parametrize("edge", ["x", "", "5-", "(", "(-", "(+", "((5", "$", ">", "*", "5-*", "--", "(x", "5-5-5"])
def test_a_malformed_edge_is_refused_before_the_key_is_looked_up(pair: Pair, edge: str) -> None:
    for _ in range(2):
        assert pair.ask("XRANGE", "s", edge, "+") == INVALID_ID
        assert pair.ask("XRANGE", "s", "-", edge) == INVALID_ID
        assert pair.ask("XREVRANGE", "s", edge, "-") == INVALID_ID
        assert pair.ask("XREVRANGE", "s", "+", edge) == INVALID_ID
        fill(pair, "s", "1-1")


def test_nothing_lies_beyond_the_last_and_before_the_first_id(pair: Pair) -> None:
    after_last, before_first = f"({MAX}-{MAX}", "(0-0"
    assert pair.ask("XRANGE", "s", after_last, "+") == b"-ERR invalid start ID for the interval\r\n"
    assert pair.ask("XRANGE", "s", "-", before_first) == b"-ERR invalid end ID for the interval\r\n"
    # the start is parsed before the end, and both before COUNT
    assert pair.ask("XRANGE", "s", after_last, "x", "COUNT", "x") == b"-ERR invalid start ID for the interval\r\n"
    pair.ask("XREVRANGE", "s", "x", after_last)
    pair.ask("XREVRANGE", "s", before_first, "x")
    assert pair.ask("XRANGE", "s", "x", "x", "COUNT", "x") == INVALID_ID
    assert pair.ask("XRANGE", "s", f"({MAX}-{MAX - 1}", "+") == EMPTY
    assert pair.ask("XRANGE", "s", f"({MAX}", "+") == EMPTY


def test_count_zero_is_a_null_array_on_a_stream_and_empty_on_a_missing_key(pair: Pair) -> None:
    for name, edges in (("XRANGE", ("-", "+")), ("XREVRANGE", ("+", "-"))):
        pair.say("DEL s")
        for count in (0, -1, -(2**63)):
            assert pair.ask(name, "s", *edges, "COUNT", count) == EMPTY
        fill(pair, "s", "1-1")
        for count in (0, -1, -(2**63)):
            assert pair.ask(name, "s", *edges, "COUNT", count) == NULL_ARRAY
        pair.say("XDEL s 1-1")
        assert pair.ask(name, "s", *edges, "COUNT", 0) == NULL_ARRAY
        assert pair.ask(name, "s", *edges) == EMPTY


@pytest.mark.parametrize(
    ("words", "error"),
    [
        *(("COUNT", SYNTAX), ("WHAT", SYNTAX), ("WHAT 5", SYNTAX), ("COUNT 5 COUNT", SYNTAX), ("5", SYNTAX)),
        *(("COUNT x", NOT_INTEGER), ("COUNT 1.5", NOT_INTEGER), ("COUNT 9223372036854775808", NOT_INTEGER)),
        *(("COUNT 1 WHAT", SYNTAX), ("COUNT x WHAT", NOT_INTEGER), ("LIMIT 0 5", SYNTAX)),
    ],
)
def test_only_count_is_taken(pair: Pair, words: str, error: bytes) -> None:
    for _ in range(2):
        assert pair.say(f"XRANGE s - + {words}") == error
        assert pair.say(f"XREVRANGE s + - {words}") == error
        fill(pair, "s", "1-1")


def test_of_repeated_counts_the_last_wins(pair: Pair) -> None:
    fill(pair, "s", "1-1", "2-1", "3-1")
    assert pair.say("XRANGE s - + COUNT 1 count 2") == entries("1-1", "2-1")
    assert pair.say("XREVRANGE s + - COUNT 0 COUNT 1") == entries("3-1")
    assert pair.say("XRANGE s - + COUNT 2 COUNT 0") == NULL_ARRAY
    assert pair.say("XRANGE s - + COUNT 9223372036854775807") == entries("1-1", "2-1", "3-1")


def test_field_lists_stay_flat_arrays_in_resp3(pair: Pair) -> None:
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", 3)
    pair.say("XADD s 1-1 f v g w")
    assert pair.say("XRANGE s - +") == b"*1\r\n" + entry("1-1", "f", "v", "g", "w")
    assert pair.say("XREVRANGE s + -") == b"*1\r\n" + entry("1-1", "f", "v", "g", "w")
    assert pair.say("XRANGE s - + COUNT 0") == b"_\r\n"
    assert pair.say("XRANGE none - + COUNT 0") == EMPTY


def test_ranges_skip_what_was_deleted_and_trimmed(pair: Pair) -> None:
    fill(pair, "s", *(f"{number}-{number % 3}" for number in range(1, 601)))
    pair.ask("XDEL", "s", *(f"{number}-{number % 3}" for number in range(1, 601, 7)))
    pair.say("XTRIM s MAXLEN 400")
    pair.say("XTRIM s MINID ~ 300")
    for start in ("-", "1", "100", "299-2", "300", "301", "450-1", "(450-0", "600", "+"):
        for end in ("-", "250", "300", "450", "(451", "599", "+"):
            for count in ((), ("COUNT", 1), ("COUNT", 17), ("COUNT", 100_000)):
                pair.ask("XRANGE", "s", start, end, *count)
                pair.ask("XREVRANGE", "s", end, start, *count)


def test_a_stream_is_read_in_slices_from_both_ends(pair: Pair) -> None:
    fill(pair, "s", *(f"{number}-1" for number in range(1, 301)))
    for name, start in (("XRANGE", "-"), ("XREVRANGE", "+")):
        seen: list[bytes] = []
        edge = start
        while True:
            words = (edge, "+") if name == "XRANGE" else (edge, "-")
            slice_ids = ids_of(pair.tree(name, "s", *words, "COUNT", 13))
            if not slice_ids:
                break
            seen += slice_ids
            edge = "(" + slice_ids[-1].decode()
        assert len(seen) == 300
        assert len(set(seen)) == 300


# -- XREAD -------------------------------------------------------------------------------------------------------------

UNBALANCED = b"-ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified.\r\n"
ONLY_IN_GROUPS = b"-ERR The %b option is only supported by XREADGROUP. You called XREAD instead.\r\n"
NEW = b"-ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.\r\n"

XREAD_ERRORS = [
    ("XREAD WHAT STREAMS s 0", SYNTAX),
    ("XREAD s 0 0", SYNTAX),
    ("XREAD COUNT 5 s 0", SYNTAX),
    ("XREAD COUNT 5 STREAMS", SYNTAX),
    ("XREAD BLOCK 5 STREAMS", SYNTAX),
    ("XREAD COUNT 5 COUNT", SYNTAX),
    ("XREAD COUNT 5 BLOCK", SYNTAX),
    ("XREAD COUNT x STREAMS s 0", NOT_INTEGER),
    ("XREAD COUNT 1.0 STREAMS s 0", NOT_INTEGER),
    ("XREAD BLOCK x STREAMS s 0", b"-ERR timeout is not an integer or out of range\r\n"),
    ("XREAD BLOCK 1.5 STREAMS s 0", b"-ERR timeout is not an integer or out of range\r\n"),
    ("XREAD BLOCK -1 STREAMS s 0", b"-ERR timeout is negative\r\n"),
    ("XREAD GROUP g c STREAMS s 0", ONLY_IN_GROUPS % b"GROUP"),
    ("XREAD NOACK STREAMS s 0", ONLY_IN_GROUPS % b"NOACK"),
    ("XREAD STREAMS s >", NEW),
    ("XREAD STREAMS s x", INVALID_ID),
    ("XREAD STREAMS s -", INVALID_ID),
    ("XREAD STREAMS s (5", INVALID_ID),
    ("XREAD STREAMS s *", INVALID_ID),
    ("XREAD STREAMS a b x >", INVALID_ID),
    ("XREAD STREAMS a b > x", NEW),
    ("XREAD STREAMS STREAMS x", INVALID_ID),
]


@pytest.mark.parametrize(("line", "error"), XREAD_ERRORS, ids=[line for line, _ in XREAD_ERRORS])
def test_xread_refuses_as_redis_does(pair: Pair, line: str, error: bytes) -> None:
    for _ in range(2):
        assert pair.say(line) == error
        fill(pair, "s", "1-1")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("XREAD STREAMS a b 0", UNBALANCED),
        ("XREAD COUNT 1 STREAMS a", UNBALANCED),
        ("XREAD COUNT x STREAMS a b 0", NOT_INTEGER),
        ("XREAD CLAIM 5 STREAMS a 0", ONLY_IN_GROUPS % b"CLAIM"),
        ("XREAD CLAIM x STREAMS a 0", ONLY_IN_GROUPS % b"CLAIM"),
        ("XREAD BLOCK 9223372036854775807 STREAMS a 0", b"-ERR timeout is out of range\r\n"),
        ("XREAD MAXCOUNT 0 STREAMS a 0", b"-ERR MAXCOUNT must be a positive integer\r\n"),
        ("XREAD MAXCOUNT -1 STREAMS a 0", b"-ERR MAXCOUNT must be a positive integer\r\n"),
        ("XREAD MAXCOUNT x STREAMS a 0", b"-ERR MAXCOUNT must be a positive integer\r\n"),
        ("XREAD MAXSIZE 0 STREAMS a 0", b"-ERR MAXSIZE must be a positive integer\r\n"),
        ("XREAD MAXSIZE -1 STREAMS a 0", b"-ERR MAXSIZE must be a positive integer\r\n"),
        ("XREAD MAXSIZE x STREAMS a 0", b"-ERR MAXSIZE must be a positive integer\r\n"),
        ("XREAD COUNT 5 MAXCOUNT 4 STREAMS a 0", b"-ERR MAXCOUNT must be greater than or equal to COUNT\r\n"),
        ("XREAD MAXCOUNT 4 COUNT 5 STREAMS a 0", b"-ERR MAXCOUNT must be greater than or equal to COUNT\r\n"),
        ("XREAD MAXCOUNT", b"-ERR wrong number of arguments for 'xread' command\r\n"),
        ("XREAD COUNT 1 MAXCOUNT", SYNTAX),
        ("XREAD COUNT 1 MAXSIZE", SYNTAX),
    ],
)
def test_xread_refuses_as_newer_servers_do(client: RawClient, line: str, error: bytes) -> None:
    assert client.ask(*line.split()) == error


def test_nothing_to_read_is_a_null_array(pair: Pair) -> None:
    assert pair.say("XREAD STREAMS s 0") == NULL_ARRAY
    fill(pair, "s", "1-1")
    for entry_id in ("1-1", "1-2", "2", "$", f"{MAX}-{MAX}"):
        assert pair.ask("XREAD", "STREAMS", "s", entry_id) == NULL_ARRAY
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", 3)
    assert pair.say("XREAD STREAMS s $") == b"_\r\n"


def test_entries_with_a_greater_id_are_read(pair: Pair) -> None:
    fill(pair, "s", "1-1", "1-2", "2-0")
    assert pair.say("XREAD STREAMS s 1-1") == b"*1\r\n*2\r\n$1\r\ns\r\n" + entries("1-2", "2-0")
    assert pair.say("XREAD STREAMS s 1") == b"*1\r\n*2\r\n$1\r\ns\r\n" + entries("1-1", "1-2", "2-0")
    assert pair.say("xread count 1 streams s 0-0") == b"*1\r\n*2\r\n$1\r\ns\r\n" + entries("1-1")
    for count in (0, -1, -(2**63), 3, 2**63 - 1):
        assert ids_of(_only(pair.tree("XREAD", "COUNT", count, "STREAMS", "s", 0))) == [b"1-1", b"1-2", b"2-0"]


def _only(reply: Node) -> Node:
    """The entries of the one stream in a RESP2 reply."""
    (stream,) = reply.children or ()
    assert stream.children is not None
    return stream.children[1]


def test_the_top_level_is_a_map_in_resp3(pair: Pair) -> None:
    fill(pair, "a", "1-1")
    fill(pair, "b", "2-1")
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", 3)
    assert pair.say("XREAD STREAMS a b 0 0") == (
        b"%2\r\n$1\r\na\r\n" + entries("1-1") + b"$1\r\nb\r\n" + entries("2-1")
    )


def test_streams_come_in_the_order_asked_and_those_with_nothing_are_omitted(pair: Pair) -> None:
    for key in ("a", "b", "c", "empty"):
        fill(pair, key, "1-1", "2-1", "3-1")
    pair.say("XTRIM empty MAXLEN 0")
    reply = pair.say("XREAD COUNT 1 STREAMS c none a empty b 0 0 3-1 0 1-1")
    assert reply == (b"*2\r\n*2\r\n$1\r\nc\r\n" + entries("1-1") + b"*2\r\n$1\r\nb\r\n" + entries("2-1"))


def test_a_key_listed_twice_appears_twice(pair: Pair) -> None:
    fill(pair, "s", "1-1", "2-1")
    stream = b"*2\r\n$1\r\ns\r\n"
    assert pair.say("XREAD STREAMS s s 0 1-1") == b"*2\r\n" + stream + entries("1-1", "2-1") + stream + entries("2-1")
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", 3)
    assert pair.say("XREAD STREAMS s s 0 1-1").startswith(b"%2\r\n")


def test_options_are_repeatable_and_the_last_wins(pair: Pair) -> None:
    fill(pair, "s", "1-1", "2-1", "3-1")
    assert ids_of(_only(pair.tree("XREAD", "COUNT", 1, "COUNT", 2, "STREAMS", "s", 0))) == [b"1-1", b"2-1"]
    assert ids_of(_only(pair.tree("XREAD", "COUNT", 1, "BLOCK", 5, "BLOCK", 7, "COUNT", 0, "STREAMS", "s", 0))) == [
        *(b"1-1", b"2-1", b"3-1")
    ]


def test_keys_may_be_named_like_options(pair: Pair) -> None:
    fill(pair, "STREAMS", "1-1")
    fill(pair, "COUNT", "1-1")
    assert ids_of(_only(pair.tree("XREAD", "STREAMS", "STREAMS", "0"))) == [b"1-1"]
    pair.say("XREAD STREAMS COUNT STREAMS 0 0")


def test_deleted_entries_are_not_waiting_to_be_read(pair: Pair) -> None:
    fill(pair, "s", "1-1", "2-1", "3-1")
    pair.say("XDEL s 3-1 2-1")
    assert pair.say("XREAD STREAMS s 1-1") == NULL_ARRAY
    assert pair.say("XREAD STREAMS s 0") == b"*1\r\n*2\r\n$1\r\ns\r\n" + entries("1-1")


def test_the_largest_id_is_read_after_the_one_before_it(pair: Pair) -> None:
    fill(pair, "s", f"{MAX}-{MAX}")
    assert ids_of(_only(pair.tree("XREAD", "STREAMS", "s", f"{MAX}-{MAX - 1}"))) == [f"{MAX}-{MAX}".encode()]


# -- `+` ---------------------------------------------------------------------------------------------------------------


def test_plus_is_the_last_live_entry_whatever_count_says(client: RawClient) -> None:
    fill_ours(client, "s", "1-1", "2-0", "3-0", "3-1")
    expected = b"*1\r\n*2\r\n$1\r\ns\r\n" + entries("3-1")
    for words in ((), ("COUNT", 10), ("COUNT", 1), ("COUNT", 0), ("BLOCK", 10)):
        assert client.ask("XREAD", *words, "STREAMS", "s", "+") == expected
    client.ask("XDEL", "s", "3-1")
    assert client.ask("XREAD", "STREAMS", "s", "+") == b"*1\r\n*2\r\n$1\r\ns\r\n" + entries("3-0")
    client.ask("XDEL", "s", "3-0")
    # the entry before lies in another millisecond
    assert client.ask("XREAD", "STREAMS", "s", "+") == b"*1\r\n*2\r\n$1\r\ns\r\n" + entries("2-0")


def test_plus_on_an_empty_or_missing_stream_reads_nothing(client: RawClient) -> None:
    assert client.ask("XREAD", "STREAMS", "s", "+") == NULL_ARRAY
    fill_ours(client, "s", "1-1")
    client.ask("XDEL", "s", "1-1")
    assert client.ask("XREAD", "STREAMS", "s", "+") == NULL_ARRAY


def test_plus_and_dollar_and_ids_go_together(client: RawClient) -> None:
    for key in ("a", "b", "c"):
        fill_ours(client, key, "1-1", "2-1", "3-1")
    reply = client.ask("XREAD", "STREAMS", "a", "b", "c", "+", "$", "1-1")
    assert reply == b"*2\r\n*2\r\n$1\r\na\r\n" + entries("3-1") + b"*2\r\n$1\r\nc\r\n" + entries("2-1", "3-1")


# -- MAXCOUNT and MAXSIZE ----------------------------------------------------------------------------------------------


def read_counts(client: RawClient, *words: str | int) -> list[int]:
    """How many entries each stream of the reply has."""
    reply = client.tree("XREAD", *words)
    return [len((stream.children or ())[1].children or ()) for stream in reply.children or ()]


def test_maxcount_is_for_all_streams_together(client: RawClient) -> None:
    for key in ("a", "b", "c"):
        fill_ours(client, key, *(f"{number}-0" for number in range(1, 6)))
    streams = ("STREAMS", "a", "b", "c", 0, 0, 0)
    assert read_counts(client, "MAXCOUNT", 7, *streams) == [5, 2]
    assert read_counts(client, "MAXCOUNT", 5, *streams) == [5]
    assert read_counts(client, "MAXCOUNT", 1, *streams) == [1]
    assert read_counts(client, "MAXCOUNT", 100, *streams) == [5, 5, 5]
    assert read_counts(client, "COUNT", 2, "MAXCOUNT", 5, *streams) == [2, 2, 1]
    assert read_counts(client, "COUNT", 3, "MAXCOUNT", 3, *streams) == [3]
    assert read_counts(client, "COUNT", 0, "MAXCOUNT", 6, *streams) == [5, 1]
    assert read_counts(client, "MAXCOUNT", 2, "MAXCOUNT", 6, *streams) == [5, 1]
    assert read_counts(client, "MAXCOUNT", 6, "STREAMS", "none", "a", "b", 0, 3, 0) == [2, 4]


def test_maxsize_counts_reply_bytes_and_one_entry_always_fits(client: RawClient) -> None:
    for key in ("a", "b"):
        for number in range(1, 11):
            client.ask("XADD", key, f"{number}-0", "f", "x" * 1000)
    streams = ("STREAMS", "a", "b", 0, 0)
    assert read_counts(client, "MAXSIZE", 1, *streams) == [1]
    assert read_counts(client, "MAXSIZE", 100_000, *streams) == [10, 10]
    for limit in (1500, 5000, 9000, 12_000, 15_000):
        reply = client.ask("XREAD", "MAXSIZE", limit, *streams)
        # it is asked before each entry: at most one is begun below the limit and ends above it
        assert limit - 1100 < len(reply) < limit + 1100
    assert read_counts(client, "MAXSIZE", 100_000, "MAXCOUNT", 3, *streams) == [3]
    assert read_counts(client, "MAXSIZE", 1, "MAXCOUNT", 3, *streams) == [1]
    assert read_counts(client, "MAXSIZE", 4000, "COUNT", 2, *streams) == [2, 2]


def test_a_cap_leaves_an_otherwise_empty_reply_nil(client: RawClient) -> None:
    fill_ours(client, "s", "1-1")
    assert client.ask("XREAD", "MAXSIZE", 1, "MAXCOUNT", 1, "STREAMS", "s", "none", "$", 0) == NULL_ARRAY


# -- replies that are sent in pieces -----------------------------------------------------------------------------------


def fill_long(client: RawClient, count: int = LONG) -> None:
    """`count` entries with growing IDs, some milliseconds with many and most with one."""
    step = 2000
    for start in range(0, count, step):
        client.pipeline(
            [("XADD", "s", f"{1 + number // 3}-{number % 3}", "n", number) for number in range(start, start + step)]
        )


def sliced(client: RawClient, name: str, start: str, end: str) -> bytes:
    """The reply to a whole range, put together from slices."""
    count, parts, edge = 0, [], start
    while True:
        head, _, body = client.ask(name, "s", edge, end, "COUNT", 1000).partition(b"\r\n")
        if head == b"*0":
            return b"*%d\r\n" % count + b"".join(parts)
        count += int(head[1:])
        parts.append(body)
        edge = "(" + ID.findall(body)[-1].decode()


@pytest.mark.slow
def test_long_ranges_equal_the_same_read_in_slices(client: RawClient) -> None:
    fill_long(client)
    client.ask("XDEL", "s", *(f"{number}-1" for number in range(5, 16_000, 11)))
    client.ask("XTRIM", "s", "MAXLEN", 47_000)
    whole = sliced(client, "XRANGE", "-", "+")
    assert client.ask("XRANGE", "s", "-", "+") == whole
    assert client.ask("XRANGE", "s", "-", "+", "COUNT", 2**63 - 1) == whole
    backward = client.ask("XREVRANGE", "s", "+", "-")
    assert backward == sliced(client, "XREVRANGE", "+", "-")
    for start, end in (("2000", "15000-1"), ("(3000-1", "(16000")):
        assert client.ask("XRANGE", "s", start, end) == sliced(client, "XRANGE", start, end)
        assert client.ask("XREVRANGE", "s", end, start) == sliced(client, "XREVRANGE", end, start)
    # COUNT cuts it off, still too long for one piece
    parts = whole.partition(b"\r\n")[2]
    counted = client.ask("XRANGE", "s", "-", "+", "COUNT", 30_000)
    assert counted.startswith(b"*30000\r\n")
    assert parts.startswith(counted.partition(b"\r\n")[2])
    # what comes behind it in the pipeline comes behind it
    replies = client.pipeline([("XRANGE", "s", "-", "+"), ("XLEN", "s"), ("XREVRANGE", "s", "+", "-"), ("PING",)])
    assert replies == [whole, b":47000\r\n", backward, b"+PONG\r\n"]
    # inside a transaction, and for XREAD, it comes at once
    assert client.pipeline([("MULTI",), ("XRANGE", "s", "-", "+"), ("EXEC",)])[-1] == b"*1\r\n" + whole
    assert client.ask("XREAD", "STREAMS", "s", 0) == b"*1\r\n*2\r\n$1\r\ns\r\n" + whole


@pytest.mark.parametrize("name", ["XRANGE", "XREVRANGE"])
def test_a_long_reply_shows_one_moment_whatever_happens_meanwhile(
    client: RawClient, server: RiverbedServer, name: str
) -> None:
    fill_long(client)
    edges = ("-", "+") if name == "XRANGE" else ("+", "-")
    # a moment ago, so in no checkpoint yet
    extra = client.ask("XADD", "s", "90000-0", "late", "entry")
    assert extra == b"$7\r\n90000-0\r\n"
    whole = sliced(client, name, *edges)
    with server.client() as reader, server.client() as other:
        reader.send(name, "s", *edges)
        # the reader takes its time; these are done long before it has seen the end
        assert reader.socket.recv(1000, socket.MSG_PEEK).startswith(b"*50001\r\n")
        other.ask("XADD", "s", "90001-0", "f", "v")
        other.ask("XDEL", "s", "90000-0", "1-1", "9000-0", "16000-2")
        other.ask("XTRIM", "s", "MAXLEN", 1000)
        other.pipeline([("XADD", "s", f"{number}-0", "f", "v") for number in range(90_002, 90_500)])
        other.ask("XTRIM", "s", "MAXLEN", 0)
        other.ask("DEL", "s")
        other.ask("XADD", "s", "5-5", "another", "stream")
        other.ask("SAVE")
        assert reader.reply() == whole
        assert reader.ask("XRANGE", "s", "-", "+") == b"*1\r\n" + entry("5-5", "another", "stream")


def test_clients_that_leave_in_the_middle_of_a_long_reply_leave_nothing_behind(
    client: RawClient, server: RiverbedServer
) -> None:
    fill_long(client)
    for name, *edges in (("XRANGE", "-", "+"), ("XREVRANGE", "+", "-")) * 5:
        with server.client() as reader:
            reader.send(name, "s", *edges)
            assert reader.socket.recv(100).startswith(b"*50000\r\n")
    until(lambda: client.info("clients")["connected_clients"] == "1", "the end of the readers")
    assert client.ask("XLEN", "s") == b":50000\r\n"
    assert client.ask("SAVE") == b"+OK\r\n"
    assert client.ask("XRANGE", "s", "-", "+", "COUNT", 1) == b"*1\r\n" + entry("1-0", "n", "0")


def test_others_are_served_while_a_long_reply_waits_for_its_reader(client: RawClient, server: RiverbedServer) -> None:
    fill_long(client)
    with server.client() as reader:
        for _ in range(3):
            reader.send("XRANGE", "s", "-", "+")
        reader.send("XADD", "t", "1-1", "f", "v")
        for _ in range(50):
            assert client.ask("PING") == b"+PONG\r\n"
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
        heads = [reader.reply().partition(b"\r\n")[0] for _ in range(3)]
        # the later ones of the pipeline are looked up when it is their turn
        assert heads[0] == b"*50000"
        assert set(heads) <= {b"*50000", b"*50001"}
        assert reader.reply() == b"$3\r\n1-1\r\n"
