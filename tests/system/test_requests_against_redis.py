"""Any bytes at all, to every path of our reader and to a real server: the same requests, the same errors.

A NUL byte outside of a word is left out: Redis ends its search for the end of a line there, and waits for ever.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys

import pytest

from riverbed.server.protocol.request_reader import RequestReader
from tests.conftest import base_seed
from tests.support.servers import ROOT, RedisServer, RiverbedServer, Server
from tests.support.wire_bytes import streams

SEEDS = range(base_seed(), base_seed() + 4)


def read(chunks: list[bytes], *, authenticated: bool = True) -> tuple[list[list[bytes]], bytes | None, int]:
    """The requests that a reader finds in `chunks`, the error behind them, and the bytes that wait for more."""
    reader = RequestReader(authenticated=authenticated)
    requests = []
    for chunk in chunks:
        requests += reader.feed(chunk)
        while reader.awaits_verdict:
            requests += reader.feed(b"")
    return requests, None if reader.error is None else reader.error.text, reader.pending_bytes


@pytest.mark.parametrize("seed", SEEDS)
def test_every_way_to_cut_a_stream_gives_the_same_requests(seed: int) -> None:
    rng = random.Random(seed)
    for data in streams(seed, 1000):
        expected = read([data[at : at + 1] for at in range(len(data))])
        assert read([data]) == expected, data
        for cut in (rng.randrange(len(data) + 1) for _ in range(12)):
            assert read([data[:cut], data[cut:]]) == expected, (data, cut)
        # more of it in front, so that it lies elsewhere in a chunk
        before = b"*1\r\n$4\r\nPING\r\n" * rng.choice([1, 15, 1500])
        count = before.count(b"PING")
        requests, error, pending = expected
        assert read([before + data]) == ([[b"PING"]] * count + requests, error, pending), data


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_without_authentication_is_read_the_same_up_to_its_limits(seed: int) -> None:
    for data in streams(seed, 500):
        expected = read([data[at : at + 1] for at in range(len(data))], authenticated=False)
        assert read([data], authenticated=False) == expected, data
        limit = b"ERR Protocol error: unauthenticated"
        if expected[1] is None or not expected[1].startswith(limit):
            assert read([data]) == expected, data


def answer_of(server: Server, data: bytes) -> bytes:
    """All that a server says to a client that sends `data` and nothing more."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as peer:
        answer = b""
        peer.sendall(data)
        with contextlib.suppress(OSError):  # it may have hung up
            peer.shutdown(socket.SHUT_WR)
        while piece := peer.recv(1 << 16):
            answer += piece
        return answer


@pytest.mark.parametrize("seed", SEEDS)
def test_a_real_server_answers_the_same(redis_server: RedisServer, riverbed: RiverbedServer, seed: int) -> None:
    for data in streams(seed, 400):
        assert len(data) < 16 << 10  # what Redis reads at once: it has read all before it answers
        assert answer_of(riverbed, data) == answer_of(redis_server, data), data


MEMORY = """
import resource, sys
from itertools import product
from riverbed.server.protocol.request_reader import RequestReader
from riverbed.store.format.log_lines import FrameError, encode_annotation
from riverbed.store.log.streamed.stream import LogStream

def used():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

RequestReader(authenticated=True).feed(b"*1\\r\\n$4\\r\\nPING\\r\\n")
limit = used() + (48 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
ping = b"*1\\r\\n$4\\r\\nPING\\r\\n"
for kind, number in product(b"*%~|>$=!+(:,", (9999, 99999, 1048576, 300000000, 2147483647, 4294967295, 1 << 62)):
    head = b"%c%d\\r\\n" % (kind, number)
    for data in (head, b"*1\\r\\n" + head, ping + head, ping + b"*2\\r\\n" + head, ping * 2000 + b"*3\\r\\n" + head,
                 b"*1\\r\\n$4\\r\\nPINGxx" + head, b"*2\\r\\n$4\\r\\nPINGxx" + head, head * 9,
                 b"*1\\r\\n" + head * 2000, b"*2\\r\\n" + ping + head, b"*9\\r\\n" * 8 + head):
        for authenticated in (True, False):
            reader = RequestReader(authenticated=authenticated)
            reader.feed(data)
            assert reader.pending_bytes < len(data) + 100 * data.count(b"\\n")
        one = RequestReader(authenticated=True)
        for at in range(min(len(data), 300)):
            one.feed(data[at:at + 1])
for kind in b"*>~%|":
    covered = b"*1\\r\\n%c300000000\\r\\n" % kind
    stream = LogStream(0, 1 << 20)
    stream.feed(covered + encode_annotation(covered, len(covered), 0))
    try:
        stream.next()
    except FrameError:
        continue
    raise AssertionError("taken for a batch of a log")
sys.stdout.write("held")
"""


def test_no_number_in_a_request_or_from_a_primary_takes_memory() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("held", 0), done.stderr[-3000:]
