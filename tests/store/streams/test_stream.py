from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.store.databases.names import all_keys
from riverbed.store.errors import CorruptionError
from riverbed.store.format import dead_rows
from riverbed.store.format.resp import decode_entry, encode_command, encode_entry, encode_words
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, pack_id, unpack_id
from riverbed.store.model import Strategy, Trim
from riverbed.store.streams import nodes, trimming
from riverbed.store.streams import view as streamview
from riverbed.store.streams.stream import Stream
from riverbed.store.streams.trimming import closed_nodes
from riverbed.store.streams.view import StreamView
from riverbed.store.tables.purge import Clearing, purge
from riverbed.store.tables.writing.transaction import UNBOUNDED_ROW
from tests.conftest import base_seed
from tests.support.store.stores import Store, finished, sid, text_of

NODE_MAX_ENTRIES = 4
NODE_MAX_BYTES = 200


# -- a stream as lists -------------------------------------------------------------------------------------------------


class ModelNode:
    def __init__(self) -> None:
        self.entries: list[StreamID] = []  # all that were ever put here
        self.dead: set[StreamID] = set()
        self.size = 0

    @property
    def live(self) -> list[StreamID]:
        return [entry_id for entry_id in self.entries if entry_id not in self.dead]


class Model:
    """What `Stream` says it does, by counting and walking everything."""

    def __init__(self) -> None:
        self.nodes: list[ModelNode] = []
        self.last_id = self.max_deleted_id = MIN_ID
        self.entries_added = 0
        self.values: dict[StreamID, bytes] = {}

    @property
    def ids(self) -> list[StreamID]:
        return [entry_id for node in self.nodes for entry_id in node.live]

    def append(self, entry_id: StreamID, words: list[bytes]) -> None:
        size = len(encode_words(words))
        tail = self.nodes[-1] if self.nodes else None
        if tail is None or len(tail.entries) >= NODE_MAX_ENTRIES or tail.size + size >= NODE_MAX_BYTES:
            tail = ModelNode()
            self.nodes.append(tail)
        tail.entries.append(entry_id)
        tail.size += size
        self.last_id = entry_id
        self.entries_added += 1
        self.values[entry_id] = encode_entry(entry_id, words)

    def delete(self, entry_ids: list[StreamID]) -> list[bool]:
        return [self._delete_one(entry_id) for entry_id in entry_ids]

    def _delete_one(self, entry_id: StreamID) -> bool:
        for node in self.nodes:
            if entry_id in node.live:
                node.dead.add(entry_id)
                if not node.live:
                    self.nodes.remove(node)
                self.max_deleted_id = max(self.max_deleted_id, entry_id)
                return True
        return False

    def trim(self, trim: Trim) -> int:
        removed = 0
        by_length = trim.strategy is Strategy.MAXLEN
        for node in list(self.nodes):
            length = len(self.ids)
            live = node.live
            if by_length and length <= trim.threshold:
                break
            if trim.limit and removed + len(live) > trim.limit:
                break
            if (length - len(live) >= trim.threshold) if by_length else (node.entries[-1] < trim.threshold):
                self.nodes.remove(node)
                removed += len(live)
                continue
            if not trim.approximate:
                gone = live[: length - trim.threshold] if by_length else [i for i in live if i < trim.threshold]
                node.dead.update(gone)
                removed += len(gone)
            break
        return removed

    def check(self, stream: Stream) -> None:
        ids = self.ids
        assert [unpack_id(key[8:]) for key, _ in stream.rows(MIN_ID, MAX_ID)] == ids
        assert stream.length == len(ids)
        assert (stream.first_id, stream.last_live_id) == ((ids[0], ids[-1]) if ids else (MIN_ID, MIN_ID))
        assert (stream.last_id, stream.max_deleted_id) == (self.last_id, self.max_deleted_id)
        assert stream.entries_added == self.entries_added
        assert stream.node_total == len(self.nodes)
        expected = [(n.entries[0], len(n.live), len(n.entries), n.size, n.entries[-1]) for n in self.nodes[:-1]]
        assert [(first_id, *node) for first_id, node in closed_nodes(stream)] == expected
        if self.nodes:
            tail = self.nodes[-1]
            assert stream.tail_first_id == tail.entries[0]
            assert (stream.tail_total, stream.tail_dead) == (len(tail.entries), len(tail.dead))


