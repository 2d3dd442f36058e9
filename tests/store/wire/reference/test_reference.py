"""What the functions of `store/wire` do, said by examples; the native module is compared with them elsewhere."""

from __future__ import annotations

import pytest

from riverbed.store.format.resp import bulk, encode_entry, encode_words
from riverbed.store.format.streams import stream_prefix
from riverbed.store.ids import MAX_HALF, MAX_ID, MIN_ID, make_id, pack_id
from riverbed.store.wire.interface import APPENDED, LOGGED, NO_RUNS
from riverbed.store.wire.reference import (
    Claims,
    Mix,
    Ranges,
    Run,
    Tail,
    append,
    expand_one,
    join,
    keys_in_order,
    load,
    load_xadds,
    open_tail,
    parse,
    parse_front,
    seal,
    split_bulks,
    take_tails,
    unknown_keys,
)
from riverbed.store.wire.reference.requests import Requests
from tests.support.wire_fuzz import IDS, ODD, wire

PREFIX = stream_prefix(7)
PING = wire([b"PING"])
MS = 1_700_000_000_000


def xadd(*values: bytes, key: bytes = b"s", name: bytes = b"XADD", wanted: bytes = b"*") -> list[bytes]:
    return [name, key, wanted, *(word for value in values for word in (b"f", value))]


def told(requests: Requests | None) -> list[object]:
    assert requests is not None
    found: list[object] = []
    for one in requests:
        if isinstance(one, Mix):
            found.append((one.key, one.group, len(one)))
        elif isinstance(one, Ranges):
            found.append(len(one))
        elif isinstance(one, Claims):
            found.append((*one.names, len(one)))
        else:
            found.append((one.key, len(one)) if isinstance(one, Run) else one[0])
    return found


def read(commands: list[list[bytes]], runs: int) -> Requests | None:
    data = b"".join(map(wire, commands))
    return parse(runs, data)


def one_run(commands: list[list[bytes]], runs: int = APPENDED) -> Run:
    found = read(commands, runs)
    assert found is not None
    [run] = found
    assert isinstance(run, Run)
    return run


def xack(entry_id: bytes, *, key: bytes = b"s", group: bytes = b"g", name: bytes = b"XACK") -> list[bytes]:
    return [name, key, group, entry_id]


def test_xadds_and_xacks_of_one_group_become_a_mix() -> None:
    commands = [xadd(b"1"), xack(b"1-1"), xadd(b"2", key=b"t"), xadd(b"3"), xack(b"1-2", name=b"xack"), xack(b"1-3")]
    found = read(commands, APPENDED)
    assert found is not None
    [mix] = found
    assert isinstance(mix, Mix)
    assert (len(mix), mix.key, mix.group, mix[0], mix.size) == (
        6,
        b"s",
        b"g",
        Mix,
        sum(len(wire(one)) for one in commands),
    )
    assert mix.requests() == commands
    assert mix.requests(4) == commands[4:]
    assert mix.request(2) == commands[2]
    assert mix.adds is not None
    assert mix.adds.requests() == [commands[0], commands[2], commands[3]]
    assert [mix.acks_before(added) for added in range(4)] == [0, 1, 1, 3]
    assert mix.acks(2) == ([pack_id(make_id(1, 1)), pack_id(make_id(1, 2))], b"$3\r\n1-1\r\n$3\r\n1-2\r\n")
    ids = [b"$3\r\n9-%d\r\n" % number for number in range(3)]
    assert mix.replies(b"".join(ids), b"\1\0\1") == b"".join([ids[0], b":1\r\n", *ids[1:], b":0\r\n", b":1\r\n"])
    assert mix.replies(ids[0], b"\1") == ids[0] + b":1\r\n"


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([xack(b"1-1")], [b"XACK"]),
        ([xack(b"1-1"), [b"PING"], xack(b"1-1")], [b"XACK", b"PING", b"XACK"]),
        ([xack(b"1-1"), xack(b"1-2")], [(b"s", b"g", 2)]),
        ([xack(b"1-1"), xack(b"1-2", group=b"h"), xadd(b"v")], [b"XACK", (b"s", b"h", 2)]),
        ([xadd(b"v"), xack(b"1-1"), xack(b"1-2", key=b"t")], [(b"s", b"g", 2), b"XACK"]),
        ([xadd(b"v"), xack(b"1"), xack(b"01-1")], [(b"s", 1), b"XACK", b"XACK"]),
        ([xadd(b"v"), [*xack(b"1-1"), b"1-2"], xack(b"1-1", name=b"XAck")], [(b"s", 1), b"XACK", b"XAck"]),
    ],
)
def test_other_xacks_stay_by_themselves(commands: list[list[bytes]], expected: list[object]) -> None:
    found = read(commands, APPENDED)
    assert told(found) == expected
    assert parse(LOGGED, b"".join(map(wire, commands[:1]))) == commands[:1] or expected[0] != b"XACK"


