"""What the functions of `store/wire` do, said by examples; the native module is compared with them elsewhere."""

from __future__ import annotations

import pytest

from riverbed.store.format.resp import bulk, encode_entry, encode_words
from riverbed.store.format.streams import stream_prefix
from riverbed.store.ids import make_id, pack_id
from riverbed.store.wire.reference import (
    APPENDED,
    LOGGED,
    NO_RUNS,
    Run,
    expand,
    expand_one,
    load_xadds,
    parse,
    parse_front,
)
from tests.support.wire_fuzz import IDS, ODD, wire

PREFIX = stream_prefix(7)
PING = wire([b"PING"])
MS = 1_700_000_000_000


def xadd(*values: bytes, key: bytes = b"s", name: bytes = b"XADD", wanted: bytes = b"*") -> list[bytes]:
    return [name, key, wanted, *(word for value in values for word in (b"f", value))]


def told(requests: list[list[bytes] | Run] | None) -> list[object]:
    assert requests is not None
    return [(one.key, len(one)) if isinstance(one, Run) else one[0] for one in requests]


def read(commands: list[list[bytes]], runs: int) -> list[list[bytes] | Run] | None:
    data = b"".join(map(wire, commands))
    return parse(runs, data)


def one_run(commands: list[list[bytes]], runs: int = APPENDED) -> Run:
    found = read(commands, runs)
    assert found is not None
    [run] = found
    assert isinstance(run, Run)
    return run


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


def test_neighbours_of_one_key_and_as_many_words_become_a_run() -> None:
    commands = [xadd(b"a"), xadd(b"bb"), [b"PING"], xadd(b"a"), xadd(b"a", key=b"t"), xadd(b"a", b"b", key=b"t")]
    assert told(read(commands, APPENDED)) == [(b"s", 2), b"PING", (b"s", 1), (b"t", 1), (b"t", 1)]
    assert told(read([xadd(b"a"), xadd(b"a", name=b"xadd")], APPENDED)) == [(b"s", 1), (b"s", 1)]
    assert told(read([xadd(b"a")] * 600, APPENDED)) == [(b"s", 256), (b"s", 256), (b"s", 88)]
    run = one_run(commands[:2])
    assert run.requests() == commands[:2]
    assert run.word_count == 2
    assert run.rest(1).requests() == commands[1:2]
    assert run.maxlen == -1


def test_requests_with_an_approximate_length_become_a_run_of_their_own() -> None:
    def trimmed(*options: bytes) -> list[bytes]:
        return [*xadd(b"a")[:2], *options, *xadd(b"a")[2:]]

    run = one_run([trimmed(b"MAXLEN", b"~", b"1000")] * 3)
    assert (len(run), run.word_count, run.maxlen) == (3, 2, 1000)
    assert run.rest(1).maxlen == 1000
    assert one_run([trimmed(b"maxlen", b"~", b"0")]).maxlen == 0
    for other in ((b"MAXLEN", b"=", b"5"), (b"MINID", b"~", b"5"), (b"MAXLEN", b"~", b"05"), (b"MAXLEN", b"~", b"-1")):
        assert read([trimmed(*other)], APPENDED) == [trimmed(*other)]
    assert read([trimmed(b"MAXLEN", b"~", b"5")], LOGGED) == [trimmed(b"MAXLEN", b"~", b"5")]


@pytest.mark.parametrize(
    "words",
    [
        xadd(b"a", wanted=b"1-1"),
        xadd(b"a", wanted=b"MAXLEN"),
        xadd(b"a", name=b"Xadd"),
        xadd(),
        [*xadd(b"a"), b"x"],
        [b"XADD"],
    ],
)
def test_what_is_no_append_of_the_common_form_stays_words(words: list[bytes]) -> None:
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


def test_a_run_is_expanded_into_rows_log_and_replies() -> None:
    commands = [xadd(b"a"), xadd(b"x" * 2000), xadd(b"")]
    run = one_run(commands)
    rows: list[tuple[bytes, bytes]] = []
    head = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n"
    count, size, log, replies = expand(run, 0, 9, 1 << 30, PREFIX + pack_id(make_id(MS, 9)), head, rows)
    ids = [make_id(MS, 9 + number) for number in range(3)]
    assert rows == [
        (PREFIX + pack_id(entry_id), encode_entry(entry_id, words[3:]))
        for entry_id, words in zip(ids, commands, strict=True)
    ]
    texts = [b"%d-%d" % (MS, 9 + number) for number in range(3)]
    assert log == b"".join(wire([b"XADD", b"s", text, *words[3:]]) for text, words in zip(texts, commands, strict=True))
    assert replies == b"".join(map(bulk, texts))
    assert (count, size) == (3, sum(len(encode_words(words[3:])) for words in commands))
    one = expand_one(run.rest(2), rows[2][0], head)
    line = wire([b"XADD", b"s", texts[2], b"f", b""])
    assert one == (rows[2][1], len(encode_words([b"f", b""])), line, bulk(texts[2]))


def test_a_run_is_expanded_as_far_as_there_is_room() -> None:
    run = one_run([xadd(b"a")] * 5)
    size = len(encode_words([b"f", b"a"]))
    for most, room, wanted in ((2, 1 << 30, 2), (9, 1 << 30, 4), (9, 2 * size, 1), (9, 2 * size + 1, 2), (9, 0, 0)):
        rows: list[tuple[bytes, bytes]] = []
        found = expand(run, 1, most, room, PREFIX + bytes(16), b"", rows)
        assert (found[0], found[1], len(rows)) == (wanted, wanted * size, wanted)
    with pytest.raises(OverflowError):
        expand(run, 0, 5, 1 << 30, PREFIX + pack_id(make_id(1, (1 << 64) - 4)), b"", [])


def test_a_run_of_a_log_keeps_its_ids_and_ends_where_they_do_not_ascend() -> None:
    texts = [b"1-9", b"1-10", b"2-0", b"2-0", b"3-0"]
    run = one_run([xadd(b"a", wanted=text) for text in texts], LOGGED)
    rows: list[tuple[bytes, bytes]] = []
    count, size, last = load_xadds(run, 0, 9, 1 << 30, PREFIX + pack_id(make_id(1, 8)), rows)
    ids = [make_id(1, 9), make_id(1, 10), make_id(2, 0)]
    assert rows == [(PREFIX + pack_id(one), encode_entry(one, [b"f", b"a"])) for one in ids]
    assert (count, size, last) == (3, 3 * len(encode_words([b"f", b"a"])), rows[-1][0])
    assert load_xadds(run, 3, 9, 1 << 30, last, rows) == (0, 0, last)
    assert load_xadds(run, 4, 9, 1 << 30, last, rows)[0] == 1
    assert load_xadds(one_run([xadd(b"a")]), 0, 9, 1 << 30, bytes(24), rows)[0] == 0