GAPS = st.sampled_from([1, 1, 1, 2, 5, 1 << 64, 3 << 64])
WORDS = st.sampled_from([[b"f", b"v"], [b"", b""], [b"f", b"v", b"g", b""], [b"long", b"x" * 70], [b"f", b"y" * 300]])
PLACES = st.floats(0, 1)
TRIMS = st.tuples(
    st.sampled_from(list(Strategy)), PLACES, st.booleans(), st.sampled_from([0, 0, 0, 1, 3, 8]), st.integers(-1, 1)
)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.tuples(GAPS, WORDS), min_size=1, max_size=12)),
    st.tuples(st.just("append"), st.lists(st.tuples(GAPS, WORDS), min_size=1, max_size=12)),
    st.tuples(st.just("delete"), st.lists(PLACES, min_size=1, max_size=5)),
    st.tuples(st.just("trim"), TRIMS),
    st.tuples(st.sampled_from(["purge", "checkpoint", "restart", "copy"]), st.none()),
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for many examples, each with keys of its own."""
    directory: Path = tmp_path_factory.mktemp("shared")
    store = Store(directory, node_max_entries=NODE_MAX_ENTRIES, node_max_bytes=NODE_MAX_BYTES)
    yield store
    assert store.violations() == []
    store.engine.close()


KEYS = itertools.count()


class Run:
    """One stream and its model, through the same steps."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.model = Model()
        self.key = b"key-%d" % next(KEYS)
        store.db.create(self.key)

    @property
    def stream(self) -> Stream:
        return self.store.stream(self.key)

    def pick(self, place: float) -> StreamID:
        """An ID of the stream, or beside one."""
        ids = self.model.ids or [max(self.model.last_id, StreamID(1))]
        return ids[min(int(place * len(ids)), len(ids) - 1)]

    def step(self, kind: str, how: object) -> None:
        store, stream, model = self.store, self.stream, self.model
        if kind == "append":
            for gap, words in how:
                entry_id = StreamID(model.last_id + gap)
                stream.append_entry(entry_id, words)
                model.append(entry_id, words)
        elif kind == "delete":
            entry_ids = [self.pick(place) for place in how]
            assert stream.delete_entries(entry_ids) == model.delete(entry_ids)
        elif kind == "trim":
            strategy, place, approximate, limit, shift = how
            threshold = int(place * len(model.ids)) if strategy is Strategy.MAXLEN else self.pick(place) + shift
            trim = Trim(strategy, max(threshold, 0), approximate, limit if approximate else 0)
            assert trimming.trim(stream, trim) == model.trim(trim)
        elif kind == "copy":
            self.key += b"'"
            store.db.copy(stream, store.db, self.key)
        elif kind == "restart":
            store.restart()
        else:
            {"purge": store.purge, "checkpoint": store.checkpoint}[kind]()
        store.commit()
        model.check(self.stream)


@given(st.lists(STEPS, min_size=1, max_size=14))
@settings(max_examples=120, deadline=None)
def test_a_stream_is_what_lists_say_whatever_is_done_to_it(shared: Store, steps: list[tuple[str, object]]) -> None:
    # most trims leave rows to the purge, and pass over nodes by twos
    with patch.object(trimming, "INLINE_DELETES", 3), patch.object(nodes, "_CHUNK", 2):
        run = Run(shared)
        for kind, how in steps:
            run.step(kind, how)


