"""Replies longer than memory is to hold: streamed by bytes from shared views, of which there are only so many."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.data_file.opening import MAX_READERS
from tests.support.raw import RawClient, encode
from tests.support.servers import RedisServer, RiverbedServer, free_port
from tests.support.waiting import until

BIG = 100_000  # bytes of a field
MANY = 200
MIB = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RiverbedServer]:
    with RiverbedServer(tmp_path / "data", tmp_path / "logs", {"appendfsync": "everysec"}) as running:
        yield running


def fill(client: RawClient, key: str, count: int, size: int = BIG) -> None:
    """`count` entries with IDs 1-1, 2-1 ... of about `size` bytes each, no two alike."""
    for start in range(1, count + 1, 100):
        numbers = range(start, min(start + 100, count + 1))
        client.pipeline([("XADD", key, f"{number}-1", "f", f"{number:08}" + "x" * size) for number in numbers])


class Reluctant:
    """A client that asks and does not read, over a socket that takes in little."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", port))

    def ask(self, *words: str | int) -> None:
        self.socket.sendall(encode(words))


@contextlib.contextmanager
def reluctant(port: int, count: int) -> Iterator[list[Reluctant]]:
    with contextlib.ExitStack() as held:
        clients = [Reluctant(port) for _ in range(count)]
        for client in clients:
            held.callback(client.socket.close)
        yield clients


def info(client: RawClient, name: str) -> int:
    return int(client.info()[name])


def wait_for_info(client: RawClient, name: str, value: int) -> None:
    until(lambda: info(client, name) == value, f"{name} of {value}")


# -- readers of the tables ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_hundred_clients_that_do_not_read_their_long_replies_disturb_nobody(tmp_path: Path) -> None:
    port = free_port()
    settings = {"appendfsync": "everysec", "metrics-port": port, "maxclients": 1000}
    with RiverbedServer(tmp_path / "data", tmp_path / "logs", settings) as server, server.client() as client:
        fill(client, "big", 30_000, 500)
        with reluctant(server.port, MANY) as clients:
            for number, each in enumerate(clients):
                client.ask("XADD", "other", "*", "n", number)  # a checkpoint between any two of them
                each.ask("XRANGE", "big", "-", "+")
            wait_for_info(client, "riverbed_long_replies", MANY)
            assert client.ask("XADD", "big", "90000-0", "f", "v") == b"$7\r\n90000-0\r\n"
            assert client.ask("XRANGE", "big", "90000", "+").startswith(b"*1\r\n")
            whole = client.ask("XRANGE", "big", "-", "+")
            assert whole.startswith(b"*30001\r\n")
            assert len(whole) > 30_000 * 500
            assert client.ask("RIVERBED", "SNAPSHOT").startswith(b"*")
            assert client.ask("BGREWRITEAOF").startswith(b"+")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
                assert b"riverbed_lmdb_readers" in page.read()
            wait_for_info(client, "aof_rewrite_in_progress", 0)
            assert b"aof_last_bgrewrite_status:ok" in client.ask("INFO", "persistence")
            assert info(client, "riverbed_lmdb_readers") < MANY
        wait_for_info(client, "riverbed_long_replies", 0)
        wait_for_info(client, "riverbed_lmdb_readers", 0)
        assert client.ask("XRANGE", "big", "-", "+") == whole


def test_without_a_free_reader_only_long_replies_are_refused_and_nothing_is_undone(tmp_path: Path) -> None:
    port = free_port()
    settings = {"appendfsync": "everysec", "metrics-port": port}
    with RiverbedServer(tmp_path / "data", tmp_path / "logs", settings) as server, server.client() as client:
        fill(client, "big", 30)
        assert client.ask("SAVE") == b"+OK\r\n"
        with readers_of(server.directory) as count:
            assert count > 1000
            replies = client.pipeline(
                [("XADD", "s", "1-1", "f", "v"), ("XRANGE", "big", "-", "+"), ("XADD", "s", "2-1", "f", "v")]
            )
            assert replies[0] == b"$3\r\n1-1\r\n"
            assert replies[1].startswith(b"-ERR this reply needs a reader of the tables")
            assert replies[2] == b"$3\r\n2-1\r\n"
            for words in (("XREAD", "STREAMS", "big", 0), ("XINFO", "STREAM", "big", "FULL", "COUNT", 0)):
                assert client.ask(*words).startswith(b"-ERR this reply needs a reader of the tables")
            assert client.ask("XLEN", "s") == b":2\r\n"
            assert client.ask("XRANGE", "s", "-", "+").startswith(b"*2\r\n")
            assert b"riverbed_lmdb_readers" in client.ask("INFO")
            assert client.ask("RIVERBED", "SNAPSHOT").startswith(b"-")
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)
            refused.value.close()
            assert client.ask("PING") == b"+PONG\r\n"
        assert client.ask("XRANGE", "big", "-", "+").startswith(b"*30\r\n")
        assert client.ask("RIVERBED", "SNAPSHOT").startswith(b"*")
        assert client.ask("XLEN", "s") == b":2\r\n"
        assert "undone" not in server.log_text()


