"""Batches of a primary that are too long for a replica's memory: they wait in a file, and what is never closed too."""

from __future__ import annotations

import os
import re
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import StartRiverbed, broken_invariants
from tests.support.faults.disks import fill_up, small_tmpfs
from tests.support.faults.proxy import Proxy
from tests.support.impostor import impostor
from tests.support.pair import LOG_GLOB
from tests.support.raw import RawClient
from tests.support.replicas import follow, info, until_level
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

MB = 1 << 20
VALUE = b"x" * 10_000
HELD = 16 * MB  # of a batch in memory
SENT = 75 * MB  # of what two long batches take
PREFACE = re.compile(rb"\A\*2\r\n\$6\r\nSELECT\r\n\$1\r\n0\r\n#CK:[^\n]*\n")
CONTINUE = b"+CONTINUE %b\r\n" % (b"a" * 40)
FULL_SYNC = b"+FULLRESYNC %b 0 1000000000 0 0\r\n" % (b"a" * 40)
ENTRY = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$3\r\n1-1\r\n$1\r\nf\r\n$1\r\nv\r\n"
UNCLOSED = {
    "commands": ENTRY * (64 * MB // len(ENTRY)),
    "a value": b"*2\r\n$3\r\nDEL\r\n$400000000\r\n" + b"x" * (64 * MB),
    "words": b"*400000000\r\n" + b"$200\r\n%b\r\n" % VALUE[:200] * (64 * MB // 208),
}


def append_long(client: RawClient, key: str, size: int) -> int:
    """One transaction of `size` bytes; -> how many entries it appends."""
    count = size // len(VALUE)
    client.ask("MULTI")
    for _ in range(count // 100):
        client.pipeline([("XADD", key, "*", "f", VALUE)] * 100)
    client.ask("EXEC")
    return count // 100 * 100


def spilled_bytes(server: RiverbedServer) -> int:
    """The bytes of the files without a name that the server has open in its directory."""
    total = 0
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            target = os.readlink(link)
            if target.startswith(str(server.directory)) and target.endswith(" (deleted)"):
                total += link.stat().st_size
        except OSError:  # closed meanwhile
            continue
    return total


def has_spilled_nothing(server: RiverbedServer) -> bool:
    return not spilled_bytes(server)


def left_behind(server: RiverbedServer) -> list[str]:
    return [path.name for path in server.directory.rglob("*") if path.name.startswith("batch-")]


def received(server: RiverbedServer) -> int:
    return int(info(server, "stats")["total_net_repl_input_bytes"])


def log_end(server: RiverbedServer, size: int) -> bytes:
    """The last `size` bytes of the log, without the SELECT with which each server begins a file of its own.

    And without the padding behind the last batch, whose length depends on how many batches come at once.
    """
    files = sorted(server.directory.glob(LOG_GLOB), key=lambda path: int(path.name.split(".")[-3]))
    batches = (path.read_bytes().rstrip(b"#\n") + b"\n" for path in files)
    return b"".join(PREFACE.sub(b"", data) for data in batches)[-size:]


@pytest.mark.parametrize("answer", [CONTINUE, FULL_SYNC], ids=["a log that goes on", "a full sync"])
@pytest.mark.parametrize("kind", UNCLOSED)
def test_a_batch_that_is_never_closed_is_not_held_in_memory(
    start_riverbed: StartRiverbed, kind: str, answer: bytes
) -> None:
    replica = start_riverbed()
    with replica.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        before = replica.private_bytes()
        begun = received(replica)
        with impostor(b"+PONG\r\n", *[b"+OK\r\n"] * 3, answer + UNCLOSED[kind]) as port:
            client.ask("REPLICAOF", "127.0.0.1", port)
            until(lambda: received(replica) >= begun + len(UNCLOSED[kind]), "all that comes")
            until(lambda: spilled_bytes(replica) > 64 * MB - HELD - 2 * MB, "most of it in a file")
            assert replica.private_bytes() < before + HELD + 24 * MB
            assert client.ask("XLEN", "s") == b":1\r\n"
            assert left_behind(replica) == []
            client.ask("REPLICAOF", "NO", "ONE")
        until(partial(has_spilled_nothing, replica), "the end of the file")
        assert client.ask("XADD", "s", "2-1", "f", "v") == b"$3\r\n2-1\r\n"


def test_a_long_batch_is_applied_logged_and_passed_on(start_riverbed: StartRiverbed) -> None:
    primary, replica, third = start_riverbed(), start_riverbed(), start_riverbed()
    follow(replica, primary.port)
    follow(third, replica.port)
    with primary.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        until_level(primary, replica, third)
        for key in ("s", "t"):
            append_long(client, key, 40 * MB)
            client.ask("XADD", "s", "*", "f", "v")
        until_level(primary, replica, third)
        digest = client.ask("DEBUG", "DIGEST")
    end = log_end(primary, SENT)
    for server in (replica, third):
        assert log_end(server, SENT) == end, server.directory
        until(partial(has_spilled_nothing, server), "the end of the file")
        with server.client() as client:
            assert client.ask("DEBUG", "DIGEST") == digest
        server.kill()
        server.start()
        with server.client() as client:
            assert client.ask("DEBUG", "DIGEST") == digest


@pytest.mark.parametrize("at", [20_000_000, 41_000_000], ids=["in the middle", "at the end"])
def test_damage_in_a_long_batch_is_noticed_and_it_comes_again(start_riverbed: StartRiverbed, at: int) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    with primary.client() as client, Proxy(lambda: primary.port) as proxy:
        follow(replica, proxy.port)
        damaged = threading.Event()

        def flip(data: bytes, passed: int) -> bytes:
            place = data.find(VALUE[:100], max(at - passed, 0))
            if place >= 0 and passed + len(data) > at and not damaged.is_set():
                damaged.set()
                return data[:place] + b"y" + data[place + 1 :]
            return data

        proxy.alter = flip
        append_long(client, "s", 40 * MB)
        until(lambda: "checksum does not match" in replica.log_text(), "a complaint")
        until_level(primary, replica)
        until(partial(has_spilled_nothing, replica), "the end of the file")
        with replica.client() as reader:
            assert reader.ask("DEBUG", "DIGEST") == client.ask("DEBUG", "DIGEST")


def held_half_way(primary: RiverbedServer, proxy: Proxy, replica: RiverbedServer, client: RawClient) -> None:
    """Have the replica receive the first half of a long batch."""
    follow(replica, proxy.port)
    reached = threading.Event()

    def stop(data: bytes, passed: int) -> bytes:
        if passed > 30 * MB:
            reached.set()
            proxy.passes.clear()
        return data

    proxy.alter = stop
    append_long(client, "s", 60 * MB)
    assert reached.wait(60)
    until(lambda: spilled_bytes(replica) > 10 * MB, "half of it in a file")
    proxy.alter = None


@pytest.mark.parametrize("how", ["the link is lost", "kill -9"])
def test_half_of_a_long_batch_is_forgotten_and_comes_again(start_riverbed: StartRiverbed, how: str) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    with primary.client() as client, Proxy(lambda: primary.port) as proxy:
        held_half_way(primary, proxy, replica, client)
        if how == "kill -9":
            replica.kill()
            assert left_behind(replica) == []
            replica.start()
            proxy.cut()
            proxy.passes.set()
            follow(replica, proxy.port)
        else:
            proxy.cut()
            proxy.passes.set()
        until_level(primary, replica)
        until(partial(has_spilled_nothing, replica), "the end of the file")
        assert left_behind(replica) == []
        with replica.client() as reader:
            assert reader.ask("DEBUG", "DIGEST") == client.ask("DEBUG", "DIGEST")


@pytest.mark.needs_root
def test_a_long_batch_waits_for_room_on_the_disk(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    primary = start_riverbed()
    with (
        small_tmpfs(tmp_path / "disk", 384 * MB) as disk,
        RiverbedServer(disk, tmp_path / "logs") as replica,
        primary.client() as client,
    ):
        follow(replica, primary.port)
        client.ask("XADD", "s", "1-1", "f", "v")
        until_level(primary, replica)
        ballast = fill_up(disk, (48 + 50) * MB)  # an eighth of the disk is not to be used
        append_long(client, "s", 60 * MB)
        until(lambda: "the disk is nearly full here" in info(replica).get("riverbed_master_link_reason", ""), "it")
        until(partial(has_spilled_nothing, replica), "the end of the file")
        with replica.client() as reader:
            assert reader.ask("XLEN", "s") == b":1\r\n"
        ballast.unlink()
        until_level(primary, replica)
        with replica.client() as reader:
            assert reader.ask("DEBUG", "DIGEST") == client.ask("DEBUG", "DIGEST")
        replica.stop()
        assert broken_invariants(disk) == []
