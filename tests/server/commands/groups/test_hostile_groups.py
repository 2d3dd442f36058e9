"""Group commands with numbers at the edge of what fits and with ten thousand IDs: clear replies, and nothing lost.

What redis-server 7.0 knows is said to both servers, and the replies must be equal.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence

import pytest

from tests.conftest import StartRiverbed
from tests.support.pair import Pair
from tests.support.raw import Node, RawClient, Word, parse
from tests.support.scripts import group_differences
from tests.support.waiting import rewritten

IDLE_TIMES = group_differences.MASKS["idle times"]

NUMBERS = (
    *(2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 2**31 - 1, 2**32),
    *(0, -1, -2, -(2**31), -(2**63), -(2**63) - 1, -(2**64)),
)
MANY = 10_000

# `#` is the number; the first one is not asked of BLOCK, see below.  Inside of MULTI a read does not wait.
LINES = [
    "XREADGROUP GROUP g c COUNT # STREAMS s >",
    "XREADGROUP GROUP g c COUNT # STREAMS s 0",
    "XREADGROUP GROUP g c COUNT # NOACK STREAMS s >",
    "XREADGROUP GROUP g c BLOCK # STREAMS s >",
    "XREADGROUP GROUP g Alice STREAMS s #",
    "XREAD COUNT # STREAMS s 0",
    "XREAD BLOCK # STREAMS s 0",
    "MULTI; XREADGROUP GROUP all c BLOCK # STREAMS s >; XREAD BLOCK # STREAMS s $; EXEC",
    "XACK s g # 1-1; XPENDING s g",
    "XPENDING s g - + #",
    "XPENDING s g - + # Alice",
    "XPENDING s g IDLE # - + 0",
    "XPENDING s g # + 0",
    "XPENDING s g - # 0",
    "XCLAIM s g Bob # 1-1 2-1; XPENDING s g",
    "XCLAIM s g Bob 0 # 1-1; XPENDING s g",
    "XCLAIM s g Bob 0 1-1 2-1 IDLE #; XPENDING s g",
    "XCLAIM s g Bob 0 1-1 2-1 TIME #; XPENDING s g",
    "XCLAIM s g Bob 0 1-1 2-1 RETRYCOUNT # JUSTID; XPENDING s g",
    "XCLAIM s g Bob 0 1-1 LASTID #; XREADGROUP GROUP g c STREAMS s >",
    "XAUTOCLAIM s g Bob # 0",
    "XAUTOCLAIM s g Bob 0 #",
    "XAUTOCLAIM s g Bob 0 0 COUNT #",
    "XGROUP CREATE s new # ENTRIESREAD 0",
    "XGROUP CREATE s new 0 ENTRIESREAD #",
    "XGROUP SETID s g #; XREADGROUP GROUP g c COUNT 1 STREAMS s >",
    "XGROUP SETID s g 0 ENTRIESREAD #; XREADGROUP GROUP g c COUNT 1 STREAMS s >",
    "XINFO STREAM s FULL COUNT #; XLEN s",
    "XTRIM s MINID #; XLEN s; XREADGROUP GROUP g Alice STREAMS s 0",
    "XTRIM s MINID ~ # LIMIT 1; XLEN s",
    "XTRIM s MAXLEN #; XLEN s",
    "XTRIM s MAXLEN ~ 1 LIMIT #; XLEN s",
    "XADD s MINID # 9-9 f v; XLEN s",
    "XADD s MAXLEN # 9-9 f v; XLEN s",
    "XADD s # f v; XLEN s",
    "XDEL s #; XLEN s",
    "XSETID s 9-9 ENTRIESADDED # MAXDELETEDID 0-0",
    "XRANGE s # + COUNT 1",
    "XRANGE s - + COUNT #",
]


def ids(count: int) -> list[str]:
    return [f"{number}-1" for number in range(1, count + 1)]


def fill(client: RawClient, count: int) -> list[str]:
    """`count` entries in `s`, which Alice of `g` has read; -> their IDs."""
    added = ids(count)
    client.pipeline([("XADD", "s", entry_id, "f", "v") for entry_id in added])
    assert client.ask("XGROUP", "CREATE", "s", "g", 0) == b"+OK\r\n"
    client.ask("XREADGROUP", "GROUP", "g", "Alice", "COUNT", count, "STREAMS", "s", ">")
    return added


def pending_count(client: RawClient) -> int:
    children = client.tree("XPENDING", "s", "g").children
    assert children is not None
    return int(children[0].text)


def comparable(step: str, node: Node) -> str:
    """Without clocks; of XINFO STREAM FULL, most of which 7.0 tells otherwise, how much is listed."""
    if step.startswith("XINFO") and node.children:
        fields = {name.text: value for name, value in node.pairs()}
        groups = [{name.text: value for name, value in group.pairs()} for group in fields[b"groups"].children or ()]
        return f"{fields[b'entries']} {[len(group[b'pending'].children or ()) for group in groups]}"
    if step.startswith("XPENDING"):
        node = IDLE_TIMES.change((b"XPENDING",), node)
    return str(node)


@pytest.mark.parametrize("line", LINES)
def test_numbers_at_the_edge_get_the_replies_of_redis(pair: Pair, line: str) -> None:
    for number in NUMBERS[1:] if "BLOCK" in line else NUMBERS:
        for client in (pair.ours, pair.theirs):
            client.ask("FLUSHALL")
            fill(client, 3)
            client.ask("XADD", "s", "4-1", "f", "v")
            client.ask("XGROUP", "CREATE", "s", "all", "$")
        for step in line.replace("#", str(number)).split("; "):
            words = step.split()
            ours, theirs = (comparable(step, client.tree(*words)) for client in (pair.ours, pair.theirs))
            assert ours == theirs, step


@pytest.mark.parametrize("line", ["XREADGROUP GROUP g c BLOCK # STREAMS s >", "XREAD BLOCK # STREAMS s $"])
def test_a_timeout_that_ends_after_all_time_is_refused(client: RawClient, line: str) -> None:
    # as in newer releases; 7.0 accepts it and waits, for how long nobody knows
    fill(client, 1)
    assert client.ask(*line.replace("#", str(2**63 - 1)).split()) == b"-ERR timeout is out of range\r\n"
    assert pending_count(client) == 1


@pytest.mark.parametrize("number", [2**63 - 1, 0, 1, 2**31, 2**62])
def test_the_largest_delivery_count_is_kept_and_shown(pair: Pair, number: int) -> None:
    for client in (pair.ours, pair.theirs):
        fill(client, 1)
    pair.ask("XCLAIM", "s", "g", "Bob", 0, "1-1", "RETRYCOUNT", number, "JUSTID")
    for client in (pair.ours, pair.theirs):
        (row,) = client.tree("XPENDING", "s", "g", "-", "+", 10).children or ()
        assert row.children is not None
        assert int(row.children[3].text) == number


def test_a_delivery_count_that_is_as_large_as_can_be_stays_there(client: RawClient) -> None:
    fill(client, 1)
    client.ask("XCLAIM", "s", "g", "Bob", 0, "1-1", "RETRYCOUNT", 2**63 - 1, "JUSTID")
    for words in (
        ("XCLAIM", "s", "g", "Bob", 0, "1-1"),
        ("XAUTOCLAIM", "s", "g", "Bob", 0, 0),
        ("XREADGROUP", "GROUP", "g", "Bob", "STREAMS", "s", 0),
        ("XREADGROUP", "GROUP", "g", "Bob", "CLAIM", 0, "STREAMS", "s", ">"),
        ("XNACK", "s", "g", "FATAL", "IDS", 1, "1-1"),
    ):
        assert b"ERR" not in client.ask(*words)
        assert client.ask("XPENDING", "s", "g", "-", "+", 10).endswith(b":9223372036854775807\r\n"), words


@pytest.mark.parametrize("begun", [2**63 - 2, 2**63 - 1])
def test_counts_of_entries_that_are_as_large_as_can_be_stay_there(start_riverbed: StartRiverbed, begun: int) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("XSETID", "s", "5-0", "ENTRIESADDED", begun)
        client.ask("XGROUP", "CREATE", "s", "g", "5-0", "ENTRIESREAD", begun)
        client.pipeline([("XADD", "s", f"6-{number}", "f", "v") for number in range(5)])
        client.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
        client.ask("XADD", "s", "7-0", "f", "v")
        client.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
        shown = client.ask("XINFO", "STREAM", "s"), client.ask("XINFO", "GROUPS", "s")
    assert [reply.count(b":9223372036854775807\r\n") for reply in shown] == [1, 1]
    rewritten(server)
    server.stop()
    shutil.rmtree(server.directory / "state")
    server.start()
    with server.client() as client:
        assert (client.ask("XINFO", "STREAM", "s"), client.ask("XINFO", "GROUPS", "s")) == shown


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30, -1, 0])
@pytest.mark.parametrize(
    "line",
    [
        "XNACK s g FAIL IDS # 1-1",
        "XNACK s g FAIL IDS 1 1-1 RETRYCOUNT #",
        "XDELEX s IDS # 1-1",
        "XACKDEL s g IDS # 1-1",
        "XREADGROUP GROUP g c CLAIM # STREAMS s >",
        "XREADGROUP GROUP g c MAXCOUNT # STREAMS s >",
        "XREADGROUP GROUP g c MAXSIZE # STREAMS s >",
    ],
)
def test_newer_commands_refuse_such_numbers_and_change_nothing(client: RawClient, line: str, number: int) -> None:
    fill(client, 1)
    reply = client.ask(*line.replace("#", str(number)).split())
    if number == 0 and ("RETRYCOUNT" in line or "CLAIM" in line):
        assert not reply.startswith(b"-")
        return
    assert reply.startswith(b"-ERR "), reply
    (row,) = client.tree("XPENDING", "s", "g", "-", "+", 10).children or ()
    assert row.children is not None
    assert (row.children[1].text, row.children[3].text) == (b"Alice", b"1")


# -- ten thousand IDs --------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed() -> list[str]:
    """Ten thousand IDs in no order, some of them twice and some of nothing."""
    chosen = [*ids(MANY - 1000), *ids(500), *(f"{number}-7" for number in range(500))]
    random.Random(1).shuffle(chosen)
    return chosen


@pytest.mark.parametrize(
    "words",
    [
        ("XACK", "s", "g"),
        ("XDEL", "s"),
        ("XCLAIM", "s", "g", "Bob", 0),
        ("XCLAIM", "s", "g", "Bob", 10**9),
        ("XCLAIM", "s", "none", "Bob", 0),
        ("XACK", "s", "none"),
        ("XDEL", "none"),
    ],
)
def test_ten_thousand_ids_in_one_request_get_the_reply_of_redis(
    pair: Pair, mixed: list[str], words: tuple[Word, ...]
) -> None:
    for client in (pair.ours, pair.theirs):
        fill(client, MANY)
    pair.ask(*words, *mixed)
    if words[0] == "XCLAIM":
        pair.ask(*words, *mixed, "JUSTID")
    pair.ask("XPENDING", "s", "g")
    pair.ask("XLEN", "s")
    pair.ask("XRANGE", "s", "-", "+")


def test_one_bad_id_of_ten_thousand_changes_nothing(pair: Pair, mixed: list[str]) -> None:
    for client in (pair.ours, pair.theirs):
        fill(client, MANY)
    for words in (("XACK", "s", "g"), ("XDEL", "s"), ("XCLAIM", "s", "g", "Bob", 0)):
        assert pair.ask(*words, *mixed[:-1], "1-x").startswith(b"-ERR ")
    pair.ask("XPENDING", "s", "g")
    assert pair.ask("XLEN", "s") == b":%d\r\n" % MANY


def codes(reply: bytes) -> list[int]:
    return [int(child.text) for child in parse(reply).children or ()]


def expected_codes(mixed: Sequence[str], known: set[str]) -> list[int]:
    """1 for what is there and has not been named before, -1 for anything else."""
    left = set(known)
    found = []
    for entry_id in mixed:
        found.append(1 if entry_id in left else -1)
        left.discard(entry_id)
    return found


@pytest.mark.parametrize("mode", ["KEEPREF", "DELREF", "ACKED"])
def test_ten_thousand_ids_are_acknowledged_and_deleted_at_once(client: RawClient, mixed: list[str], mode: str) -> None:
    added = fill(client, MANY)
    reply = client.ask("XACKDEL", "s", "g", mode, "IDS", MANY, *mixed)
    assert codes(reply) == expected_codes(mixed, set(added))
    assert pending_count(client) == 1000
    assert client.ask("XLEN", "s") == b":1000\r\n"


@pytest.mark.parametrize(("mode", "left"), [("KEEPREF", MANY), ("DELREF", 1000)])
def test_ten_thousand_ids_are_deleted_at_once(client: RawClient, mixed: list[str], mode: str, left: int) -> None:
    added = fill(client, MANY)
    reply = client.ask("XDELEX", "s", mode, "IDS", MANY, *mixed)
    assert codes(reply) == expected_codes(mixed, set(added))
    assert client.ask("XLEN", "s") == b":1000\r\n"
    assert pending_count(client) == left


def test_ten_thousand_ids_that_are_pending_are_not_deleted_if_asked_not_to(client: RawClient, mixed: list[str]) -> None:
    added = set(fill(client, MANY))
    reply = client.ask("XDELEX", "s", "ACKED", "IDS", MANY, *mixed)
    assert codes(reply) == [2 if entry_id in added else -1 for entry_id in mixed]
    assert client.ask("XLEN", "s") == b":%d\r\n" % MANY
    assert pending_count(client) == MANY


def test_ten_thousand_ids_are_given_back_and_claimed_at_once(client: RawClient, mixed: list[str]) -> None:
    fill(client, MANY)
    known = sum(entry_id.endswith("-1") for entry_id in mixed)
    assert client.ask("XNACK", "s", "g", "FAIL", "IDS", MANY, *mixed) == b":%d\r\n" % known
    assert pending_count(client) == MANY
    given_back = sorted(set(mixed) & set(ids(MANY)), key=lambda entry_id: int(entry_id[:-2]))
    # what belongs to nobody is taken whatever the minimum
    claimed = client.tree("XCLAIM", "s", "g", "Bob", 10**9, *mixed, "JUSTID").children or ()
    assert {child.text.decode() for child in claimed} == set(given_back)
    rows = client.tree("XPENDING", "s", "g", "-", "+", MANY, "Bob").children or ()
    assert [row.children[0].text.decode() for row in rows if row.children] == given_back


def test_requests_of_ten_thousand_ids_in_a_transaction_are_done_together_and_survive_a_kill(
    start_riverbed: StartRiverbed, mixed: list[str]
) -> None:
    server = start_riverbed()
    following = [f"{number}-1" for number in range(MANY + 1, 2 * MANY + 1)]
    with server.client() as client:
        fill(client, 3 * MANY)
        commands: list[tuple[Word, ...]] = [
            ("XCLAIM", "s", "g", "Bob", 0, *mixed, "JUSTID"),
            ("XNACK", "s", "g", "SILENT", "IDS", MANY, *following),
            ("XACK", "s", "g", *mixed),
            ("XACKDEL", "s", "g", "DELREF", "IDS", MANY, *following),
            ("XDELEX", "s", "KEEPREF", "IDS", MANY, *mixed),
            ("XDEL", "s", *(f"{number}-1" for number in range(2 * MANY + 1, 2 * MANY + 11))),
        ]
        replies = client.pipeline([("MULTI",), *commands, ("EXEC",)])
        assert replies[1:-1] == [b"+QUEUED\r\n"] * len(commands)
        _, nacked, acked, _, _, deleted = parse(replies[-1]).children or ()
        assert [nacked.text, acked.text, deleted.text] == [b"10000", b"9000", b"10"]
        look: list[tuple[Word, ...]] = [
            ("XINFO", "STREAM", "s", "FULL", "COUNT", 0),
            ("XPENDING", "s", "g"),
            ("XLEN", "s"),
        ]
        before = client.pipeline(look)
        assert before[2] == b":%d\r\n" % (MANY + 1000 - 10)
        assert pending_count(client) == MANY + 1000
    server.kill()
    server.start()
    with server.client() as client:
        assert client.pipeline(look) == before