@contextlib.contextmanager
def readers_of(directory: Path) -> Iterator[int]:
    """Take every slot for readers of a running server's tables; -> how many that were."""
    env = lmdb.open(str(directory / "state"), readonly=True, max_readers=MAX_READERS, max_dbs=32)
    readers = []
    try:
        with contextlib.suppress(lmdb.ReadersFullError):
            while True:
                readers.append(env.begin())
        yield len(readers)
    finally:
        for reader in readers:
            reader.abort()
        env.close()


# -- memory ------------------------------------------------------------------------------------------------------------


class Peak:
    """The most private memory of a server while it is looked at."""

    def __init__(self, server: RiverbedServer) -> None:
        self._server = server
        self.before = self.bytes = server.private_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.wait(0.003):
            self.bytes = max(self.bytes, self._server.private_bytes())

    @property
    def growth(self) -> int:
        return self.bytes - self.before

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def drain(client: RawClient, *words: str | int) -> int:
    """Ask, read the reply to its end, keep nothing of it; -> its size."""
    mark = b"$11\r\nthat is all\r\n"
    client.socket.sendall(encode(words) + encode(("ECHO", "that is all")))
    size, end = 0, b""
    while not end.endswith(mark):
        data = client.socket.recv(1 << 20)
        assert data, "the server closed the connection"
        size += len(data)
        end = (end + data[-len(mark) :])[-len(mark) :]
    return size - len(mark)


def test_memory_does_not_grow_with_the_size_of_entries(server: RiverbedServer) -> None:
    """Replies of 100 MB each: with a tenth of that in memory at any time."""
    count = 1000
    with server.client() as client:
        fill(client, "big", count)
        client.ask("XGROUP", "CREATE", "big", "g", "0")
        client.ask("XGROUP", "CREATE", "big", "claimed", "0")
        client.ask("SAVE")
        ids = [f"{number}-1" for number in range(1, count + 1)]
        group = ("XREADGROUP", "GROUP", "g", "Alice")
        for words in (
            ("XRANGE", "big", "-", "+"),
            ("XRANGE", "big", "-", "+", "COUNT", count),
            ("XREVRANGE", "big", "+", "-"),
            ("XREAD", "STREAMS", "big", 0),
            ("XREAD", "MAXSIZE", 99 << 20, "STREAMS", "big", 0),
            ("XINFO", "STREAM", "big", "FULL", "COUNT", 0),
            (*group, "COUNT", 400, "STREAMS", "big", ">"),
            (*group, "STREAMS", "big", ">"),
            (*group, "STREAMS", "big", 0),
            (*group, "CLAIM", 0, "STREAMS", "big", ">"),
            ("XREADGROUP", "GROUP", "claimed", "Alice", "CLAIM", 0, "STREAMS", "big", ">"),
            ("XCLAIM", "big", "g", "Bob", 0, *ids[:200]),
            ("XCLAIM", "big", "g", "Bob", 0, *ids),
            ("XAUTOCLAIM", "big", "g", "Carol", 0, "-", "COUNT", count),
        ):
            with Peak(server) as peak:
                size = drain(client, *words)
            assert size > 19_000_000, words[:4]
            assert peak.growth < 20 << 20, (words[:4], peak.growth)


def drain_transaction(client: RawClient, *commands: tuple[str | int, ...]) -> int:
    """As `drain`, of the reply to EXEC."""
    queued = client.pipeline([("MULTI",), *commands])
    assert queued == [b"+OK\r\n", *[b"+QUEUED\r\n"] * len(commands)]
    return drain(client, "EXEC")