def test_many_streams_are_what_lists_say_from_the_log_alone(tmp_path: Path) -> None:
    """Short lives, in which streams are often empty, or tombstones alone."""
    store = Store(tmp_path, node_max_entries=NODE_MAX_ENTRIES, node_max_bytes=NODE_MAX_BYTES)
    chance = random.Random(base_seed())
    runs = [Run(store) for _ in range(400)]
    for run in runs:
        for _ in range(8):
            match chance.choice(("append", "delete", "trim")):
                case "append":
                    run.step("append", [(1, [b"f", b"v"])] * chance.randint(1, 4))
                case "delete":
                    run.step("delete", [chance.choice((0.5, 1.0, 1.0))])
                case _:
                    strategy = chance.choice((Strategy.MAXLEN, Strategy.MINID, Strategy.MINID))
                    place, shift = chance.choice((0.5, 1.0, 1.0)), chance.choice((0, 1, 1, 2))
                    run.step("trim", (strategy, place, chance.random() < 0.4, chance.choice((0, 0, 2)), shift))
    for end in (store.crash, store.rebuild):
        end()
        for run in runs:
            run.model.check(run.stream)
    assert store.violations() == []


@given(
    st.lists(GAPS, max_size=40),
    st.lists(PLACES, max_size=12),
    st.lists(st.tuples(PLACES, PLACES, st.integers(-1, 1), st.integers(-1, 1), st.none() | st.integers(-1, 50))),
)
@settings(max_examples=80, deadline=None)
def test_ranges_forward_backward_and_counted_are_slices_of_a_list(
    shared: Store, gaps: list[int], holes: list[float], questions: list[tuple[float, float, int, int, int | None]]
) -> None:
    run = Run(shared)
    run.step("append", [(gap, [b"f", b"%d" % number]) for number, gap in enumerate(gaps)])
    run.step("delete", holes)
    ids = run.model.ids
    whole = [(MIN_ID, MAX_ID, None), (MAX_ID, MIN_ID, None), (MIN_ID, MAX_ID, 3), (MAX_ID, MAX_ID, None)]
    asked = [
        (max(StreamID(run.pick(a) + x), MIN_ID), max(StreamID(run.pick(b) + y), MIN_ID), count)
        for a, b, x, y, count in questions
    ]
    for start, end, count in whole + asked:
        inside = [entry_id for entry_id in ids if start <= entry_id <= end]
        most = len(inside) if count is None else max(count, 0)
        rows = run.stream.rows(start, end, count)
        assert [unpack_id(key[8:]) for key, _ in rows] == inside[:most]
        assert [value for _, value in rows] == [run.model.values[entry_id] for entry_id in inside[:most]]
        rows = run.stream.rows(start, end, count, reverse=True)
        assert [unpack_id(key[8:]) for key, _ in rows] == inside[::-1][:most]
        assert run.stream.keys(start, end, count) == [key for key, _ in run.stream.rows(start, end, count)]
        for largest, most_bytes, reverse in itertools.product((UNBOUNDED_ROW, 300), (1 << 20, 2000), (False, True)):
            run.store.txn.largest_row = largest
            within = run.stream.rows_within(start, end, count, most_bytes, reverse=reverse)
            rows = run.stream.rows(start, end, count, reverse=reverse)
            assert within == (rows if sum(len(row) + 64 for _, row in rows) <= most_bytes else None)
            entries = run.stream.entries_within(start, end, count, most_bytes, reverse=reverse)
            assert entries == (None if within is None else [row for _, row in within])
    with run.store.view() as view:
        stream = StreamView(view, run.stream)
        for is_measured in (False, True):
            view.has_large_entries = is_measured
            for start, end, count in whole + asked:
                inside = [entry_id for entry_id in ids if start <= entry_id <= end]
                assert finished(stream.count(start, end)) == len(inside)
                most = len(inside) if count is None else min(max(count, 0), len(inside))
                assert finished(stream.count(start, end, most)) == most
                for reverse in (False, True):
                    shown = b"".join(stream.pieces(start, end, most, b"+", reverse=reverse))
                    expected = (inside[::-1] if reverse else inside)[:most]
                    assert shown == b"".join(b"+" + run.model.values[entry_id] for entry_id in expected)
    for entry_id in ids:
        assert run.stream.has(entry_id)
        assert run.stream.entry(entry_id) == run.model.values[entry_id]
        if StreamID(entry_id + 1) not in ids:
            assert not run.stream.has(StreamID(entry_id + 1))
            assert run.stream.entry(StreamID(entry_id + 1)) is None


