"""XGROUP POLICY: how it is set, and how entries that are delivered too often become dead letters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from riverbed.store.groups.pending_reads import MAX_OVER_LIMIT
from tests.conftest import StartRedis, StartRiverbed
from tests.support.in_process import Product, answer
from tests.support.raw import RawClient
from tests.support.servers import Server
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until
from tests.support.workers import fill, policy

LIMIT_2 = ("MAXDELIVERIES", 2, "DEADLETTER", "dead")
MAX = (1 << 64) - 1


def refusal(product: Product, *words: str | int) -> Any:
    return answer(lambda: product.run(*words))


def origins(product: Product, key: str = "dead") -> list[tuple[str, str, int]]:
    """(origin id, last consumer, deliveries) of every dead letter."""
    found = []
    for _, fields in product.run("XRANGE", key, "-", "+"):
        values = [value.decode() for value in fields[1::2]]
        found.append((values[-4], values[-2], int(values[-1])))
    return found


def pending(product: Product) -> dict[str, tuple[str, int]]:
    """id -> (consumer, delivery count)"""
    rows = product.run("XPENDING", "s", "g", "-", "+", 10_000)
    return {entry_id.decode(): (consumer.decode(), count) for entry_id, consumer, _, count in rows}


def ids(entries: Any) -> list[str]:
    return [entry[0].decode() for entry in entries]


# -- setting it --------------------------------------------------------------------------------------------------------


def test_a_group_has_no_policy_until_it_is_given_one(product: Product) -> None:
    fill(product)
    none = [b"max-deliveries", 0, b"dead-letter", None, b"consumer-ttl", 0]
    assert product.run("XGROUP", "POLICY", "s", "g") == none
    product.run("XGROUP", "POLICY", "s", "g", *LIMIT_2, "CONSUMERTTL", 60_000)
    assert policy(product) == [2, b"dead", 60_000]


def test_in_resp3_the_policy_is_a_map(client: RawClient) -> None:
    client.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    client.ask("HELLO", 3)
    assert client.ask("XGROUP", "POLICY", "s", "g", *LIMIT_2) == b"+OK\r\n"
    assert client.ask("XGROUP", "POLICY", "s", "g") == (
        b"%3\r\n$14\r\nmax-deliveries\r\n:2\r\n$11\r\ndead-letter\r\n$4\r\ndead\r\n$12\r\nconsumer-ttl\r\n:0\r\n"
    )


def test_what_is_not_named_stays_as_it_is(product: Product) -> None:
    fill(product, 1, *LIMIT_2)
    product.run("XGROUP", "POLICY", "s", "g", "consumerttl", 5)
    assert policy(product) == [2, b"dead", 5]
    product.run("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", 7)
    assert policy(product) == [7, b"dead", 5]
    product.run("XGROUP", "POLICY", "s", "g", "DEADLETTER", "other")
    assert policy(product) == [7, b"other", 5]


@pytest.mark.parametrize("off", ["0", "OFF", "off"])
def test_each_part_is_turned_off_by_itself(product: Product, off: str) -> None:
    fill(product, 1, *LIMIT_2, "CONSUMERTTL", 5)
    product.run("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", off)
    assert policy(product) == [0, None, 5]
    product.run("XGROUP", "POLICY", "s", "g", "CONSUMERTTL", off)
    assert policy(product) == [0, None, 0]


SYNTAX = "-ERR unknown subcommand or wrong number of arguments for 'POLICY'. Try XGROUP HELP."


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("MAXDELIVERIES", 2), "-ERR MAXDELIVERIES needs a DEADLETTER key, to which it moves entries"),
        (("DEADLETTER", "d"), "-ERR DEADLETTER needs MAXDELIVERIES, which says when an entry goes there"),
        (
            ("MAXDELIVERIES", 0, "DEADLETTER", "d"),
            "-ERR DEADLETTER needs MAXDELIVERIES, which says when an entry goes there",
        ),
        (
            ("MAXDELIVERIES", 2, "DEADLETTER", "s"),
            "-ERR the DEADLETTER key must be another one than the stream's own",
        ),
        (
            ("MAXDELIVERIES", -1, "DEADLETTER", "d"),
            "-ERR MAXDELIVERIES must be a positive integer, or 0 or OFF for none",
        ),
        (
            ("MAXDELIVERIES", 1 << 63, "DEADLETTER", "d"),
            "-ERR MAXDELIVERIES must be a positive integer, or 0 or OFF for none",
        ),
        (("CONSUMERTTL", "soon"), "-ERR CONSUMERTTL must be a positive integer, or 0 or OFF for none"),
        (("CONSUMERTTL",), SYNTAX),
        (("PATIENCE", 5), SYNTAX),
    ],
)
def test_a_refused_policy_changes_nothing(product: Product, words: tuple[str | int, ...], error: str) -> None:
    fill(product)
    assert refusal(product, "XGROUP", "POLICY", "s", "g", *words) == error
    assert policy(product) == [0, None, 0]


def test_the_key_and_the_group_must_exist(product: Product) -> None:
    assert refusal(product, "XGROUP", "POLICY", "s", "g").startswith("-ERR The XGROUP subcommand requires the key")
    fill(product)
    assert refusal(product, "XGROUP", "POLICY", "s", "h") == "-NOGROUP No such consumer group 'h' for key name 's'"


def test_help_mentions_it(product: Product) -> None:
    assert "POLICY <key> <groupname> [option]" in product.run("XGROUP", "HELP")


def test_a_copy_with_a_policy_is_executed_again_from_the_log(product: Product) -> None:
    fill(product, 1, *LIMIT_2)
    assert product.run("COPY", "s", "copy") == 1
    expected = product.run("XGROUP", "POLICY", "copy", "g")
    for accident in (product.kill, product.replay, product.restart):
        accident()
        assert product.run("XGROUP", "POLICY", "copy", "g") == expected


def test_it_stays_with_the_group_through_restarts_kills_and_rebuilding(product: Product) -> None:
    fill(product, 3, *LIMIT_2, "CONSUMERTTL", 60_000)
    for accident in (product.kill, product.replay, product.restart, product.kill):
        accident()
        assert policy(product) == [2, b"dead", 60_000]
    product.run("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", 0, "CONSUMERTTL", 0)
    for accident in (product.kill, product.replay):
        accident()
        assert policy(product) == [0, None, 0]


def test_it_goes_with_the_stream_and_a_copy_has_it_too(product: Product) -> None:
    fill(product, 3, *LIMIT_2, "CONSUMERTTL", 60_000)
    product.run("RENAME", "s", "t")
    product.run("COPY", "t", "copy")
    product.run("SWAPDB", 0, 1)
    product.run("SWAPDB", 1, 0)
    product.run("MOVE", "t", 3)
    product.run("SELECT", 3)
    assert policy(product, "t") == [2, b"dead", 60_000]
    product.run("SELECT", 0)
    assert policy(product, "copy") == [2, b"dead", 60_000]
    product.replay()
    assert policy(product, "copy") == [2, b"dead", 60_000]


def test_setid_keeps_it_and_a_new_group_of_the_name_has_none(product: Product) -> None:
    fill(product, 3, *LIMIT_2, "CONSUMERTTL", 60_000)
    product.run("XGROUP", "SETID", "s", "g", "0")
    assert policy(product) == [2, b"dead", 60_000]
    product.run("XGROUP", "DESTROY", "s", "g")
    product.run("XGROUP", "CREATE", "s", "g", "0")
    assert policy(product) == [0, None, 0]


def test_xinfo_says_nothing_of_it(product: Product) -> None:
    fill(product)
    before = [product.run("XINFO", "GROUPS", "s"), product.run("XINFO", "STREAM", "s", "FULL")]
    product.run("XGROUP", "POLICY", "s", "g", *LIMIT_2, "CONSUMERTTL", 60_000)
    assert [product.run("XINFO", "GROUPS", "s"), product.run("XINFO", "STREAM", "s", "FULL")] == before


# -- dead letters ------------------------------------------------------------------------------------------------------


def test_a_dead_letter_has_its_own_fields_and_then_where_it_comes_from(product: Product) -> None:
    fill(product, 1, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    assert product.run("XCLAIM", "s", "g", "Bob", 0, "1-0") == []
    ((entry_id, fields),) = product.run("XRANGE", "dead", "-", "+")
    assert entry_id == b"%d-0" % product.clock.now_ms
    assert fields == [
        *(b"job", b"1"),
        *(b"riverbed-origin-key", b"s"),
        *(b"riverbed-origin-id", b"1-0"),
        *(b"riverbed-group", b"g"),
        *(b"riverbed-consumer", b"Alice"),
        *(b"riverbed-deliveries", b"1"),
    ]


def test_an_entry_is_moved_once_and_the_group_is_done_with_it(product: Product) -> None:
    fill(product, 3, *LIMIT_2)
    for expected in (["1-0", "2-0", "3-0"], [], []):
        assert ids(product.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "2-0", "3-0")) == expected
    assert origins(product) == [("1-0", "Bob", 2), ("2-0", "Bob", 2), ("3-0", "Bob", 2)]
    assert pending(product) == {}
    assert ids(product.run("XRANGE", "s", "-", "+")) == ["1-0", "2-0", "3-0"]
    assert product.run("XREADGROUP", "GROUP", "g", "Bob", "STREAMS", "s", "0") == [[b"s", []]]


def test_reading_ones_history_counts_and_moves(product: Product) -> None:
    fill(product, 3, *LIMIT_2)
    product.run("XADD", "s", "4-0", "job", 4)
    assert len(product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "1")[0][1]) == 2
    product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
    ((_, entries),) = product.run("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 2, "STREAMS", "s", "0")
    assert ids(entries) == ["1-0", "4-0"]
    assert origins(product) == [("2-0", "Alice", 2), ("3-0", "Alice", 2)]
    assert pending(product) == {"1-0": ("Alice", 2), "4-0": ("Alice", 2)}


def test_xautoclaim_moves_and_its_cursor_goes_on_behind(product: Product) -> None:
    fill(product, 5, *LIMIT_2)
    product.run("XCLAIM", "s", "g", "Alice", 0, "1-0", "2-0", "3-0", "RETRYCOUNT", 2, "JUSTID")
    assert product.run("XAUTOCLAIM", "s", "g", "Bob", 0, "0", "COUNT", 2) == [b"3-0", [], []]
    cursor, entries, deleted = product.run("XAUTOCLAIM", "s", "g", "Bob", 0, "3-0", "COUNT", 2)
    assert (cursor, ids(entries), deleted) == (b"5-0", ["4-0"], [])
    assert origins(product) == [("1-0", "Alice", 2), ("2-0", "Alice", 2), ("3-0", "Alice", 2)]


def test_claim_moves_and_goes_on_to_what_it_may_have(product: Product) -> None:
    fill(product, 4, *LIMIT_2)
    product.run("XCLAIM", "s", "g", "Alice", 0, "1-0", "2-0", "RETRYCOUNT", 2, "JUSTID")
    product.run("XADD", "s", "5-0", "job", 5)
    product.clock.now_ms += 1000
    reply = product.run("XREADGROUP", "GROUP", "g", "Bob", "COUNT", 3, "CLAIM", 500, "STREAMS", "s", ">")
    assert ids(reply[0][1]) == ["3-0", "4-0", "5-0"]
    assert origins(product) == [("1-0", "Alice", 2), ("2-0", "Alice", 2)]


@pytest.mark.parametrize("mode", ["FAIL", "FATAL", "SILENT"])
def test_what_is_given_back_as_fatal_goes_with_the_next_delivery(product: Product, mode: str) -> None:
    fill(product, 1, "MAXDELIVERIES", 3, "DEADLETTER", "dead")
    product.run("XNACK", "s", "g", mode, "IDS", 1, "1-0")
    assert product.run("XLEN", "dead") == 0
    reply = product.run("XREADGROUP", "GROUP", "g", "Bob", "CLAIM", 0, "STREAMS", "s", ">")
    if mode == "FATAL":
        assert reply is not None
        assert origins(product) == [("1-0", "", (1 << 63) - 1)]
    else:
        assert ids(reply[0][1]) == ["1-0"]


def test_justid_delivers_nothing_and_moves_nothing(product: Product) -> None:
    fill(product, 2, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    assert product.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "RETRYCOUNT", 50, "JUSTID") == [b"1-0"]
    assert product.run("XAUTOCLAIM", "s", "g", "Bob", 0, "0", "JUSTID") == [b"0-0", [b"1-0", b"2-0"], []]
    assert pending(product) == {"1-0": ("Bob", 50), "2-0": ("Bob", 1)}
    assert product.run("XLEN", "dead") == 0


def test_with_retrycount_the_number_given_is_the_one_that_counts(product: Product) -> None:
    fill(product, 2, *LIMIT_2)
    assert ids(product.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "RETRYCOUNT", 2)) == ["1-0"]
    assert ids(product.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "RETRYCOUNT", 0)) == ["1-0"]  # another chance
    assert product.run("XCLAIM", "s", "g", "Bob", 0, "2-0", "RETRYCOUNT", 3) == []
    assert origins(product) == [("2-0", "Alice", 1)]


def test_what_is_claimed_by_force_without_being_pending_is_delivered(product: Product) -> None:
    fill(product, 1, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    product.run("XADD", "s", "2-0", "job", 2)
    assert ids(product.run("XCLAIM", "s", "g", "Bob", 0, "2-0", "FORCE")) == ["2-0"]
    assert product.run("XCLAIM", "s", "g", "Bob", 0, "2-0", "FORCE") == []
    assert origins(product) == [("2-0", "Bob", 2)]


def test_of_an_id_that_is_given_twice_the_second_neither_moves_nor_delivers_too_often(product: Product) -> None:
    fill(product, 2, *LIMIT_2)
    assert ids(product.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "1-0")) == ["1-0"]
    assert product.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "1-0", "FORCE") == []
    assert origins(product) == [("1-0", "Bob", 2)]
    assert pending(product) == {"2-0": ("Alice", 1)}


def test_what_is_not_idle_for_long_enough_is_left_alone(product: Product) -> None:
    fill(product, 1, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    assert product.run("XCLAIM", "s", "g", "Bob", 1000, "1-0") == []
    assert product.run("XAUTOCLAIM", "s", "g", "Bob", 1000, "0") == [b"0-0", [], []]
    assert pending(product) == {"1-0": ("Alice", 1)}


def test_pending_entries_that_are_deleted_from_the_stream_are_no_dead_letters(product: Product) -> None:
    fill(product, 3, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    product.run("XDEL", "s", "1-0", "2-0", "3-0")
    assert product.run("XCLAIM", "s", "g", "Bob", 0, "1-0") == []
    assert product.run("XAUTOCLAIM", "s", "g", "Bob", 0, "0", "COUNT", 1) == [b"3-0", [], [b"2-0"]]
    ((_, entries),) = product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "0")
    assert ids(entries) == ["3-0"]
    assert product.run("XLEN", "dead") == 0


def test_ids_follow_the_last_one_of_the_dead_letter_stream(product: Product) -> None:
    fill(product, 2, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    later = product.clock.now_ms + 5
    product.run("XADD", "dead", f"{later}-7", "f", "v")
    product.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "2-0")
    assert ids(product.run("XRANGE", "dead", "-", "+")) == [f"{later}-7", f"{later}-8", f"{later}-9"]


def test_dead_letters_can_die_again(product: Product) -> None:
    fill(product, 1, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    product.run("XGROUP", "CREATE", "dead", "g", "0", "MKSTREAM")
    product.run("XGROUP", "POLICY", "dead", "g", "MAXDELIVERIES", 1, "DEADLETTER", "buried")
    product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "0")
    ((_, ((entry_id, _),)),) = product.run("XREADGROUP", "GROUP", "g", "Digger", "STREAMS", "dead", ">")
    product.run("XREADGROUP", "GROUP", "g", "Digger", "STREAMS", "dead", "0")
    ((_, fields),) = product.run("XRANGE", "buried", "-", "+")
    assert fields[3::2] == [b"s", b"1-0", b"g", b"Alice", b"1", b"dead", entry_id, b"g", b"Digger", b"1"]


def test_letters_of_one_read_may_be_read_by_it_from_the_dead_letter_stream(product: Product) -> None:
    fill(product, 2, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    product.run("XGROUP", "CREATE", "dead", "g", "0", "MKSTREAM")
    reply = product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "dead", "0", ">")
    assert [(key, len(entries)) for key, entries in reply] == [(b"s", 0), (b"dead", 2)]


# -- when it rests -----------------------------------------------------------------------------------------------------


def test_the_policy_rests_while_its_dead_letter_stream_is_the_stream_itself(product: Product) -> None:
    fill(product, 1, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    product.run("RENAME", "s", "dead")
    for _ in range(3):
        assert ids(product.run("XCLAIM", "dead", "g", "Bob", 0, "1-0")) == ["1-0"]
    product.replay()
    assert policy(product, "dead") == [1, b"dead", 0]
    product.run("RENAME", "dead", "s")
    assert product.run("XCLAIM", "s", "g", "Bob", 0, "1-0") == []
    assert origins(product) == [("1-0", "Bob", 4)]


def test_the_policy_rests_when_the_dead_letter_stream_has_no_ids_left(product: Product) -> None:
    fill(product, 2, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    product.run("XADD", "dead", f"{MAX}-{MAX}", "f", "v")
    assert ids(product.run("XCLAIM", "s", "g", "Bob", 0, "1-0")) == ["1-0"]
    assert ids(product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "0")[0][1]) == ["2-0"]
    assert pending(product) == {"1-0": ("Bob", 2), "2-0": ("Alice", 2)}
    product.run("DEL", "dead")
    assert product.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "2-0") == []
    assert origins(product) == [("1-0", "Bob", 2), ("2-0", "Alice", 2)]


def test_the_policy_rests_while_the_disk_is_nearly_full(product: Product) -> None:
    fill(product, 1, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    product.engine.txn.is_short_of_space = True
    assert ids(product.run("XCLAIM", "s", "g", "Bob", 0, "1-0")) == ["1-0"]
    product.engine.txn.is_short_of_space = False
    assert product.run("XCLAIM", "s", "g", "Bob", 0, "1-0") == []


def test_a_dead_letter_stream_that_has_expired_begins_anew(product: Product) -> None:
    fill(product, 2, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    product.run("XCLAIM", "s", "g", "Bob", 0, "1-0")
    product.run("PEXPIRE", "dead", 10)
    product.clock.now_ms += 20
    product.run("XCLAIM", "s", "g", "Bob", 0, "2-0")
    assert origins(product) == [("2-0", "Alice", 1)]


def fill_with_worn(product: Product) -> None:
    """Forty entries of 50 kB, of which Alice has each pending, are over the limit: more than one command moves."""
    for number in range(1, 41):
        product.run("XADD", "s", f"{number}-0", "f", "v" * 50_000)
    product.run("XGROUP", "CREATE", "s", "g", 0)
    product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
    product.run("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", 1, "DEADLETTER", "dead")


# -- many of them ------------------------------------------------------------------------------------------------------

MANY = 3 * MAX_OVER_LIMIT


def test_a_claim_that_finds_thousands_moves_a_bounded_number_and_the_next_ones_go_on(product: Product) -> None:
    fill(product, MANY, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    product.run("XADD", "s", f"{MANY + 1}-0", "job", "new")
    moved = [0]
    read = ("XREADGROUP", "GROUP", "g", "Bob", "COUNT", 10, "CLAIM", 0, "STREAMS", "s", ">")
    while moved[-1] < MANY:
        product.run(*read)
        moved.append(product.run("XLEN", "dead"))
        assert 0 < moved[-1] - moved[-2] <= MAX_OVER_LIMIT + 100
    assert [origin[0] for origin in origins(product)] == [f"{number}-0" for number in range(1, MANY + 1)]
    assert list(pending(product)) == [f"{MANY + 1}-0"]


def test_a_history_does_not_end_at_entries_that_are_left_for_the_next_move(product: Product) -> None:
    fill(product, MANY, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    good = [f"{number}-0" for number in (MAX_OVER_LIMIT + 7, MANY)]
    product.run("XCLAIM", "s", "g", "Alice", 0, *good, "RETRYCOUNT", 0, "JUSTID")
    reply = product.run("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 10, "STREAMS", "s", "0")
    assert ids(reply[0][1]) == good
    assert MAX_OVER_LIMIT <= product.run("XLEN", "dead") <= MAX_OVER_LIMIT + 100


def test_the_cursor_of_a_claim_passes_over_no_entry_that_was_not_moved(product: Product) -> None:
    fill_with_worn(product)
    cursor = product.run("XAUTOCLAIM", "s", "g", "Bob", 0, "0", "COUNT", 100)[0]
    moved = product.run("XLEN", "dead")
    assert 0 < moved < 40
    assert cursor == b"%d-0" % (moved + 1)
    assert product.run("XAUTOCLAIM", "s", "g", "Bob", 0, cursor, "COUNT", 100)[0] == b"0-0"
    assert (product.run("XLEN", "dead"), pending(product)) == (40, {})


def test_a_claim_that_has_moved_enough_goes_on_at_once(product: Product) -> None:
    fill_with_worn(product)
    product.clock.now_ms += 60_000
    now_ms = product.clock.now_ms
    for goes_on in (True, False):
        product.run("XREADGROUP", "GROUP", "g", "Bob", "CLAIM", 60_000, "STREAMS", "s", ">")
        assert (product.run("XLEN", "dead") < 40) is goes_on
        stream = product.session.db.stream(b"s", now_ms)
        assert stream is not None
        group = product.session.db.groups(stream).get(b"g")
        assert group is not None
        assert (group.next_claim_ms(60_000, now_ms) == now_ms + 1) is goes_on


def test_a_history_that_the_limits_leave_out_is_not_shown_as_ended(product: Product) -> None:
    for key in ("s", "t"):
        for number in range(1, 4):
            product.run("XADD", key, f"{number}-0", "f", "v" * 100)
        product.run("XGROUP", "CREATE", key, "g", 0)
        product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", key, ">")
    reply = product.run("XREADGROUP", "GROUP", "g", "Alice", "MAXSIZE", 300, "STREAMS", "s", "t", "0", "0")
    assert [key for key, _ in reply] == [b"s"]
    fully = product.run("XREADGROUP", "GROUP", "g", "Alice", "MAXSIZE", 300, "STREAMS", "s", "t", "3-0", "3-0")
    assert [(key, list(entries)) for key, entries in fully] == [(b"s", []), (b"t", [])]


@pytest.mark.parametrize("how", ["history", "xclaim", "xautoclaim"])
def test_thousands_are_all_moved_in_the_end_and_each_once(product: Product, how: str) -> None:
    fill(product, MANY, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    for _ in range(5):
        if how == "history":
            product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "0")
        elif how == "xclaim":
            product.run("XCLAIM", "s", "g", "Bob", 0, *(f"{number}-0" for number in range(1, MANY + 1)))
        else:
            product.run("XAUTOCLAIM", "s", "g", "Bob", 0, "0", "COUNT", MANY)
    assert pending(product) == {}
    assert [origin[0] for origin in origins(product)] == [f"{number}-0" for number in range(1, MANY + 1)]


# -- the log, and those who wait ---------------------------------------------------------------------------------------


def test_a_move_is_one_unit_of_the_log_in_commands_that_redis_knows(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-0 f v", "XADD s 2-0 f v", "XGROUP CREATE s g 0")
        await ticks.ask(client, "XREADGROUP GROUP g Alice STREAMS s >")
        await ticks.ask(client, "XGROUP POLICY s g MAXDELIVERIES 1 DEADLETTER dead")
        before = len(ticks.batches())
        await ticks.ask(client, "XREADGROUP GROUP g Alice COUNT 1 STREAMS s 0")
        (batch,) = ticks.batches()[before:]
        letter = "dead {0}-%d f v riverbed-origin-key s riverbed-origin-id %d-0 riverbed-group g"
        letter += " riverbed-consumer Alice riverbed-deliveries 1"
        added = [(f"XADD {letter}" % (seq, seq + 1)).format(ticks.clock.now_ms).encode() for seq in range(2)]
        assert batch == [b"MULTI", *added, b"XACK s g 1-0 2-0", b"EXEC"]
        ticks.close()

    in_loop(body())


def test_who_waits_for_the_dead_letter_stream_is_woken(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, reader, worker = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD s 1-0 f v", "XGROUP CREATE s g 0", "XGROUP CREATE dead g 0 MKSTREAM")
        await ticks.ask(client, "XREADGROUP GROUP g Alice STREAMS s >")
        await ticks.ask(client, "XGROUP POLICY s g MAXDELIVERIES 1 DEADLETTER dead")
        assert await ticks.ask(reader, "XREAD BLOCK 0 STREAMS dead $") == []
        assert await ticks.ask(worker, "XREADGROUP GROUP g Digger BLOCK 0 STREAMS dead >") == []
        await ticks.ask(client, "XCLAIM s g Bob 0 1-0")
        for waiting in (reader, worker):
            (reply,) = waiting.replies()
            assert b"riverbed-origin-id" in reply
        ticks.close()

    in_loop(body())


def test_who_watches_the_dead_letter_stream_learns_of_it(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, watcher = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD s 1-0 f v", "XGROUP CREATE s g 0", "XADD dead 1-0 f v")
        await ticks.ask(client, "XREADGROUP GROUP g Alice STREAMS s >")
        await ticks.ask(client, "XGROUP POLICY s g MAXDELIVERIES 1 DEADLETTER dead")
        await ticks.ask(watcher, "WATCH dead", "MULTI", "PING")
        await ticks.ask(client, "XCLAIM s g Bob 0 1-0")
        assert await ticks.ask(watcher, "EXEC") == [b"*-1\r\n"]
        ticks.close()

    in_loop(body())


def test_a_waiting_claim_moves_what_wears_out_and_waits_on(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, worker = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD s 1-0 f v", "XGROUP CREATE s g 0")
        await ticks.ask(client, "XREADGROUP GROUP g Alice STREAMS s >")
        await ticks.ask(client, "XGROUP POLICY s g MAXDELIVERIES 1 DEADLETTER dead")
        assert await ticks.ask(worker, "XREADGROUP GROUP g Bob BLOCK 0 CLAIM 1000 STREAMS s >") == []
        ticks.clock.now_ms += 2000
        ticks.executor.blocking.deadline_passed()
        await ticks.settle()
        assert worker.replies() == []
        assert await ticks.ask(client, "XLEN dead", "XPENDING s g") == [b":1\r\n", b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"]
        await ticks.ask(client, "XADD s 2-0 f v")
        assert len(worker.replies()) == 1
        ticks.close()

    in_loop(body())


def state_of(server: Server) -> dict[str, bytes]:
    with server.client() as client:
        summary = {f"XPENDING {name}": client.ask("XPENDING", "s", name) for name in ("g", "h")}
        rows = {key: client.ask("XRANGE", key, "-", "+") for key in ("s", "dead")}
        names = {
            f"consumers of {name}": b" ".join(
                row.children[1].text
                for row in client.tree("XINFO", "CONSUMERS", "s", name).children or ()
                if row.children
            )
            for name in ("g", "h")
        }
        return {**summary, **rows, **names}


def test_redis_that_loads_the_log_ends_in_the_same_state(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    ours = start_riverbed()
    with ours.client() as client:
        for number in range(1, 41):
            client.ask("XADD", "s", f"{number}-0", "job", number)
        for name in ("g", "h"):
            client.ask("XGROUP", "CREATE", "s", name, "0")
            client.ask("XREADGROUP", "GROUP", name, "Alice", "STREAMS", "s", ">")
            client.ask("XGROUP", "CREATECONSUMER", "s", name, "Idle")
        client.ask("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", 2, "DEADLETTER", "dead", "CONSUMERTTL", 1)
        for _ in range(2):
            client.ask("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 20, "STREAMS", "s", "0")
        client.ask("XAUTOCLAIM", "s", "g", "Bob", 0, "0", "COUNT", 4)
        client.ask("XCLAIM", "s", "g", "Bob", 0, "21-0", "21-0")
        client.ask("XCLAIM", "s", "g", "Carol", 0, "21-0", "22-0")
        client.ask("XREADGROUP", "GROUP", "g", "Dave", "COUNT", 3, "CLAIM", 0, "STREAMS", "s", ">")

        def nobody_is_left_to_go() -> bool:
            rows = client.tree("XINFO", "CONSUMERS", "s", "g").children or ()
            return all({name.text: value.text for name, value in row.pairs()}[b"pending"] != b"0" for row in rows)

        until(nobody_is_left_to_go, "a sweep of those with nothing pending")
        assert b"Idle" not in client.ask("XINFO", "CONSUMERS", "s", "g")
        assert b"Idle" in client.ask("XINFO", "CONSUMERS", "s", "h")
        assert int(client.ask("XLEN", "dead")[1:]) >= 20
    expected = state_of(ours)
    ours.kill()
    shutil.copytree(ours.directory / "appendonlydir", tmp_path / "copy" / "appendonlydir")
    assert state_of(start_redis(tmp_path / "copy")) == expected


# -- XGROUP SEEN -------------------------------------------------------------------------------------------------------


def test_the_times_of_a_consumer_can_be_set_but_not_to_the_future(client: RawClient) -> None:
    client.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    client.ask("XGROUP", "CREATECONSUMER", "s", "g", "c")
    assert client.ask("XGROUP", "SEEN", "s", "g", "other", 1000, -1) == b":0\r\n"
    assert client.ask("XGROUP", "SEEN", "s", "g", "c", 1000, 900) == b":1\r\n"
    assert b"seen-time\r\n:1000\r\n$11\r\nactive-time\r\n:900\r\n" in client.ask("XINFO", "STREAM", "s", "FULL")
    future = 1 << 62
    assert client.ask("XGROUP", "SEEN", "s", "g", "c", future, -1) == b":1\r\n"
    shown = client.ask("XINFO", "STREAM", "s", "FULL")
    assert str(future).encode() not in shown
    assert b"active-time\r\n:-1\r\n" in shown
    for times in ((-1, -1), (0, -2), ("x", 0), (1 << 63, 0)):
        assert client.ask("XGROUP", "SEEN", "s", "g", "c", *times).startswith(b"-ERR a time is in unix milliseconds")
