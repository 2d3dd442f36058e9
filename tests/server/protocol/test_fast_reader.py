"""What hiredis is given: nothing in which a client announces more than hiredis may make room for."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest
from hiredis import Reader
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.server.protocol.fast_reader import PlainReader
from riverbed.server.protocol.request_reader import RequestReader
from tests.support.raw import encode

_AGGREGATES = [b"*", b"%", b"~", b"|", b">"]
_BULKS = [b"$", b"="]
_LINES = [b"+", b"-", b":", b"(", b"_", b"#", b","]
_KINDS = _AGGREGATES + _BULKS + _LINES
# An array of more words, and of more than its bytes can hold, takes memory for nothing.
_MANY = 99


class Watched:
    """A hiredis that refuses to be given an aggregate that it would make too much room for."""

    def __init__(self, **settings: object) -> None:
        self._reader = Reader(**settings)
        self._given = b""

    def feed(self, data: bytes) -> None:
        self._given += data
        for kind, count in announced(self._given):
            # others than arrays have no place in a request
            assert kind == b"*", (kind, count, self._given)
            assert count <= max(_MANY, len(self._given) // len(b"$0\r\n\r\n")), (count, self._given)
        self._reader.feed(data)

    def gets(self) -> object:
        return self._reader.gets()

    def has_data(self) -> bool:
        return bool(self._reader.has_data())


def announced(data: bytes) -> list[tuple[bytes, int]]:
    """The aggregates that hiredis meets in `data`, in order, up to the first bytes that it does not understand."""
    found = []
    at = 0
    while at < len(data):
        kind, end = data[at : at + 1], data.find(b"\r\n", at)
        if end < 0 or kind not in _KINDS:
            break
        number = data[at + 1 : end]
        at = end + 2
        if kind in _LINES:
            continue
        if not number.isdigit():
            break
        if kind in _BULKS:
            at += int(number) + 2
        else:
            found.append((kind, int(number)))
    return found


def read(chunks: list[bytes]) -> tuple[list[list[bytes]], bytes | None, int]:
    """The requests, the error behind them, and the bytes that wait for more."""
    reader = RequestReader(authenticated=True)
    requests = []
    for chunk in chunks:
        requests += reader.feed(chunk)
    return requests, None if reader.error is None else reader.error.text, reader.pending_bytes


COUNTS = st.sampled_from([0, 1, 2, 9, 10, 99, 100, 999, 1000, 123456, 300_000_000, (1 << 31) - 1, 1 << 32, 1 << 62])
HEADS = st.builds(lambda kind, count: b"%b%d\r\n" % (kind, count), st.sampled_from(_AGGREGATES), COUNTS)
LINES = st.sampled_from([b"+", b"+a\r\n", b"(12\r\n", b":1\r\n", b"_\r\n", b"#t\r\n", b"=5\r\ntxt:a\r\n", b"$-1\r\n"])
# Payloads look like heads as well, and any two bytes may follow a word.
WORDS = st.builds(
    lambda kind, word, end: b"%b%d\r\n%b%b" % (kind, len(word), word, end),
    st.sampled_from([b"$"] * 9 + [b"="]),
    st.binary(max_size=40) | HEADS | LINES | st.sampled_from([b"*", b">", b"~", b"PING", b"+", b"a=1", b"x" * 60]),
    st.sampled_from([b"\r\n"] * 6 + [b"xx", b"*9", b">1", b"\n\r"]),
)
NESTED = st.lists(HEADS, max_size=3).map(b"".join)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request as it should be, or with something else among its words or a wrong count."""
    words = draw(st.lists(st.one_of([WORDS] * 6 + [NESTED, LINES]), min_size=1, max_size=12))
    count = draw(st.sampled_from([len(words)] * 6 + [len(words) + 1])) if draw(st.booleans()) else len(words)
    head = draw(st.sampled_from([b"*%d\r\n" % count] * 8 + [b"", b"*%d\r\n" % draw(COUNTS)]))
    return head + b"".join(words)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(parts=st.lists(requests(), min_size=1, max_size=5), places=st.lists(st.integers(0, 1 << 20), max_size=6))
def test_hiredis_is_given_no_count_that_takes_memory_and_all_is_read_as_it_is_byte_by_byte(
    parts: list[bytes], places: list[int]
) -> None:
    data = b"".join(parts)
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    with patch("riverbed.server.protocol.fast_reader.hiredis.Reader", Watched):
        found = read([data[start:end] for start, end in pairwise(edges)])
    assert found == read([data[at : at + 1] for at in range(len(data))]), data


def test_nothing_of_requests_that_found_no_memory_is_read_with_the_next() -> None:
    def take(reader: PlainReader, data: bytes) -> list[list[bytes]]:
        requests = reader.take_chunk(data)
        if requests is None:
            requests = []
            assert reader.take_front(data, requests) in (0, len(data))
        return requests

    secrets = encode(["XADD", "s", "*", "f", "v"]) * 3
    for fails in (PlainReader.take_chunk, lambda reader, data: reader.take_front(data, [])):
        reader = PlainReader()
        with (
            patch("riverbed.server.protocol.fast_reader._join", side_effect=MemoryError),
            pytest.raises(MemoryError),
        ):
            fails(reader, secrets)
        seen = [take(reader, encode(["PING"])) for _ in range(3)]
        assert seen[-1] == [[b"PING"]]
        assert all(requests in ([], [[b"PING"]]) for requests in seen)
