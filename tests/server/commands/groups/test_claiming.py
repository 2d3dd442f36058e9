"""XPENDING, XCLAIM, XAUTOCLAIM, as their public pages describe them: a consumer dies, others take over its work.

Entries are made old with XCLAIM's own IDLE, so nothing here waits.  What redis-server 7.0 knows
is said to both servers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.pair import Pair
from tests.support.raw import Node, RawClient, parse
from tests.support.rows import assert_same_row
from tests.support.servers import RiverbedServer

OLD_MS = 3_600_000


def fill(pair: Pair, count: int = 5) -> None:
    """Alice has read `count` entries an hour ago and died."""
    pair.say("XGROUP CREATE s g 0 MKSTREAM")
    for number in range(1, count + 1):
        pair.say(f"XADD s {number}-1 job {number}")
    pair.say("XREADGROUP GROUP g Alice STREAMS s >")
    age(pair, *(f"{number}-1" for number in range(1, count + 1)))


def age(pair: Pair, *ids: str, owner: str = "Alice") -> None:
    pair.ask("XCLAIM", "s", "g", owner, 0, *ids, "IDLE", OLD_MS, "RETRYCOUNT", 1, "JUSTID")


def ids_of(node: Node) -> list[str]:
    """IDs of entries, or of a list of IDs."""
    assert node.children is not None
    return [(child.children[0] if child.children else child).text.decode() for child in node.children]


def pending(client: RawClient, *words: str | int) -> dict[str, tuple[str, int, int]]:
    """XPENDING's rows: id -> (consumer, idle time, delivery count)."""
    rows = parse(client.ask("XPENDING", "s", "g", *(words or ("-", "+", 1000)))).children or ()
    found = {}
    for row in rows:
        assert row.children is not None
        entry_id, consumer, idle, count = (item.text.decode() for item in row.children)
        found[entry_id] = (consumer, int(idle), int(count))
    return found


def owners(pair: Pair) -> dict[str, tuple[str, int]]:
    """id -> (consumer, delivery count), which was the same on both servers."""
    ours, theirs = (
        {entry_id: (consumer, count) for entry_id, (consumer, _, count) in pending(client).items()}
        for client in (pair.ours, pair.theirs)
    )
    assert ours == theirs
    return ours


@pytest.mark.parametrize("name", ["XPENDING", "XCLAIM", "XAUTOCLAIM", "XACK"])
def test_flags_arity_and_keys_are_those_of_redis(pair: Pair, name: str) -> None:
    assert_same_row(pair, name)


# -- XPENDING ----------------------------------------------------------------------------------------------------------


def test_the_summary_tells_total_first_last_and_a_count_for_each_consumer_that_has_any(pair: Pair) -> None:
    fill(pair)
    pair.say("XGROUP CREATECONSUMER s g Idle")
    pair.say("XCLAIM s g Bob 0 2-1 JUSTID")
    assert pair.say("XPENDING s g") == (
        b"*4\r\n:5\r\n$3\r\n1-1\r\n$3\r\n5-1\r\n*2\r\n*2\r\n$5\r\nAlice\r\n$1\r\n4\r\n*2\r\n$3\r\nBob\r\n$1\r\n1\r\n"
    )


def test_the_summary_of_a_group_with_nothing_pending_is_zero_and_three_nulls(pair: Pair) -> None:
    pair.say("XGROUP CREATE s g 0 MKSTREAM")
    assert pair.say("XPENDING s g") == b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"


def test_a_range_tells_owner_idle_time_and_delivery_count_of_each_entry(pair: Pair) -> None:
    fill(pair)
    for client in (pair.ours, pair.theirs):
        rows = pending(client)
        assert list(rows) == ["1-1", "2-1", "3-1", "4-1", "5-1"]
        assert all(owner == "Alice" and idle >= OLD_MS and count == 1 for owner, idle, count in rows.values())


