"""Converts keys, names and words, which are any bytes, to text for people, and text back to words.

Words are quoted as in Redis: in a configuration file, a manifest, a line typed into telnet or redis-cli.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from typing import Final

_NO_QUOTES = re.compile(rb"[ \t\r\n!#-&(-~]*")
_BLANKS = re.compile(rb"\s*")
# One word: plain characters, then perhaps a quoted part, which must end the word.
_WORD = re.compile(
    rb"""([^ \t\r\n"']*+)(?:"""
    rb""""((?:\\x[0-9a-fA-F]{2}|\\.|[^"\\])*+)"(?=\s|\Z)|"""
    rb"""'((?:\\'|[^'])*+)'(?=\s|\Z)|(?=[ \t\r\n]|\Z))""",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROLS: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}
_NEEDS_NO_QUOTES = re.compile(rb"[!#-&(-\[\]-~]+")
_ESCAPES: Final = {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x5C: "\\\\"}


def key_text(data: bytes) -> str:
    """One printable line: text where it is text, `\\xHH` where it is not.  Different keys have different texts."""
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        if text.isprintable() and "\\" not in text:
            return text
    return "".join(_ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in data)


def split_words(line: bytes) -> list[bytes] | None:
    """The words of a line, without their quotes; None when the quotes do not fit."""
    if _NO_QUOTES.fullmatch(line):
        return line.split()
    words = []
    position = _end_of_blanks(line, 0)
    while position < len(line):
        match = _WORD.match(line, position)
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
    return _CONTROLS.get(char, char)


def split_text(line: str) -> list[str]:
    """As `split_words`, for text from files and the command line.  Raises ValueError when the quotes do not fit."""
    words = split_words(os.fsencode(line))
    if words is None:
        raise ValueError("the quotes do not fit")
    return list(map(os.fsdecode, words))


def quote_text(word: str) -> str:
    """`word` as `split_text` reads it: itself, or in quotes when a blank, a quote or an unprintable byte is in it."""
    raw = os.fsencode(word)
    return word if _NEEDS_NO_QUOTES.fullmatch(raw) else quoted(raw)


def quoted(word: bytes) -> str:
    """`word` in double quotes, printable, with C escapes.

    Runs in C, as a word may have many megabytes: 20 ns a byte, ten times less than byte by byte.  Python has no short
    escapes for two of the control characters.
    """
    inner = b"\\a".join(b"\\b".join(map(_escaped, part.split(b"\b"))) for part in word.split(b"\a"))
    return f'"{inner.decode()}"'


def _escaped(part: bytes) -> bytes:
    """`part` with Python's escapes, but with double quotes escaped instead of single quotes."""
    return codecs.escape_encode(part)[0].replace(b"\\'", b"'").replace(b'"', b'\\"')