def xrange(
    low: bytes = b"-",
    high: bytes = b"+",
    *,
    name: bytes = b"XRANGE",
    key: bytes = b"s",
    end: tuple[bytes, ...] = (b"COUNT", b"1"),
) -> list[bytes]:
    return [name, key, low, high, *end]


def test_xranges_of_one_entry_become_ranges() -> None:
    commands = [
        xrange(),
        xrange(b"7", b"8"),
        xrange(b"7-3", b"8-0", key=b"t"),
        xrange(name=b"xrange", end=(b"Count", b"1")),
    ]
    found = read(commands, APPENDED)
    assert found is not None
    [ranges] = found
    assert isinstance(ranges, Ranges)
    assert (len(ranges), ranges[0]) == (4, Ranges)
    assert ranges.size == sum(len(wire(one)) for one in commands)
    assert ranges.requests() == commands
    assert ranges.request(1) == commands[1]
    assert ranges.rest(2).requests() == commands[2:]
    first, last = pack_id(MIN_ID), pack_id(MAX_ID)
    bounds = ranges.bounds()
    assert bounds == [
        (b"s", first, last),
        (b"s", pack_id(make_id(7, 0)), pack_id(make_id(8, MAX_HALF))),
        (b"t", pack_id(make_id(7, 3)), pack_id(make_id(8, 0))),
        (b"s", first, last),
    ]
    assert bounds[0][0] is bounds[1][0]


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([xrange()], [b"XRANGE"]),
        ([xrange()] * 300, [128, 128, 44]),
        ([xrange(), xadd(b"v"), xrange(), xrange()], [b"XRANGE", (b"s", 1), 2]),
        ([xrange(end=(b"COUNT", b"2"))] * 2, [b"XRANGE"] * 2),
        ([xrange(end=(b"COUNT", b"01"))] * 2, [b"XRANGE"] * 2),
        ([xrange(end=(b"COUNTS", b"1"))] * 2, [b"XRANGE"] * 2),
        ([xrange(end=())] * 2, [b"XRANGE"] * 2),
        ([xrange(end=(b"COUNT",))] * 2, [b"XRANGE"] * 2),
        ([xrange(end=(b"COUNT", b"1", b"COUNT", b"1"))] * 2, [b"XRANGE"] * 2),
        ([xrange(name=b"XRange")] * 2, [b"XRange"] * 2),
        ([xrange(name=b"XREVRANGE")] * 2, [b"XREVRANGE"] * 2),
        ([xrange(b"+", b"-")] * 2, [b"XRANGE"] * 2),
        ([xrange(b"(1-1"), xrange(b"-", b"(1-1"), xrange(b"01"), xrange(b""), xrange(b"1-*")], [b"XRANGE"] * 5),
    ],
)  # fmt: skip
def test_other_xranges_stay_by_themselves(commands: list[list[bytes]], expected: list[object]) -> None:
    assert told(read(commands, APPENDED)) == expected
    assert parse(LOGGED, b"".join(map(wire, commands[:1]))) == commands[:1]
    assert parse(NO_RUNS, b"".join(map(wire, commands))) == commands


def xclaim(entry_id: bytes, *, name: bytes = b"XCLAIM", min_idle: bytes = b"0", end: bytes = b"JUSTID") -> list[bytes]:
    return [name, b"s", b"g", b"c", min_idle, entry_id, end]


