"""Damage on the link, and primaries that are none, or die: the old state serves on, and the sync comes again."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.conftest import StartRiverbed, broken_invariants
from tests.support.faults.disks import fill_up, small_tmpfs
from tests.support.faults.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.replicas import fill, follow, info, until_level, until_linked
from tests.support.servers import RiverbedServer
from tests.support.waiting import rewritten, until

SMALL = {"repl-max-batch-bytes": 1 << 20}


def entries(server: RiverbedServer, key: str = "s") -> bytes:
    with server.client() as client:
        return client.ask("XRANGE", key, "-", "+")


class Babbler:
    """A peer that says what a primary says, and then anything, for as long as it is listened to."""

    def __init__(self, answer: bytes, piece: Callable[[], bytes], first: bytes = b"") -> None:
        self.hung_up_on = threading.Event()
        self._answer = answer
        self._first = first
        self._piece = piece
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with link:
                try:
                    self._babble(link)
                except OSError:
                    self.hung_up_on.set()

    def _babble(self, link: socket.socket) -> None:
        for answer in (b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", self._answer + b"\r\n"):
            link.recv(1000)
            link.sendall(answer)
        link.sendall(self._first)
        while True:
            link.sendall(self._piece())


ANSWERS = {
    "a full sync of a log": b"+FULLRESYNC %b 0 1000000000 0 0" % (b"a" * 40),
    "a log that goes on": b"+CONTINUE %b" % (b"a" * 40),
}
VALUE = b"x" * 100
PING = b"*1\r\n$4\r\nPING\r\n"
GARBAGE: dict[str, tuple[bytes, Callable[[], bytes]]] = {
    "noise": (b"", lambda: os.urandom(1 << 16)),
    "commands that no annotation closes": (b"", lambda: PING * 4096),
    "one word that never ends": (b"*2\r\n$4\r\nPING\r\n$400000000\r\n", lambda: bytes(1 << 16)),
    "one command of many words": (b"*400000000\r\n", lambda: b"$1\r\nx\r\n" * 4096),
    "a comment that never ends": (b"#", lambda: b"x" * (1 << 16)),
    "a line that never ends": (b"*", lambda: b"1" * (1 << 16)),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_endless_garbage_is_refused_and_not_kept(start_riverbed: StartRiverbed, answer: str) -> None:
    replica = start_riverbed(options=SMALL)
    with replica.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        before = replica.private_bytes()
        for name, (first, piece) in GARBAGE.items():
            with Babbler(ANSWERS[answer], piece, first) as babbler:
                client.ask("REPLICAOF", "127.0.0.1", babbler.port)
                assert babbler.hung_up_on.wait(60), name
                until(lambda: "damaged" in info(replica)["riverbed_master_link_reason"], name)
                assert client.ask("XLEN", "s") == b":1\r\n"
                client.ask("REPLICAOF", "NO", "ONE")
        assert replica.private_bytes() < before + (32 << 20)
        assert client.ask("XADD", "s", "2-1", "f", "v") == b"$3\r\n2-1\r\n"


def test_damage_on_the_link_is_noticed_and_what_it_hit_comes_again(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    with primary.client() as client, Proxy(lambda: primary.port) as proxy:
        follow(replica, proxy.port)
        proxy.alter = lambda data, passed: data.replace(b"precious", b"preciouz")
        client.ask("XADD", "s", "*", "f", "precious")
        until(lambda: "damaged" in replica.log_text(), "a complaint")
        assert entries(replica) == b"*0\r\n"
        proxy.alter = None
        until_level(primary, replica)
        assert entries(replica) == entries(primary)


def begun(primary: RiverbedServer, replica: RiverbedServer) -> None:
    """A primary with a base and a log behind it, and a replica that has a state of its own to lose."""
    with primary.client() as client:
        fill(client, "s", 3000, 1000)
        rewritten(primary)
        fill(client, "s", 300, 1000)
    with replica.client() as client:
        client.ask("XADD", "s", "1-1", "f", "old")


def ask_old(client: RawClient) -> bytes:
    return client.ask("XRANGE", "s", "-", "1-1")


@pytest.mark.parametrize("sent", [100_000, 3_400_000], ids=["in the base", "in the log"])
def test_a_primary_that_dies_in_the_middle_of_a_full_sync(start_riverbed: StartRiverbed, sent: int) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    begun(primary, replica)
    with replica.client() as client, Proxy(lambda: primary.port) as proxy:
        old = ask_old(client)
        assert b"old" in old

        def kill(data: bytes, passed: int) -> bytes:
            if passed > sent:
                proxy.alter = None
                proxy.refuses = True
                primary.kill()
            return data

        proxy.alter = kill
        client.ask("REPLICAOF", "127.0.0.1", proxy.port)
        until(lambda: proxy.refuses and info(replica)["master_link_status"] == "down", "the end of the link")
        until(lambda: info(replica)["master_sync_in_progress"] == "0", "the end of the sync")
        assert ask_old(client) == old
        primary.start()
        proxy.refuses = False
        until_linked(replica)
        until_level(primary, replica)
    assert entries(replica) == entries(primary)
    until(lambda: not list(replica.directory.glob("sync-*/state")), "the end of half a state")


@pytest.mark.parametrize("sent", [100_000, 3_400_000], ids=["in the base", "in the log"])
def test_a_full_sync_under_way_shows_in_info_and_the_old_state_is_served(
    start_riverbed: StartRiverbed, sent: int
) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    begun(primary, replica)
    held, goes_on = threading.Event(), threading.Event()

    def hold(data: bytes, passed: int) -> bytes:
        if passed > sent:
            held.set()
            goes_on.wait(60)
        return data

    with replica.client() as client, Proxy(lambda: primary.port) as proxy:
        old = ask_old(client)
        proxy.alter = hold
        client.ask("REPLICAOF", "127.0.0.1", proxy.port)
        assert held.wait(60)
        until(lambda: int(info(replica).get("master_sync_read_bytes", "0")) >= sent // 2, "a part of the base")
        found = info(replica)
        assert (found["master_sync_in_progress"], found["master_link_status"]) == ("1", "down")
        total, read = int(found["master_sync_total_bytes"]), int(found["master_sync_read_bytes"])
        assert int(found["master_sync_left_bytes"]) == total - read > 0
        assert 0 < float(found["master_sync_perc"]) < 100
        assert int(found["master_sync_last_io_seconds_ago"]) >= 0
        loading = info(replica, "persistence")
        assert (loading["loading"], loading["async_loading"]) == ("0", "1")
        assert ask_old(client) == old
        assert client.ask("CONFIG", "SET", "replica-serve-stale-data", "no") == b"+OK\r\n"
        assert ask_old(client).startswith(b"-MASTERDOWN Link with MASTER is down")
        assert client.ask("PING").startswith(b"-MASTERDOWN Link with MASTER is down"), "as Redis"
        goes_on.set()
        until_linked(replica)
        assert info(replica, "persistence")["async_loading"] == "0"
        until_level(primary, replica)
        assert entries(replica) == entries(primary)


@pytest.mark.parametrize("at", [100_000, 3_400_000], ids=["in the base", "in the log"])
def test_a_full_sync_with_a_flipped_bit_is_refused_and_comes_again(start_riverbed: StartRiverbed, at: int) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    begun(primary, replica)
    with replica.client() as client, Proxy(lambda: primary.port) as proxy:
        old = ask_old(client)
        damaged = threading.Event()

        def flip(data: bytes, passed: int) -> bytes:
            place = data.find(VALUE, max(at - passed, 0))  # not in what frames it, which is another complaint
            if place >= 0 and passed + len(data) > at and not damaged.is_set():
                damaged.set()
                proxy.refuses = True  # until what was there before was looked at
                return data[:place] + b"y" + data[place + 1 :]
            return data

        proxy.alter = flip
        client.ask("REPLICAOF", "127.0.0.1", proxy.port)
        until(lambda: "checksum does not match" in replica.log_text(), "a complaint")
        assert ask_old(client) == old
        proxy.refuses = False
        until_level(primary, replica)
    assert entries(replica) == entries(primary)


@pytest.mark.needs_root
def test_a_full_sync_without_room_says_so_and_comes_when_there_is_some(
    start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    primary = start_riverbed()
    with (
        small_tmpfs(tmp_path / "disk", 64 << 20) as disk,
        RiverbedServer(disk, tmp_path / "logs") as replica,
        replica.client() as client,
    ):
        begun(primary, replica)
        old = ask_old(client)
        ballast = fill_up(disk, 9 << 20)  # an eighth of the disk is not to be used
        client.ask("REPLICAOF", "127.0.0.1", primary.port)
        until(lambda: "the disk is nearly full" in info(replica).get("riverbed_master_link_reason", ""), "a complaint")
        assert ask_old(client) == old
        ballast.unlink()
        until_level(primary, replica)
        assert entries(replica) == entries(primary)
        replica.stop()
        assert broken_invariants(disk) == []


def test_tables_without_room_for_a_full_sync_are_named(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed(options={"lmdb-map-size": 16 << 20})
    with primary.client() as client:
        fill(client, "s", 20, 1 << 20)
    with replica.client() as client:
        client.ask("XADD", "s", "1-1", "f", "old")
        old = ask_old(client)
        client.ask("REPLICAOF", "127.0.0.1", primary.port)
        until(lambda: "lmdb-map-size is too small" in info(replica)["riverbed_master_link_reason"], "a complaint")
        assert ask_old(client) == old
        client.ask("REPLICAOF", "NO", "ONE")
        assert client.ask("XADD", "s", "2-1", "f", "v") == b"$3\r\n2-1\r\n"