# -- ranges ------------------------------------------------------------------------------------------------------------


def ids_of(stream: Stream) -> list[str]:
    return [text_of(key) for key, _ in stream.rows(MIN_ID, MAX_ID)]


def test_a_range_ends_where_the_stream_ends_and_the_next_begins(store: Store) -> None:
    first, second, third = (store.fill(key, 6) for key in (b"a", b"b", b"c"))
    for stream in (first, second, third):
        assert len(stream.rows(MIN_ID, MAX_ID)) == 6
        assert len(stream.rows(MIN_ID, MAX_ID, 100)) == 6
        for reverse, most_bytes in itertools.product((False, True), (None, 1 << 20)):
            assert len(stream.entries_within(MIN_ID, MAX_ID, None, most_bytes, reverse=reverse) or ()) == 6
            assert len(stream.entries_within(MIN_ID, MAX_ID, 100, most_bytes, reverse=reverse) or ()) == 6
        assert [text_of(key) for key, _ in stream.rows(MIN_ID, MAX_ID, 1, reverse=True)] == ["6-0"]
        assert store.count_range(stream, sid("2-0"), MAX_ID) == 5


def test_a_range_of_more_than_one_chunk_is_whole(store: Store) -> None:
    stream = store.fill(b"s", 3000)
    store.fill(b"t", 5)
    assert ids_of(stream) == [f"{number}-0" for number in range(1, 3001)]
    assert len(stream.rows(sid("2-0"), sid("2999-0"))) == 2998
    assert len(stream.rows(sid("2-0"), sid("2999-0"), 2500)) == 2500
    assert len(stream.rows(sid("2-0"), sid("2999-0"), 2500, reverse=True)) == 2500
    assert store.count_range(stream, sid("3-0"), sid("2998-0")) == 2996


@pytest.mark.parametrize("reverse", [False, True])
def test_entries_without_keys_are_those_of_the_rows_wherever_a_range_ends(store: Store, reverse: bool) -> None:
    streams = [store.fill(key, 400) for key in (b"a", b"b", b"c")]
    ends = (1, 2, 31, 32, 33, 97, 160, 161, 299, 399, 400, 500)
    for stream, first, last, count in itertools.product(streams, ends, ends, (None, 1, 31, 32, 33, 100, 1000)):
        start, end = sid(f"{first}-0"), sid(f"{last}-0")
        rows = stream.rows(start, end, count, reverse=reverse)
        for most_bytes in (None, 1 << 20):
            entries = stream.entries_within(start, end, count, most_bytes, reverse=reverse)
            assert entries == [row for _, row in rows]


@pytest.mark.parametrize("size", [10, 3000, 500_000])
def test_a_view_does_not_change_while_it_is_read_and_its_pieces_are_small(store: Store, size: int) -> None:
    rows = []
    for number in range(1, 31):
        store.add(b"s", f"{number}-0", words=(b"f", b"x" * (size if number % 3 else 5)))
        rows.append(store.stream().rows(sid(f"{number}-0"), MAX_ID)[0][1])
    with store.view() as view:
        stream = StreamView(view, store.stream())
        pieces = stream.pieces(MIN_ID, MAX_ID, 30, b"*2\r\n")
        first = next(pieces)
        trimming.trim(store.stream(), Trim(Strategy.MAXLEN, 0))
        store.checkpoint()
        store.purge()
        store.checkpoint()
        shown = [first, *pieces]
        assert b"".join(shown) == b"".join(b"*2\r\n" + row for row in rows)
        assert max(map(len, shown)) <= streamview.PIECE_BYTES + 1000
        packed = [pack_id(sid(f"{number}-0")) for number in (30, 1, 2, 17)]
        tails = [b"%d" % number for number in range(4)]
        shown = list(stream.pieces_of(b"".join(packed), b"+", tails))
        expected = zip((30, 1, 2, 17), tails, strict=True)
        assert b"".join(shown) == b"".join(b"+" + rows[number - 1] + tail for number, tail in expected)
        assert max(map(len, shown)) <= streamview.PIECE_BYTES + 1000
        assert stream.sizes_of(packed) == [len(rows[number - 1]) for number in (30, 1, 2, 17)]
        assert stream.last_packed() == packed[0]
        with pytest.raises(CorruptionError):
            list(stream.pieces_of(pack_id(sid("31-0")), b"+"))
    assert ids_of(store.stream()) == []