def test_a_range_can_be_limited_by_idle_time_ids_count_and_consumer(pair: Pair) -> None:
    fill(pair)
    pair.say("XCLAIM s g Bob 0 2-1 JUSTID")
    for client in (pair.ours, pair.theirs):
        assert list(pending(client, "IDLE", OLD_MS, "-", "+", 10)) == ["1-1", "3-1", "4-1", "5-1"]
        assert list(pending(client, "(1-1", "3", 10)) == ["2-1", "3-1"]
        assert list(pending(client, "-", "+", 2)) == ["1-1", "2-1"]
        assert list(pending(client, "-", "+", 10, "Bob")) == ["2-1"]
        assert list(pending(client, "-", "+", 10, "nobody")) == []
        assert list(pending(client, "-", "+", 0)) == list(pending(client, "-", "+", -3)) == []


@pytest.mark.parametrize(
    "line",
    [
        "XPENDING s",
        "XPENDING s g -",
        "XPENDING s g - +",
        "XPENDING s g - + x",
        "XPENDING s g x + 5",
        "XPENDING s g - x 5",
        "XPENDING s g IDLE x - + 5",
        "XPENDING s g IDLE 5 - +",
        "XPENDING s g - + 5 c d e f",
        "XPENDING s g ( + 5",
        "XPENDING nokey g",
        "XPENDING s nogroup - + 5",
        "XPENDING nokey g - + 5 Alice",
    ],
)
def test_what_xpending_refuses_it_refuses_in_redis_words(pair: Pair, line: str) -> None:
    fill(pair, 1)
    assert pair.say(line).startswith(b"-")


# -- XCLAIM ------------------------------------------------------------------------------------------------------------


def test_a_consumer_claims_what_another_left_idle_for_longer_than_a_minimum(pair: Pair) -> None:
    fill(pair)
    pair.say("XCLAIM s g Alice 0 3-1 JUSTID")  # this one she has just touched again
    assert ids_of(pair.tree("XCLAIM", "s", "g", "Bob", OLD_MS, "1-1", "3-1", "5-1")) == ["1-1", "5-1"]
    assert {entry_id for entry_id, (owner, _) in owners(pair).items() if owner == "Bob"} == {"1-1", "5-1"}


def test_a_claim_resets_the_idle_time_so_that_of_two_claimers_one_wins(pair: Pair) -> None:
    fill(pair, 1)
    assert ids_of(pair.tree("XCLAIM", "s", "g", "Bob", OLD_MS, "1-1")) == ["1-1"]
    assert pair.say(f"XCLAIM s g Carol {OLD_MS} 1-1") == b"*0\r\n"
    assert owners(pair) == {"1-1": ("Bob", 2)}


def test_a_claim_raises_the_delivery_count_except_under_justid(pair: Pair) -> None:
    fill(pair, 2)
    pair.say("XCLAIM s g Bob 0 1-1")
    assert pair.say("XCLAIM s g Bob 0 2-1 JUSTID") == b"*1\r\n$3\r\n2-1\r\n"
    assert owners(pair) == {"1-1": ("Bob", 2), "2-1": ("Bob", 1)}


def test_acknowledged_entries_cannot_be_claimed(pair: Pair) -> None:
    fill(pair, 2)
    assert pair.say("XACK s g 1-1") == b":1\r\n"
    assert ids_of(pair.tree("XCLAIM", "s", "g", "Bob", 0, "1-1", "2-1")) == ["2-1"]
    assert pair.say("XACK s g 1-1 2-1 2-1") == b":1\r\n"
    assert pair.say("XCLAIM s g Bob 0 1-1 2-1") == b"*0\r\n"


