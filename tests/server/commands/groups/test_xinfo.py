"""XINFO STREAM, plain and FULL, and XINFO HELP.  What it says about groups is tested with the groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.slices import SlicedCommand
from riverbed.server.protocol.replies import LongReply
from riverbed.store.streams.view import PIECE_BYTES
from riverbed.store.tables.view import View
from tests.support.in_process import HandClock, Product
from tests.support.pair import Pair
from tests.support.raw import Node, RawClient
from tests.support.rows import assert_same_row
from tests.support.servers import RiverbedServer

NO_SUCH_KEY = b"-ERR no such key\r\n"
NOT_INTEGER = b"-ERR value is not an integer or out of range\r\n"
STREAM_SYNTAX = b"-ERR unknown subcommand or wrong number of arguments for '%b'. Try XINFO HELP.\r\n"
COMMON = [
    *("length", "radix-tree-keys", "radix-tree-nodes", "last-generated-id", "max-deleted-entry-id", "entries-added"),
    *("recorded-first-entry-id", "idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added"),
    "iids-duplicates",
]
NEW = {"idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added", "iids-duplicates"}


def fill(pair: Pair, count: int) -> None:
    commands = [("XADD", "s", f"{number}-0", "f", "v") for number in range(1, count + 1)]
    assert pair.ours.pipeline(commands) == pair.theirs.pipeline(commands)


def described(client: RawClient, *words: str | int) -> dict[str, Node]:
    return {name.text.decode(): value for name, value in client.tree("XINFO", "STREAM", "s", *words).pairs()}


def compare(pair: Pair, *words: str | int) -> dict[str, Node]:
    """Our XINFO STREAM; but for what is new and for the inner nodes of a tree it is that of Redis, in its order."""
    ours, theirs = described(pair.ours, *words), described(pair.theirs, *words)
    known = {name: value for name, value in ours.items() if name not in NEW and name != "radix-tree-nodes"}
    theirs.pop("radix-tree-nodes")
    assert list(known.items()) == list(theirs.items())
    return ours


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["", "FULL", "FULL COUNT 5", "full count 0"])
def test_a_missing_key_is_an_error(pair: Pair, words: str) -> None:
    assert pair.say(f"XINFO STREAM s {words}") == NO_SUCH_KEY


@pytest.mark.parametrize(
    "words",
    ["WHAT", "FULL WHAT", "FULL COUNT", "FULL WHAT 5", "FULL COUNT 5 6", "COUNT 5", "FULL COUNT 5 COUNT 5", "5"],
)
def test_other_words_are_refused_with_the_subcommand_as_typed(pair: Pair, words: str) -> None:
    fill(pair, 1)
    assert pair.say(f"XINFO STREAM s {words}") == STREAM_SYNTAX % b"STREAM"
    assert pair.say(f"xinfo sTream s {words}") == STREAM_SYNTAX % b"sTream"


@pytest.mark.parametrize("words", ["WHAT", "FULL COUNT", "FULL COUNT x"])
def test_the_key_is_looked_up_first(pair: Pair, words: str) -> None:
    assert pair.say(f"XINFO STREAM s {words}") == NO_SUCH_KEY


@pytest.mark.parametrize("count", ["x", "1.5", "", "9223372036854775808", "+1"])
def test_count_must_be_a_number(pair: Pair, count: str) -> None:
    fill(pair, 1)
    assert pair.ask("XINFO", "STREAM", "s", "FULL", "COUNT", count) == NOT_INTEGER


def test_unknown_subcommands_are_told_as_typed(pair: Pair) -> None:
    assert pair.say("XINFO FOO") == b"-ERR unknown subcommand 'FOO'. Try XINFO HELP.\r\n"
    assert pair.say("xinfo fOo s") == b"-ERR unknown subcommand 'fOo'. Try XINFO HELP.\r\n"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        *(("XINFO", "xinfo"), ("XINFO STREAM", "xinfo|stream"), ("XINFO GROUPS", "xinfo|groups")),
        *(
            ("XINFO GROUPS s t", "xinfo|groups"),
            ("XINFO CONSUMERS s", "xinfo|consumers"),
            ("XINFO HELP x", "xinfo|help"),
        ),
    ],
)
def test_arity_is_told_with_the_full_name(pair: Pair, line: str, name: str) -> None:
    assert pair.say(line) == f"-ERR wrong number of arguments for '{name}' command\r\n".encode()


@pytest.mark.parametrize("name", ["XINFO"])
def test_flags_and_keys_are_those_of_redis(pair: Pair, name: str) -> None:
    assert_same_row(pair, name)


# -- XINFO STREAM ------------------------------------------------------------------------------------------------------


def test_the_pairs_come_in_their_order(client: RawClient) -> None:
    client.ask("XADD", "s", "1-1", "f", "v")
    assert list(described(client)) == [*COMMON, "groups", "first-entry", "last-entry"]
    assert list(described(client, "FULL")) == [*COMMON, "entries", "groups"]


def test_the_whole_answer_in_both_protocols(client: RawClient) -> None:
    client.ask("XADD", "s", "1-1", "f", "v")
    client.ask("XADD", "s", "2-0", "g", "w")
    numbers = (
        b"$6\r\nlength\r\n:2\r\n$15\r\nradix-tree-keys\r\n:1\r\n$16\r\nradix-tree-nodes\r\n:2\r\n"
        b"$17\r\nlast-generated-id\r\n$3\r\n2-0\r\n$20\r\nmax-deleted-entry-id\r\n$3\r\n0-0\r\n"
        b"$13\r\nentries-added\r\n:2\r\n$23\r\nrecorded-first-entry-id\r\n$3\r\n1-1\r\n"
        b"$13\r\nidmp-duration\r\n:100\r\n$12\r\nidmp-maxsize\r\n:100\r\n$12\r\npids-tracked\r\n:0\r\n"
        b"$12\r\niids-tracked\r\n:0\r\n$10\r\niids-added\r\n:0\r\n$15\r\niids-duplicates\r\n:0\r\n"
    )
    first = b"*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
    last = b"*2\r\n$3\r\n2-0\r\n*2\r\n$1\r\ng\r\n$1\r\nw\r\n"
    plain = numbers + b"$6\r\ngroups\r\n:0\r\n$11\r\nfirst-entry\r\n" + first + b"$10\r\nlast-entry\r\n" + last
    full = numbers + b"$7\r\nentries\r\n*2\r\n" + first + last + b"$6\r\ngroups\r\n*0\r\n"
    assert client.ask("XINFO", "STREAM", "s") == b"*32\r\n" + plain
    assert client.ask("XINFO", "STREAM", "s", "FULL") == b"*30\r\n" + full
    client.ask("HELLO", 3)
    assert client.ask("XINFO", "STREAM", "s") == b"%16\r\n" + plain
    assert client.ask("XINFO", "STREAM", "s", "FULL") == b"%15\r\n" + full


def test_groups_in_both_protocols(client: RawClient) -> None:
    client.pipeline([("XADD", "s", "1-1", "f", "v"), ("XADD", "s", "2-2", "f", "v"), ("XADD", "s", "3-3", "f", "v")])
    client.pipeline([("XGROUP", "CREATE", "s", "a\r\nb", "0"), ("XGROUP", "CREATE", "s", "", "1-1")])
    client.pipeline([("XREADGROUP", "GROUP", "a\r\nb", "c", "COUNT", 2, "STREAMS", "s", ">"), ("XDEL", "s", "2-2")])
    heads, nulls = {2: b"*12\r\n", 3: b"%6\r\n"}, {2: b"$-1\r\n", 3: b"_\r\n"}
    for resp in (2, 3):
        client.ask("HELLO", resp)
        shown = [
            b"$4\r\nname\r\n$0\r\n\r\n$9\r\nconsumers\r\n:0\r\n$7\r\npending\r\n:0\r\n"
            b"$17\r\nlast-delivered-id\r\n$3\r\n1-1\r\n$12\r\nentries-read\r\n%b$3\r\nlag\r\n%b"
            % (nulls[resp], nulls[resp]),
            b"$4\r\nname\r\n$4\r\na\r\nb\r\n$9\r\nconsumers\r\n:1\r\n$7\r\npending\r\n:2\r\n"
            b"$17\r\nlast-delivered-id\r\n$3\r\n2-2\r\n$12\r\nentries-read\r\n:2\r\n$3\r\nlag\r\n%b" % nulls[resp],
        ]
        assert client.ask("XINFO", "GROUPS", "s") == b"*2\r\n" + b"".join([heads[resp] + one for one in shown])


def test_an_empty_stream_has_no_first_and_no_last_entry(pair: Pair) -> None:
    fill(pair, 1)
    pair.say("XDEL s 1-0")
    described_now = compare(pair)
    assert described_now["first-entry"].kind == described_now["last-entry"].kind == "nil$"
    assert described_now["radix-tree-keys"].text == b"0"
    assert described_now["radix-tree-nodes"].text == b"1"
    assert described_now["recorded-first-entry-id"].text == b"0-0"
    compare(pair, "FULL")
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", 3)
    assert compare(pair)["first-entry"].kind == "_"


def test_the_longest_entries_are_those_of_redis(pair: Pair) -> None:
    for number in (1, 2):
        assert pair.ask("XADD", "s", f"{number}-1", "f", b"%d" % number * (2 << 20)) == b"$3\r\n%d-1\r\n" % number
    compare(pair)


@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize("is_emptied", [False, True])
def test_long_entries_are_sent_in_pieces_as_of_the_view(tmp_path: Path, resp: int, is_emptied: bool) -> None:
    product = Product(tmp_path, HandClock())
    product.session.resp = resp
    for number in (1, 2):
        product.run("XADD", "s", f"{number}-1", "f", b"v" * (2 << 20))
    request = product.request
    request.argv = [b"XINFO", b"STREAM", b"s"]
    waiting = client_command(request.argv).handler(request)
    assert isinstance(waiting, SlicedCommand)
    if is_emptied:
        product.run("XDEL", "s", "1-1", "2-1")
    product.checkpoint()
    waiting.show(View(product.engine.tables))
    reply = waiting.step(waiting.request)
    assert isinstance(reply, LongReply)
    pieces = list(reply.pieces)
    reply.close()
    assert max(map(len, pieces)) <= PIECE_BYTES
    request.room, request.argv = None, [b"XINFO", b"STREAM", b"s"]
    assert client_command(request.argv).handler(request) == (b"".join(pieces),)
    product.close()


def test_counters_follow_the_entries(pair: Pair) -> None:
    fill(pair, 250)
    compare(pair)
    for line in (
        *("XDEL s 1-0 250-0 100-0", "XTRIM s MAXLEN 150", "XTRIM s MINID ~ 200", "XADD s 300-0 f v g w"),
        *("XSETID s 400-1 ENTRIESADDED 1000 MAXDELETEDID 320-0", "XADD s MAXLEN 1 401-0 f v", "XDEL s 401-0"),
        *("XADD s 402-0 f v", "COPY s t", "RENAME t s", "XDEL s 402-0"),
    ):
        pair.say(line)
        compare(pair)
        compare(pair, "FULL", "COUNT", 0)


@pytest.mark.parametrize("count", [None, 10, 1, 5, 100, 0, -1, -(2**63), 2**63 - 1])
def test_full_has_the_first_entries(pair: Pair, count: int | None) -> None:
    fill(pair, 30)
    words: tuple[str | int, ...] = ("FULL",) if count is None else ("full", "count", count)
    entries = compare(pair, *words)["entries"].children or ()
    # ten unless told otherwise, also by a negative number; 0 is unlimited
    expected = 10 if count is None or count < 0 else count or 30
    assert len(entries) == min(expected, 30)


def test_asking_changes_nothing(client: RawClient, server: RiverbedServer) -> None:
    client.ask("XADD", "s", "1-1", "f", "v")
    digest, first = client.ask("DEBUG", "DIGEST"), client.ask("XINFO", "STREAM", "s", "FULL")
    assert client.ask("XINFO", "STREAM", "s", "FULL") == first
    assert client.ask("DEBUG", "DIGEST") == digest


# -- HELP --------------------------------------------------------------------------------------------------------------


def test_help_is_that_of_redis_but_for_one_letter(pair: Pair) -> None:
    ours, theirs = pair.ours.ask("XINFO", "HELP"), pair.theirs.ask("XINFO", "HELP")
    # since 7.2
    assert ours == theirs.replace(b"Prints this help.", b"Print this help.")
    assert pair.ours.ask("xinfo", "help") == ours
    assert ours.startswith(b"*9\r\n+XINFO <subcommand>")