def test_xclaims_that_differ_in_their_ids_alone_become_claims() -> None:
    commands = [xclaim(b"1-1"), xclaim(b"20-7"), xclaim(b"1-1")]
    found = read(commands, APPENDED)
    assert found is not None
    [claims] = found
    assert isinstance(claims, Claims)
    assert (len(claims), claims.names, claims[0]) == (3, (b"s", b"g", b"c", b"0"), Claims)
    assert claims.size == sum(len(wire(one)) for one in commands)
    assert claims.requests() == commands
    assert claims.request(1) == commands[1]
    assert claims.rest(2).requests() == commands[2:]
    wires = [b"$3\r\n1-1\r\n", b"$4\r\n20-7\r\n", b"$3\r\n1-1\r\n"]
    assert claims.ids() == ([pack_id(make_id(1, 1)), pack_id(make_id(20, 7)), pack_id(make_id(1, 1))], wires)
    assert claims.replies(b"\0\1\1") == b"*0\r\n*1\r\n$4\r\n20-7\r\n*1\r\n$3\r\n1-1\r\n"
    assert claims.replies(b"\1") == b"*1\r\n$3\r\n1-1\r\n"
    assert claims.rest(1).replies(b"\1") == b"*1\r\n$4\r\n20-7\r\n"


JUST_ID = (b"s", b"g", b"c", b"0")


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([xclaim(b"1-1")], [b"XCLAIM"]),
        ([xclaim(b"1-1")] * 300, [(*JUST_ID, 128), (*JUST_ID, 128), (*JUST_ID, 44)]),
        ([xclaim(b"1-1", name=b"xclaim", end=b"justid")] * 2, [(*JUST_ID, 2)]),
        ([xclaim(b"1-1"), *[xclaim(b"1-2", min_idle=b"5")] * 2], [b"XCLAIM", (b"s", b"g", b"c", b"5", 2)]),
        ([xclaim(b"1-1"), xclaim(b"1-2"), xclaim(b"1-3", end=b"justid")], [(*JUST_ID, 2), b"XCLAIM"]),
        ([xclaim(b"1-1"), xadd(b"v"), xclaim(b"1-2")], [b"XCLAIM", (b"s", 1), b"XCLAIM"]),
        ([xclaim(b"1-1", end=b"FORCE")] * 2, [b"XCLAIM"] * 2),
        ([xclaim(b"1-1")[:6]] * 2, [b"XCLAIM"] * 2),
        ([[*xclaim(b"1-1"), b"FORCE"]] * 2, [b"XCLAIM"] * 2),
        ([xclaim(b"1-1", name=b"XClaim")] * 2, [b"XClaim"] * 2),
        ([xclaim(b"1")] * 2, [b"XCLAIM"] * 2),
        ([xclaim(b"1-1"), xclaim(b"01-1"), xclaim(b"-")], [b"XCLAIM"] * 3),
    ],
)  # fmt: skip
def test_other_xclaims_stay_by_themselves(commands: list[list[bytes]], expected: list[object]) -> None:
    assert told(read(commands, APPENDED)) == expected
    assert parse(LOGGED, b"".join(map(wire, commands[:2]))) in (None, commands[:2])
    assert parse(NO_RUNS, b"".join(map(wire, commands))) == commands


def test_requests_are_lists_of_words() -> None:
    commands = [[b"PING"], [b"ECHO", b""], [b"ECHO", b"*1\r\n$4\r\n"], xadd(b"v")]
    assert read(commands, NO_RUNS) == commands
    assert parse(NO_RUNS, b"*1\r\n$4\r\nPINGxx" + PING, 0, 24) is None
    assert parse(NO_RUNS, b"*1\r\n$4\r\nPINGxx" + PING, 0, 28) == [[b"PING"], [b"PING"]]
    assert parse(NO_RUNS, b"abc" + PING + b"def", 3, 17) == [[b"PING"]]


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_or_not_whole_is_left(odd: bytes) -> None:
    for runs in (NO_RUNS, APPENDED, LOGGED):
        found: list[list[bytes] | Run] = []
        assert parse_front(runs, PING + odd, found) == len(PING)
        assert found == [[b"PING"]]
        assert parse(runs, PING + odd) is None


