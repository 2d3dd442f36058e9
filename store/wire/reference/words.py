"""The words of a request, taken out of its bytes: an array of bulk strings with lengths of at most nine digits."""

from __future__ import annotations

import re
from typing import Final

_MIN_WORD_BYTES: Final = len(b"$0\r\n\r\n")
MAX_NUMBER: Final = 9  # digits of a length
_ARRAY = re.compile(rb"\*([1-9][0-9]{0,8})\r\n")
BULK = re.compile(rb"\$(0|[1-9][0-9]{0,8})\r\n")


def take_head(chunk: bytes, at: int, end: int) -> tuple[int, int] | None:
    """-> how many words, and where they begin; None when there are too few bytes for so many."""
    head = _ARRAY.match(chunk, at, end)
    if head is None or int(head[1]) > (end - head.end()) // _MIN_WORD_BYTES:
        return None
    return int(head[1]), head.end()


def take_word(chunk: bytes, at: int, end: int) -> tuple[bytes, int] | None:
    """A word, and where the next thing begins, behind two bytes that may be any."""
    head = BULK.match(chunk, at, end)
    if head is None or int(head[1]) > end - head.end() - 2:
        return None
    word_end = head.end() + int(head[1])
    return chunk[head.end() : word_end], word_end + 2


def words_at(chunk: bytes, at: int, end: int, *, is_closed: bool = False) -> tuple[list[bytes], int | None]:
    """-> the words of a request, and where the next thing begins: None when it is not whole, or odd."""
    words: list[bytes] = []
    head = take_head(chunk, at, end)
    if head is None:
        return words, None
    count, at = head
    for _ in range(count):
        found = take_word(chunk, at, end)
        if found is None:
            return words, None
        word, at = found
        if is_closed and chunk[at - 2 : at] != b"\r\n":
            return words, None
        words.append(word)
    return words, at