def test_pieces_of_tables_that_were_closed_are_an_error(store: Store) -> None:
    store.add(b"s", "1-0", words=(b"f", b"x" * 1_000_000))
    with store.view() as view:
        pieces = StreamView(view, store.stream()).pieces(MIN_ID, MAX_ID, 1, b"")
        assert next(pieces) == b""
        assert len(next(pieces)) == streamview.PIECE_BYTES
        store.kill()
        with pytest.raises(lmdb.Error):
            next(pieces)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        (b"", b""),
        (b"f", b""),
        (b"\r\n*$#", b"\x00\xff\r\n"),
        tuple(b"%d" % number for number in range(4000)),
        (b"big", b"x" * (9 << 20)),
        (b"x" * 1024, b"y" * 1023),
    ],
    ids=["empty", "empty value", "binary", "4000 words", "9 MB", "around 1 KB"],
)
def test_fields_and_values_come_back_after_every_kind_of_start(store: Store, words: tuple[bytes, ...]) -> None:
    store.add(b"s", "1-1", words=words)
    for start_again in (store.checkpoint, store.restart, store.crash, store.rebuild):
        start_again()
        row = store.stream().entry(sid("1-1"))
        assert row is not None
        assert decode_entry(row) == (b"1-1", list(words))


def test_keys_of_every_length_are_different_streams(store: Store) -> None:
    keys = [b"", b"k" * 399, b"k" * 400, b"k" * 401, b"k" * 402, b"k" * 100_000, b"\0", b"\r\n"]
    for number, key in enumerate(keys, 1):
        store.add(key, f"{number}-1")
    for start_again in (store.checkpoint, store.restart, store.rebuild):
        start_again()
        assert store.db.size == len(keys)
        assert sorted(all_keys(store.db, 0)) == sorted(keys)
        for number, key in enumerate(keys, 1):
            assert ids_of(store.stream(key)) == [f"{number}-1"]


# -- trims and the purge -----------------------------------------------------------------------------------------------


def test_a_long_trim_is_seen_at_once_and_its_rows_go_later(store: Store) -> None:
    stream = store.fill(b"s", 2000)
    assert trimming.trim(stream, Trim(Strategy.MAXLEN, 5)) == 1995
    assert ids_of(stream) == [f"{number}-0" for number in range(1996, 2001)]
    assert stream.entry(sid("1995-0")) is None
    assert not stream.has(sid("3-0"))
    assert store.count_range(stream, MIN_ID, sid("1997-0")) == 2
    assert stream.rows(MIN_ID, sid("1995-0"), reverse=True) == []
    assert store.count("entries") > 1500
    assert store.txn.dead_rows.notes == 1
    assert store.violations() == []
    store.purge()
    assert store.count("entries") == 5
    assert ids_of(store.stream()) == [f"{number}-0" for number in range(1996, 2001)]


def test_the_purge_goes_on_after_a_restart_and_stops_when_its_time_is_up(store: Store) -> None:
    trimming.trim(store.fill(b"s", 3000), Trim(Strategy.MINID, sid("2990-0")))
    store.crash()
    looks = iter([True])
    assert purge(store.txn, lambda: next(looks))
    assert 11 < store.count("entries") < 3000
    store.restart()
    store.purge()
    assert store.count("entries") == 11
    assert store.stream().length == 11


def test_a_short_trim_deletes_on_the_spot(store: Store) -> None:
    trimming.trim(store.fill(b"s", 20), Trim(Strategy.MAXLEN, 3))
    assert (store.count("entries"), store.txn.dead_rows.notes) == (3, 0)


