"""What a server says to a tool takes no memory that it has not sent, and no text of an entry is taken for more."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from riverbed.tools.live.announced import MAX_MISSING, Announced, AnnouncementError
from riverbed.tools.live.redisclient import Address, RedisClient
from riverbed.tools.live.serverstat import databases
from tests.support.impostor import impostor
from tests.support.raw import encode
from tests.support.servers import ROOT

HOSTILE = """
import resource, sys
from tests.support.impostor import impostor
from riverbed.tools.console.console import Failure
from riverbed.tools.live.redisclient import Address, RedisClient

answer = eval(sys.argv[1])
with impostor(b"+PONG\\r\\n", answer, b"") as port:
    client = RedisClient(Address("127.0.0.1", port), 60)
    limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (100 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        client.call("XINFO", "STREAM", "s")
    except Failure as failure:
        sys.stdout.write(str(failure))
    finally:
        client.close()
"""


@pytest.mark.parametrize(
    "answer",
    [
        "b'*300000000\\r\\n'",
        "b'>300000000\\r\\n'",
        "b'~300000000\\r\\n'",
        "b'%300000000\\r\\n'",
        "b'*1\\r\\n' * 5 + b'*300000000\\r\\n'",
        "b'*999999\\r\\n' * 3000",
        "b'*99\\r\\n' * 200_000",
        "b'*2\\r\\n$9\\r\\n*99999999\\r\\n' + b'*999999999999999999999\\r\\n'",
    ],
)
def test_lists_that_a_server_only_announces_take_no_memory(answer: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, answer], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert "does not speak Redis's protocol: " in done.stdout, done.stderr[-2000:]
    assert "Traceback" not in done.stderr


def test_texts_that_look_like_long_lists_are_texts() -> None:
    texts = [b"*99999999\r\n", b">300000000\r\n", b"%9999999\r\n" * 20, b"~2024", b"x" * 70_000]
    reply = encode(texts)
    with impostor(b"+PONG\r\n", *[reply] * 20) as port, RedisClient(Address("127.0.0.1", port), 60) as client:
        for _ in range(20):
            assert client.call("XRANGE", "s", "-", "+") == texts


def test_counts_of_keys_that_no_server_has_are_passed_over() -> None:
    with impostor(b"+PONG\r\n") as port, RedisClient(Address("127.0.0.1", port), 60) as client:
        info = b"db0:keys=3,expires=0\r\ndb%b:keys=1\r\ndb1:keys=%b\r\n" % (b"9" * 9999, b"9" * 9999)
        assert databases(client, info) == {0: 3}


def take(announced: Announced, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        announced.take(data[at : at + size])


@pytest.mark.parametrize("size", [1, 7, 100, 60_000])
def test_a_head_is_found_wherever_a_piece_ends_and_nothing_before_it_is_one(size: int) -> None:
    chance = random.Random(size)
    sound = encode([b"*%d\r\n" % chance.randrange(10**9) if chance.random() < 0.1 else b"v" for _ in range(3000)]) * 2
    for hostile in (b"*%d\r\n" % (MAX_MISSING + 1), b"%%%d\r\n" % (MAX_MISSING // 2 + 1), b"*9999\r\n" * 200):
        announced = Announced()
        take(announced, sound, size)
        with pytest.raises(AnnouncementError):
            take(announced, hostile, size)


@pytest.mark.parametrize("size", [1, 7, 60_000, 100_000])
def test_a_line_that_never_ends_is_refused_before_it_takes_memory(size: int) -> None:
    announced = Announced()
    take(announced, encode([b"v" * 300_000, b"w"]), size)
    with pytest.raises(AnnouncementError, match="a line of more than 65536 bytes"):
        take(announced, b"+" + b"A" * 300_000, size)
