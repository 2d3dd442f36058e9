"""XGROUP, XREADGROUP, XINFO of groups, and what came after Redis 7.0: CLAIM, XNACK, XDELEX, XACKDEL.

Random scripts are in `test_against_oracle.py`; these are the sentences of the public command pages.
"""

from __future__ import annotations

import pytest

from riverbed.store.ids import MAX_HALF
from tests.support.pair import Pair
from tests.support.raw import Node, RawClient
from tests.support.read_log import LogTail
from tests.support.rows import assert_same_row
from tests.support.servers import RiverbedServer
from tests.support.waiting import until_blocked

NIL_ARRAY = b"*-1\r\n"
NO_GROUP = b"-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option\r\n"


def say(client: RawClient, script: str) -> bytes:
    """Say the lines of `script`; -> the last reply."""
    reply = b""
    for line in script.split("; "):
        reply = client.ask(*line.split())
    return reply


def both(pair: Pair, script: str) -> bytes:
    """As `say`, to both servers, which agree."""
    reply = b""
    for line in script.split("; "):
        reply = pair.say(line)
    return reply


def plain(node: Node) -> object:
    """A reply as lists and texts."""
    if node.children is not None:
        return [plain(child) for child in node.children]
    return None if node.kind in ("nil$", "_") or (node.text == b"-1" and node.kind == "*") else node.text.decode()


def ask(client: RawClient, line: str) -> object:
    return plain(client.tree(*line.split()))


def groups(client: RawClient, key: str = "s") -> dict[str, dict[str, object]]:
    """XINFO GROUPS by name."""
    found = {}
    for group in client.tree("XINFO", "GROUPS", key).children or ():
        fields = {name.text.decode(): plain(value) for name, value in group.pairs()}
        found[str(fields["name"])] = fields
    return found


def consumers(client: RawClient) -> dict[str, dict[str, str]]:
    """XINFO CONSUMERS of group g by name."""
    found = {}
    for consumer in client.tree("XINFO", "CONSUMERS", "s", "g").children or ():
        fields = {name.text.decode(): value.text.decode() for name, value in consumer.pairs()}
        found[fields["name"]] = fields
    return found


FIVE = "; ".join(f"XADD s {number}-1 f {number}" for number in range(1, 6))


@pytest.mark.parametrize("name", ["XGROUP", "XINFO", "XREADGROUP"])
def test_flags_arity_and_keys_are_those_of_redis(pair: Pair, name: str) -> None:
    assert_same_row(pair, name)


# -- XGROUP ------------------------------------------------------------------------------------------------------------


def test_create_needs_the_key_or_mkstream_and_a_refused_one_leaves_no_stream(pair: Pair) -> None:
    assert both(pair, "XGROUP CREATE s g $").startswith(b"-ERR The XGROUP subcommand requires the key to exist.")
    assert both(pair, "XGROUP CREATE s g bad MKSTREAM").startswith(b"-ERR Invalid stream ID")
    assert both(pair, "EXISTS s") == b":0\r\n"
    assert both(pair, "XGROUP CREATE s g $ MKSTREAM") == b"+OK\r\n"
    assert both(pair, "XGROUP CREATE s g 0") == b"-BUSYGROUP Consumer Group name already exists\r\n"
    assert both(pair, "XLEN s; TYPE s") == b"+stream\r\n"


@pytest.mark.parametrize(
    "line",
    [
        "XGROUP",
        "XGROUP FOO s g",
        "XGROUP CREATE s",
        "XGROUP CREATE s h 0 MKSTREAM ENTRIESREAD",
        "XGROUP CREATE s h 0 NONSENSE",
        "XGROUP CREATE s h 0 ENTRIESREAD -2",
        "XGROUP CREATE s h 0 ENTRIESREAD x",
        "XGROUP CREATE s h 0 MKSTREAM MKSTREAM MKSTREAM MKSTREAM",
        "XGROUP CREATE s h -",
        "XGROUP SETID s h 0",
        "XGROUP SETID s g bad",
        "XGROUP SETID s g 0 MKSTREAM",
        "XGROUP SETID nokey g 0",
        "XGROUP DESTROY nokey g",
        "XGROUP CREATECONSUMER s h c",
        "XGROUP DELCONSUMER s h c",
        "XGROUP DELCONSUMER s g c d",
        "XINFO",
        "XINFO FOO s",
        "XINFO GROUPS nokey",
        "XINFO CONSUMERS s nogroup",
        "XINFO STREAM s FULL COUNT",
        "XINFO STREAM s HALF",
    ],
)
def test_what_is_refused_is_refused_in_redis_words(pair: Pair, line: str) -> None:
    both(pair, "XADD s 1-1 f v; XGROUP CREATE s g 0")
    assert both(pair, line).startswith(b"-")