def test_neighbours_become_a_run() -> None:
    commands = [xadd(b"a"), xadd(b"bb"), [b"PING"], xadd(b"a"), xadd(b"a", key=b"t"), xadd(b"a", b"b", name=b"xadd")]
    assert told(read(commands, APPENDED)) == [(b"s", 2), b"PING", (b"s", 3)]
    assert told(read([xadd(b"a")] * 600, APPENDED)) == [(b"s", 256), (b"s", 256), (b"s", 88)]
    run = one_run(commands[3:])
    assert run.requests() == commands[3:]
    assert [run.entry(at) for at in range(3)] == [(b"s", 14, False), (b"t", 14, False), (b"s", 28, False)]
    assert run.word_count == 2
    rest = run.rest(1)
    assert (rest.key, rest.requests()) == (b"t", commands[4:])
    assert rest.request(1) == commands[5]


def test_what_several_clients_have_sent_becomes_a_run_up_to_what_is_no_single_xadd() -> None:
    first, second = (wire(xadd(b"f", value)) for value in (b"v", b"long value"))
    run = join([first, second, first])
    assert run is not None
    assert run.requests() == [xadd(b"f", value) for value in (b"v", b"long value", b"v")]
    for other in (first + second, first[:-1], first + b"\r\n", b"", wire([b"PING"]), wire(xack(b"1-1"))):
        run = join([first, second, other, first])
        assert run is not None
        assert len(run) == 2
        assert join([first, other]) is None
        assert join([other, first, first]) is None
    assert join([]) is None
    run = join([first] * 300)
    assert run is not None
    assert len(run) == 256


def test_halves_of_requests_are_not_put_together() -> None:
    whole = wire(xadd(b"f", b"v"))
    assert join([whole[:9], whole[9:], whole, whole]) is None


def test_replies_of_a_run_are_taken_apart() -> None:
    assert split_bulks(b"$3\r\n1-1\r\n$0\r\n\r\n$4\r\n1-10\r\n") == [b"$3\r\n1-1\r\n", b"$0\r\n\r\n", b"$4\r\n1-10\r\n"]
    assert split_bulks(b"") == []
    for odd in (b"$3\r\n1-1\r", b"$3\r\n1-12\r\n", b"+OK\r\n", b"$-1\r\n"):
        with pytest.raises(ValueError, match="no bulk strings"):
            split_bulks(odd)


def test_neighbours_in_a_log_become_a_run_of_any_keys() -> None:
    keys = [b"s", b"s", b"t", b"s", b"t", b"t"]
    commands = [xadd(b"a" * at, key=key, wanted=b"1-%d" % at) for at, key in enumerate(keys, 1)]
    more = xadd(b"a", b"b", key=b"t", wanted=b"1-9")
    assert told(read([*commands, more], LOGGED)) == [(b"s", 7)]
    assert told(read([*commands, [b"PING"], *commands[:1] * 300], LOGGED)) == [
        (b"s", 6),
        b"PING",
        (b"s", 256),
        (b"s", 44),
    ]
    mixed = one_run(commands, LOGGED)
    assert mixed.requests() == commands
    rows: list[tuple[bytes, bytes]] = []
    for first, count in ((0, 2), (2, 1), (3, 1), (4, 2)):  # those of the first key
        assert load_xadds(mixed.rest(first), 0, 9, 1 << 30, PREFIX + bytes(16), rows)[0] == count
    assert [key[-1] for key, _ in rows] == [1, 2, 3, 4, 5, 6]


def test_exact_trims_by_length_are_part_of_a_run_of_a_log() -> None:
    trimming = with_options(b"MAXLEN", b"=", b"999999999", wanted=b"1-2")
    four = xadd(b"a", b"b", wanted=b"1-3")  # has as many words but for one
    for commands in ([trimming] * 3, [xadd(b"a", wanted=b"1-1"), trimming, four, trimming, trimming, four]):
        run = one_run(commands, LOGGED)
        assert run.requests() == commands
        assert [run.entry(at)[2] for at in range(len(run))] == [words is trimming for words in commands]
    rows: list[tuple[bytes, bytes]] = []
    assert load_xadds(run, 0, 9, 1 << 30, PREFIX + bytes(16), rows)[0] == 1, "the next one trims"
    for options in (
        "maxlen = 5",
        "MAXLEN ~ 5",
        "MAXLEN 5",
        "MAXLEN = 05",
        "MAXLEN = 1000000000",
        "MINID = 5",
        "NOMKSTREAM",
    ):
        assert told(read([with_options(*options.encode().split(), wanted=b"1-1")], LOGGED)) == [b"XADD"]
    for short in ([b"XADD", b"s", b"MAXLEN", b"=", b"5"], [b"XADD", b"s", b"MAXLEN", b"=", b"5", b"1-1", b"f"]):
        assert told(read([short, trimming], LOGGED)) == [b"XADD", (b"s", 1)]