@pytest.mark.slow
@pytest.mark.parametrize("resp", [2, 3])
def test_memory_does_not_grow_with_what_a_transaction_reads(server: RiverbedServer, resp: int) -> None:
    """Replies of 120 MB in all: with a tenth of that in memory at any time, whether the transaction writes or not."""
    count = 300
    with server.client() as client:
        fill(client, "big", count)
        client.ask("XGROUP", "CREATE", "big", "g", "0")
        client.ask("SAVE")
        client.ask("HELLO", resp)
        ids = [f"{number}-1" for number in range(1, count + 1)]
        group = ("XREADGROUP", "GROUP", "g", "Alice")
        medium: tuple[str | int, ...] = ("XRANGE", "big", "-", "+", "COUNT", 9)
        write = ("XADD", "other", "*", "f", "v")
        for commands in (
            [("XRANGE", "big", "-", "+")] * 4,
            [("XREVRANGE", "big", "+", "-")] * 4,
            [("XREAD", "STREAMS", "big", 0)] * 4,
            [("XREAD", "MAXSIZE", 99 << 20, "STREAMS", "big", 0)] * 4,
            [("XINFO", "STREAM", "big", "FULL", "COUNT", 0)] * 4,
            [medium] * 130,
            [(*group, "STREAMS", "big", ">"), *[(*group, "STREAMS", "big", 0)] * 3],
            [(*group, "COUNT", 9, "STREAMS", "big", 0)] * 130,
            [(*group, "CLAIM", 0, "STREAMS", "big", ">")] * 4,
            [("XCLAIM", "big", "g", "Bob", 0, *ids)] * 4,
            [("XAUTOCLAIM", "big", "g", "Carol", 0, "-", "COUNT", count)] * 4,
        ):
            for transaction in (commands, [write, *commands]):
                client.ask("XGROUP", "SETID", "big", "g", "0")
                with Peak(server) as peak:
                    size = drain_transaction(client, *transaction)
                assert size > 100_000_000, (transaction[0], commands[0][:4], size)
                assert peak.growth < 25 << 20, (transaction[0], commands[0][:4], peak.growth)
        wait_for_info(client, "riverbed_views", 0)


@pytest.mark.slow
def test_lists_of_very_many_consumers_take_little_more_memory_than_their_bytes(server: RiverbedServer) -> None:
    with server.client() as client:
        client.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        for start in range(0, 60_000, 2000):
            names = [f"consumer-{number}" for number in range(start, start + 2000)]
            client.pipeline([("XGROUP", "CREATECONSUMER", "s", "g", name) for name in names])
        with Peak(server) as peak:
            size = drain(client, "XINFO", "CONSUMERS", "s", "g")
    assert size > 5_000_000
    assert peak.growth < 7 * size


@pytest.mark.slow
def test_an_entry_of_many_megabytes_is_never_in_memory_as_a_whole(server: RiverbedServer) -> None:
    size = 60 << 20
    with server.client() as client:
        client.ask("XADD", "huge", "1-1", "f", "x" * size)
        client.ask("XADD", "huge", "2-1", "f", "y" * size)
        client.ask("SAVE")
    server.restart()  # what the allocator has kept of the XADDs would be used again
    with server.client() as client, Peak(server) as peak:
        assert drain(client, "XRANGE", "huge", "-", "+") > 2 * size
        assert drain(client, "XREAD", "COUNT", 2, "STREAMS", "huge", 0) > 2 * size
    assert peak.growth < 100 << 20  # one, while it is measured


def test_blocked_readers_that_wake_share_one_view_of_a_large_entry(server: RiverbedServer) -> None:
    with server.client() as client, server.client() as reader, reluctant(server.port, MANY) as clients:
        for each in clients:
            each.ask("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        wait_for_info(client, "blocked_clients", MANY + 1)
        entry = "x" * (12 << 20)
        with Peak(server) as peak:
            client.ask("XADD", "s", "1-1", "f", entry)
            wait_for_info(client, "blocked_clients", 0)
            woken = reader.reply()
        assert woken == b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$%d\r\n%b\r\n" % (
            len(entry),
            entry.encode(),
        )
        assert peak.growth < 150 << 20  # 2.5 GB otherwise
        assert client.ask("PING") == b"+PONG\r\n"


# -- what they say -----------------------------------------------------------------------------------------------------