def test_idle_time_and_retrycount_can_be_set_and_the_later_of_idle_and_time_wins(pair: Pair) -> None:
    fill(pair, 3)
    pair.say("XCLAIM s g Bob 0 1-1 IDLE 500000 RETRYCOUNT 7")
    pair.say("XCLAIM s g Bob 0 2-1 IDLE 500000 TIME 1000000000000")
    pair.say("XCLAIM s g Bob 0 3-1 TIME 1000000000000 IDLE 500000 RETRYCOUNT 0")
    assert owners(pair) == {"1-1": ("Bob", 7), "2-1": ("Bob", 2), "3-1": ("Bob", 0)}
    for client in (pair.ours, pair.theirs):
        idle = [row[1] for row in pending(client).values()]
        assert 500_000 <= idle[0] < 600_000
        assert idle[1] > 10**11
        assert 500_000 <= idle[2] < 600_000


def test_a_time_in_the_future_or_below_zero_is_now(pair: Pair) -> None:
    fill(pair, 2)
    pair.say("XCLAIM s g Bob 0 1-1 TIME 99999999999999")
    pair.say("XCLAIM s g Bob 0 2-1 TIME -5")
    for client in (pair.ours, pair.theirs):
        assert all(idle < OLD_MS for _, idle, _ in pending(client).values())


def test_force_makes_an_entry_pending_that_was_not_but_does_not_bring_back_a_deleted_one(pair: Pair) -> None:
    fill(pair, 3)
    pair.say("XACK s g 1-1 2-1 3-1")
    pair.say("XDEL s 3-1")
    assert pair.say(f"XCLAIM s g Bob {OLD_MS} 1-1 2-1 3-1") == b"*0\r\n"
    assert ids_of(pair.tree("XCLAIM", "s", "g", "Bob", OLD_MS, "1-1", "3-1", "FORCE")) == ["1-1"]
    assert pair.say("XCLAIM s g Bob 0 2-1 FORCE JUSTID") == b"*1\r\n$3\r\n2-1\r\n"
    assert owners(pair) == {"1-1": ("Bob", 2), "2-1": ("Bob", 1)}


def test_claiming_a_deleted_entry_takes_it_off_the_list_however_fresh_it_is(pair: Pair) -> None:
    fill(pair, 2)
    pair.say("XCLAIM s g Alice 0 1-1 JUSTID")
    pair.say("XDEL s 1-1")
    assert list(owners(pair)) == ["1-1", "2-1"]  # deletion alone leaves it there
    assert pair.say(f"XCLAIM s g Bob {OLD_MS} 1-1") == b"*0\r\n"
    assert list(owners(pair)) == ["2-1"]


def test_lastid_moves_the_group_forward_and_never_back(pair: Pair) -> None:
    fill(pair, 2)
    for last_id in ("9-9", "3-0"):
        pair.ask("XCLAIM", "s", "g", "Bob", 0, "1-1", "JUSTID", "LASTID", last_id)
        for client in (pair.ours, pair.theirs):
            (group,) = parse(client.ask("XINFO", "GROUPS", "s")).children or ()
            assert {name.text: value.text for name, value in group.pairs()}[b"last-delivered-id"] == b"9-9"


@pytest.mark.parametrize(
    "line",
    [
        "XCLAIM s g c 0",
        "XCLAIM s g c x 1-1",
        "XCLAIM s g c 0 bad",
        "XCLAIM s g c 0 1-1 bad",
        "XCLAIM s g c 0 1-1 FORCE 2-1",
        "XCLAIM s g c 0 1-1 IDLE",
        "XCLAIM s g c 0 1-1 IDLE x",
        "XCLAIM s g c 0 1-1 TIME x",
        "XCLAIM s g c 0 1-1 RETRYCOUNT x",
        "XCLAIM s g c 0 1-1 LASTID x",
        "XCLAIM nokey g c 0 1-1",
        "XCLAIM s nogroup c x bad",
    ],
)
def test_what_xclaim_refuses_it_refuses_in_redis_words(pair: Pair, line: str) -> None:
    fill(pair, 1)
    assert pair.say(line).startswith(b"-")
    assert owners(pair) == {"1-1": ("Alice", 1)}


