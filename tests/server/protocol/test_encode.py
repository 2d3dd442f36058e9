"""Replies on the wire, in both protocol versions; hiredis reads them back."""

from __future__ import annotations

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverbed.server.errors import CommandError
from riverbed.server.protocol.encode import array_header, bulk, encode, error_line, integer
from riverbed.server.protocol.replies import NO_REPLY, NULL_ARRAY, OK, Block, Reply, Verbatim


@pytest.mark.parametrize(
    ("reply", "resp2", "resp3"),
    [
        (0, b":0\r\n", b":0\r\n"),
        (1023, b":1023\r\n", b":1023\r\n"),
        (1024, b":1024\r\n", b":1024\r\n"),
        (-7, b":-7\r\n", b":-7\r\n"),
        (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
        (b"a\r\nb", b"$4\r\na\r\nb\r\n", b"$4\r\na\r\nb\r\n"),
        ("OK", b"+OK\r\n", b"+OK\r\n"),
        (OK, b"+OK\r\n", b"+OK\r\n"),
        (None, b"$-1\r\n", b"_\r\n"),
        (NULL_ARRAY, b"*-1\r\n", b"_\r\n"),
        (True, b":1\r\n", b"#t\r\n"),
        (False, b":0\r\n", b"#f\r\n"),
        (1.5, b"$3\r\n1.5\r\n", b",1.5\r\n"),
        (3.0, b"$1\r\n3\r\n", b",3\r\n"),
        (float("inf"), b"$3\r\ninf\r\n", b",inf\r\n"),
        ([], b"*0\r\n", b"*0\r\n"),
        (
            [1, b"a", None, "OK", [NULL_ARRAY]],
            b"*5\r\n:1\r\n$1\r\na\r\n$-1\r\n+OK\r\n*1\r\n*-1\r\n",
            b"*5\r\n:1\r\n$1\r\na\r\n_\r\n+OK\r\n*1\r\n_\r\n",
        ),
        ({b"a": 1}, b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
        ({}, b"*0\r\n", b"%0\r\n"),
        ({b"a"}, b"*1\r\n$1\r\na\r\n", b"~1\r\n$1\r\na\r\n"),
        (frozenset((1,)), b"*1\r\n:1\r\n", b"~1\r\n:1\r\n"),
        (Verbatim(b"id=1\n"), b"$5\r\nid=1\n\r\n", b"=9\r\ntxt:id=1\n\r\n"),
        ([CommandError("ERR no")], b"*1\r\n-ERR no\r\n", b"*1\r\n-ERR no\r\n"),
        ([(b":1\r\n",)], b"*1\r\n:1\r\n", b"*1\r\n:1\r\n"),
        (NO_REPLY, b"", b""),
    ],
)  # fmt: skip
def test_every_kind_of_reply_in_both_protocols(reply: Reply, resp2: bytes, resp3: bytes) -> None:
    assert encode(reply, 2) == resp2
    assert encode(reply, 3) == resp3


def test_line_breaks_in_an_error_become_blanks() -> None:
    assert error_line(b"ERR unknown command 'a\r\nb', with\n") == b"-ERR unknown command 'a  b', with\r\n"


def test_a_bug_in_a_handler_is_not_sent() -> None:
    with pytest.raises(TypeError):
        encode([object()], 2)
    with pytest.raises(AssertionError):
        encode(Block((b"k",), None, [b"XREAD"]), 2)


def test_helpers_agree_with_encode() -> None:
    for number in (0, 1, 9, 1023, 1024, 10**18, -1):
        assert integer(number) == encode(number, 2)
    for count in (0, 5, 1023, 1024):
        assert array_header(count) + count * b":0\r\n" == encode([0] * count, 2)
    assert bulk(b"ab") == encode(b"ab", 3)


INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
HASHABLE = INTEGERS | st.binary(max_size=20)
REPLIES = st.recursive(
    HASHABLE | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(HASHABLE, inner, max_size=4),
    max_leaves=20,
)


@given(reply=REPLIES)
def test_a_resp3_client_reads_back_what_was_encoded(reply: Reply) -> None:
    reader = hiredis.Reader(notEnoughData=Ellipsis)
    reader.feed(encode(reply, 3))
    assert reader.gets() == reply
    assert not reader.has_data()


@given(reply=REPLIES)
def test_a_resp2_client_reads_back_the_flattened_reply(reply: Reply) -> None:
    reader = hiredis.Reader(notEnoughData=Ellipsis)
    reader.feed(encode(reply, 2))
    assert reader.gets() == flattened(reply)
    assert not reader.has_data()


def flattened(reply: Reply) -> Reply:
    if isinstance(reply, dict):
        return [flattened(part) for pair in reply.items() for part in pair]
    if isinstance(reply, list):
        return [flattened(item) for item in reply]
    return int(reply) if isinstance(reply, bool) else reply


@given(number=st.floats(allow_nan=False))
def test_a_double_is_read_back_exactly(number: float) -> None:
    reader = hiredis.Reader()
    reader.feed(encode([number], 3))
    assert reader.gets() == [number]
