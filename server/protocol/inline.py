"""Words of a line that somebody typed: blanks between them, quotes around them.  What a telnet session sends."""

from __future__ import annotations

import re
from typing import Final

_BLANKS = re.compile(rb"\s*")
# One inline word: plain characters, then perhaps a quoted part, which must end the word.
_INLINE_WORD = re.compile(
    rb"""([^ \t\r\n"']*+)(?:"""
    rb""""((?:\\x[0-9a-fA-F]{2}|\\.|[^"\\])*+)"(?=\s|\Z)|"""
    rb"""'((?:\\'|[^'])*+)'(?=\s|\Z)|(?=[ \t\r\n]|\Z))""",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROL_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_inline(line: bytes) -> list[bytes] | None:
    """The words of a line without its newline, quotes resolved; None when the quotes do not fit."""
    words = []
    position = _end_of_blanks(line, 0)
    while position < len(line):
        match = _INLINE_WORD.match(line, position)
        if match is None:
            return None
        plain, double, single = match.groups()
        if double is not None:
            plain += _ESCAPE.sub(_unescape, double)
        elif single is not None:
            plain += single.replace(b"\\'", b"'")
        words.append(plain)
        position = _end_of_blanks(line, match.end())
    return words


def _end_of_blanks(line: bytes, position: int) -> int:
    match = _BLANKS.match(line, position)
    assert match is not None
    return match.end()


def _unescape(match: re.Match[bytes]) -> bytes:
    code, char = match.groups()
    if code is not None:
        return bytes((int(code, 16),))
    return _CONTROL_ESCAPES.get(char, char)
