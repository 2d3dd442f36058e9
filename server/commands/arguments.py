"""A cursor over the words of one request, and the number formats Redis accepts."""

from __future__ import annotations

import re
from typing import Final

from riverbed.server import errors
from riverbed.server.errors import CommandError
from riverbed.store.ids import StreamID, pack_id, parse_id, unpack_id
from riverbed.store.wire import packed_id

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)


# Redis reads integers strictly: no sign but minus, no leading zero, no blank.
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
# Most counts and times: 0.03 us instead of 0.3.
_SMALL: Final = {b"%d" % number: number for number in range(1025)}


def parse_int(text: bytes, error: str = errors.NOT_AN_INTEGER) -> int:
    """A canonical signed 64-bit decimal; CommandError(error) for anything else."""
    small = _SMALL.get(text)
    if small is not None:
        return small
    if _INTEGER.fullmatch(text):
        number = int(text)
        if INT64_MIN <= number <= INT64_MAX:
            return number
    raise CommandError(error)


def parse_timeout_ms(word: bytes, now_ms: int) -> int:
    """How long to wait, in milliseconds; CommandError when it is negative or its end exceeds 64 bits."""
    timeout_ms = parse_int(word, errors.TIMEOUT_NOT_INTEGER)
    if timeout_ms < 0:
        raise CommandError(errors.TIMEOUT_NEGATIVE)
    if timeout_ms + now_ms > INT64_MAX:
        raise CommandError(errors.TIMEOUT_OUT_OF_RANGE)
    return timeout_ms


def parse_entry_id(text: bytes, missing_seq: int = 0) -> StreamID:
    """A plain `ms` or `ms-seq`, none of the special forms; CommandError for anything else."""
    packed = packed_id(text)
    if packed is not None:
        return unpack_id(packed)
    entry_id = parse_id(text, missing_seq)
    if entry_id is None:
        raise CommandError(errors.INVALID_ID)
    return entry_id


def parse_packed_ids(words: list[bytes]) -> list[bytes]:
    """Plain IDs as the 16 bytes they are stored under; CommandError when one of them is not valid."""
    packed = []
    for word in words:
        one = packed_id(word)
        packed.append(pack_id(parse_entry_id(word)) if one is None else one)
    return packed


class Args:
    """Takes words from the left.  Taking past the end is a syntax error; arity was checked before."""

    __slots__ = ("position", "words")

    def __init__(self, words: list[bytes], position: int = 1) -> None:
        self.words = words
        self.position = position

    def __len__(self) -> int:
        """How many words are left."""
        return len(self.words) - self.position

    def take(self) -> bytes:
        if self.position >= len(self.words):
            raise CommandError(errors.SYNTAX)
        word = self.words[self.position]
        self.position += 1
        return word

    def take_option(self) -> bytes:
        """The next word in upper case, for option words."""
        return self.take().upper()

    def peek_option(self) -> bytes:
        """The next word in upper case without taking it; empty at the end."""
        if self.position >= len(self.words):
            return b""
        return self.words[self.position].upper()

    def take_int(self, error: str = errors.NOT_AN_INTEGER) -> int:
        return parse_int(self.take(), error)

    def take_id(self) -> StreamID:
        return parse_entry_id(self.take())

    def take_many(self, count: int) -> list[bytes]:
        """The next `count` words; the caller has checked that there are as many."""
        words = self.words[self.position : self.position + count]
        self.position += count
        return words

    def take_counted(self, not_positive: str, too_many: str) -> list[bytes]:
        """The words of `count word [word ...]`; CommandError with one of the texts when the count is wrong."""
        count = self.take_int(not_positive)
        if count <= 0:
            raise CommandError(not_positive)
        if count > len(self):
            raise CommandError(too_many)
        return self.take_many(count)

    def rest(self) -> list[bytes]:
        words = self.words[self.position :]
        self.position = len(self.words)
        return words
