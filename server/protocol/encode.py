"""From a handler's reply to bytes on the wire, in RESP2 and RESP3.

The counterpart of `request_reader.py`, which reads; the values are described in `replies.py`.  The helpers on top build
wire form by hand, for handlers whose reply is too large to be walked value by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import NO_REPLY, NULL_ARRAY, Block, Push, Reply, Verbatim

# Most lengths and counts are small.  Indexing a tuple costs 30 ns, formatting 110; short of 1,024 the tables take
# 100 kB together and hold the usual COUNT, the usual length of a word, and most answers of XACK and XLEN.
_SMALL: Final = 1024
_INTEGERS: Final = tuple(b":%d\r\n" % number for number in range(_SMALL))
_ARRAY_HEADS: Final = tuple(b"*%d\r\n" % count for count in range(_SMALL))

NULL_BULK: Final = b"$-1\r\n"
NULL_ARRAY_RESP2: Final = b"*-1\r\n"
NULL_RESP3: Final = b"_\r\n"

_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


def integer(number: int) -> bytes:
    if 0 <= number < _SMALL:
        return _INTEGERS[number]
    return b":%d\r\n" % number


def array_header(count: int) -> bytes:
    if count < _SMALL:
        return _ARRAY_HEADS[count]
    return b"*%d\r\n" % count


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def error_line(text: bytes) -> bytes:
    """An error; `text` begins with its code word.  It may quote a client, so line breaks in it become blanks."""
    return b"-%b\r\n" % text.strip(b"\r\n").translate(_LINE_BREAKS)


def encode(reply: Reply, resp: int) -> bytes:
    """`reply` on the wire in protocol version `resp` (2 or 3).  NO_REPLY is no bytes; a Block is a bug."""
    kind = type(reply)
    if kind is tuple:
        wire: bytes = reply[0]
        return wire
    if kind is int:
        return integer(reply)
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if reply is None:
        return NULL_BULK if resp == 2 else NULL_RESP3
    if kind is str:
        return b"+%b\r\n" % reply.encode()
    parts: list[bytes] = []
    _append(parts.append, reply, resp)
    return b"".join(parts)


def _append(add: Callable[[bytes], None], reply: Reply, resp: int) -> None:
    """Add the pieces of `reply`, depth first."""
    kind = type(reply)
    if kind is list:
        add(array_header(len(reply)))
        _append_all(add, reply, resp)
    elif isinstance(reply, dict):
        add(b"%%%d\r\n" % len(reply) if resp == 3 else array_header(2 * len(reply)))
        _append_all(add, chain.from_iterable(reply.items()), resp)
    elif isinstance(reply, (set, frozenset)):
        add(b"~%d\r\n" % len(reply) if resp == 3 else array_header(len(reply)))
        _append_all(add, reply, resp)
    elif kind is bool:
        if resp == 3:
            add(b"#t\r\n" if reply else b"#f\r\n")
        else:
            add(integer(int(reply)))
    elif kind is float:
        add(b",%b\r\n" % _float_text(reply) if resp == 3 else bulk(_float_text(reply)))
    elif isinstance(reply, Verbatim):
        if resp == 3:
            add(b"=%d\r\n%b:%b\r\n" % (len(reply.text) + len(reply.kind) + 1, reply.kind, reply.text))
        else:
            add(bulk(reply.text))
    elif isinstance(reply, CommandError):
        add(error_line(reply.text))
    elif isinstance(reply, Push):
        add(reply)
    elif reply is NULL_ARRAY:
        add(NULL_ARRAY_RESP2 if resp == 2 else NULL_RESP3)
    elif reply is NO_REPLY:
        return
    elif kind in _SCALARS:
        add(encode(reply, resp))
    else:
        assert not isinstance(reply, Block), "a blocked request has no reply yet"
        raise TypeError(f"a handler returned {kind.__name__}")


def _append_all(add: Callable[[bytes], None], items: Iterable[Reply], resp: int) -> None:
    """Add the pieces of each of these.  Usual leaves are written out here: a call for each would double the cost."""
    for item in items:
        kind = type(item)
        if kind is bytes:
            add(b"$%d\r\n%b\r\n" % (len(item), item))
        elif kind is int:
            add(integer(item))
        else:
            _append(add, item, resp)


_SCALARS: Final = frozenset((tuple, int, bytes, type(None), str))


def _float_text(number: float) -> bytes:
    """Shortest form that reads back as the same number; whole numbers without a fraction."""
    if math.isfinite(number) and number == int(number) and abs(number) < 1e17:
        return b"%d" % int(number)
    return repr(number).encode()