def with_options(*options: bytes, wanted: bytes = b"*") -> list[bytes]:
    return [*xadd(b"a")[:2], *options, *xadd(b"a", wanted=wanted)[2:]]


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("MAXLEN ~ 1000 *", False),
        ("maxlen = 0 *", False),
        ("Maxlen 999999999 *", False),
        ("MINID ~ 5 *", False),
        ("MINID 5-1 *", False),
        ("NOMKSTREAM *", True),
        ("nomkstream minid = 5-0 NOMKSTREAM *", False),
        ("1-1", False),
        ("0-0", False),
        ("18446744073709551615", False),
        ("MINID ~ 5 1-1", False),
    ],
)
def test_requests_with_options_and_ids_become_a_run(text: str, is_plain: bool) -> None:
    *options, wanted = text.encode().split()
    request = with_options(*options, wanted=wanted)
    run = one_run([request] * 3)
    assert (len(run), run.word_count, run.is_plain) == (3, 2, is_plain)
    assert run.requests() == [request] * 3
    assert told(read([request], LOGGED)) in ([b"XADD"], [(b"s", 1)])


@pytest.mark.parametrize(
    "words",
    [
        xadd(b"a", wanted=b"1-*"),
        xadd(b"a", wanted=b"01-1"),
        xadd(b"a", wanted=b"1-18446744073709551616"),
        xadd(b"a", wanted=b"MAXLEN"),
        xadd(b"a", name=b"Xadd"),
        xadd(),
        [*xadd(b"a"), b"x"],
        [b"XADD"],
        with_options(b"MAXLEN", b"~"),
        with_options(b"MAXLEN", b"~", b"05"),
        with_options(b"MAXLEN", b"~", b"-1"),
        with_options(b"MAXLEN", b"1000000000"),
        with_options(b"MINID", b"~", b"+"),
        with_options(b"MAXLEN", b"5", b"MINID", b"5"),
        with_options(b"MAXLEN", b"~", b"5", b"LIMIT", b"5"),
        with_options(b"MAXLEN", b"~", b"5", b"ACKED"),
        with_options(b"IDMP", b"p", b"i"),
        with_options(b"MAXLE\x6d"[:5] + b"\x2e", b"~", b"5"),
    ],
)
def test_what_is_no_append_of_a_common_form_stays_words(words: list[bytes]) -> None:
    assert read([words], APPENDED) == [words]


def test_words_that_are_not_closed_by_a_line_end_stay_words_and_are_no_log() -> None:
    for place in range(5):
        pieces = [b"$%d\r\n%b\r\n" % (len(word), word) for word in xadd(b"a")]
        pieces[place] = pieces[place][:-2] + b"xx"
        data = b"*5\r\n" + b"".join(pieces)
        assert parse(LOGGED, data) is None
        found = parse(APPENDED, data)
        # nothing is copied of the name
        assert found == [xadd(b"a")] or place == 0


def test_a_log_has_ids_that_are_spelled_as_we_spell_them() -> None:
    canonical = {b"0-0", b"0-1", b"1-1", b"1-2", b"7-0", b"1700000000000-0", IDS[7]}
    for text in IDS:
        found = read([xadd(b"a", wanted=text)], LOGGED)
        assert told(found) == ([(b"s", 1)] if text in canonical else [b"XADD"])


def tail_of(
    last: int,
    *,
    oldest: int = 0,
    node_end: int = 0,
    length: int = 0,
    node_live: int = 0,
    most: int = 100,
    room: int = 4096,
    new_node: tuple[int, int, int] = (0, 0, 0),
    prefix: bytes = PREFIX,
) -> Tail:
    return open_tail(
        prefix + pack_id(make_id(MS, last)),
        pack_id(make_id(MS, oldest)),
        pack_id(make_id(MS, node_end)),
        length,
        node_live,
        most,
        room,
        *new_node,
    )


