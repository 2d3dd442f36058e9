"""The same script on redis-server 7.0.15 and on ours: equal replies, byte by byte, errors in full.

`RIVERBED_SEED=n` or `RIVERBED_SEED=random` runs other scripts than CI does.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import StartRedis, StartRiverbed, base_seed
from tests.support.scripts.differences import DIFFERENCES, MASKS
from tests.support.scripts.differential import KILL_STEP, Pair
from tests.support.scripts.generators import Generator
from tests.support.scripts.shrinking import as_text, from_text, run_and_explain, script_of
from tests.support.servers import RedisServer, RiverbedServer, Server

ORACLE_VERSION = b"7.0.15"


@pytest.fixture
def pair(start_redis: StartRedis, start_riverbed: StartRiverbed) -> Pair:
    redis = start_redis(options={"databases": 16})
    with redis.client() as client:
        assert b"redis_version:" + ORACLE_VERSION in client.ask("INFO", "server"), (
            "the named differences are with 7.0.15"
        )
    return Pair(redis, start_riverbed(options={"appendfsync": "no"}))


@pytest.fixture(scope="module")
def protocol_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two servers for tests that store nothing."""
    place = tmp_path_factory.mktemp("protocol")
    for name in ("redis", "riverbed"):
        (place / name).mkdir()
    with (
        RedisServer(place / "redis", place / "logs") as redis,
        RiverbedServer(place / "riverbed", place / "logs") as riverbed,
    ):
        yield Pair(redis, riverbed)


def test_two_copies_of_redis_agree_up_to_the_masks(start_redis: StartRedis) -> None:
    """The control: what differs between a server and itself must be masked, and nothing is sent that cannot compare."""
    copies = Pair(start_redis(), start_redis(), rules=tuple(MASKS.values()))
    for number in range(2):
        script = Generator(random.Random(base_seed() + number)).script(1_500)
        run_and_explain(copies, script, 5, f"seed {base_seed() + number}")


def test_long_random_scripts_get_the_same_replies(pair: Pair) -> None:
    for number in range(24):
        seed = base_seed() + number
        node_entries = (1, 2, 3, 4, 5, 7, 10, 100)[number % 8]
        script = Generator(random.Random(seed)).script(1_200)
        run_and_explain(pair, script, node_entries, f"seed {seed}")
    assert pair.commands_run > 25_000