def test_names_of_groups_and_consumers_may_be_empty_and_are_listed_in_byte_order(pair: Pair) -> None:
    pair.say("XADD s 1-1 f v")
    for name in (b"b", b"", b"a\x00\xff", b"B"):
        assert pair.ask("XGROUP", "CREATE", "s", name, 0) == b"+OK\r\n"
        assert pair.ask("XGROUP", "CREATECONSUMER", "s", "b", name) == b":1\r\n"
    for client in (pair.ours, pair.theirs):
        listed = [dict(map(_name_and_text, group.pairs()))[b"name"] for group in _children(client, "GROUPS", "s")]
        assert listed == [b"", b"B", b"a\x00\xff", b"b"]
        listed = [dict(map(_name_and_text, one.pairs()))[b"name"] for one in _children(client, "CONSUMERS", "s", "b")]
        assert listed == [b"", b"B", b"a\x00\xff", b"b"]


def _children(client: RawClient, *words: str) -> tuple[Node, ...]:
    return client.tree("XINFO", *words).children or ()


def _name_and_text(pair: tuple[Node, Node]) -> tuple[bytes, bytes]:
    return pair[0].text, pair[1].text


def test_deleting_a_consumer_tells_what_it_had_pending_and_gives_it_to_nobody(pair: Pair) -> None:
    both(pair, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice COUNT 3 STREAMS s >")
    both(pair, "XREADGROUP GROUP g Bob STREAMS s >")
    assert both(pair, "XGROUP DELCONSUMER s g Alice") == b":3\r\n"
    assert both(pair, "XGROUP DELCONSUMER s g Alice") == b":0\r\n"
    assert both(pair, "XPENDING s g") == b"*4\r\n:2\r\n$3\r\n4-1\r\n$3\r\n5-1\r\n*1\r\n*2\r\n$3\r\nBob\r\n$1\r\n2\r\n"


def test_a_consumer_with_much_pending_goes_at_once_and_its_name_may_be_used_again(client: RawClient) -> None:
    client.pipeline([("XADD", "s", f"{number}-1", "f", "v") for number in range(1, 3001)])
    say(client, "XGROUP CREATE s g 0; XREADGROUP GROUP g Alice COUNT 2990 STREAMS s >")
    say(client, "XREADGROUP GROUP g Bob STREAMS s >")
    assert say(client, "XGROUP DELCONSUMER s g Alice") == b":2990\r\n"
    assert ask(client, "XPENDING s g") == ["10", "2991-1", "3000-1", [["Bob", "10"]]]
    assert len(ask(client, "XPENDING s g - + 5000")) == 10
    assert say(client, "XACK s g 1-1 2991-1") == b":1\r\n"
    assert ask(client, "XREADGROUP GROUP g Alice STREAMS s 0") == [["s", []]]
    assert say(client, "XCLAIM s g Alice 0 5-1 FORCE JUSTID") == b"*1\r\n$3\r\n5-1\r\n"
    assert [row[0] for row in ask(client, "XPENDING s g - + 5000 Alice")] == ["5-1"]


def test_destroying_a_group_is_1_or_0_and_a_new_one_of_the_name_is_empty(pair: Pair) -> None:
    both(pair, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >")
    assert both(pair, "XGROUP DESTROY s g") == b":1\r\n"
    assert both(pair, "XGROUP DESTROY s g") == b":0\r\n"
    assert both(pair, "XGROUP CREATE s g 0; XPENDING s g") == b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"


def test_copy_and_rename_take_the_groups_along(pair: Pair) -> None:
    both(pair, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice COUNT 3 STREAMS s >; XACK s g 2-1")
    both(pair, "COPY s t; RENAME s u; XACK u g 1-1")
    assert both(pair, "XPENDING t g") == b"*4\r\n:2\r\n$3\r\n1-1\r\n$3\r\n3-1\r\n*1\r\n*2\r\n$5\r\nAlice\r\n$1\r\n2\r\n"
    assert both(pair, "XPENDING u g") == b"*4\r\n:1\r\n$3\r\n3-1\r\n$3\r\n3-1\r\n*1\r\n*2\r\n$5\r\nAlice\r\n$1\r\n1\r\n"
    assert both(pair, "XREADGROUP GROUP g Bob STREAMS t >") == both(pair, "XREADGROUP GROUP g Bob STREAMS u >").replace(
        b"$1\r\nu", b"$1\r\nt"
    )


# -- XREADGROUP --------------------------------------------------------------------------------------------------------


def test_each_entry_goes_to_one_consumer_and_history_shows_it_until_it_is_acknowledged(pair: Pair) -> None:
    both(pair, f"{FIVE}; XGROUP CREATE s g 0")
    assert both(pair, "XREADGROUP GROUP g Alice COUNT 2 STREAMS s >").count(b"-1\r\n") == 2
    assert both(pair, "XREADGROUP GROUP g Bob STREAMS s >").count(b"-1\r\n") == 3
    assert both(pair, "XREADGROUP GROUP g Alice STREAMS s >") == NIL_ARRAY
    assert both(pair, "XREADGROUP GROUP g Alice STREAMS s 0").count(b"-1\r\n") == 2
    assert both(pair, "XACK s g 1-1; XREADGROUP GROUP g Alice STREAMS s 0").count(b"-1\r\n") == 1
    assert both(pair, "XREADGROUP GROUP g Alice STREAMS s 2-1") == b"*1\r\n*2\r\n$1\r\ns\r\n*0\r\n"


@pytest.mark.parametrize("count", [1, 299, 300, 301, 600])
def test_history_that_ends_with_the_largest_id_is_whole(pair: Pair, count: int) -> None:
    """Slices of it end with any entry, and behind this one there is no ID to go on with."""
    last = f"{MAX_HALF}-{MAX_HALF}"
    both(pair, "; ".join(f"XADD s {entry_id} f v" for entry_id in (*(f"{n}-0" for n in range(1, count)), last)))
    both(pair, "XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >")
    for rest in ("STREAMS s 0", "COUNT 300 STREAMS s 0", f"STREAMS s {MAX_HALF}-{MAX_HALF - 1}"):
        reply = both(pair, f"XREADGROUP GROUP g Alice {rest}")
        assert (last.encode() in reply) == (count <= 300 or "COUNT" not in rest)


def test_history_of_a_deleted_entry_has_a_null_for_its_fields_and_does_not_count(pair: Pair) -> None:
    both(pair, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice COUNT 2 STREAMS s >; XDEL s 1-1")
    assert both(pair, "XREADGROUP GROUP g Alice STREAMS s 0") == (
        b"*1\r\n*2\r\n$1\r\ns\r\n*2\r\n*2\r\n$3\r\n1-1\r\n*-1\r\n*2\r\n$3\r\n2-1\r\n*2\r\n$1\r\nf\r\n$1\r\n2\r\n"
    )
    assert [row[3] for row in ask(pair.ours, "XPENDING s g - + 9")] == ["1", "2"]


def test_one_bad_pair_of_key_and_id_and_nothing_is_changed(pair: Pair) -> None:
    both(pair, f"{FIVE}; XGROUP CREATE s g 0")
    for line in ("s nokey > >", "s s > bad", "s s > $"):
        assert both(pair, f"XREADGROUP GROUP g Alice STREAMS {line}").startswith(b"-")
    assert both(pair, "XPENDING s g").startswith(b"*4\r\n:0\r\n")
    assert both(pair, "XINFO CONSUMERS s g") == b"*0\r\n"


@pytest.mark.parametrize(
    "line",
    [
        "XREADGROUP GROUP g c STREAMS s",
        "XREADGROUP GROUP g STREAMS s >",
        "XREADGROUP COUNT 1 STREAMS s s > >",
        "XREADGROUP GROUP g c COUNT x STREAMS s >",
        "XREADGROUP GROUP g c BLOCK x STREAMS s >",
        "XREADGROUP GROUP g c BLOCK -1 STREAMS s >",
        "XREADGROUP GROUP g c FOO STREAMS s >",
        "XREADGROUP GROUP g c STREAMS s $",
        "XREADGROUP GROUP g c STREAMS nokey bad",
        "XREADGROUP GROUP h c STREAMS s >",
        "XREAD GROUP g c STREAMS s 0",
        "XREAD NOACK STREAMS s 0",
        "XREAD STREAMS s >",
    ],
)
def test_what_a_read_refuses_it_refuses_in_redis_words(pair: Pair, line: str) -> None:
    both(pair, "XADD s 1-1 f v; XGROUP CREATE s g 0")
    assert both(pair, line).startswith(b"-")


def test_noack_moves_the_group_and_makes_nothing_pending(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice NOACK COUNT 4 STREAMS s >")
    group = groups(client)["g"]
    assert (group["pending"], group["last-delivered-id"], group["entries-read"], group["lag"]) == ("0", "4-1", "4", "1")
    assert consumers(client)["Alice"]["inactive"] == "-1"


def test_a_group_set_back_delivers_again_takes_over_and_counts_from_one(pair: Pair) -> None:
    both(
        pair, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >; XREADGROUP GROUP g Alice STREAMS s 0"
    )
    assert both(pair, "XGROUP SETID s g 2-1; XREADGROUP GROUP g Bob COUNT 2 STREAMS s >").count(b"-1\r\n") == 2
    for client in (pair.ours, pair.theirs):
        rows = [(row[0], row[1], row[3]) for row in ask(client, "XPENDING s g - + 9")]
        alice = [(entry_id, "Alice", "2") for entry_id in ("1-1", "2-1", "5-1")]
        assert rows == sorted([*alice, ("3-1", "Bob", "1"), ("4-1", "Bob", "1")])


def test_a_consumer_is_made_by_a_read_that_gives_it_nothing(client: RawClient) -> None:
    say(client, "XGROUP CREATE s g 0 MKSTREAM")
    assert say(client, "XREADGROUP GROUP g Alice STREAMS s >") == NIL_ARRAY
    assert consumers(client)["Alice"]["inactive"] == "-1"


def test_in_resp3_streams_are_a_map_and_entries_stay_arrays(client: RawClient) -> None:
    say(client, "HELLO 3; XADD s 1-1 f v; XGROUP CREATE s g 0")
    assert say(client, "XREADGROUP GROUP g c STREAMS s >") == (
        b"%1\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
    )
    assert say(client, "XREADGROUP GROUP g c STREAMS s >") == b"_\r\n"
    assert say(client, "XDEL s 1-1; XREADGROUP GROUP g c STREAMS s 0") == (
        b"%1\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n_\r\n"
    )
    assert client.tree("XINFO", "GROUPS", "s").children[0].kind == "%"
    assert client.tree("XINFO", "CONSUMERS", "s", "g").children[0].kind == "%"


# -- lag ---------------------------------------------------------------------------------------------------------------


def test_lag_is_unknown_while_a_tombstone_lies_ahead_and_known_again_behind_it(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g c COUNT 1 STREAMS s >")
    assert groups(client)["g"]["lag"] == "4"
    say(client, "XDEL s 3-1")
    assert groups(client)["g"]["lag"] is None
    say(client, "XREADGROUP GROUP g c COUNT 2 STREAMS s >")
    assert groups(client)["g"]["lag"] is None
    say(client, "XREADGROUP GROUP g c STREAMS s >")
    assert (groups(client)["g"]["lag"], groups(client)["g"]["entries-read"]) == ("0", "5")


# -- CLAIM, XNACK ------------------------------------------------------------------------------------------------------


def test_claim_takes_what_is_overdue_first_and_then_what_is_new(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice COUNT 3 STREAMS s >")
    say(client, "XCLAIM s g Alice 0 2-1 IDLE 90000 RETRYCOUNT 4 JUSTID; XCLAIM s g Alice 0 3-1 IDLE 99000 JUSTID")
    ((key, entries),) = ask(client, "XREADGROUP GROUP g Bob COUNT 3 CLAIM 60000 STREAMS s >")
    assert key == "s"
    assert [(entry[0], entry[1], entry[3]) for entry in entries] == [
        ("3-1", ["f", "3"], "1"),
        ("2-1", ["f", "2"], "4"),
        ("4-1", ["f", "4"], "0"),
    ]
    assert [int(entry[2]) // 1000 for entry in entries] == [99, 90, 0]
    rows = {row[0]: (row[1], row[3]) for row in ask(client, "XPENDING s g - + 9")}
    assert rows == {"1-1": ("Alice", "1"), "2-1": ("Bob", "5"), "3-1": ("Bob", "2"), "4-1": ("Bob", "1")}


def test_entries_delivered_in_one_millisecond_are_claimed_in_the_order_of_delivery(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >")
    for entry_id in ("4-1", "2-1", "5-1"):
        say(client, f"XCLAIM s g Alice 0 {entry_id} TIME 1000 JUSTID")
    ((_, entries),) = ask(client, "XREADGROUP GROUP g Bob COUNT 3 CLAIM 60000 STREAMS s >")
    assert [entry[0] for entry in entries] == ["4-1", "2-1", "5-1"]


def test_claim_steps_over_deleted_entries_and_leaves_them_pending(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice COUNT 2 STREAMS s >; XDEL s 1-1")
    ((_, entries),) = ask(client, "XREADGROUP GROUP g Bob COUNT 1 CLAIM 0 STREAMS s >")
    assert [entry[0] for entry in entries] == ["2-1"]
    assert [row[:2] for row in ask(client, "XPENDING s g - + 9")] == [["1-1", "Alice"], ["2-1", "Bob"]]


def test_released_entries_belong_to_nobody_and_are_claimed_first_in_order_of_release(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >")
    say(client, "XCLAIM s g Alice 0 1-1 IDLE 90000 JUSTID")
    assert say(client, "XNACK s g FAIL IDS 2 4-1 3-1") == b":2\r\n"
    rows = {row[0]: row[1:] for row in ask(client, "XPENDING s g - + 9")}
    assert rows["3-1"] == rows["4-1"] == ["", "-1", "1"]
    assert ask(client, "XPENDING s g")[3] == [["Alice", "3"]]
    ((_, entries),) = ask(client, "XREADGROUP GROUP g Bob COUNT 3 CLAIM 60000 STREAMS s >")
    assert [entry[0] for entry in entries] == ["4-1", "3-1", "1-1"]


def test_the_modes_of_xnack_take_one_delivery_back_leave_it_or_make_it_the_largest(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >")
    say(client, "XCLAIM s g Alice 0 1-1 2-1 3-1 4-1 RETRYCOUNT 5 JUSTID")
    say(client, "XNACK s g SILENT IDS 1 1-1; XNACK s g FAIL IDS 1 2-1; XNACK s g FATAL IDS 1 3-1")
    say(client, "XNACK s g FAIL RETRYCOUNT 2 IDS 1 4-1")
    counts = [row[3] for row in ask(client, "XPENDING s g - + 4")]
    assert counts == ["4", "5", str(2**63 - 1), "2"]
    say(client, "XCLAIM s g Bob 0 3-1")
    ((_, owner, _, count),) = ask(client, "XPENDING s g 3-1 3-1 1")
    assert (owner, count) == ("Bob", str(2**63 - 1))


def test_force_releases_what_was_not_pending_if_it_exists(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0")
    assert say(client, "XNACK s g FAIL IDS 2 1-1 9-9 FORCE") == b":1\r\n"
    assert ask(client, "XPENDING s g - + 9") == [["1-1", "", "-1", "0"]]


def test_released_entries_may_be_claimed_however_young_and_are_in_nobodys_history(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >; XNACK s g FAIL IDS 2 1-1 2-1")
    assert [entry[0] for entry in ask(client, "XREADGROUP GROUP g Alice STREAMS s 0")[0][1]] == ["3-1", "4-1", "5-1"]
    assert ask(client, "XCLAIM s g Bob 99999 1-1 JUSTID") == ["1-1"]
    assert ask(client, "XAUTOCLAIM s g Bob 99999 0 JUSTID") == ["0-0", ["2-1"], []]
    say(client, "XNACK s g FAIL IDS 1 1-1; XGROUP DELCONSUMER s g Bob")
    assert say(client, "XACK s g 1-1 2-1") == b":1\r\n"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("XNACK nokey g FAIL IDS 1 1-1", b"NOGROUP No such key 'nokey' or consumer group 'g'"),
        ("XNACK s g NO IDS 1 1-1", b"ERR mode must be SILENT, FAIL, or FATAL"),
        ("XNACK s g FAIL FORCE FORCE FORCE", b"ERR syntax error, expected IDS keyword"),
        ("XNACK s g FAIL IDS 0 1-1", b"ERR numids must be a positive integer"),
        ("XNACK s g FAIL IDS 2 1-1", b"ERR number of IDs doesn't match numids"),
        ("XNACK s g FAIL IDS 1 1-1 5-5", b"ERR Unrecognized XNACK option '5-5'"),
        ("XNACK s g FAIL IDS 1 1-1 RETRYCOUNT x", b"ERR value is not an integer or out of range"),
        ("XNACK s g FAIL IDS 1 1-1 RETRYCOUNT -1", b"ERR Invalid RETRYCOUNT value, must be >= 0"),
        ("XNACK s g FAIL IDS 2 1-1 bad", b"ERR Invalid stream ID specified as stream command argument"),
    ],
)
def test_what_xnack_refuses_changes_nothing(client: RawClient, line: str, error: bytes) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice COUNT 1 STREAMS s >")
    assert say(client, line) == b"-" + error + b"\r\n"
    assert ask(client, "XPENDING s g - + 9")[0][1] == "Alice"


# -- XDELEX, XACKDEL ---------------------------------------------------------------------------------------------------


def test_xdelex_acked_keeps_what_a_group_has_pending_or_has_not_come_to(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice COUNT 3 STREAMS s >; XACK s g 1-1")
    assert ask(client, "XDELEX s ACKED IDS 5 1-1 2-1 4-1 9-9 1-1") == ["1", "2", "2", "2", "-1"]
    assert say(client, "XLEN s") == b":4\r\n"


def test_xdelex_delref_takes_entries_off_every_list_even_if_they_were_gone(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XGROUP CREATE s h 0")
    say(client, "XREADGROUP GROUP g Alice STREAMS s >; XREADGROUP GROUP h Bob STREAMS s >; XDEL s 2-1")
    assert ask(client, "XDELEX s IDS 3 1-1 2-1 9-9 DELREF") == ["1", "-1", "-1"]
    assert [ask(client, f"XPENDING s {name}")[:2] for name in "gh"] == [["3", "3-1"], ["3", "3-1"]]


def test_xdelex_keepref_is_xdel(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >")
    assert ask(client, "XDELEX s IDS 2 1-1 9-9") == ["1", "-1"]
    assert ask(client, "XPENDING s g")[0] == "5"
    assert ask(client, "XDELEX nokey IDS 2 1-1 bad") == ["-1", "-1"]


def test_xackdel_acknowledges_and_deletes_what_nobody_else_needs(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XGROUP CREATE s h 0")
    say(
        client, "XREADGROUP GROUP g Alice COUNT 3 STREAMS s >; XREADGROUP GROUP h Bob COUNT 2 STREAMS s >; XACK s h 1-1"
    )
    assert ask(client, "XACKDEL s g ACKED IDS 4 1-1 2-1 4-1 1-1") == ["1", "2", "-1", "-1"]
    assert ask(client, "XACKDEL s g IDS 1 3-1") == ["1"]
    assert ask(client, "XACKDEL s h DELREF IDS 1 2-1") == ["1"]
    assert [ask(client, f"XPENDING s {name}")[0] for name in "gh"] == ["0", "0"]
    assert ask(client, "XACKDEL s nogroup IDS 1 1-1") == ["-1"]
    assert [entry[0] for entry in ask(client, "XRANGE s - +")] == ["4-1", "5-1"]


@pytest.mark.parametrize("command", ["XDELEX s", "XACKDEL s g"])
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("IDS 0 1-1", b"ERR Number of IDs must be a positive integer"),
        ("IDS x 1-1", b"ERR Number of IDs must be a positive integer"),
        ("IDS 2 1-1", b"ERR The `numids` parameter must match the number of arguments"),
        ("IDS 1 1-1 2-1", b"ERR syntax error"),
        ("KEEPREF IDS 1 1-1 ACKED", b"ERR syntax error"),
        ("KEEPREF FOO 1 2", b"ERR syntax error"),
        ("IDS 2 1-1 bad", b"ERR Invalid stream ID specified as stream command argument"),
    ],
)
def test_what_deletion_refuses_deletes_nothing(client: RawClient, command: str, words: str, error: bytes) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >")
    assert say(client, f"{command} {words}") == b"-" + error + b"\r\n"
    assert say(client, "XLEN s") == b":5\r\n"


def test_a_trim_by_acked_spares_what_is_pending_and_a_trim_by_delref_clears_it(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice COUNT 4 STREAMS s >; XACK s g 1-1 3-1")
    assert say(client, "XTRIM s MAXLEN 0 ACKED") == b":2\r\n"
    assert [entry[0] for entry in ask(client, "XRANGE s - +")] == ["2-1", "4-1", "5-1"]
    assert say(client, "XTRIM s MINID 4-1 DELREF") == b":1\r\n"
    assert ask(client, "XPENDING s g")[:2] == ["1", "4-1"]
    say(client, "XADD s MAXLEN = 1 DELREF 6-1 f 6")
    assert ask(client, "XPENDING s g")[0] == "0"


@pytest.mark.parametrize("with_group", [True, False])
@pytest.mark.parametrize("references", ["ACKED", "DELREF"])
def test_an_approximate_trim_that_respects_groups_takes_a_part_of_a_node(
    client: RawClient, references: str, with_group: bool
) -> None:
    say(client, FIVE)
    if with_group:
        say(client, "XGROUP CREATE s g 0; XREADGROUP GROUP g Alice NOACK STREAMS s >")
    assert say(client, f"XTRIM s MAXLEN ~ 3 LIMIT 4 {references}") == b":0\r\n"
    assert say(client, f"XTRIM s MAXLEN ~ 3 {references}") == b":2\r\n"
    assert say(client, f"XTRIM s MINID ~ 4-1 {references}") == b":1\r\n"
    say(client, f"XADD s MAXLEN ~ 1 {references} 6-1 f 6")
    assert [entry[0] for entry in ask(client, "XRANGE s - +")] == ["6-1"]


def test_a_trim_by_delref_keeps_the_pending_records_of_entries_deleted_earlier(client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >; XDEL s 2-1")
    assert say(client, "XTRIM s MAXLEN 2 DELREF") == b":2\r\n"
    assert [pending[0] for pending in ask(client, "XPENDING s g - + 9")] == ["2-1", "4-1", "5-1"]


# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_delivery_is_logged_as_one_xclaim_and_the_new_position(server: RiverbedServer, client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0")
    tail = LogTail(server.directory)
    say(client, "XREADGROUP GROUP g Alice COUNT 3 STREAMS s >")
    ((multi, claim, position, end),) = tail.batches()
    assert (multi, position, end) == (b"MULTI", b"XGROUP SETID s g 3-1 ENTRIESREAD 3", b"EXEC")
    words = claim.split()
    assert words[:9] == b"XCLAIM s g Alice 0 1-1 2-1 3-1 TIME".split()
    assert words[10:] == b"RETRYCOUNT 1 FORCE JUSTID LASTID 3-1".split()


def test_what_changes_nothing_logs_nothing(server: RiverbedServer, client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g $; XGROUP CREATECONSUMER s g Alice")
    tail = LogTail(server.directory)
    say(client, "XACK s g 1-1; XACKDEL s g IDS 1 1-1; XDELEX s IDS 1 9-9; XNACK s g FAIL IDS 1 1-1; XPENDING s g")
    say(client, "XGROUP CREATECONSUMER s g Alice; XGROUP DELCONSUMER s g Bob; XGROUP DESTROY s h; XINFO GROUPS s")
    assert tail.lines() == []


def test_deletions_are_logged_as_what_they_did(server: RiverbedServer, client: RawClient) -> None:
    say(client, f"{FIVE}; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >")
    tail = LogTail(server.directory)
    say(client, "XACKDEL s g DELREF IDS 2 1-1 9-9")
    say(client, "XDELEX s DELREF IDS 1 2-1")
    say(client, "XTRIM s MAXLEN 2 DELREF; XACK s g 4-1; XTRIM s MAXLEN 1 ACKED")
    lines = [line for line in tail.lines() if line not in (b"MULTI", b"EXEC")]
    assert lines == [
        *(b"XACK s g 1-1", b"XDEL s 1-1"),
        *(b"XACK s g 2-1", b"XDEL s 2-1"),
        *(b"XACK s g 3-1", b"XTRIM s MAXLEN = 2"),
        b"XACK s g 4-1",
        *(b"XDEL s 4-1", b"XSETID s 5-1 ENTRIESADDED 5 MAXDELETEDID 2-1"),
    ]


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_of_the_waiting_consumers_the_first_takes_what_it_asks_for_and_the_next_the_rest(
    server: RiverbedServer, client: RawClient
) -> None:
    say(client, "XGROUP CREATE s g $ MKSTREAM")
    with server.client() as alice, server.client() as bob, server.client() as carol:
        for number, (waiting, name) in enumerate(((alice, "Alice"), (bob, "Bob"), (carol, "Carol")), 1):
            waiting.send("XREADGROUP", "GROUP", "g", name, "COUNT", 2, "BLOCK", 0, "STREAMS", "s", ">")
            until_blocked(client, number)
        say(client, "MULTI; XADD s 1-1 f v; XADD s 2-1 f v; XADD s 3-1 f v; EXEC")
        assert alice.reply().count(b"-1\r\n") == 2
        assert bob.reply().count(b"-1\r\n") == 1
        assert b"blocked_clients:1\r\n" in client.ask("INFO", "clients")
        say(client, "XADD s 4-1 f v")
        assert b"4-1" in carol.reply()


def test_a_group_destroyed_while_a_thousand_wait_tells_all_of_them(server: RiverbedServer, client: RawClient) -> None:
    say(client, "XGROUP CREATE s g $ MKSTREAM")
    waiting = [server.client() for _ in range(1000)]
    try:
        for number, one in enumerate(waiting):
            one.send("XREADGROUP", "GROUP", "g", f"c{number}", "BLOCK", 0, "STREAMS", "s", ">")
        until_blocked(client, len(waiting))
        assert say(client, "XGROUP DESTROY s g") == b":1\r\n"
        assert [one.reply() for one in waiting] == [NO_GROUP] * len(waiting)
    finally:
        for one in waiting:
            one.close()


@pytest.mark.parametrize("end", ["DEL s", "FLUSHALL", "RENAME s t", "PEXPIRE s 1"])
def test_a_reader_whose_stream_goes_is_told_that_there_is_no_group(
    server: RiverbedServer, client: RawClient, end: str
) -> None:
    say(client, "XGROUP CREATE s g $ MKSTREAM")
    with server.client() as waiting:
        waiting.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 10_000, "STREAMS", "s", ">")
        until_blocked(client, 1)
        say(client, end)
        assert waiting.reply() == NO_GROUP


def test_a_killed_waiter_loses_nothing_that_it_was_not_sent(server: RiverbedServer, client: RawClient) -> None:
    say(client, "XGROUP CREATE s g $ MKSTREAM")
    dying, living = server.client(), server.client()
    dying.send("XREADGROUP", "GROUP", "g", "dying", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", ">")
    until_blocked(client, 1)
    living.send("XREADGROUP", "GROUP", "g", "living", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", ">")
    until_blocked(client, 2)
    dying.close()
    client.pipeline([("XADD", "s", "1-1", "f", "v"), ("XADD", "s", "2-1", "f", "v")])
    living.reply()
    living.close()
    # whatever the dying one was given is pending under its name, the rest goes to the next reader
    rest = ask(client, "XREADGROUP GROUP g heir STREAMS s >") or [["s", []]]
    known = {row[0] for row in ask(client, "XPENDING s g - + 9")}
    assert known == {"1-1", "2-1"}
    assert {entry[0] for entry in rest[0][1]} <= known


def test_a_reader_with_claim_is_woken_when_something_becomes_overdue_or_is_released(
    server: RiverbedServer, client: RawClient
) -> None:
    say(client, "XADD s 1-1 f v; XGROUP CREATE s g 0; XREADGROUP GROUP g Alice STREAMS s >")
    with server.client() as waiting:
        waiting.send("XREADGROUP", "GROUP", "g", "Bob", "BLOCK", 10_000, "CLAIM", 50, "STREAMS", "s", ">")
        assert b"1-1" in waiting.reply()
        waiting.send("XREADGROUP", "GROUP", "g", "Carol", "BLOCK", 10_000, "CLAIM", 100_000, "STREAMS", "s", ">")
        until_blocked(client, 1)
        assert say(client, "XNACK s g FAIL IDS 1 1-1") == b":1\r\n"
        assert b"1-1" in waiting.reply()