def test_long_replies_equal_those_of_redis_byte_for_byte(server: RiverbedServer, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis", tmp_path / "logs") as redis, redis.client() as theirs, server.client() as ours:
        both = (ours, theirs)
        for client in both:
            for number in range(1, 121):
                size = (100_000, 50, 3000, 700_000 if number % 30 == 0 else 10)[number % 4]
                client.ask("XADD", "s", f"{number}-1", "f", f"{number:04}" + "x" * size, "g", "")
                client.ask("XADD", "t", f"{number}-2", "f", "y" * 40_000)
            client.ask("XADD", "one", "5-5", "f", "z" * 5_000_000)
            client.ask("XGROUP", "CREATE", "s", "g", "0")
            client.ask("XGROUP", "CREATE", "t", "g", "0")
        ids = [f"{number}-1" for number in range(1, 121)]
        script: list[tuple[str | int, ...]] = [
            ("XRANGE", "s", "-", "+"),
            ("XRANGE", "s", "3", "(117-1"),
            ("XRANGE", "s", "-", "+", "COUNT", 100),
            ("XREVRANGE", "s", "+", "-"),
            ("XREVRANGE", "s", "100", "(7-1", "COUNT", 90),
            ("XRANGE", "one", "-", "+"),
            ("XREAD", "STREAMS", "s", "t", "one", "missing", 0, 0, 0, 0),
            ("XREAD", "COUNT", 60, "STREAMS", "t", "s", 0, 0),
            ("XREAD", "STREAMS", "one", "s", "0", "$"),
            ("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 50, "STREAMS", "s", ">"),
            ("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "t", ">", ">"),
            ("XDEL", "s", *ids[::7]),
            ("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "t", 0, "50"),
            ("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 70, "STREAMS", "s", "4-1"),
            ("XCLAIM", "s", "g", "Bob", 0, *ids),
            ("XCLAIM", "s", "g", "Bob", 0, *ids, "JUSTID"),
            ("XCLAIM", "t", "g", "Bob", 0, "3-2", "1-2", "3-2", *(f"{number}-2" for number in range(40, 120))),
            ("XDEL", "s", *ids[1::9]),
            ("XAUTOCLAIM", "s", "g", "Carol", 0, "-", "COUNT", 100),
            ("XAUTOCLAIM", "s", "g", "Carol", 0, "30", "COUNT", 40, "JUSTID"),
            ("XPENDING", "s", "g"),
        ]
        for resp in (2, 3):
            for client in both:
                client.ask("HELLO", resp)
                client.ask("XGROUP", "SETID", "s", "g", "0")
                client.ask("XGROUP", "SETID", "t", "g", "0")
            for words in script:
                found, expected = ours.ask(*words), theirs.ask(*words)
                assert found == expected, (resp, words[:6], len(found), len(expected))


def test_long_replies_of_transactions_equal_those_of_redis_byte_for_byte(
    server: RiverbedServer, tmp_path: Path
) -> None:
    (tmp_path / "redis").mkdir()
    ids = [f"{number}-1" for number in range(1, 61)]
    reads: list[tuple[str | int, ...]] = [
        ("XRANGE", "s", "-", "+"),
        ("XREVRANGE", "s", "50", "(7-1", "COUNT", 40),
        ("XREAD", "STREAMS", "s", "one", "missing", 0, 0, 0),
        ("XREAD", "BLOCK", 0, "STREAMS", "one", "$"),
        ("XLEN", "s"),
        ("XRANGE", "s", "-", "x"),
        ("XRANGE", "one", "-", "+"),
    ]
    group_reads: list[tuple[str | int, ...]] = [
        ("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 50, "STREAMS", "s", ">"),
        ("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">"),
        ("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", 0),
        ("XCLAIM", "s", "g", "Bob", 0, *ids),
        ("XAUTOCLAIM", "s", "g", "Carol", 0, "-", "COUNT", 40),
        ("XPENDING", "s", "g"),
    ]
    transactions = [
        reads,
        group_reads,
        [("XDEL", "s", *ids[::7]), *reads, ("XADD", "s", "900-1", "f", "late"), *reads, ("XTRIM", "s", "MAXLEN", 30)],
        [*reads, *group_reads, ("RENAME", "one", "s"), *reads, ("DEL", "s"), *reads],
    ]
    with RedisServer(tmp_path / "redis", tmp_path / "logs") as redis, redis.client() as theirs, server.client() as ours:
        for resp in (2, 3):
            for number, transaction in enumerate(transactions):
                found = []
                for client in (ours, theirs):
                    client.ask("HELLO", resp)
                    client.ask("FLUSHALL")
                    for entry_id in ids:
                        client.ask("XADD", "s", entry_id, "f", entry_id + "x" * 40_000, "g", "")
                    client.ask("XADD", "one", "5-5", "f", "z" * 5_000_000)
                    client.ask("XGROUP", "CREATE", "s", "g", "0")
                    found.append(client.pipeline([("MULTI",), *transaction, ("EXEC",), ("ECHO", "behind")]))
                assert found[0][-1] == b"$6\r\nbehind\r\n"
                assert len(found[0][-2]) > 5_000_000
                assert found[0] == found[1], (resp, number)


@pytest.mark.parametrize("name", ["XRANGE", "XREVRANGE", "XREAD", "XREADGROUP", "XREADGROUP history", "XCLAIM"])
def test_what_happens_while_a_reply_is_sent_does_not_show_in_it(server: RiverbedServer, name: str) -> None:
    count = 150
    with server.client() as client, server.client() as other:
        ids = [f"{number}-1" for number in range(1, count + 1)]
        for change in (
            ("XDEL", "s", *ids[1::2]),
            ("XTRIM", "s", "MAXLEN", 3),
            ("DEL", "s"),
            ("FLUSHALL",),
            ("XGROUP", "DESTROY", "s", "g"),
        ):
            client.ask("FLUSHALL")
            fill(client, "s", count)
            client.ask("XGROUP", "CREATE", "s", "g", "0")
            whole = client.ask("XRANGE", "s", "-", "+")
            if name in ("XREADGROUP history", "XCLAIM"):
                client.ask("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
            words: dict[str, tuple[str | int, ...]] = {
                "XRANGE": ("XRANGE", "s", "-", "+"),
                "XREVRANGE": ("XREVRANGE", "s", "+", "-"),
                "XREAD": ("XREAD", "STREAMS", "s", 0),
                "XREADGROUP": ("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">"),
                "XREADGROUP history": ("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", 0),
                "XCLAIM": ("XCLAIM", "s", "g", "Bob", 0, *ids),
            }
            expected = client.ask("XREVRANGE", "s", "+", "-") if name == "XREVRANGE" else whole
            if name.startswith("XREAD"):
                expected = b"*1\r\n*2\r\n$1\r\ns\r\n" + expected
            client.send(*words[name])
            assert client.socket.recv(1, socket.MSG_PEEK)  # it has begun
            other.ask(*change)
            other.ask("XADD", "s", "900-1", "f", "later")
            other.ask("SAVE")
            assert client.reply() == expected, change[0]


def test_what_a_client_sends_behind_a_long_reply_comes_behind_it(server: RiverbedServer) -> None:
    with server.client() as client:
        fill(client, "s", 40)
        client.ask("XGROUP", "CREATE", "s", "g", "0")
        read = ("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 20, "STREAMS", "s", ">")
        replies = client.pipeline([("XLEN", "s"), read, ("ECHO", "a"), read, ("XRANGE", "s", "-", "+"), ("ECHO", "b")])
        assert [reply[:4] for reply in replies[::2]] == [b":40\r", b"$1\r\n", b"*40\r"]
        assert replies[5] == b"$1\r\nb\r\n"
        ids = [line for reply in (replies[1], replies[3]) for line in reply.split(b"\r\n") if line.endswith(b"-1")]
        assert ids == [b"%d-1" % number for number in range(1, 41)]


def test_a_client_that_wants_no_reply_gets_no_long_one(server: RiverbedServer) -> None:
    with server.client() as client:
        fill(client, "s", 40)
        client.send("CLIENT", "REPLY", "SKIP")
        client.send("XRANGE", "s", "-", "+")
        assert client.ask("ECHO", "a") == b"$1\r\na\r\n"
        client.send("CLIENT", "REPLY", "OFF")
        client.send("XRANGE", "s", "-", "+")
        assert client.ask("CLIENT", "REPLY", "ON") == b"+OK\r\n"
        assert info(client, "riverbed_views") == 0


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask", [("XRANGE", "s", "-", "+"), ("XREVRANGE", "s", "+", "-"), ("XREAD", "STREAMS", "s", "0")]
)
def test_a_long_reply_that_begins_with_a_damaged_entry_is_an_error(tmp_path: Path, ask: tuple[str, ...]) -> None:
    settings = {"appendfsync": "everysec", "auto-repair": "no"}
    with RiverbedServer(tmp_path / "data", tmp_path / "logs", settings) as server, server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "x" * (3 * MIB))
        assert client.ask("SAVE") == b"+OK\r\n"
        path = tmp_path / "data" / STATE_DIRECTORY / DATA_NAME
        with path.open("r+b") as file:
            file.seek(path.read_bytes().find(b"x" * MIB) + MIB)
            file.write(b"y")
        damaged = b'-ERR entry 1-1 of key "s" in database 0 is damaged: its checksum does not fit'
        assert client.ask(*ask).startswith(damaged)
        assert client.ask("PING") == b"+PONG\r\n"
        told = client.tree("INFO", "commandstats").text.decode()
        assert re.search(rf"cmdstat_{ask[0].lower()}:calls=1,\S*rejected_calls=0,failed_calls=1\r\n", told)
        assert client.ask("EXISTS", "s") == b":1\r\n"
        client.pipeline([("MULTI",), ("XADD", "t", "1-1", "f", "v"), ask])
        assert client.ask("EXEC").startswith(damaged)
        assert client.ask("EXISTS", "t") == b":0\r\n"