def test_many_short_scripts_from_hypothesis_get_the_same_replies(pair: Pair) -> None:
    # Hypothesis chooses, our own shrinker explains: leaving out commands is quicker than re-drawing them.
    @settings(
        max_examples=150,
        deadline=None,
        database=None,
        derandomize="RIVERBED_SEED" not in os.environ,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(source=st.randoms(use_true_random=False), node_entries=st.integers(1, 10), length=st.integers(10, 100))
    def scripts(source: random.Random, node_entries: int, length: int) -> None:
        run_and_explain(pair, Generator(source, wrong=0.15).script(length), node_entries, "hypothesis")

    scripts()


def test_a_server_that_is_killed_again_and_again_answers_like_one_that_never_was(pair: Pair) -> None:
    source = random.Random(base_seed())
    for number in range(2):
        script = Generator(source).script(1_000)
        for _ in range(8):
            script.insert(source.randrange(len(script)), KILL_STEP)
        run_and_explain(pair, script, 4 + number, "killed in between")


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_named_difference_is_still_there(pair: Pair, name: str) -> None:
    """A difference that has gone is deleted from the list; one that is there is covered by its own rule."""
    difference = DIFFERENCES[name]
    script = script_of(*difference.demonstration)
    others = tuple(rule for other, rule in DIFFERENCES.items() if other != name)
    without = Pair(*pair.servers, rules=(*MASKS.values(), *others)).run(script)
    assert without is not None, f"both servers answer the same: {name}"
    assert without.number == len(script) - 1
    assert pair.run(script) is None


# -- bytes that are no command -----------------------------------------------------------------------------------------

# Left out: an inline line with a NUL byte (Redis does not see the end of such a line and waits), and one above 64 KB
# with its end (Redis takes it or not, depending on how the bytes arrive).
PROTOCOL = [
    b"PING\r\n",
    b"PING\n",
    b"\r\n\r\nPING\r\n",
    b"  PING  \r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"*0\r\nPING\r\n",
    b"*-1\r\nPING\r\n",
    b"*-5\r\nPING\r\n",
    b"*a\r\nPING\r\n",
    b"*\r\nPING\r\n",
    b"*01\r\n$4\r\nPING\r\n",
    b"*+1\r\n$4\r\nPING\r\n",
    b"*1 \r\n$4\r\nPING\r\n",
    b"*2147483647\r\n",
    b"*2147483648\r\n",
    b"*99999999999999999999\r\n",
    b"*1\r\nPING\r\n",
    b"*1\r\n:4\r\n",
    b"*1\r\n\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\r\n$a\r\n",
    b"*1\r\n$\r\n",
    b"*1\r\n$04\r\nPING\r\n",
    b"*1\r\n$536870913\r\n",
    b"*1\r\n$4\r\nPINGxxPING\r\n",
    b"*1\r\n$0\r\n\r\n",
    b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    b"*1\n$4\nPING\n",
    b"$4\r\nPING\r\n",
    b"+OK\r\n",
    b"%1\r\n+a\r\n+b\r\n",
    b"*1\r\n*1\r\n$4\r\nPING\r\n",
    b"ECHO 'a b'\r\n",
    b"ECHO 'a\\'b'\r\n",
    b'ECHO "a\\x41\\n\\"b"\r\n',
    b'ECHO "a\\xZZb"\r\n',
    b"ECHO 'a'b\r\nPING\r\n",
    b'ECHO "a\r\nPING\r\n',
    b"ECHO a'b'\r\n",
    b"Host: x\r\nPING\r\n",
    b"POST / HTTP/1.1\r\nPING\r\n",
    b"x" * 70_000,
    b"ECHO " + b"x" * 60_000 + b"\r\n",
    b"*" + b"1" * 70_000,
    b"*1\r\n$" + b"1" * 70_000,
    b"*3\r\n$4\r\nXADD\r\n$1\r\n",
    b"QUIT\r\nPING\r\n",
    b"RESET\r\nPING\r\n",
    b"HELLO 4\r\nHELLO x\r\nHELLO 2 AUTH\r\nHELLO 2 SETNAME\r\nPING\r\n",
    b"MULTI\r\nNOSUCH\r\nEXEC\r\nMULTI\r\nPING\r\nRESET\r\nEXEC\r\n",
    b"CLIENT REPLY OFF\r\nPING\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nPING\r\nPING\r\nCLIENT REPLY X\r\n",
    b"CLIENT REPLY SKIP\r\nRESET\r\nPING\r\nCLIENT REPLY OFF\r\nRESET\r\nPING\r\n",
]


def answer_to(server: Server, data: bytes) -> bytes:
    """All that a server says to `data` when nothing follows: we close our side, it closes its own."""
    with server.client(timeout_s=120) as client:
        with contextlib.suppress(ConnectionError):  # it may have closed before it read all of it
            client.send_bytes(data)
            client.socket.shutdown(socket.SHUT_WR)
        return client.rest_until_closed()


@pytest.mark.parametrize("data", PROTOCOL, ids=[repr(data[:40]) for data in PROTOCOL])
def test_bytes_get_the_answer_that_redis_gives(protocol_pair: Pair, data: bytes) -> None:
    redis, ours = protocol_pair.servers
    assert answer_to(ours, data) == answer_to(redis, data)


def test_random_bytes_get_the_answer_that_redis_gives(protocol_pair: Pair) -> None:
    source = random.Random(base_seed())
    words = (
        b"*1",
        b"*2",
        b"$4",
        b"$0",
        b"$1",
        b"PING",
        b"ECHO",
        b"a",
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\n",
        b" ",
        b'"',
        b"'",
    )
    redis, ours = protocol_pair.servers
    for _ in range(1_000):
        data = b"".join(source.choices(words, k=source.randrange(1, 30)))
        assert answer_to(ours, data) == answer_to(redis, data), data


def test_a_printed_script_reads_back() -> None:
    script = Generator(random.Random(1), wrong=0.3).script(300)
    assert from_text(as_text(script)) == script