def test_approximate_trims_leave_whole_nodes_and_heed_the_limit(store: Store) -> None:
    stream = store.fill(b"s", 18)  # nodes of 4, 4, 4, 4, 2
    assert trimming.trim(stream, Trim(Strategy.MAXLEN, 17, approximate=True)) == 0
    assert trimming.trim(stream, Trim(Strategy.MAXLEN, 10, approximate=True, limit=3)) == 0
    assert trimming.trim(stream, Trim(Strategy.MAXLEN, 1, approximate=True, limit=5)) == 4
    assert trimming.trim(stream, Trim(Strategy.MINID, sid("12-0"), approximate=True)) == 4
    assert ids_of(stream)[0] == "9-0"
    assert store.txn.log[-1].endswith(b"XTRIM\r\n$1\r\ns\r\n$5\r\nMINID\r\n$1\r\n=\r\n$3\r\n9-0\r\n")


def test_a_trim_moves_no_counter_but_the_length_and_a_deletion_does(store: Store) -> None:
    stream = store.fill(b"s", 10)
    trimming.trim(stream, Trim(Strategy.MAXLEN, 4))
    assert (stream.max_deleted_id, stream.entries_added, stream.last_id) == (MIN_ID, 10, sid("10-0"))
    assert stream.delete_entries([sid("10-0"), sid("3-0"), sid("10-0"), sid("7-0")]) == [True, False, False, True]
    assert (stream.max_deleted_id, stream.entries_added, stream.last_id) == (sid("10-0"), 10, sid("10-0"))
    assert (stream.first_id, stream.last_live_id) == (sid("8-0"), sid("9-0"))


def test_the_largest_id_can_be_added_trimmed_and_forgotten(store: Store) -> None:
    largest = f"{2**64 - 1}-{2**64 - 1}"
    for trim in (Trim(Strategy.MAXLEN, 0), Trim(Strategy.MAXLEN, 0, approximate=True)):
        stream = store.add(b"s", "1-0", largest)
        assert ids_of(stream) == ["1-0", largest]
        assert store.count_range(stream, sid("1-1"), MAX_ID) == 1
        assert trimming.trim(stream, trim) == 2
        store.checkpoint()
        assert ids_of(store.stream()) == []
        assert not store.stream().has(MAX_ID)
        store.db.delete(store.stream())
    assert store.violations() == []


@pytest.mark.parametrize(("approximate", "threshold"), [(False, "7-0"), (True, f"{2**64 - 1}-{2**64 - 1}")])
def test_a_trim_that_takes_tombstones_alone_is_kept_and_logged(store: Store, approximate: bool, threshold: str) -> None:
    stream = store.fill(b"s", 6)
    stream.delete_entries([sid("6-0")])
    trimming.trim(stream, Trim(Strategy.MINID, sid("6-0")))  # spares the node, which a tombstone ends
    store.checkpoint()
    stream = store.stream()
    assert (stream.length, stream.node_total) == (0, 1)
    assert trimming.trim(stream, Trim(Strategy.MINID, sid("7-0"), approximate=approximate)) == 0
    assert stream.node_total == 0
    assert store.txn.log[-1] == encode_command([b"XTRIM", b"s", b"MINID", b"=", threshold.encode()])
    store.restart()
    assert store.stream().node_total == 0
    store.rebuild()
    assert store.stream().node_total == 0
    trimming.trim(store.stream(), Trim(Strategy.MINID, sid("7-0"), approximate=approximate))
    assert store.txn.log == [], "nothing was left to be trimmed"


# -- XSETID below what there was ---------------------------------------------------------------------------------------


def test_entries_below_a_lowered_last_id_are_not_taken_for_purged_ones(store: Store) -> None:
    stream = store.fill(b"s", 1000)
    trimming.trim(stream, Trim(Strategy.MAXLEN, 0))
    stream.set_id(sid("3-0"))
    store.add(b"s", "4-0", "500-0")
    store.purge()
    assert ids_of(store.stream()) == ["4-0", "500-0"]
    assert store.violations() == []


