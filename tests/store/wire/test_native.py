"""The native module beside its reference, byte for byte; and that it neither leaks nor reads what is not there."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import sysconfig
import tracemalloc
from itertools import accumulate
from pathlib import Path
from shutil import which
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.store import wire as wire_module
from riverbed.store.wire import interface, reference
from riverbed.store.wire.interface import APPENDED, LOGGED, NO_RUNS
from tests.support.installation import NATIVE_SOURCE
from tests.support.leaf_pages import SEARCHED, SearchedFile, compare_leaves, compare_searches, leaf
from tests.support.servers import IMPORTED_FROM, ROOT
from tests.support.stream_rows import compare_streams, random_row
from tests.support.wire_fuzz import (
    KEY,
    KINDS,
    LOG_HEAD,
    PREFIX,
    compare,
    compare_changes,
    compare_ids,
    compare_joins,
    compare_pending,
    compare_places,
    compare_request,
    compare_rows,
    random_chunk,
    shown,
    wire,
)

NEEDS_GCC = "a C compiler and Python's headers are needed: sudo apt-get install gcc libc6-dev python3-dev"
_SANITIZED = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

XADD = wire([b"XADD", b"s", b"*", b"f", b"v"])
PING = wire([b"PING"])
STREAM = (1, None, 0, 0, 0, *[0] * 7, 0, 0, 0, 0, 0, None)  # the values of a stream's row
RUN = bytes(20) + bytes(16)  # of one entry, without a checksum


@pytest.fixture(scope="module")
def native() -> ModuleType:
    try:
        from riverbed.store.wire import native
    except ImportError:
        pytest.fail(f"the native module was not built; {NEEDS_GCC}")
    return native


@pytest.mark.slow
def test_random_chunks_are_read_alike(native: ModuleType) -> None:
    seed = os.environ.get("RIVERBED_SEED", "1")
    rng = random.Random(None if seed == "random" else int(seed))
    for _ in range(2_000):
        compare(native, random_chunk(rng), rng)


def test_requests_of_several_clients_are_joined_alike(native: ModuleType) -> None:
    rng = random.Random(11)
    for _ in range(3_000):
        compare_joins(native, rng)


def test_ids_are_packed_alike(native: ModuleType) -> None:
    rng = random.Random(13)
    for _ in range(20_000):
        compare_ids(native, rng)
        compare_rows(native, rng)


def test_values_are_found_and_gathered_alike(native: ModuleType) -> None:
    rng = random.Random(17)
    for _ in range(20_000):
        compare_places(native, rng)


def test_pages_are_measured_alike(native: ModuleType) -> None:
    rng = random.Random(19)
    for _ in range(30_000):
        compare_leaves(native, rng)


def test_a_page_is_measured_up_to_its_last_key(native: ModuleType) -> None:
    page = leaf([(b"a", b"1"), (b"bc", b""), (b"c", b"333")])
    for module in (native, reference):
        assert module.measure_leaf(page, None) == (3, b"c")
        assert module.measure_leaf(page, b"") == (3, b"c")
        assert module.measure_leaf(page, b"a") is None
        assert module.measure_leaf(leaf([]), b"a") == (0, b"a")
        assert module.measure_leaf(leaf([(b"b", b""), (b"a", b"")]), None) is None


def test_keys_are_found_alike_in_a_file_that_may_be_damaged(native: ModuleType) -> None:
    rng = random.Random(23)
    file = SearchedFile()
    assert sum(compare_searches(native, rng, file) for _ in range(3_000)) > 10_000


def test_each_key_is_found_that_the_last_two_commits_have_left(native: ModuleType) -> None:
    file = SearchedFile()
    numbers = range(2010)
    keys = [file.key(number) for number in numbers]
    for commit_no, rest in ((file.commit_no, (0, 1, 2)), (file.commit_no - 1, (0, 1))):
        for table, (count, _) in SEARCHED.items():
            found = native.find_keys(file.pages, commit_no, table, keys)
            assert found == bytes([number < count and number % 3 in rest for number in numbers])
    for commit_no, table in ((file.commit_no - 2, b"tree"), (file.commit_no + 1, b"tree"), (file.commit_no, b"more")):
        assert native.find_keys(file.pages, commit_no, table, keys) == bytes(len(keys))


def test_each_delivery_is_found_that_a_commit_has_left(native: ModuleType) -> None:
    file = SearchedFile()
    for number in range(file.RUNS):
        key, row = file.run_row(number)
        ids = [row[at : at + 16] for at in range(20, len(row) - 4, 16)]
        expected = (number % 9, number, 1 + number % 3)
        found = native.find_deliveries(file.pages, file.commit_no, b"runs", file.PREFIX, ids)
        assert found == [expected] * len(ids)
        none = [file.packed(1000 * number + 3 * each + 2) for each in range(100)]
        assert native.find_deliveries(file.pages, file.commit_no, b"runs", file.PREFIX, none) == [None] * 100
        assert native.find_deliveries(file.pages, file.commit_no, b"runs", bytes(8), ids) == [None] * len(ids)
        assert key == file.PREFIX + ids[-1]


def test_rows_of_streams_are_read_and_written_alike(native: ModuleType) -> None:
    for seed in range(10_000):
        compare_streams(native, random.Random(seed))


def test_a_row_of_a_stream_that_is_cut_or_changed_is_read_alike(native: ModuleType) -> None:
    values = (300, None, 70_000, 5, 0, *(number << 64 | 1 for number in range(7)), 1, 200, 90, 1, 4_000, None)
    row = native.pack_stream(b"k", values)
    for size in range(len(row)):
        assert native.open_stream(b"k", row[:size]) is None
    for bit in range(8 * len(row)):
        changed = bytearray(row)
        changed[bit // 8] ^= 1 << bit % 8
        assert native.open_stream(b"k", bytes(changed)) is None
        bare = bytes(changed[5:])
        bound = b"\xc1" + crc32c(bare, crc32c(b"k")).to_bytes(4, "big") + bare
        assert native.open_stream(b"k", bound) == reference.open_stream(b"k", bound), bit
        for size in range(5, len(bound), 17):
            cut = b"\xc1" + crc32c(bound[5:size], crc32c(b"k")).to_bytes(4, "big") + bound[5:size]
            assert native.open_stream(b"k", cut) is None
    assert native.open_stream(b"k", row) == values


def test_the_rows_of_streams_that_are_compared_are_mostly_sound(native: ModuleType) -> None:
    rows = [random_row(random.Random(seed), b"k") for seed in range(500)]
    assert sum(native.open_stream(b"k", row) is not None for row in rows) > 300
    assert sum(native.open_tail_by_row(b"k", row, 9, 9, 9) is not None for row in rows) > 200


def test_pending_entries_are_shown_alike(native: ModuleType) -> None:
    for seed in range(3_000):
        compare_pending(native, random.Random(seed))


def test_runs_whose_entries_change_are_cut_and_joined_alike(native: ModuleType) -> None:
    for seed in range(6_000):
        compare_changes(native, random.Random(seed))


@settings(max_examples=300)
@given(chunk=st.binary(max_size=60) | st.text("*$\r\n0123456789aXD", max_size=60).map(str.encode), seed=st.integers())
def test_any_bytes_are_read_alike(native: ModuleType, chunk: bytes, seed: int) -> None:
    compare(native, chunk, random.Random(seed))


def test_a_chunk_that_is_cut_at_any_byte_is_read_alike_and_up_to_its_last_whole_request(native: ModuleType) -> None:
    logged = [wire([b"XADD", b"s", b"1-%d" % seq, b"f", b"v" * 9]) for seq in range(9, 12)]
    acks = [wire([b"XACK", b"s", b"g", b"1-%d" % seq]) for seq in (9, 10)]
    parts = [XADD, XADD, PING, wire([b"XADD", b"t", b"*", b"a", b"b", b"c", b"d"]), acks[0], XADD, *acks, *logged]
    data = b"".join(parts)
    ends = list(accumulate(map(len, parts)))
    rng = random.Random(2)
    for cut in range(len(data) + 1):
        for tail in (b"", b"*", b"\r", b"$1\r\n", b"\0"):
            compare(native, data[:cut] + tail, rng)
        for kind in KINDS:
            found: list[Any] = []
            assert native.parse_front(kind, data[:cut], found) == max([0, *(end for end in ends if end <= cut)])
            assert b"".join(map(wire, flat(found))) == data[: native.parse_front(kind, data[:cut], [])]


def flat(requests: list[Any]) -> list[list[bytes]]:
    return [words for one in requests for words in ([one] if isinstance(one, list) else one.requests())]


def test_a_planted_difference_is_found(native: ModuleType) -> None:
    class Changed(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

    changed = Changed("changed")
    changed.expand_one = lambda run, key, head: native.expand_one(run, key[:-1] + b"\7", head)
    rng = random.Random(1)
    chunks = [random_chunk(rng) for _ in range(100)]

    def compare_all() -> None:
        for chunk in chunks:
            compare(changed, chunk, rng)

    with pytest.raises(AssertionError):
        compare_all()


def test_what_is_announced_takes_no_memory(native: ModuleType) -> None:
    # names of numbers that are far more than what is there
    many = b"*170\r\n" + b"$1\r\na\r\n" * 150
    heads = [b"*999999999\r\n", b"*2\r\n$999999999\r\n", many, PING + b"*99999999\r\n$4\r\n"]
    for data in heads:
        for kind in KINDS:
            native.parse_front(kind, data, [])
            tracemalloc.start()
            try:
                for _ in range(50):
                    native.parse_front(kind, data, [])
                    assert native.parse(kind, data) is None
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 2_000, (data, kind)


@pytest.mark.slow
def test_nothing_is_left_behind(native: ModuleType) -> None:
    rng = random.Random(3)
    chunks = [random_chunk(rng) for _ in range(40)] + [XADD * 300]
    file = SearchedFile()

    def work() -> None:
        again = random.Random(4)
        for chunk in chunks:
            for kind in KINDS:
                requests: list[Any] = []
                expected: list[Any] = []
                native.parse_front(kind, chunk, requests)
                reference.parse_front(kind, chunk, expected)
                for one, same in zip(requests, expected, strict=True):
                    compare_request(native, one, same, again)
                native.parse(kind, chunk)
            compare_joins(native, again)
            compare_rows(native, again)
            compare_changes(native, again)
            compare_places(native, again)
            compare_leaves(native, again)
            compare_searches(native, again, file)
            compare_streams(native, again)

    held = [*chunks, PREFIX, LOG_HEAD, native.Run, native.Mix, native.Claims, native.Ranges, native.Tail]
    work()
    counts = [sys.getrefcount(one) for one in held]
    grown = []
    for _ in range(4):
        gc.collect()
        blocks = sys.getallocatedblocks()
        for _ in range(10):
            work()
        gc.collect()
        grown.append(sys.getallocatedblocks() - blocks)
    assert [sys.getrefcount(one) for one in held] == counts
    # Other threads of the process allocate too, now and then; a leak shows in each of the four.
    assert min(grown) < 50  # of 10 rounds with some 4,000 objects each


def test_a_run_keeps_its_chunk(native: ModuleType) -> None:
    chunk = bytes(bytearray(XADD * 2))
    before = sys.getrefcount(chunk)
    [run] = native.parse(APPENDED, chunk)
    rest = run.rest(1)
    assert sys.getrefcount(chunk) == before + 2
    del chunk, run
    assert rest.requests() == [[b"XADD", b"s", b"*", b"f", b"v"]]


def test_joined_requests_are_copied(native: ModuleType) -> None:
    chunks = [bytes(bytearray(XADD)) for _ in range(3)]
    before = [sys.getrefcount(chunk) for chunk in chunks]
    run = native.join(chunks)
    assert [sys.getrefcount(chunk) for chunk in chunks] == before
    del chunks
    assert run.requests() == [[b"XADD", b"s", b"*", b"f", b"v"]] * 3


def test_a_mix_keeps_its_chunk_and_its_run(native: ModuleType) -> None:
    chunk = bytes(bytearray(XADD + wire([b"XACK", b"s", b"g", b"1-1"]) * 2))
    [mix] = native.parse(APPENDED, chunk)
    adds = mix.adds
    del chunk, mix
    assert adds.requests() == [[b"XADD", b"s", b"*", b"f", b"v"]]


def test_wrong_arguments_to_a_mix_are_refused(native: ModuleType) -> None:
    [mix] = native.parse(APPENDED, wire([b"XACK", b"s", b"g", b"1-1"]) * 2)
    assert (mix.adds, len(mix)) == (None, 2)
    for call in (
        lambda: mix.requests(0, 1),
        lambda: mix.replies(b""),
        lambda: mix.replies("", b""),
        lambda: mix.acks(""),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: mix.requests(2), lambda: mix.replies(b"", b"123"), lambda: mix.replies(b"x", b"")):
        with pytest.raises(ValueError, match=r"\S"):
            call()
    with pytest.raises(IndexError, match="no words"):
        mix[1]


CLAIM = wire([b"XCLAIM", b"s", b"g", b"c", b"0", b"1-1", b"JUSTID"])


def test_claims_keep_their_chunk(native: ModuleType) -> None:
    chunk = bytes(bytearray(CLAIM * 3))
    before = sys.getrefcount(chunk)
    [claims] = native.parse(APPENDED, chunk)
    rest = claims.rest(1)
    assert sys.getrefcount(chunk) == before + 2
    del chunk, claims
    assert rest.requests() == [[b"XCLAIM", b"s", b"g", b"c", b"0", b"1-1", b"JUSTID"]] * 2


RANGE = wire([b"XRANGE", b"s", b"-", b"+", b"COUNT", b"1"])


def test_ranges_keep_their_chunk(native: ModuleType) -> None:
    chunk = bytes(bytearray(RANGE * 3))
    before = sys.getrefcount(chunk)
    [ranges] = native.parse(APPENDED, chunk)
    rest = ranges.rest(1)
    assert sys.getrefcount(chunk) == before + 2
    del chunk, ranges
    assert rest.requests() == [[b"XRANGE", b"s", b"-", b"+", b"COUNT", b"1"]] * 2


def test_wrong_arguments_to_ranges_are_refused(native: ModuleType) -> None:
    [ranges] = native.parse(APPENDED, RANGE * 2)
    for call in (lambda: ranges.rest(b""), lambda: ranges.request("")):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: ranges.rest(2), lambda: ranges.request(-1)):
        with pytest.raises(ValueError, match=r"\S"):
            call()
    with pytest.raises(IndexError, match="no words"):
        ranges[1]


def test_wrong_arguments_to_claims_are_refused(native: ModuleType) -> None:
    [claims] = native.parse(APPENDED, CLAIM * 2)
    for call in (lambda: claims.replies(""), lambda: claims.rest(b""), lambda: claims.request("")):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: claims.replies(b"123"), lambda: claims.rest(2), lambda: claims.request(-1)):
        with pytest.raises(ValueError, match=r"\S"):
            call()
    with pytest.raises(IndexError, match="no words"):
        claims[1]


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("parse", (), TypeError),
        ("parse", (0, XADD, 0), TypeError),
        ("parse", (0, bytearray(XADD)), TypeError),
        ("parse", (0, XADD, 0, len(XADD) + 1), ValueError),
        ("parse", (0, XADD, -1, 1), ValueError),
        ("parse", (0, XADD, 2, 1), ValueError),
        ("parse", (3, XADD), ValueError),
        ("parse", (0, XADD, 0, 1 << 80), OverflowError),
        ("parse", (0, XADD, 0, "1"), TypeError),
        ("measure_entries", (iter(()), bytes(7), 1), ValueError),
        ("measure_entries", (iter([b"ab"]), bytes(8), 1), TypeError),
        ("measure_entries", (iter([("", b"")]), bytes(8), 1), TypeError),
        ("log_entries", (iter([""]), bytes(24), b"", 1), TypeError),
        ("log_entries", (iter([]), bytes(24), b"", -1), ValueError),
        ("parse_front", (0, XADD, ()), TypeError),
        ("join", (XADD,), TypeError),
        ("join", ((XADD, XADD),), TypeError),
        ("join", ([XADD, None],), TypeError),
        ("join", ([bytearray(XADD)],), TypeError),
        ("split_bulks", (None,), TypeError),
        ("split_bulks", (b"$1\r\na\r\n:1\r\n",), ValueError),
        ("append", (None, 0, {}, {}, 1), TypeError),
        ("append", ("run", -1, {}, {}, 1), ValueError),
        ("append", ("run", 3, {}, {}, 1), ValueError),
        ("append", ("run", 0, [], {}, 1), TypeError),
        ("append", ("run", 0, {}, None, 1), TypeError),
        ("append", ("run", 0, {b"s": 1}, {}, 1), TypeError),
        ("append", ("run", 0, {}, {}, -1), ValueError),
        ("load", (None, 0, {}, {}), TypeError),
        ("load", ("run", 3, {}, {}), ValueError),
        ("load", ("run", 0, [], {}), TypeError),
        ("load", ("run", 0, {b"s": 1}, {}), TypeError),
        ("open_tail", (KEY, KEY[:16], KEY[:16], 0, 0, 1, 1, 1, 1), TypeError),
        ("open_tail", (KEY[1:], KEY[:16], KEY[:16], 0, 0, 1, 1, 1, 1, 1), ValueError),
        ("open_tail", (KEY, KEY[:15], KEY[:16], 0, 0, 1, 1, 1, 1, 1), ValueError),
        ("open_tail", (KEY, KEY[:16], KEY[:17], 0, 0, 1, 1, 1, 1, 1), ValueError),
        ("open_tail", (KEY, KEY[:16], KEY[:16], 0, 0, 1, 1, 1, 1, -1), ValueError),
        ("open_tail", (KEY, KEY[:16], None, 0, 0, 1, 1, 1, 1, 1), TypeError),
        ("open_tail_by_row", (b"k", b"row", 1, 1), TypeError),
        ("open_tail_by_row", (b"k", None, 1, 1, 1), TypeError),
        ("open_tail_by_row", (b"k", b"row", 1, -1, 1), ValueError),
        ("unknown_keys", ("run", 0), TypeError),
        ("unknown_keys", (None, 0, 1, {}), TypeError),
        ("unknown_keys", ("run", 3, 1, {}), ValueError),
        ("unknown_keys", ("run", 0, -1, {}), ValueError),
        ("unknown_keys", ("run", 0, 1, {}, []), TypeError),
        ("take_tails", ((),), TypeError),
        ("keys_in_order", ([],), TypeError),
        ("keys_in_order", ({b"k": 1},), TypeError),
        ("take_tails", ([1],), TypeError),
        ("open_stream", (b"k",), TypeError),
        ("open_stream", (None, b"row"), TypeError),
        ("open_stream", (b"k", bytearray(9)), TypeError),
        ("pack_stream", (b"k", ()), TypeError),
        ("pack_stream", (b"k", [0] * 18), TypeError),
        ("pack_stream", (None, STREAM), TypeError),
        ("pack_stream", (b"k", (b"1", *STREAM[1:])), TypeError),
        ("pack_stream", (b"k", (-1, *STREAM[1:])), OverflowError),
        ("pack_stream", (b"k", (1 << 64, *STREAM[1:])), OverflowError),
        ("pack_stream", (b"k", (*STREAM[:5], -1, *STREAM[6:])), OverflowError),
        ("pack_stream", (b"k", (*STREAM[:5], 1 << 128, *STREAM[6:])), OverflowError),
        ("pack_stream", (b"k", (*STREAM[:5], None, *STREAM[6:])), TypeError),
        ("expand_one", ("run", KEY, None), TypeError),
        ("load_xadds", ("run", 0, 1, 1, KEY[1:], []), ValueError),
        ("load_xadds", ("run", 0, 1, 1, KEY, None), TypeError),
        ("open_run", (KEY[1:], RUN), ValueError),
        ("open_run", (KEY, None), TypeError),
        ("find_delivery", (KEY, RUN), TypeError),
        ("find_delivery", (KEY[1:], RUN, KEY), ValueError),
        ("find_delivery", (KEY, None, KEY), TypeError),
        ("find_delivery", (KEY, RUN, KEY[1:]), ValueError),
        ("find_delivery", (None, bytes(19), KEY), ValueError),
        ("change_runs", (bytes(8), [], [], {}), TypeError),
        ("change_runs", (bytes(7), [], [], {}, 1), ValueError),
        ("change_runs", (bytes(8), [], [], {}, -1), ValueError),
        ("change_runs", (bytes(8), [], [bytes(16)], {}, 1), ValueError),
        ("change_runs", (bytes(8), [(bytes(24), RUN)], [bytes(16)], {}, 1), KeyError),
        ("change_runs", (bytes(8), [(bytes(24), RUN)], [bytes(16)], {bytes(16): (1, 2)}, 1), TypeError),
        ("change_runs", (bytes(8), [(bytes(24), RUN)], [bytes(16)], {bytes(16): (1 << 32, 2, 3)}, 1), OverflowError),
        ("change_runs", (bytes(8), [(bytes(24), RUN)], [bytes(16)], {bytes(16): (1, -2, 3)}, 1), OverflowError),
        ("change_runs", (bytes(8), [(bytes(24), RUN)], [bytes(16)], {bytes(16): (1, 1 << 64, 3)}, 1), OverflowError),
        ("change_runs", (bytes(8), [RUN], [bytes(16)], {bytes(16): None}, 1), TypeError),
        ("measure_leaf", (b"",), TypeError),
        ("measure_leaf", (bytearray(16), None), TypeError),
        ("measure_leaf", (b"", 1), TypeError),
        ("find_deliveries", (b"", 1, b"t", bytes(8)), TypeError),
        ("find_deliveries", (b"", 1, b"t", bytes(7), []), ValueError),
        ("find_deliveries", (b"", 1, b"t", bytes(8), [bytes(15)]), ValueError),
        ("find_deliveries", (b"", 1, b"t", bytes(8), None), TypeError),
        ("find_deliveries", (b"", -1, b"t", bytes(8), []), OverflowError),
        ("find_keys", (b"", 1, b"t"), TypeError),
        ("find_keys", (b"", 1, b"t", (b"k",)), TypeError),
        ("find_keys", (b"", 1, b"t", [b"k", 1]), TypeError),
        ("find_keys", (b"", 1, "t", []), TypeError),
        ("find_keys", (b"", -1, b"t", []), OverflowError),
        ("find_keys", ("", 1, b"t", []), TypeError),
        ("find_values", (b"", b"", b"", (), b"", bytearray(), bytearray()), TypeError),
        ("find_values", (b"", b"", b"", [1], b"", bytearray(), bytearray()), TypeError),
        ("find_values", (b"", bytes(8), bytes(8), [b"$"], b"", bytearray(8), bytearray(1)), ValueError),
        ("find_values", (b"", bytes(8), bytes(8), [b"$"], b"", bytes(16), bytearray(1)), BufferError),
        ("gather", (b"", bytes(8), bytes(16), bytearray(8), bytearray()), ValueError),
        ("gather", (b"", bytes(8), bytes(8), bytearray(4), bytearray()), ValueError),
        ("gather", (b"", bytes(8), bytes(8), bytes(8), bytearray()), BufferError),
    ],
)
def test_wrong_arguments_are_refused(
    native: ModuleType, name: str, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    [run] = native.parse(APPENDED, XADD * 2)
    with pytest.raises(error):
        getattr(native, name)(*(run if argument == "run" else argument for argument in arguments))
    if "stream" in name:
        with pytest.raises(error):
            getattr(reference, name)(*arguments)


def test_rows_of_many_tails_are_taken_in_the_order_of_their_streams(native: ModuleType) -> None:
    numbers = [3, 256, 1, 2**40, 65_536, 2]
    chunk = b"".join(b"*5\r\n$4\r\nXADD\r\n$1\r\n%d\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nv\r\n" % at for at in range(6))
    [run] = native.parse(APPENDED, chunk * 2)
    last_keys = [number.to_bytes(8, "big") + bytes(16) for number in numbers]
    tails = [native.open_tail(key, bytes(16), bytes(16), 0, 0, 9, 999, 9, 999, 9) for key in last_keys]
    by_key = {b"%d" % at: tail for at, tail in enumerate(tails)}
    assert native.append(run, 0, by_key, {}, 1)[0] == 12
    assert native.keys_in_order(by_key) == [b"2", b"5", b"0", b"1", b"4", b"3"]
    assert native.keys_in_order({}) == []
    rows, streams = native.take_tails(tails)
    keys = [key for key, _ in rows]
    assert keys == sorted(keys)
    assert [int.from_bytes(key[:8], "big") for key in keys] == sorted(numbers * 2)
    assert streams == [None] * 6
    assert [list(part) for part in native.take_tails([])] == [[], []]


def test_a_run_is_made_by_parsing_alone(native: ModuleType) -> None:
    for made in (native.Run, native.Mix, native.Claims, native.Ranges, native.Tail):
        with pytest.raises(TypeError):
            made()
    [run] = native.parse(APPENDED, XADD * 2)
    for look in (run.rest, run.entry, run.request):
        for at in (-1, 2):
            with pytest.raises(ValueError, match="is not from 0 to 1"):
                look(at)


def test_the_native_module_and_the_reference_offer_the_same(native: ModuleType) -> None:
    functions = (
        "append",
        "expand_one",
        "find_deliveries",
        "find_keys",
        "load",
        "load_xadds",
        "measure_leaf",
        "open_tail",
        "parse",
        "parse_front",
    )
    of_clients = ("join", "split_bulks")
    rows_of_streams = ("open_stream", "open_tail_by_row", "pack_stream")
    tails = ("keys_in_order", "take_tails", "unknown_keys")
    for name in ("Run", "Mix", "Claims", "Ranges", "Tail", *functions, *of_clients, *rows_of_streams, *tails):
        assert hasattr(native, name)
        assert hasattr(reference, name)
    assert shown(native.parse(LOGGED, PING)) == [[b"PING"]]
    assert native.parse(NO_RUNS, b"") is None


def test_a_native_module_of_another_interface_is_not_used(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.INTERFACE == interface.INTERFACE
    assert wire_module._has_native()
    monkeypatch.setattr(native, "INTERFACE", interface.INTERFACE + 1)
    assert not wire_module._has_native()
    monkeypatch.delattr(native, "INTERFACE")
    assert not wire_module._has_native()


def compiler_command(target: Path) -> list[str]:
    include = sysconfig.get_path("include")
    if which("gcc") is None or not (Path(include) / "Python.h").is_file():
        pytest.fail(NEEDS_GCC)
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Werror", "-Wno-missing-field-initializers")
    return ["gcc", *_SANITIZED, *warnings, "-shared", "-fPIC", f"-I{include}", str(NATIVE_SOURCE), "-o", str(target)]


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    built = tmp_path / "native.so"
    made = subprocess.run(compiler_command(built), capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    environment = {
        **os.environ,
        "LD_PRELOAD": asan.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps much to its end
        "PYTHONMALLOC": "malloc",  # so that the sanitizer sees where each object ends
        "PYTHONPATH": f"{IMPORTED_FROM}:{ROOT}",
    }
    command = [sys.executable, "-P", "-m", "tests.support.wire_fuzz", str(built), "400"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