def test_a_claim_of_no_ids_claims_nothing(pair: Pair) -> None:
    fill(pair, 1)
    assert pair.say("XCLAIM s g Bob 0 JUSTID") == b"*0\r\n"


def test_ten_thousand_ids_in_one_claim_and_one_acknowledgement(client: RawClient) -> None:
    ids = [f"{number}-1" for number in range(1, 10_001)]
    client.pipeline([("XADD", "s", entry_id, "f", "v") for entry_id in ids])
    client.ask("XGROUP", "CREATE", "s", "g", 0)
    client.ask("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
    assert ids_of(client.tree("XCLAIM", "s", "g", "Bob", 0, *ids, "JUSTID")) == ids
    assert client.ask("XACK", "s", "g", *reversed(ids)) == b":10000\r\n"
    assert client.ask("XPENDING", "s", "g") == b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"


# -- XAUTOCLAIM --------------------------------------------------------------------------------------------------------


def autoclaim(pair: Pair, *words: str | int) -> tuple[str, list[str], list[str]]:
    """-> (cursor, claimed, found deleted)"""
    cursor, claimed, deleted = pair.tree("XAUTOCLAIM", "s", "g", *words).children or ()
    return cursor.text.decode(), ids_of(claimed), ids_of(deleted)


def test_autoclaim_takes_over_what_has_been_idle_for_long_enough(pair: Pair) -> None:
    fill(pair)
    pair.say("XCLAIM s g Alice 0 3-1 JUSTID")
    assert autoclaim(pair, "Bob", OLD_MS, 0) == ("0-0", ["1-1", "2-1", "4-1", "5-1"], [])
    assert owners(pair)["1-1"] == ("Bob", 2)
    assert autoclaim(pair, "Carol", OLD_MS, 0) == ("0-0", [], [])


def test_count_bounds_a_call_and_the_cursor_goes_on_until_it_is_zero(pair: Pair) -> None:
    fill(pair)
    assert autoclaim(pair, "Bob", OLD_MS, 0, "COUNT", 2) == ("3-1", ["1-1", "2-1"], [])
    assert autoclaim(pair, "Bob", OLD_MS, "3-1", "COUNT", 2) == ("5-1", ["3-1", "4-1"], [])
    assert autoclaim(pair, "Bob", OLD_MS, "5-1", "COUNT", 2) == ("0-0", ["5-1"], [])


def test_a_call_looks_at_ten_times_as_many_entries_as_it_may_claim(pair: Pair) -> None:
    fill(pair, 15)
    assert autoclaim(pair, "Bob", 10 * OLD_MS, 0, "COUNT", 1) == ("11-1", [], [])
    assert autoclaim(pair, "Bob", 10 * OLD_MS, "11-1", "COUNT", 1) == ("0-0", [], [])


def test_deleted_entries_are_reported_leave_the_list_and_use_up_count(pair: Pair) -> None:
    fill(pair)
    pair.say("XDEL s 1-1 3-1")
    assert autoclaim(pair, "Bob", OLD_MS, 0, "COUNT", 2) == ("3-1", ["2-1"], ["1-1"])
    assert autoclaim(pair, "Bob", OLD_MS, "3-1") == ("0-0", ["4-1", "5-1"], ["3-1"])
    assert list(owners(pair)) == ["2-1", "4-1", "5-1"]


def test_a_deleted_entry_is_reported_however_fresh_it_is_and_whatever_else_is_there(pair: Pair) -> None:
    pair.say("XGROUP CREATE s g 0 MKSTREAM")
    for number in (1, 2, 3):
        pair.say(f"XADD s {number}-1 job {number}")
    pair.say("XREADGROUP GROUP g Alice STREAMS s >")
    pair.say("XACK s g 2-1")
    pair.say("XDEL s 3-1")
    assert autoclaim(pair, "Bob", OLD_MS, 0) == ("0-0", [], ["3-1"])


def test_autoclaim_with_justid_replies_ids_and_does_not_count(pair: Pair) -> None:
    fill(pair, 2)
    assert pair.say(f"XAUTOCLAIM s g Bob {OLD_MS} - COUNT 25 JUSTID").startswith(b"*3\r\n$3\r\n0-0\r\n*2\r\n$3\r\n1-1")
    assert owners(pair) == {"1-1": ("Bob", 1), "2-1": ("Bob", 1)}


def test_the_start_may_be_exclusive(pair: Pair) -> None:
    fill(pair, 3)
    assert autoclaim(pair, "Bob", OLD_MS, "(1-1") == ("0-0", ["2-1", "3-1"], [])


@pytest.mark.parametrize(
    "line",
    [
        "XAUTOCLAIM s g c x 0",
        "XAUTOCLAIM s g c 0 x",
        "XAUTOCLAIM s g c 0 0 COUNT",
        "XAUTOCLAIM s g c 0 0 COUNT 0",
        "XAUTOCLAIM s g c 0 0 COUNT 576460752303423488",
        "XAUTOCLAIM s g c 0 0 COUNT 9223372036854775808",
        "XAUTOCLAIM s g c 0 0 FORCE",
        "XAUTOCLAIM nokey g c 0 0",
        "XAUTOCLAIM s nogroup c 0 0",
        "XAUTOCLAIM nokey g c 0 x",
    ],
)
def test_what_xautoclaim_refuses_it_refuses_in_redis_words(pair: Pair, line: str) -> None:
    fill(pair, 1)
    assert pair.say(line).startswith(b"-")


# -- through redis-py --------------------------------------------------------------------------------------------------


@pytest.fixture(params=[2, 3])
def library(server: RiverbedServer, client: RawClient, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """redis-py, in each protocol."""
    with redis.Redis(port=server.port, protocol=request.param, decode_responses=True) as library:
        yield library


def test_redis_py_recovers_the_work_of_a_consumer_that_died(library: redis.Redis) -> None:
    library.xgroup_create("s", "g", id="0", mkstream=True)
    added = [library.xadd("s", {"job": str(number)}) for number in range(4)]
    library.xreadgroup("g", "Alice", {"s": ">"})
    library.xclaim("s", "g", "Alice", 0, added[:3], idle=OLD_MS, retrycount=1, justid=True)

    summary = library.xpending("s", "g")
    assert summary["pending"] == 4
    assert (summary["min"], summary["max"]) == (added[0], added[3])
    assert [(row["name"], row["pending"]) for row in summary["consumers"]] == [("Alice", 4)]
    old = library.xpending_range("s", "g", min="-", max="+", count=10, idle=OLD_MS)
    assert [row["message_id"] for row in old] == added[:3]
    assert all(row["times_delivered"] == 1 and row["consumer"] == "Alice" for row in old)

    assert library.xclaim("s", "g", "Bob", OLD_MS, added) == [
        (entry_id, {"job": str(number)}) for number, entry_id in enumerate(added[:3])
    ]
    assert library.xclaim("s", "g", "Carol", OLD_MS, added) == []
    assert library.xack("s", "g", *added[:2]) == 2

    library.xdel("s", added[2])
    library.xclaim("s", "g", "Alice", 0, [added[3]], idle=OLD_MS, justid=True)
    cursor, claimed, deleted = library.xautoclaim("s", "g", "Carol", OLD_MS, start_id="0-0", count=10)
    assert (cursor, claimed, deleted) == ("0-0", [(added[3], {"job": "3"})], [added[2]])
    (group,) = library.xinfo_groups("s")
    assert (group["pending"], group["consumers"], group["lag"]) == (1, 3, 0)
    assert [row["name"] for row in library.xinfo_consumers("s", "g")] == ["Alice", "Bob", "Carol"]
