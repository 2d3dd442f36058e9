from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.store.format.resp import encode_entry
from riverbed.store.ids import make_id
from riverbed.tools.columns.decode import EntryBatch
from riverbed.tools.columns.lengths import MalformedRowError

Entry = tuple[int, int, list[tuple[bytes, bytes]]]


def row_of(entry: Entry) -> bytes:
    ms, seq, items = entry
    return encode_entry(make_id(ms, seq), [word for item in items for word in item])


# Lengths around those where the reads of eight bytes, and the digits of a length, change.
sizes = st.sampled_from([0, 1, 2, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 99, 100, 101])
words = sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size))
halves = st.sampled_from([0, 1, 9, 10, 99_999_999, 100_000_000, 1_700_000_000_000, 2**63, 2**64 - 1])
items = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"user", b"\r\n$1\r\n", b"a-longer-name"]) | words, words), min_size=1
)
entries = st.lists(st.tuples(halves, halves, items), min_size=1, max_size=40)


@settings(deadline=None)
@given(entries)
def test_a_batch_gives_back_what_was_encoded(written: list[Entry]) -> None:
    batch = EntryBatch.of_rows([row_of(entry) for entry in written])

    assert batch.ids().to_pylist() == [b"%d-%d" % entry[:2] for entry in written]
    assert batch.ms().tolist() == [entry[0] for entry in written]
    assert batch.seq().tolist() == [entry[1] for entry in written]
    flat = batch.items(unique=False)
    pairs = list(zip(flat.names.to_pylist(), flat.values.to_pylist(), strict=True))
    assert [pairs[flat.offsets[i] : flat.offsets[i + 1]] for i in range(len(written))] == [e[2] for e in written]


@settings(deadline=None)
@given(entries)
def test_a_column_and_a_map_keep_the_last_of_equal_names(written: list[Entry]) -> None:
    batch = EntryBatch.of_rows([row_of(entry) for entry in written])
    expected = [dict(entry[2]) for entry in written]

    for name in {name for fields in expected for name in fields} | {b"nobody has this"}:
        assert batch.column(name).to_pylist() == [fields.get(name) for fields in expected]
    flat = batch.items(unique=True)
    pairs = list(zip(flat.names.to_pylist(), flat.values.to_pylist(), strict=True))
    assert [dict(pairs[flat.offsets[i] : flat.offsets[i + 1]]) for i in range(len(written))] == expected
    assert len(pairs) == sum(map(len, expected))


def test_rows_of_more_shapes_than_are_matched_are_parsed_one_by_one() -> None:
    written: list[Entry] = [(1, i, [(b"name %d" % i, b"value %d" % i), (b"all", b"x")]) for i in range(100)]
    batch = EntryBatch.of_rows([row_of(entry) for entry in written])

    assert batch.column(b"name 77").to_pylist() == [b"value 77" if i == 77 else None for i in range(100)]
    assert batch.column(b"all").to_pylist() == [b"x"] * 100
    assert batch.names() == [b"name 0", b"all", *(b"name %d" % i for i in range(1, 100))]


def test_a_value_too_long_for_one_read_of_its_length_is_found_all_the_same() -> None:
    written: list[Entry] = [(1, i, [(b"a", b"x" * size)]) for i, size in enumerate([3, 99_999, 100_000, 3_000_000, 1])]
    batch = EntryBatch.of_rows([row_of(entry) for entry in written])

    assert batch.column(b"a").to_pylist() == [entry[2][0][1] for entry in written]


def test_names_too_long_for_one_read_and_lengths_that_begin_with_zeros_are_found_all_the_same() -> None:
    names = [b"n" * size for size in (40, 41, 48, 55, 56, 57, 63, 64, 65, 111, 112, 113, 120, 200)]
    written: list[Entry] = [(1, i, [(name, b"%d" % i) for name in names]) for i in range(40)]
    rows = [row_of(entry) for entry in written]
    rows[7] = rows[7].replace(b"$55\r\n", b"$0055\r\n")
    rows[9] = rows[9].replace(b"$1\r\n9\r\n", b"$001\r\n9\r\n")
    rows[11] = rows[11].replace(b"$2\r\n11\r\n", b"$0000002\r\n11\r\n")

    for order in (rows, [rows[11], *rows[:11], *rows[12:]], [rows[7], *rows[:7], *rows[8:]]):
        batch = EntryBatch.of_rows(order)
        numbers = [b"%d" % rows.index(row) for row in order]
        assert batch.names() == names
        assert all(batch.column(name).to_pylist() == numbers for name in names)


def test_no_rows_are_columns_of_no_rows() -> None:
    batch = EntryBatch.of_rows([])

    assert batch.ids().to_pylist() == []
    assert batch.column(b"a").to_pylist() == []
    assert batch.items(unique=True).offsets.tolist() == [0]


GOOD = row_of((1_700_000_000_000, 5, [(b"user", b"bob"), (b"amount", b"12.50")]))


def read_everything(rows: list[bytes]) -> list[object]:
    batch = EntryBatch.of_rows(rows)
    flat = batch.items(unique=False)
    return [
        batch.ids().to_pylist(),
        batch.ms().tolist(),
        batch.seq().tolist(),
        batch.column(b"user").to_pylist(),
        flat.names.to_pylist(),
        flat.values.to_pylist(),
    ]


def test_every_cut_row_is_refused() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(MalformedRowError):
            read_everything([GOOD, GOOD[:size], GOOD])


def test_a_flipped_byte_never_shows_in_other_rows() -> None:
    sound = read_everything([GOOD, GOOD])
    assert sound[3] == [b"bob", b"bob"]
    for place in range(len(GOOD)):
        for bit in range(8):
            flipped = bytearray(GOOD)
            flipped[place] ^= 1 << bit
            try:
                found = read_everything([GOOD, bytes(flipped), GOOD])
            except MalformedRowError:
                continue
            columns = [column for column in found if isinstance(column, list)]
            assert columns[0][0] == columns[0][2] == b"1700000000000-5"
            assert columns[4][:2] == columns[4][-2:] == [b"user", b"amount"]
            assert columns[5][:2] == columns[5][-2:] == [b"bob", b"12.50"]
