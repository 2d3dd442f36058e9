"""A consumer dies and another takes over its work: the sentences of the public XCLAIM and XAUTOCLAIM pages, one by one.

Each is said through redis-py and through raw sockets, in RESP2 and in RESP3.  Entries are made old with XCLAIM's own
IDLE, so nothing here waits.  `test_claiming.py` holds the same commands to redis-server, byte by byte.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from riverbed.server.protocol.replies import NULL_ARRAY
from tests.support.in_process import Product
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer
from tests.support.voices import LibraryVoice, RawVoice, Summary, Voice

HOUR_MS = 3_600_000
NewVoice = Callable[[], Voice]


@pytest.fixture(params=["raw RESP2", "raw RESP3", "redis-py RESP2", "redis-py RESP3"])
def new_voice(server: RiverbedServer, client: RawClient, request: pytest.FixtureRequest) -> Iterator[NewVoice]:
    """Makes connections of one kind to a server that holds nothing."""
    voices: list[Voice] = []
    kind, _, protocol = request.param.rpartition(" RESP")

    def make() -> Voice:
        voices.append(
            RawVoice(server.client(), int(protocol)) if kind == "raw" else LibraryVoice(server.port, int(protocol))
        )
        return voices[-1]

    yield make
    for voice in voices:
        voice.close()


@pytest.fixture
def voice(new_voice: NewVoice) -> Voice:
    voice = new_voice()
    voice.create_group()
    return voice


def let_alice_die(voice: Voice, count: int = 5, idle_ms: int = HOUR_MS) -> list[str]:
    """Alice has read `count` entries, has been silent since, and acknowledged none; -> their IDs."""
    added = [voice.add(str(number)) for number in range(count)]
    assert [entry_id for entry_id, _ in voice.read("Alice")] == added
    voice.age("Alice", idle_ms, added)
    return added


def owners(voice: Voice) -> dict[str, str]:
    return {row.entry_id: row.consumer for row in voice.rows()}


def counts(voice: Voice) -> dict[str, int]:
    return {row.entry_id: row.count for row in voice.rows()}


# -- a consumer dies with messages pending -----------------------------------------------------------------------------


def test_what_a_dead_consumer_had_pending_is_given_to_nobody_else_by_reading(voice: Voice) -> None:
    added = let_alice_die(voice)
    assert voice.read("Bob") == []
    assert voice.read("Bob", "0") == []
    assert owners(voice) == dict.fromkeys(added, "Alice")


def test_a_consumer_that_comes_back_finds_what_it_had_pending(voice: Voice) -> None:
    added = let_alice_die(voice, 2)
    assert voice.read("Alice", "0") == [(added[0], {"job": "0"}), (added[1], {"job": "1"})]
    assert voice.read("Alice", added[0]) == [(added[1], {"job": "1"})]
    assert counts(voice) == {added[0]: 2, added[1]: 3}


def test_another_consumer_sees_in_a_summary_how_much_is_pending_and_whose_it_is(voice: Voice) -> None:
    added = let_alice_die(voice)
    late = voice.add("late")
    voice.read("Bob")
    assert voice.summary() == Summary(6, added[0], late, {"Alice": 5, "Bob": 1})


def test_the_summary_of_a_group_with_nothing_pending_is_empty(voice: Voice) -> None:
    assert voice.summary() == Summary(0, None, None, {})


def test_another_consumer_lists_what_is_pending_with_owner_idle_time_and_delivery_count(voice: Voice) -> None:
    added = let_alice_die(voice)
    rows = voice.rows()
    assert [row.entry_id for row in rows] == added
    assert all(row.consumer == "Alice" and row.count == 1 and row.idle_ms >= HOUR_MS for row in rows)
    assert [row.entry_id for row in voice.rows(count=2)] == added[:2]


def test_the_list_can_be_limited_to_what_has_been_idle_for_long_enough(voice: Voice) -> None:
    added = let_alice_die(voice)
    voice.age("Alice", 0, added[1:3])
    assert [row.entry_id for row in voice.rows(HOUR_MS)] == [added[0], *added[3:]]
    assert voice.rows(100 * HOUR_MS) == []


# -- XCLAIM ------------------------------------------------------------------------------------------------------------


def test_a_claim_changes_the_owner_and_returns_the_entries(voice: Voice) -> None:
    added = let_alice_die(voice, 3)
    assert voice.claim("Bob", HOUR_MS, added[:2]) == [(added[0], {"job": "0"}), (added[1], {"job": "1"})]
    assert owners(voice) == {added[0]: "Bob", added[1]: "Bob", added[2]: "Alice"}
    assert [entry_id for entry_id, _ in voice.read("Bob", "0")] == added[:2]
    assert [entry_id for entry_id, _ in voice.read("Alice", "0")] == added[2:]


def test_only_what_has_been_idle_for_longer_than_the_minimum_is_claimed(voice: Voice) -> None:
    added = let_alice_die(voice)
    voice.age("Alice", HOUR_MS // 2, added[1:3])
    assert [entry_id for entry_id, _ in voice.claim("Bob", HOUR_MS, added)] == [added[0], *added[3:]]
    assert [entry_id for entry_id, _ in voice.claim("Bob", HOUR_MS // 2, added)] == added[1:3]


def test_a_claim_resets_the_idle_time(voice: Voice) -> None:
    added = let_alice_die(voice, 1)
    voice.claim("Bob", HOUR_MS, added)
    (row,) = voice.rows()
    assert row.idle_ms < HOUR_MS
    assert voice.claim("Carol", HOUR_MS, added) == []
    assert owners(voice) == {added[0]: "Bob"}


def test_the_delivery_count_rises_with_each_claim(voice: Voice) -> None:
    added = let_alice_die(voice, 2)
    voice.claim("Bob", 0, added[:1])
    voice.claim("Carol", 0, added[:1])
    assert counts(voice) == {added[0]: 3, added[1]: 1}


def test_a_claim_under_justid_returns_ids_and_does_not_raise_the_delivery_count(voice: Voice) -> None:
    added = let_alice_die(voice, 2)
    assert voice.claim_ids("Bob", HOUR_MS, added) == added
    assert counts(voice) == dict.fromkeys(added, 1)
    assert owners(voice) == dict.fromkeys(added, "Bob")
    assert voice.claim_ids("Carol", HOUR_MS, added) == []  # the idle time was reset all the same


def test_acknowledged_messages_cannot_be_claimed(voice: Voice) -> None:
    added = let_alice_die(voice, 3)
    assert voice.ack(*added[:2]) == 2
    assert [entry_id for entry_id, _ in voice.claim("Bob", 0, added)] == added[2:]
    assert voice.autoclaim("Carol", 0).claimed == [(added[2], {"job": "2"})]
    assert voice.ack(*added) == 1
    assert voice.claim("Bob", 0, added) == []
    assert voice.summary() == Summary(0, None, None, {})


def test_a_message_that_nobody_was_given_can_be_claimed_by_force_alone(voice: Voice) -> None:
    added = [voice.add("0"), voice.add("1")]
    assert voice.claim("Bob", 0, added) == []
    assert voice.claim("Bob", 0, added[1:], force=True) == [(added[1], {"job": "1"})]
    assert owners(voice) == {added[1]: "Bob"}


def test_claiming_a_deleted_entry_returns_nothing_and_takes_it_off_the_list(voice: Voice) -> None:
    added = let_alice_die(voice, 2)
    voice.delete(added[0])
    assert list(owners(voice)) == added
    assert voice.read("Alice", "0") == [(added[0], None), (added[1], {"job": "1"})]
    voice.age("Alice", HOUR_MS, added[1:])
    assert voice.claim("Bob", HOUR_MS, added) == [(added[1], {"job": "1"})]
    assert list(owners(voice)) == added[1:]


def test_a_claim_makes_its_consumer(voice: Voice) -> None:
    added = let_alice_die(voice, 2)
    voice.claim("Bob", HOUR_MS, added[:1])
    voice.autoclaim("Carol", HOUR_MS)
    assert voice.consumers() == {"Alice": 0, "Bob": 1, "Carol": 1}


# -- of two concurrent claimers one wins -------------------------------------------------------------------------------


def at_once(*works: Callable[[], None]) -> None:
    """Run all at the same time, each in a thread, and wait; what one raises is raised."""
    start = threading.Barrier(len(works))
    raised: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            start.wait(60)
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for error in raised:
        raise error


def test_of_two_consumers_that_claim_the_same_entries_at_once_one_gets_each(voice: Voice, new_voice: NewVoice) -> None:
    added = let_alice_die(voice, 60)
    won: dict[str, list[str]] = {"Bob": [], "Carol": []}

    def claim_one_by_one(name: str, mine: Voice) -> Callable[[], None]:
        def work() -> None:
            for entry_id in added:
                won[name] += [claimed for claimed, _ in mine.claim(name, HOUR_MS, [entry_id])]

        return work

    at_once(*(claim_one_by_one(name, new_voice()) for name in won))
    assert sorted(won["Bob"] + won["Carol"]) == sorted(added)
    assert owners(voice) == {entry_id: name for name, ids in won.items() for entry_id in ids}
    assert set(counts(voice).values()) == {2}


def test_of_two_consumers_that_scan_at_once_one_gets_each_entry(voice: Voice, new_voice: NewVoice) -> None:
    added = let_alice_die(voice, 60)
    won: dict[str, list[str]] = {"Bob": [], "Carol": []}

    def scan(name: str, mine: Voice) -> Callable[[], None]:
        def work() -> None:
            cursor = "0-0"
            while True:
                cursor, claimed, _ = mine.autoclaim(name, HOUR_MS, cursor, 2)
                won[name] += [entry_id for entry_id, _ in claimed]
                if cursor == "0-0":
                    return

        return work

    at_once(*(scan(name, new_voice()) for name in won))
    assert sorted(won["Bob"] + won["Carol"]) == sorted(added)
    assert owners(voice) == {entry_id: name for name, ids in won.items() for entry_id in ids}


# -- XAUTOCLAIM --------------------------------------------------------------------------------------------------------


def test_autoclaim_finds_and_claims_what_has_been_idle_for_long_enough(voice: Voice) -> None:
    added = let_alice_die(voice, 4)
    voice.age("Alice", 0, added[1:2])
    cursor, claimed, deleted = voice.autoclaim("Bob", HOUR_MS)
    assert (cursor, deleted) == ("0-0", [])
    assert claimed == [(added[number], {"job": str(number)}) for number in (0, 2, 3)]
    assert owners(voice) == {entry_id: "Alice" if entry_id == added[1] else "Bob" for entry_id in added}
    assert counts(voice) == {added[0]: 2, added[1]: 1, added[2]: 2, added[3]: 2}
    assert voice.autoclaim("Carol", HOUR_MS) == ("0-0", [], [])


def test_autoclaim_under_justid_returns_ids_and_does_not_raise_the_delivery_count(voice: Voice) -> None:
    added = let_alice_die(voice, 3)
    assert voice.autoclaim_ids("Bob", HOUR_MS) == added
    assert counts(voice) == dict.fromkeys(added, 1)
    assert owners(voice) == dict.fromkeys(added, "Bob")


def test_count_bounds_the_scan_and_zero_as_cursor_says_that_it_is_complete(voice: Voice) -> None:
    added = let_alice_die(voice)
    seen: list[list[str]] = []
    cursors = ["0-0"]
    while True:
        cursor, claimed, _ = voice.autoclaim("Bob", HOUR_MS, cursors[-1], 2)
        seen.append([entry_id for entry_id, _ in claimed])
        cursors.append(cursor)
        if cursor == "0-0":
            break
    assert seen == [added[:2], added[2:4], added[4:]]
    assert cursors == ["0-0", added[2], added[4], "0-0"]


def test_a_scan_that_claims_nothing_is_bounded_by_count_as_well(voice: Voice) -> None:
    added = let_alice_die(voice, 25, idle_ms=0)
    assert voice.autoclaim("Bob", HOUR_MS, count=1) == (added[10], [], [])
    assert voice.autoclaim("Bob", HOUR_MS, added[10], 1) == (added[20], [], [])
    assert voice.autoclaim("Bob", HOUR_MS, added[20], 1) == ("0-0", [], [])


def test_a_scan_without_count_claims_a_hundred(voice: Voice) -> None:
    added = let_alice_die(voice, 130)
    cursor, claimed, _ = voice.autoclaim("Bob", HOUR_MS)
    assert (cursor, [entry_id for entry_id, _ in claimed]) == (added[100], added[:100])


def test_a_complete_scan_can_be_begun_anew_and_finds_what_has_become_old(voice: Voice) -> None:
    added = let_alice_die(voice, 2, idle_ms=0)
    assert voice.autoclaim("Bob", HOUR_MS) == ("0-0", [], [])
    voice.age("Alice", HOUR_MS, added[:1])
    assert voice.autoclaim("Bob", HOUR_MS) == ("0-0", [(added[0], {"job": "0"})], [])


def test_entries_deleted_from_the_stream_are_reported_and_leave_the_pending_list(voice: Voice) -> None:
    added = let_alice_die(voice)
    assert voice.delete(added[0], added[3]) == 2
    assert list(owners(voice)) == added
    cursor, claimed, deleted = voice.autoclaim("Bob", HOUR_MS)
    assert cursor == "0-0"
    assert [entry_id for entry_id, _ in claimed] == [added[1], added[2], added[4]]
    assert deleted == [added[0], added[3]]
    assert list(owners(voice)) == [added[1], added[2], added[4]]
    assert voice.autoclaim("Carol", HOUR_MS).deleted == []


def test_a_deleted_entry_is_reported_however_fresh_it_is(voice: Voice) -> None:
    added = let_alice_die(voice, 2, idle_ms=0)
    voice.delete(added[1])
    assert voice.autoclaim("Bob", HOUR_MS) == ("0-0", [], [added[1]])
    assert list(owners(voice)) == added[:1]


def claim(product: Product, count: int = 10) -> list[str]:
    """The IDs that a CLAIM of Bob's is given."""
    reply = product.run("XREADGROUP", "GROUP", "g", "Bob", "COUNT", count, "CLAIM", 1000, "STREAMS", "s", ">")
    return [] if reply is NULL_ARRAY else [entry[0].decode() for _, entries in reply for entry in entries]


