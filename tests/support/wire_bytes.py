"""Bytes that clients might send: requests, lines, what is nearly one, and what is meant to do harm.

`streams` makes them up from a seed; what they mean is for others to say.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_PING = b"*1\r\n$4\r\nPING\r\n"
_LINE_ENDS = [b"\r\n"] * 12 + [b"\n", b"xx", b"*2", b"+a", b"\r\r", b"\n\n", b"$4", b">9", b"\r*", b"*1"]
_TYPES = b"*$%~|>+-:=(!,#_.;"
_NUMBERS = [b"0", b"1", b"2", b"3", b"4", b"9", b"-1", b"-0", b"+1", b"01", b"", b"?", b"12", b"9999", b"10000",
            b"99999", b"1048576", b"300000000", b"2147483647", b"2147483648", b"4294967295", b"9223372036854775807",
            b"9223372036854775808", b"18446744073709551616"]  # fmt: skip
_LINES = [b"PING\r\n", b"PING\n", b"\r\n", b"  \n", b"ECHO 'a b'\r\n", b'ECHO "\\x41\\n"\r\n', b'ECHO "a\r\n',
          b"+a\r\n", b"-1\r\n", b"ECHO a'b\n", b"nothing /\r\n", b"$4\r\nPING\r\n"]  # fmt: skip
_WORDS = [b"", b"a", b"+", b"=4", b"(1", b"~1", b">99999\r\n", b"*12345", b"\r\n", b"$4\r\n", _PING, b"a" * 400, b"*"]


def wire(words: list[bytes], rng: random.Random | None = None) -> bytes:
    """A request; with `rng` the bytes behind its words are not always CR LF, which nobody looks at."""
    ends = [b"\r\n" if rng is None else rng.choice(_LINE_ENDS) for _ in words]
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%b%b" % (len(word), word, end) for word, end in zip(words, ends, strict=True)
    )


def _piece(rng: random.Random) -> bytes:
    kind = rng.randrange(10)
    if kind < 3:
        return wire([b"ECHO", rng.choice(_WORDS)], rng if kind else None)
    if kind < 5:
        return _PING * rng.choice([1, 1, 2, 20])
    if kind < 6:
        return rng.choice(_LINES)
    if kind < 7:  # an aggregate or a value, with nothing or something behind it
        return b"%c%b\r\n" % (rng.choice(_TYPES), rng.choice(_NUMBERS)) + rng.choice([b"", b"$4\r\nPING\r\n", b"x\r\n"])
    if kind < 8:  # the same inside of a request
        return b"*%d\r\n%c%b\r\n" % (rng.randrange(1, 3), rng.choice(_TYPES), rng.choice(_NUMBERS)) + b"$1\r\na\r\n"
    if kind < 9:  # values of other types where words should be, sized so that they may go unnoticed
        odd = rng.choice([b"+%b\r\n" % (b"a" * rng.randrange(14)), b"=%d\r\ntxt:%b\r\n" % (8, b"PING"), b"(12\r\n"])
        words = [b"$4\r\nECHO\r\n", odd, rng.choice([odd, b"$1\r\na\r\n", b"+%b\r\n" % (b"a" * 12)])]
        return b"*%d\r\n" % len(words) + b"".join(words)
    return rng.choice([b"*0\r\n", b"*-1\r\n", b"*-5\r\n", b"*1\r\n", b"$4\r\n", b"\r", b"\n", b"*"])


def _mutated(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
        if not found:
            break
        at = rng.randrange(len(found))
        kind = rng.randrange(4)
        if kind == 0:
            del found[at : at + rng.choice([1, 1, 2, 7])]
        elif kind == 1:
            found[at] = rng.choice(b"*$>+=(~%|0159\r\nAx\xff")
        elif kind == 2:
            found[at:at] = rng.choice([b"\r\n", b"*", b"1", _PING, b">1\r\n", b"xx"])
        else:
            end = at + rng.randrange(30)
            found[at:at] = found[at:end]
    return bytes(found)


def streams(seed: int, count: int) -> Iterator[bytes]:
    """What `count` clients send, each a few hundred bytes, without a NUL in it."""
    rng = random.Random(seed)
    for _ in range(count):
        data = b"".join(_piece(rng) for _ in range(rng.choice([1, 2, 3, 5, 9])))
        yield _mutated(rng, data)
