from __future__ import annotations

import random

import pytest

from riverbed.server.errors import CommandError
from riverbed.server.protocol.counting import count_replies
from riverbed.server.protocol.encode import encode
from riverbed.server.protocol.replies import NULL_ARRAY, Reply, Verbatim

REPLIES: list[Reply] = [
    *(
        0,
        -1,
        10**20,
        b"",
        b"a\r\nb",
        b"*3\r\n:1\r\n",
        "OK",
        None,
        NULL_ARRAY,
        True,
        1.5,
        [],
        {},
        {b"a": [1, {b"b": 2}]},
    ),
    *([1, b"a", None, "OK", [NULL_ARRAY, [[b"x"]]]], {b"member"}, Verbatim(b"a\r\nb"), [[], [], []]),
    *([CommandError("ERR no such thing"), 1], b"x" * 2000, [b"$5\r\nhello\r\n"] * 1500),
]


@pytest.mark.parametrize("resp", [2, 3])
def test_as_many_are_counted_as_were_put_together(resp: int) -> None:
    for reply in REPLIES:
        assert count_replies(encode(reply, resp)) == 1, reply
    rng = random.Random(1)
    for count in range(1, 40):
        chosen = rng.choices(REPLIES, k=count)
        assert count_replies(b"".join(encode(reply, resp) for reply in chosen)) == count, chosen


@pytest.mark.parametrize("part", [b"", b"abc", b"$10", b"*2\r\n:1\r\n"])
def test_a_part_of_a_long_one_is_one(part: bytes) -> None:
    assert count_replies(part) == 1
    assert count_replies(b"+OK\r\n" + part[:3]) == 1