def make_room(stream: Stream, last_id: str, clearing: Clearing) -> int:
    """-> after how many slices there was room."""
    for slices in itertools.count(1):
        if stream.make_room(sid(last_id), clearing):
            return slices
    raise AssertionError("unreachable")


def noted_for(store: Store, stream_no: int) -> list[object]:
    cursor = store.txn.cursor("trash")
    notes = [dead_rows.unpack_note(row) for _, row in cursor.iternext()] if cursor.first() else []
    return [note for note in notes if isinstance(note, dead_rows.DeadRange) and note.stream_no == stream_no]


def test_room_below_trimmed_entries_is_made_in_slices(store: Store) -> None:
    for number in range(2_500):  # other streams whose rows wait for the purge
        store.txn.dead_rows.add_stream(10_000_000 + number)
    stream = store.fill(b"s", 2_500)
    trimming.trim(stream, Trim(Strategy.MAXLEN, 0))
    assert noted_for(store, stream.stream_no)
    clearing = Clearing()
    assert not stream.make_room(sid("3-0"), clearing)
    # a client appends meanwhile, and trims again
    store.add(b"s", *(f"{number}-0" for number in range(3_000, 3_300)))
    trimming.trim(stream, Trim(Strategy.MAXLEN, 0))
    assert make_room(stream, "3-0", clearing) > 4
    assert noted_for(store, stream.stream_no) == []
    stream.set_id(sid("3-0"))
    store.add(b"s", "4-0", "500-0", "3100-0")
    store.purge()
    assert ids_of(store.stream()) == ["4-0", "500-0", "3100-0"]
    assert store.violations() == []


@pytest.mark.parametrize("is_lost", [False, True], ids=["the stream is another", "the tables were read again"])
def test_room_is_made_from_the_beginning_where_it_was_made_for(store: Store, is_lost: bool) -> None:
    other, stream = store.fill(b"other", 600), store.fill(b"s", 600)
    for each in (other, stream):
        trimming.trim(each, Trim(Strategy.MAXLEN, 0))
    for number in range(1_500):
        store.txn.dead_rows.add_stream(10_000_000 + number)
    store.commit()
    store.engine.checkpoint()
    clearing = Clearing()
    while noted_for(store, stream.stream_no):
        assert not stream.make_room(sid("3-0"), clearing)
    if is_lost:
        store.engine.state.restore(store.txn.changes)
    else:
        store.db.delete(stream)
        store.db.rename(store.stream(b"other"), b"s")
    stream = store.stream()
    assert noted_for(store, stream.stream_no), "nothing is shown by this"
    make_room(stream, "3-0", clearing)
    assert noted_for(store, stream.stream_no) == []
    stream.set_id(sid("3-0"))
    store.add(b"s", "4-0")
    store.purge()
    assert ids_of(store.stream()) == ["4-0"]


def test_a_dead_last_node_does_not_take_entries_below_it(store: Store) -> None:
    stream = store.add(b"s", "5-1", "5-2")
    stream.delete_entries([sid("5-2")])
    trimming.trim(stream, Trim(Strategy.MINID, sid("5-2")))
    assert (stream.length, stream.tail_total) == (0, 2)
    stream.set_id(sid("1-0"))
    store.add(b"s", "2-0", "2-1")
    assert stream.delete_entries([sid("2-0")]) == [True]
    assert ids_of(stream) == ["2-1"]


def test_dead_nodes_are_gone_when_entries_may_stand_below_them(store: Store) -> None:
    stream = store.fill(b"s", 5)
    stream.delete_entries([sid("5-0"), sid("4-0")])
    trimming.trim(stream, Trim(Strategy.MINID, sid("4-0")))
    stream.set_id(sid("1-0"))
    store.add(b"s", "2-0", "3-0", "3-1", "3-2", "3-3", "7-3")
    assert store.violations() == []
    assert trimming.trim(store.stream(), Trim(Strategy.MAXLEN, 5)) == 1
    assert ids_of(store.stream()) == ["3-0", "3-1", "3-2", "3-3", "7-3"]