@pytest.mark.parametrize("first_lives", [True, False])
def test_a_claim_passes_over_so_many_deleted_entries_and_no_more(product: Product, first_lives: bool) -> None:
    """The next one goes on there, or with those that were behind what it took."""
    count = 9000
    for number in range(1, count + 1):
        product.run("XADD", "s", f"{number}-0", "f", "v")
    product.run("XGROUP", "CREATE", "s", "g", 0)
    product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
    product.run("XDEL", "s", *(f"{number}-0" for number in range(1 + first_lives, count)))
    product.clock.now_ms += 2000
    seen = [claim(product) for _ in range(4)]
    assert [*chain(*seen)] == [*(["1-0"] if first_lives else []), f"{count}-0"]
    assert seen[0] == (["1-0"] if first_lives else [])
    assert seen[1] == []


def test_a_claim_passes_over_so_many_entries_of_a_deleted_consumer_and_no_more(product: Product) -> None:
    """Before they are purged: each was delivered at a time of its own, and is a row."""
    count = 1500
    for number in range(1, count + 1):
        product.run("XADD", "s", f"{number}-0", "f", "v")
    product.run("XGROUP", "CREATE", "s", "g", 0)
    for number in range(1, count + 1):
        product.clock.now_ms += 1
        product.run("XREADGROUP", "GROUP", "g", "Alice" if number < count else "Carol", "COUNT", 1, "STREAMS", "s", ">")
    product.checkpoint()
    assert product.run("XGROUP", "DELCONSUMER", "s", "g", "Alice") == count - 1
    product.clock.now_ms += 2000
    assert [claim(product) for _ in range(2)] == [[], [f"{count}-0"]]