def test_a_run_is_appended_as_rows_log_and_replies_to_the_tails_of_its_keys() -> None:
    commands = [xadd(b"a"), xadd(b"x" * 2000, key=b"t"), xadd(b"", b"b")]
    other = stream_prefix(9)
    tails = {b"s": tail_of(8), b"t": tail_of(99, prefix=other)}
    count, size, log, replies = append(one_run(commands), 0, tails, {}, MS)
    ids = [make_id(MS, 9), make_id(MS, 100), make_id(MS, 10)]
    values = [encode_entry(entry_id, words[3:]) for entry_id, words in zip(ids, commands, strict=True)]
    rows = {
        b"s": [(PREFIX + pack_id(ids[at]), seal(PREFIX, values[at])) for at in (0, 2)],
        b"t": [(other + pack_id(ids[1]), seal(other, values[1]))],
    }
    assert {key: tail.size for key, tail in tails.items()} == {key: bytes_of(some) for key, some in rows.items()}
    assert {key: list(tail.take_rows()) for key, tail in tails.items()} == rows
    assert [(tail.size, list(tail.take_rows())) for tail in tails.values()] == [(0, []), (0, [])]
    texts = [b"%d-9" % MS, b"%d-100" % MS, b"%d-10" % MS]
    lines = [wire([b"XADD", words[1], text, *words[3:]]) for text, words in zip(texts, commands, strict=True)]
    assert log == b"".join(lines)
    assert replies == b"".join(map(bulk, texts))
    assert (count, size) == (3, bytes_of([*rows[b"s"], *rows[b"t"]]))
    found = tails[b"s"]
    fields = len(encode_words(commands[0][3:])) + len(encode_words(commands[2][3:]))
    assert (found.nodes(), found.last_id) == ([(2, fields, pack_id(ids[0]), pack_id(ids[2]))], pack_id(ids[2]))
    assert append(one_run([xadd(b"a")]), 0, tails, {}, MS + 1)[3] == bulk(b"%d-0" % (MS + 1))


def bytes_of(rows: list[tuple[bytes, bytes]]) -> int:
    return sum(len(key) + len(row) for key, row in rows)


def test_rows_of_many_tails_are_taken_in_the_order_of_their_streams() -> None:
    tails = {key: tail_of(8, prefix=stream_prefix(number)) for key, number in ((b"s", 300), (b"t", 2), (b"u", 5))}
    append(one_run([xadd(b"a"), xadd(b"b", key=b"t"), xadd(b"c")]), 0, tails, {}, MS)
    assert keys_in_order(tails) == [b"t", b"u", b"s"]
    rows, streams = take_tails(list(tails.values()))
    ids = [make_id(MS, seq) for seq in (9, 9, 10)]
    places = [stream_prefix(2), stream_prefix(300), stream_prefix(300)]
    assert [key for key, _ in rows] == [place + pack_id(entry_id) for place, entry_id in zip(places, ids, strict=True)]
    assert streams == [None] * 3  # none was opened by its row
    assert [tail.size for tail in tails.values()] == [0] * 3


def test_keys_are_unknown_that_are_in_no_dict_and_simple() -> None:
    run = one_run([xadd(b"a"), xadd(b"b", key=b"t"), xadd(b"c" * 50, key=b"u"), xadd(b"d", key=b"v"), xadd(b"e")])
    assert unknown_keys(run, 0, 1000, {}, {b"v": 1}) == [b"s", b"t", b"u", b"s"]
    assert unknown_keys(run, 1, 40, {b"s": 1}) == [b"t", b"v"]
    trimming = one_run([[b"XADD", b"s", b"MAXLEN", b"9", b"*", b"f", b"v"], xadd(b"b", key=b"t")])
    assert unknown_keys(trimming, 0, 1000) == [b"t"]


def test_a_run_of_a_log_is_loaded_into_the_tails_of_its_keys_with_the_ids_it_has() -> None:
    commands = [xadd(b"a", wanted=b"%d-9" % MS), xadd(b"b", key=b"t", wanted=b"1-1"), xadd(b"c", wanted=b"%d-7" % MS)]
    tails = {b"s": tail_of(8), b"t": tail_of(0, prefix=stream_prefix(9))}
    run = one_run(commands, LOGGED)
    assert load(run, 0, tails, {}) == (1, tails[b"s"].size)  # the ID for `t` is not above its last one
    assert load(run, 2, tails, {}) == (0, 0)
    assert load(run, 0, tails, {b"s": 1}) == (0, 0)
    entry_id = make_id(MS, 9)
    row = seal(PREFIX, encode_entry(entry_id, [b"f", b"a"]))
    assert list(tails[b"s"].take_rows()) == [(PREFIX + pack_id(entry_id), row)]