def test_a_node_ends_at_a_lowered_last_id(store: Store) -> None:
    stream = store.fill(b"s", 5)
    stream.delete_entries([sid("5-0"), sid("4-0")])
    stream.set_id(sid("3-0"))
    store.add(b"s", "3-5", "3-6")
    assert store.violations() == []
    stream = store.stream()
    assert trimming.trim(stream, Trim(Strategy.MAXLEN, 2)) == 3
    assert ids_of(stream) == ["3-5", "3-6"]


# -- XADD with a trim --------------------------------------------------------------------------------------------------


def test_an_append_trims_after_adding_and_logs_one_exact_command(store: Store) -> None:
    stream = store.fill(b"s", 12)
    store.commit()
    trimming.append_and_trim(stream, sid("13-0"), [b"f", b"v"], Trim(Strategy.MAXLEN, 6, approximate=True))
    assert ids_of(stream) == [f"{number}-0" for number in range(5, 14)]
    expected = [b"XADD", b"s", b"MAXLEN", b"=", b"9", b"13-0", b"f", b"v"]
    assert store.txn.log == [encode_command(expected)]


def test_an_append_whose_trim_finds_nothing_logs_none(store: Store) -> None:
    stream = store.fill(b"s", 2)
    store.commit()
    trimming.append_and_trim(stream, sid("3-0"), [b"f", b"v"], Trim(Strategy.MAXLEN, 6))
    assert store.txn.log == [encode_command([b"XADD", b"s", b"3-0", b"f", b"v"])]


def test_the_estimate_of_size_grows_with_the_entries(store: Store) -> None:
    small = store.fill(b"s", 100).byte_size()
    large = store.add(b"t", *(f"{number}-0" for number in range(1, 101)), words=(b"f", b"x" * 1000)).byte_size()
    assert 1_000 < small < 20_000
    assert 100_000 < large < 200_000


def test_the_first_entry_of_a_range_is_the_first_of_its_rows(store: Store) -> None:
    store.add(b"r", "3-0")
    stream = store.fill(b"s", 12)
    store.add(b"t", "1-0", "20-0")
    stream.delete_entries([sid("4-0"), sid("12-0")])
    trimming.trim(stream, Trim(Strategy.MINID, sid("3-0")))
    for start in range(14):
        for end in range(14):
            rows = stream.rows(sid(f"{start}-0"), sid(f"{end}-0"), 1)
            assert stream.first_entry(sid(f"{start}-0"), sid(f"{end}-0")) == (rows[0][1] if rows else None)
    assert store.stream(b"empty").first_entry(MIN_ID, MAX_ID) is None


# -- long entries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1 << 20) - 8, 1 << 20, 3 << 20])
def test_a_long_entry_is_as_a_short_one(tmp_path: Path, size: int) -> None:
    store = Store(tmp_path / "store")
    stream = store.stream(b"s")
    value = random.Random(size).randbytes(size)
    words = [b"name", value, b"n", b"1"]
    for number in (1, 2):
        assert stream.append_entry(sid(f"{number}-0"), words) == b"$3\r\n%d-0\r\n" % number
    assert list(store.txn.log) == [
        encode_command([b"SELECT", b"0"]),
        *(encode_command([b"XADD", b"s", b"%d-0" % number, *words]) for number in (1, 2)),
    ]
    assert [row for _, row in stream.rows(MIN_ID, MAX_ID)] == [encode_entry(sid(f"{n}-0"), words) for n in (1, 2)]
    store.commit()
    store.kill()
    store.open()
    assert [decode_entry(row)[1] for _, row in store.stream(b"s").rows(MIN_ID, MAX_ID)] == [words, words]
    store.kill()


def test_a_long_entry_has_one_copy_at_a_time_beside_that_of_the_tables(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    stream = store.stream(b"s")
    value = bytes(16 << 20)
    tracemalloc.start()
    stream.append_entry(sid("1-0"), [b"v", value])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    store.kill()
    assert peak < 1.2 * len(value)
