"""Whole requests, by hiredis.

`hiredis.Reader` is C and parses replies, which is nearly what we need: a request is an array of bulk strings.  It
takes whatever whole requests a chunk holds.  It is given nothing else, because it never says how much it consumed,
knows no inline commands, reserves memory for as many words as a client announces, and is content with words that
Redis refuses.  So its state never outlives one chunk, and what it may have misread it gives back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Final

import hiredis

from store.format import encode_command

# hiredis moves what it has not parsed yet to the front of its buffer every kilobyte; with 160 kB fed at once that
# made a request cost 340 ns instead of 285.
_SLICE_BYTES: Final = 16 * 1024

# hiredis would build a list of that length before the first word arrives: 8 bytes a word in memory, and a stall of
# about a second for a billion.  10,000 words and more are counted one by one instead.
_find_long_count = re.compile(rb"\*[0-9]{5}").search
# Aggregates of RESP3 that hiredis returns as a list or dict, where Redis would see an inline command.
_find_other_aggregate = re.compile(rb"\n[%~|>][0-9]+\r\n").search
_PERCENT, _TILDE, _BAR, _GREATER = b"%~|>"
# Types that hiredis returns as bytes although they are no bulk strings: simple string, verbatim, big number.  A word
# may begin like that too; their lengths on the wire tell them apart.
_PLUS, _EQUALS, _PAREN = b"+=("
_INCOMPLETE: Final = object()
_join = b"".join
_SMALLEST_BYTES: Final = len(b"*1\r\n$1\r\nX\r\n")
_CR: Final = ord("\r")


class PlainReader:
    """Takes requests that are arrays of bulk strings and stand whole in their chunk; knows no limits.

    Keeps nothing between two calls.
    """

    __slots__ = ("_hiredis",)

    def __init__(self) -> None:
        self._hiredis = hiredis.Reader(notEnoughData=_INCOMPLETE)

    def take_chunk(self, data: bytes) -> list[list[bytes]] | None:
        """The requests of a chunk that is nothing but whole plain requests, None for any other chunk.

        What nearly every chunk is: 0.6 us for one request of 7 words, 0.37 us for each of 16 (`take_front`, which
        finds out what else it may be, takes 1.6 and 0.42).
        """
        if len(data) < _SMALLEST_BYTES or (data[2] != _CR and data[3] != _CR):
            return None  # a count of three digits or more is for the others to judge
        reader = self._hiredis
        gets = reader.gets
        try:
            reader.feed(data)
            request = gets()
            # Joining raises unless all words are bytes, and is the cheapest such test.
            if request is not _INCOMPLETE and _join(request):
                requests = [request]
                # Words of other types that hiredis takes for bytes show when the requests are encoded again; the ends
                # of XRANGE are what brings a + here, and this is a sixth of what `take_front` would cost.
                odd_words = _PLUS in data or _EQUALS in data or _PAREN in data
                if (not reader.has_data() or self._take_others(data, requests)) and (
                    not odd_words or _join(map(encode_command, requests)) == data
                ):
                    return requests
        except (hiredis.ProtocolError, TypeError):
            pass
        self._hiredis = hiredis.Reader(notEnoughData=_INCOMPLETE)
        return None

    def _take_others(self, data: bytes, requests: list[list[bytes]]) -> bool:
        """Append the requests behind the first of `data`, which hiredis has; False if that is not all of it."""
        if _PERCENT in data or _TILDE in data or _BAR in data or _GREATER in data or _find_long_count(data) is not None:
            return False
        reader = self._hiredis
        gets = reader.gets
        while (request := gets()) is not _INCOMPLETE:
            if not _join(request):  # nothing joined is an empty request
                return False
            requests.append(request)
        # All bytes were used, but perhaps for the first words of a request; an array on top level tells.
        reader.feed(b"*0\r\n")
        return bool(gets() == [])

    def take_front(self, data: bytes, requests: list[list[bytes]]) -> int:
        """Append the requests at the front of `data`; return how many bytes they are.

        What follows is an unfinished request or something for the strict parser.
        """
        if _find_long_count(data) is not None:
            return 0
        odd_words = (
            (_PLUS in data and b"\n+" in data)
            or (_EQUALS in data and b"\n=" in data)
            or (_PAREN in data and b"\n(" in data)
        )
        if (_PERCENT in data or _TILDE in data or _BAR in data or _GREATER in data) and _find_other_aggregate(data):
            return 0
        reader = self._hiredis
        gets = reader.gets
        size = len(data)
        batch: list[list[bytes]] = []
        add = batch.append
        try:
            for piece in (data,) if size <= _SLICE_BYTES else _slices(data):
                reader.feed(piece)
                while (request := gets()) is not _INCOMPLETE:
                    _join(request)  # raises unless all words are bytes: the cheapest such test, in C
                    add(request)
            whole = not reader.has_data()
            if whole:
                # All bytes were used, but perhaps for the first words of a request; an array on top level tells.
                reader.feed(b"*0\r\n")
                whole = gets() == []
        except (hiredis.ProtocolError, TypeError):
            whole = False
        if not whole:
            self._hiredis = hiredis.Reader(notEnoughData=_INCOMPLETE)
            size = _end_of_last(batch, data)
        if not size or not all(batch):  # `*0` and `*-1` are no requests
            return 0
        if odd_words and _wire_bytes(batch) != size:
            return 0
        requests += batch
        return size


def _slices(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _SLICE_BYTES):
        yield data[start : start + _SLICE_BYTES]


def _end_of_last(batch: list[list[bytes]], data: bytes) -> int:
    """Where the last request of `batch` ends in `data`, which begins with all of them.

    When its wire form occurs only once, that is the place; pipelines of equal requests have to be measured instead
    (20 against 370 ns a request).  0, for the strict parser to read all of it, if neither fits: words of other types
    than bulk strings.
    """
    if not batch or not all(batch):
        return 0
    last = batch[-1]
    wire = b"*%d\r\n%b" % (len(last), _join([b"$%d\r\n%b\r\n" % (len(word), word) for word in last]))
    start = data.rfind(wire)
    if start >= 0 and data.find(wire, 0, start + len(wire) - 1) < 0:
        return start + len(wire)
    size = _wire_bytes(batch)
    if data.startswith(wire, size - len(wire)):
        return size
    return 0


def _wire_bytes(batch: list[list[bytes]]) -> int:
    """How many bytes these requests were, being arrays of bulk strings: both parsers take only canonical lengths."""
    size = 0
    for count, times in Counter(map(len, batch)).items():
        size += times * (len(str(count)) + 3)
    for length, times in Counter(map(len, chain.from_iterable(batch))).items():
        size += times * (len(str(length)) + length + 5)
    return size