def test_appending_ends_before_an_entry_that_is_not_simple() -> None:
    run = one_run([xadd(b"a"), xadd(b"a", key=b"t"), xadd(b"a")])
    assert append(run, 0, {}, {}, MS) == (0, 0, b"", b"")
    assert append(run, 0, {b"s": tail_of(1)}, {}, MS)[0] == 1
    assert append(run, 0, {b"s": tail_of(1), b"t": tail_of(1)}, {b"t": 1}, MS)[0] == 1
    assert append(run, 2, {b"s": tail_of(1), b"t": tail_of(1)}, {b"t": 1}, MS)[0] == 1
    size = len(encode_words([b"f", b"a"]))
    five = one_run([xadd(b"a")] * 5)
    for most, room, made in ((2, 1 << 30, 2), (9, 1 << 30, 5), (9, 2 * size, 1), (9, 2 * size + 1, 2), (9, 0, 0)):
        tail = tail_of(1, most=most, room=room)
        assert append(five, 0, {b"s": tail}, {}, MS)[0] == made
        [(count, used, _, _)] = tail.nodes()
        assert (count, used) == (made, made * size)


def test_what_the_open_node_does_not_take_goes_into_new_ones() -> None:
    size = len(encode_words([b"f", b"a"]))
    large = len(encode_words([b"f", b"x" * 50]))
    run = one_run([xadd(b"a")] * 6 + [xadd(b"x" * 50)] + [xadd(b"a")] * 3)
    tail = tail_of(1, most=2, new_node=(3, 99, 3))
    assert append(run, 0, {b"s": tail}, {}, MS)[0] == 10
    assert [node[:2] for node in tail.nodes()] == [(2, 2 * size), (3, 3 * size), (3, 2 * size + large), (2, 2 * size)]
    edges = [
        (pack_id(make_id(MS, first)), pack_id(make_id(MS, last))) for first, last in ((2, 3), (4, 6), (7, 9), (10, 11))
    ]
    assert [node[2:] for node in tail.nodes()] == edges
    tail = tail_of(1, most=0, new_node=(100, 2 * size + 1, 2))
    assert append(run, 0, {b"s": tail}, {}, MS)[0] == 4
    assert [node[:2] for node in tail.nodes()] == [(0, 0), (2, 2 * size), (2, 2 * size)]
    assert tail.size == bytes_of(list(tail.take_rows()))