def test_an_entry_that_is_released_again_and_again_does_not_keep_a_claim_from_those_behind_deleted_ones(
    product: Product,
) -> None:
    """What was released since the last claim comes first; then it goes on where that stopped."""
    count = 9000
    for number in range(1, count + 1):
        product.run("XADD", "s", f"{number}-0", "f", "v")
    product.run("XGROUP", "CREATE", "s", "g", 0)
    product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
    product.run("XDEL", "s", *(f"{number}-0" for number in range(2, count)))
    product.clock.now_ms += 2000
    seen = []
    for _ in range(4):
        product.run("XNACK", "s", "g", "SILENT", "IDS", 1, "1-0")
        seen.append(claim(product))
    assert [found[0] for found in seen] == ["1-0"] * 4
    assert [found[1:] for found in seen] == [[], [], [f"{count}-0"], []]


def test_what_a_claim_has_found_and_had_no_room_for_is_found_again(product: Product) -> None:
    count = 5000
    for number in range(1, count + 1):
        product.run("XADD", "s", f"{number}-0", "f", "v" * (1 if number > 3 else 1000))
    product.run("XGROUP", "CREATE", "s", "g", 0)
    product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
    product.run("XDEL", "s", *(f"{number}-0" for number in range(4, count)))
    product.clock.now_ms += 2000
    words = ("XREADGROUP", "GROUP", "g", "Bob", "COUNT", 10, "MAXSIZE", 500, "CLAIM", 1000, "STREAMS", "s", ">")
    seen = [[entry[0].decode() for _, entries in product.run(*words) for entry in entries] for _ in range(3)]
    assert seen == [["1-0"], ["2-0"], ["3-0"]]
    assert claim(product) == [f"{count}-0"]


def test_a_claim_that_wants_longer_idle_times_does_not_send_others_back_to_the_beginning(product: Product) -> None:
    count = 9000
    for number in range(1, count + 1):
        product.run("XADD", "s", f"{number}-0", "f", "v")
    product.run("XGROUP", "CREATE", "s", "g", 0)
    product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
    product.run("XTRIM", "s", "MAXLEN", 1)
    product.clock.now_ms += 2000
    seen = []
    for _ in range(3):
        seen.append(claim(product))
        words = ("XREADGROUP", "GROUP", "g", "Carol", "COUNT", 10, "CLAIM", 3_600_000, "STREAMS", "s", ">")
        assert product.run(*words) is NULL_ARRAY
    assert seen == [[], [], [f"{count}-0"]]
