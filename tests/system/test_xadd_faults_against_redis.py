"""XADD with several faults in one command: the error that redis-server 7.0.15 finds first is the error that we find.

Every pair of faults of the options, in both orders, with every fault of the ID, of the fields and of the stream; then
words in random order.  IDs with a sign or a blank are left out: Redis takes them, and we refuse them.
"""

from __future__ import annotations

import random
import re
from itertools import product

import pytest

from tests.conftest import base_seed
from tests.support.raw import RawClient
from tests.support.servers import RedisServer, RiverbedServer

LAST_MS = b"18446744073709551615"
OPTIONS: tuple[tuple[bytes, ...], ...] = (
    (),
    (b"NOMKSTREAM",),
    (b"MAXLEN", b"-1"),
    (b"MAXLEN", b"~", b"x"),
    (b"MAXLEN", b"9"),
    (b"maxlen", b"~"),
    (b"MINID", b"=", b"bad"),
    (b"MINID", b"~", b"0"),
    (b"LIMIT", b"-1"),
    (b"LIMIT", b"many"),
    (b"limit", b"0"),
    (b"LIMIT", b"9"),
    (b"LIMIT",),
    (b"UNKNOWN",),
)
IDS = (b"5-5", b"*", b"5-*", b"0-0", b"0", b"bad", b"", b"5-", b"5-5-5", b"-", LAST_MS + b"-*", LAST_MS + b"0")
FIELDS: tuple[tuple[bytes, ...], ...] = ((b"f", b"v"), (b"f",), (b"f", b"v", b"odd"), ())
# a missing one, one with the largest ID of all, one whose IDs are larger than all that are given
STREAMS = (b"missing", b"full", b"late")
LONE_WORDS = tuple({word for words in (*OPTIONS, IDS, *FIELDS) for word in words})
CLOCK_ID = re.compile(rb"\$15\r\n[12]\d{12}-0\r\n")


def prepare(client: RawClient) -> None:
    for key, last_id in ((b"full", LAST_MS + b"-" + LAST_MS), (b"late", LAST_MS + b"-5")):
        assert client.ask("XADD", key, last_id, "f", "v").startswith(b"$")


def replies(client: RawClient, commands: list[tuple[bytes, ...]]) -> list[bytes]:
    """The reply to each command, each given while `missing` is missing; IDs of the clock are masked."""
    both = client.pipeline([each for words in commands for each in (words, (b"DEL", b"missing"))])
    return [CLOCK_ID.sub(b"<now>", reply) for reply in both[::2]]


def compare(redis: RedisServer, ours: RiverbedServer, commands: list[tuple[bytes, ...]]) -> set[bytes]:
    """Both servers answer the same; -> the errors that were answered."""
    errors = set()
    with redis.client() as theirs, ours.client() as own:
        prepare(theirs)
        prepare(own)
        for at in range(0, len(commands), 500):
            some = commands[at : at + 500]
            for words, expected, reply in zip(some, replies(theirs, some), replies(own, some), strict=True):
                assert reply == expected, words
                if reply.startswith(b"-"):
                    errors.add(reply)
    return errors


def test_of_two_faults_the_same_one_is_told(redis_server: RedisServer, riverbed: RiverbedServer) -> None:
    commands = [
        (b"XADD", key, *first, *second, entry_id, *fields)
        for key, first, second, entry_id, fields in product(STREAMS, OPTIONS, OPTIONS, IDS, FIELDS)
    ]
    assert len(compare(redis_server, riverbed, commands)) == 11  # all that XADD of 7.0 has, but for sizes and types


@pytest.mark.parametrize("seed", range(base_seed(), base_seed() + 2))
def test_of_many_faults_the_same_one_is_told(redis_server: RedisServer, riverbed: RiverbedServer, seed: int) -> None:
    rng = random.Random(seed)
    commands = [(b"XADD", rng.choice(STREAMS), *rng.choices(LONE_WORDS, k=rng.randrange(10))) for _ in range(10_000)]
    assert len(compare(redis_server, riverbed, commands)) > 6
