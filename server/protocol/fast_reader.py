"""Reads whole requests with hiredis.

`hiredis.Reader` is C and parses replies, which is nearly what we need: a request is an array of bulk strings.  It
takes all whole requests of a chunk.  But it never says how much it consumed, knows no inline commands, makes a list
as long as announced before the first word arrives, and accepts words that Redis refuses.  So it is given no chunk that
may announce much or hold aggregates of other types, its state never outlives one chunk, and requests that it may have
misread are given back.

Nothing here depends on what stands before a type byte: hiredis, like Redis, skips the two bytes behind a word.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import hiredis

from riverbed.store.format.log_lines import announces_too_much
from riverbed.store.format.resp import encode_command

if TYPE_CHECKING:
    from riverbed.store.wire import Requests

# hiredis moves what it has not parsed yet to the front of its buffer every kilobyte; with 160 kB fed at once that
# made a request cost 340 ns instead of 285.
_SLICE_BYTES: Final = 16 * 1024

# Long requests, and bytes in words that look like the head of one, get a second test.
_CR: Final = ord("\r")
_find_long_count = re.compile(rb"\*[0-9]{3}").search
# Aggregates of RESP3, nested or not: hiredis makes room for those too, and returns a list or dict where Redis sees an
# inline command or an error.  One search for each, because one that begins with a certain byte is ten times as fast.
_PERCENT, _TILDE, _BAR, _GREATER = b"%~|>"
_find_map = re.compile(rb"%[0-9]+\r\n").search
_find_set = re.compile(rb"~[0-9]+\r\n").search
_find_attribute = re.compile(rb"\|[0-9]+\r\n").search
_find_push = re.compile(rb">[0-9]+\r\n").search
# Types that hiredis returns as bytes although they are no bulk strings: simple string, verbatim, big number.  A word
# may begin with the same bytes; the length on the wire shows simple strings and big numbers.
_PLUS, _EQUALS, _PAREN = b"+=("
_find_verbatim = re.compile(rb"=[0-9]+\r\n").search
_INCOMPLETE: Final = object()
# Takes the place of a reader that may hold a part of a request where memory was short: a new one would take some.
_REFUSES_ALL: Final = hiredis.Reader()
_REFUSES_ALL.feed(b"no reply")
with contextlib.suppress(hiredis.ProtocolError):
    _REFUSES_ALL.gets()
_join = b"".join
# The size on the wire of a bulk string of n bytes, and of the head of an array of n words.
_word_bytes = [len(b"$%d\r\n\r\n" % size) + size for size in range(1024)].__getitem__
_head_bytes = [len(b"*%d\r\n" % count) for count in range(1024)].__getitem__
_ONE_DIGIT: Final = bytes(range(10))
_TWO_DIGITS: Final = bytes(range(100))


class PlainReader:
    """Takes requests that are arrays of bulk strings and stand whole in their chunk; knows no limits.

    Keeps nothing between two calls.
    """

    __slots__ = ("_hiredis",)

    makes_runs: Final = False

    def __init__(self) -> None:
        self._hiredis = hiredis.Reader(notEnoughData=_INCOMPLETE)

    def take_chunk(self, data: bytes) -> Requests | None:
        """The requests of a chunk that is nothing but whole plain requests, None for any other chunk.

        Nearly every chunk is such: 0.8 us for one request of 7 words, of which 0.15 for the tests before hiredis,
        0.38 us for each of 16 (`take_front`, which finds out what else it may be, takes 1.8 and 0.42).
        """
        reader = self._hiredis
        try:
            # Tests for a short count.  Whether the chunk begins with a star shows when hiredis makes a list of it.
            if (
                (data[2] != _CR and data[3] != _CR)
                or _PERCENT in data
                or _TILDE in data
                or _BAR in data
                or _GREATER in data
                or _find_long_count(data, 1)
            ) and not _is_fit(data):
                return None
            reader.feed(data)
            request = reader.gets()
            # Joining raises unless all words are bytes, and is the cheapest such test.
            if request is not _INCOMPLETE and _join(request):
                requests = [request]
                if (not reader.has_data() or self._take_others(requests)) and (
                    (_PLUS not in data and _PAREN not in data and _EQUALS not in data) or _are_bulks(requests, data)
                ):
                    return requests
        except (hiredis.ProtocolError, TypeError, IndexError):
            pass
        except MemoryError:
            self._hiredis = _REFUSES_ALL
            raise
        self._hiredis = hiredis.Reader(notEnoughData=_INCOMPLETE)
        return None

    def _take_others(self, requests: list[list[bytes]]) -> bool:
        """Append the requests that hiredis has after the first; False if the chunk holds anything else."""
        reader = self._hiredis
        gets = reader.gets
        while (request := gets()) is not _INCOMPLETE:
            if not _join(request):  # nothing joined is an empty request
                return False
            requests.append(request)
        # All bytes were used, but perhaps for the first words of a request; then this array is nested.
        reader.feed(b"*0\r\n")
        return bool(gets() == [])

    def take_front(self, data: bytes, requests: Requests) -> int:
        """Append the requests at the front of `data`; return how many bytes they are.

        What follows is an unfinished request or something for the strict parser.
        """
        if not _is_fit(data):
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
                # All bytes were used, but perhaps for the first words of a request; then this array is nested.
                reader.feed(b"*0\r\n")
                whole = gets() == []
        except (hiredis.ProtocolError, TypeError):
            whole = False
        except MemoryError:
            self._hiredis = _REFUSES_ALL
            raise
        odd_words = _PLUS in data or _PAREN in data
        if not whole:
            self._hiredis = hiredis.Reader(notEnoughData=_INCOMPLETE)
            size = _start_bytes(batch, data) if odd_words else _wire_bytes(batch)
        elif odd_words and _wire_bytes(batch) != size:  # simple strings and big numbers are shorter
            return 0
        if not size or not all(batch):  # `*0` and `*-1` are no requests
            return 0
        requests += batch
        return size


def _is_fit(data: bytes) -> bool:
    """Whether hiredis may be given `data`."""
    return data.startswith(b"*") and not (
        (_PERCENT in data and _find_map(data))
        or (_TILDE in data and _find_set(data))
        or (_BAR in data and _find_attribute(data))
        or (_GREATER in data and _find_push(data))
        or (_EQUALS in data and _find_verbatim(data))
        or (_find_long_count(data) and announces_too_much(data))
    )


def _are_bulks(requests: list[list[bytes]], data: bytes) -> bool:
    """Whether `requests`, which are all of `data`, are bulk strings only: others are shorter."""
    if _EQUALS in data and _find_verbatim(data):
        return False
    return (_PLUS not in data and _PAREN not in data) or _wire_bytes(requests) == len(data)


def _slices(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _SLICE_BYTES):
        yield data[start : start + _SLICE_BYTES]


def _start_bytes(batch: list[list[bytes]], data: bytes) -> int:
    """How many bytes at the start of `data` are `batch`, 0 if it does not begin with just these requests."""
    wire = _join(map(encode_command, batch))
    return len(wire) if data.startswith(wire) else 0


def _wire_bytes(batch: list[list[bytes]]) -> int:
    """How many bytes these requests were, being arrays of bulk strings: both parsers take only canonical lengths.

    200 ns for a request of 7 words in a long batch.
    """
    try:
        words = sum(map(_word_bytes, map(len, chain.from_iterable(batch))))
        return words + sum(map(_head_bytes, map(len, batch)))
    except IndexError:  # a word of 1 KB or more, or very many words
        pass
    lengths = list(map(len, chain.from_iterable(batch)))
    words = sum(lengths) + _digits(lengths) + len(lengths) * len(b"$\r\n\r\n")
    return words + _digits(list(map(len, batch))) + len(batch) * len(b"*\r\n")


def _digits(numbers: list[int]) -> int:
    """How many digits these numbers have together."""
    try:
        short = bytes(numbers)
    except ValueError:  # not all of them are below 256
        return sum(times * len(str(number)) for number, times in Counter(numbers).items())
    of_two = short.translate(None, _ONE_DIGIT)
    return len(short) + len(of_two) + len(of_two.translate(None, _TWO_DIGITS))
