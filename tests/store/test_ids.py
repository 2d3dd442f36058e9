from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverbed.store.ids import (
    MAX_HALF,
    MAX_ID,
    MIN_ID,
    StreamID,
    id_ms,
    id_seq,
    id_text,
    make_id,
    pack_id,
    parse_id,
    unpack_id,
)

HALVES = st.integers(0, MAX_HALF)
IDS = st.builds(make_id, HALVES, HALVES)


@given(HALVES, HALVES)
def test_an_id_is_its_two_halves(ms: int, seq: int) -> None:
    entry_id = make_id(ms, seq)
    assert (id_ms(entry_id), id_seq(entry_id)) == (ms, seq)
    assert id_text(entry_id) == b"%d-%d" % (ms, seq)
    assert parse_id(id_text(entry_id)) == entry_id


@given(IDS, IDS)
def test_ids_order_by_milliseconds_then_sequence_number_packed_or_not(first: StreamID, second: StreamID) -> None:
    in_order = (id_ms(first), id_seq(first)) < (id_ms(second), id_seq(second))
    assert (first < second) == in_order
    assert (pack_id(first) < pack_id(second)) == in_order


@given(IDS)
def test_an_id_packs_into_sixteen_bytes(entry_id: StreamID) -> None:
    assert len(pack_id(entry_id)) == 16
    assert unpack_id(pack_id(entry_id)) == entry_id


def test_the_successor_of_the_last_sequence_number_is_in_the_next_millisecond() -> None:
    assert make_id(5, MAX_HALF) + 1 == make_id(6, 0)
    assert make_id(6, 0) - 1 == make_id(5, MAX_HALF)
    assert (make_id(0, 0), make_id(MAX_HALF, MAX_HALF)) == (MIN_ID, MAX_ID)


@pytest.mark.parametrize(
    ("text", "entry_id"),
    [
        (b"0", make_id(0, 0)),
        (b"5", make_id(5, 0)),
        (b"007-01", make_id(7, 1)),
        (b"18446744073709551615-18446744073709551615", MAX_ID),
        (b"0" * 80 + b"1-" + b"0" * 40 + b"2", make_id(1, 2)),
    ],
)
def test_an_id_is_read_with_and_without_sequence_number_and_leading_zeros(text: bytes, entry_id: StreamID) -> None:
    assert parse_id(text) == entry_id


def test_a_missing_sequence_number_is_what_the_caller_says() -> None:
    assert parse_id(b"5", MAX_HALF) == make_id(5, MAX_HALF)
    assert parse_id(b"5-0", MAX_HALF) == make_id(5, 0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"-",
        b"5-",
        b"-5",
        b"5-1-1",
        b"5--1",
        b"+5",
        b" 5",
        b"5 ",
        b"5-1\n",
        b"5\0",
        b"1e3",
        b"0x10",
        b"*",
        b"5-*",
        b"18446744073709551616",
        b"1-18446744073709551616",
        "٣-٣".encode(),
        b"0" * 127 + b"1",
    ],
)
def test_anything_else_is_no_id(text: bytes) -> None:
    assert parse_id(text) is None