@pytest.mark.parametrize(
    ("options", "is_simple"),
    [
        ("MAXLEN ~ 51 *", True),
        ("MAXLEN = 51 *", True),
        ("MAXLEN = 0 *", False),
        ("MAXLEN ~ 42 *", True),
        ("MAXLEN ~ 41 *", False),
        ("MAXLEN ~ 0 *", False),
        (f"MINID ~ {MS}-20 *", True),
        (f"MINID ~ {MS}-21 *", False),
        (f"MINID {MS}-10 *", True),
        (f"MINID {MS}-11 *", False),
        (f"NOMKSTREAM {MS}-31", True),
        (f"{MS}-30", False),
        (f"{MS + 1}", True),
        (f"{MS}", False),
    ],
)
def test_an_entry_is_simple_if_its_id_is_above_the_last_and_its_trim_removes_nothing(
    options: str, is_simple: bool
) -> None:
    *before, wanted = options.encode().split()
    run = one_run([with_options(*before, wanted=wanted)])
    tail = tail_of(30, oldest=10, node_end=20, length=50, node_live=10)
    count, _, log, _ = append(run, 0, {b"s": tail}, {}, MS)
    assert count == is_simple
    assert log.startswith(b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n") == is_simple


def test_exact_trims_are_counted_and_logged_up_to_some_hundreds_of_entries() -> None:
    def appended(*options: str) -> bytes:
        before = [option.encode() for option in options]
        return append(one_run([with_options(*before, wanted=b"*")]), 0, {b"s": tail}, {}, MS)[2]

    tail = tail_of(30, length=50, node_live=10, most=1000, room=1 << 20)
    line = appended("maxlen", "50")
    assert line == wire([b"XADD", b"s", b"MAXLEN", b"=", b"50", b"%d-31" % MS, b"f", b"a"])
    assert tail.trimmed == 1
    assert appended("MAXLEN", "~", "42") == b"", "the first node has nine entries left"
    line = appended("MAXLEN", "=", "48")
    assert line == wire([b"XADD", b"s", b"MAXLEN", b"=", b"48", b"%d-32" % MS, b"f", b"a"])
    assert tail.trimmed == 4
    assert appended("MAXLEN", "~", "43") == b"", "the first node has six entries left"
    rows = list(tail.take_rows())
    assert len(rows) == 2
    assert tail.size > 0, "entries are to be removed"
    for _ in range(252):
        assert appended("MAXLEN", "48") != b""
    assert (appended("MAXLEN", "48"), tail.trimmed) == (b"", 256)
    tail = tail_of(30, length=300, node_live=100, most=1000, room=1 << 20)
    assert appended("MAXLEN", "=", "44") == b"", "this removes 257"
    assert appended("MAXLEN", "=", "45") != b""
    assert (appended("MAXLEN", "=", "45"), tail.trimmed) == (b"", 256)


def test_trims_in_a_run_of_a_log_are_counted() -> None:
    lengths = {31: 9, 32: 5, 33: 5, 34: 0}
    commands = [
        with_options(b"MAXLEN", b"=", b"%d" % most, wanted=b"%d-%d" % (MS, seq)) for seq, most in lengths.items()
    ]
    tail = tail_of(30, length=10)
    assert load(one_run(commands, LOGGED), 0, {b"s": tail}, {})[0] == 3
    assert tail.trimmed == 2 + 5 + 1


def test_ids_go_on_in_the_next_millisecond_up_to_the_last_of_all() -> None:
    run = one_run([xadd(b"a")] * 2)
    tail = open_tail(PREFIX + pack_id(make_id(MS, (1 << 64) - 2)), bytes(16), bytes(16), 0, 0, 9, 999, 0, 0, 0)
    assert append(run, 0, {b"s": tail}, {}, 5)[3] == bulk(b"%d-18446744073709551615" % MS) + bulk(b"%d-0" % (MS + 1))
    tail = open_tail(PREFIX + b"\xff" * 15 + b"\xfe", bytes(16), bytes(16), 0, 0, 9, 999, 0, 0, 0)
    assert append(run, 0, {b"s": tail}, {}, 5)[0] == 1


def test_a_single_entry_is_expanded_with_the_head_of_its_line_in_the_log() -> None:
    key = PREFIX + pack_id(make_id(MS, 11))
    row, size, line, reply = expand_one(one_run([xadd(b"a")]), key, b"head")
    assert row == seal(PREFIX, encode_entry(make_id(MS, 11), [b"f", b"a"]))
    fields = encode_words([b"f", b"a"])
    assert (size, reply) == (len(fields), bulk(b"%d-11" % MS))
    assert line == b"head" + reply + fields


def test_a_run_of_a_log_keeps_its_ids_and_ends_where_they_do_not_ascend() -> None:
    texts = [b"1-9", b"1-10", b"2-0", b"2-0", b"3-0"]
    run = one_run([xadd(b"a", wanted=text) for text in texts], LOGGED)
    rows: list[tuple[bytes, bytes]] = []
    count, size, last = load_xadds(run, 0, 9, 1 << 30, PREFIX + pack_id(make_id(1, 8)), rows)
    ids = [make_id(1, 9), make_id(1, 10), make_id(2, 0)]
    assert rows == [(PREFIX + pack_id(one), seal(PREFIX, encode_entry(one, [b"f", b"a"]))) for one in ids]
    assert (count, size, last) == (3, 3 * len(encode_words([b"f", b"a"])), rows[-1][0])
    assert load_xadds(run, 3, 9, 1 << 30, last, rows) == (0, 0, last)
    assert load_xadds(run, 4, 9, 1 << 30, last, rows)[0] == 1
    assert load_xadds(one_run([xadd(b"a")]), 0, 9, 1 << 30, bytes(24), rows)[0] == 0
