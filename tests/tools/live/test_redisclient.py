"""What a server says to a tool takes no memory that it has not sent, and no text of an entry is taken for more."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time

import pytest

from riverbed.tools.console.console import Failure
from riverbed.tools.live import redisclient, serverstat
from riverbed.tools.live.announced import MAX_MISSING, Announced, AnnouncementError
from riverbed.tools.live.redisclient import Address, RedisClient
from riverbed.tools.live.serverstat import databases
from tests.support.impostor import impostor
from tests.support.raw import encode
from tests.support.servers import ROOT

CALL = """
import resource, sys
from tests.support.impostor import impostor
from riverbed.tools.console.console import Failure
from riverbed.tools.live.redisclient import Address, RedisClient

expression, room_mb = sys.argv[1:]
answers, patient = eval(expression)
with impostor(b"+PONG\\r\\n", *answers, patient=patient) as port:
    client = RedisClient(Address("127.0.0.1", port), 60)
    limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (int(room_mb) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        client.call("XINFO", "STREAM", "s")
    except Failure as failure:
        sys.stdout.write(str(failure))
    finally:
        client.close()
"""


def call(answers: str, room_mb: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """A call in a process that may take `room_mb` more, and that a server gives `answers`."""
    command = [sys.executable, "-c", CALL, answers, str(room_mb)]
    environment = os.environ | variables
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


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
    done = call(f"([{answer}, b''], True)", 100)
    assert "does not speak Redis's protocol: " in done.stdout, done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("b'$943718400\\r\\n'", "it announces a string of 943718400 bytes, more than 67108864"),
        ("b'*1\\r\\n$943718400\\r\\n'", "it announces a string of 943718400 bytes, more than 67108864"),
        ("b'*9\\r\\n' + b'$50000000\\r\\n' + b'x' * 50000000 + b'\\r\\n$50000000\\r\\n'", "sends more than 64 MB"),
    ],
)
def test_a_reply_beyond_the_bound_ends_the_connection_before_it_takes_memory(answer: str, why: str) -> None:
    done = call(f"([{answer}, *[b'x' * (1 << 20)] * 300], False)", 200, RIVERBED_MAX_REPLY_MB="64")
    assert why in done.stdout, (done.stdout, done.stderr[-2000:])


def test_a_value_as_long_as_the_bound_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERBED_MAX_REPLY_MB", "4")
    value = b"v" * ((4 << 20) - 100)
    with impostor(b"+PONG\r\n", encode([value])) as port, RedisClient(Address("127.0.0.1", port), 60) as client:
        assert client.call("XRANGE", "s", "-", "+") == [value]


@pytest.mark.parametrize("text", ["x", "0", "-1", "1e3", "9" * 30])
def test_a_bound_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("RIVERBED_MAX_REPLY_MB", text)
    with pytest.raises(Failure, match=r"RIVERBED_MAX_REPLY_MB: .* is not a number of megabytes"):
        RedisClient(Address("127.0.0.1", 1), 60)


def test_a_silent_server_is_given_up_and_named() -> None:
    why = r"127.0.0.1:\d+ stopped answering: no reply within 0.2 s"
    with (
        impostor(b"+PONG\r\n") as port,
        pytest.raises(Failure, match=why),
        RedisClient(Address("127.0.0.1", port), 0.2) as client,
    ):
        client.call("XINFO", "STREAM", "s")


def test_a_server_that_takes_no_connection_further_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Failure, match=rf"127.0.0.1:{port} stopped answering: no reply within 0.2 s"):
            RedisClient(Address("127.0.0.1", port), 0.2)


def test_a_silent_server_does_not_hold_up_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redisclient, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        why = rf"127.0.0.1:{port} does not finish the TLS handshake: no reply within 0.2 s"
        with pytest.raises(Failure, match=why):
            RedisClient(Address("127.0.0.1", port, tls=True), 30)


def test_a_server_that_sends_a_byte_now_and_then_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def trickle() -> None:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(b"+")
                while True:
                    peer.sendall(b"x")
                    time.sleep(0.01)

        worker = threading.Thread(target=trickle)
        worker.start()
        with pytest.raises(Failure, match=rf"127.0.0.1:{port} stopped answering: no reply within 0.3 s"):
            RedisClient(Address("127.0.0.1", port), 0.3)
        worker.join()


def test_texts_that_look_like_long_lists_are_texts() -> None:
    texts = [b"*99999999\r\n", b">300000000\r\n", b"%9999999\r\n" * 20, b"~2024", b"x" * 70_000]
    reply = encode(texts)
    with impostor(b"+PONG\r\n", *[reply] * 20) as port, RedisClient(Address("127.0.0.1", port), 60) as client:
        for _ in range(20):
            assert client.call("XRANGE", "s", "-", "+") == texts


def test_counts_of_keys_that_no_server_has_are_passed_over() -> None:
    with impostor(b"+PONG\r\n") as port, RedisClient(Address("127.0.0.1", port), 60) as client:
        info = b"# Keyspace\r\ndb0:keys=3,expires=0\r\ndb%b:keys=1\r\ndb1:keys=%b\r\n" % (b"9" * 9999, b"9" * 9999)
        assert databases(client, info) == {0: 3}


def test_a_scan_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serverstat, "_SPARE_CALLS", 5)
    page = b"*2\r\n$1\r\n7\r\n*1\r\n$1\r\nk\r\n"
    with (
        impostor(b"+PONG\r\n", *[page] * 20) as port,
        RedisClient(Address("127.0.0.1", port), 60) as client,
        pytest.raises(Failure, match=r"does not end SCAN: it counted 3 keys at its beginning"),
    ):
        assert [key for keys in serverstat.scan(client, 3) for key in keys] == [b"k"]


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
