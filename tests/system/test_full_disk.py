"""A data directory on a tmpfs of 8 MB, written until it is full: refuse, keep reading, make room, go on.

No step restarts the server, except the last one, which kills it to see that nothing acknowledged was lost.  Behind them
are starts on a disk without any room.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import broken_invariants
from tests.support.faults.disks import fill_up, small_tmpfs
from tests.support.faults.ledger import Account, Add, Fate, Ledger, read_id
from tests.support.faults.producers import read_streams
from tests.support.faults.stops import COMMANDS, KILL, SIGNALS, end
from tests.support.raw import RawClient, parse
from tests.support.replicas import follow, info, offset_of, until_linked
from tests.support.servers import RiverbedServer, StartError
from tests.support.trees import changes, tree
from tests.support.waiting import rewrite_ended, until

DISK_BYTES = 8 << 20
VALUE_BYTES = 1_000
ROOM = 64 << 10
# Far more than fits: a server that never refuses has lost its mind, not found more disk.
MAX_WRITES = 40 * DISK_BYTES // VALUE_BYTES


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty tmpfs."""
    with small_tmpfs(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


@pytest.fixture
def server(small_disk: Path, tmp_path: Path) -> Iterator[RiverbedServer]:
    with RiverbedServer(small_disk, tmp_path / "logs", {"appendfsync": "always"}) as server:
        yield server
    assert broken_invariants(small_disk) == []


class Writer:
    """Appends to streams, one entry at a time, and keeps account."""

    def __init__(self, server: RiverbedServer) -> None:
        self.ledger = Ledger()
        self.account: Account = self.ledger.account(b"w")
        self.server = server

    def append(self, client: RawClient, stream: bytes) -> bytes | None:
        """Append one entry; None when it was acknowledged, else the error."""
        add = Add(stream, b"%d" % len(self.account.adds) + b"." * VALUE_BYTES)
        self.account.adds.append(add)
        reply = client.ask("XADD", stream, "*", "f", add.payload)
        if reply.startswith(b"-"):
            add.fate = Fate.FAILED
            return reply
        add.fate, add.entry_id = Fate.ACKNOWLEDGED, read_id(parse(reply).text)
        return None

    def fill(self, client: RawClient, streams: list[bytes]) -> bytes:
        """Append until the server refuses, and return its words."""
        for number in range(MAX_WRITES):
            refusal = self.append(client, streams[number % len(streams)])
            if refusal is not None:
                return refusal
        raise AssertionError("the server never refused a write")

    def fill_for_good(self, client: RawClient, stream: bytes) -> None:
        """Append until the server refuses although a checkpoint has nothing left to do.

        What waits for a checkpoint counts several times over, so that the first refusal may leave much of the disk.
        """
        self.fill(client, [stream])
        while client.ask("SAVE") == b"+OK\r\n" and self.append(client, stream) is None:
            self.fill(client, [stream])

    def append_until_accepted(self, client: RawClient, stream: bytes) -> None:
        deadline = time.monotonic() + 60
        while (refusal := self.append(client, stream)) is not None:
            assert time.monotonic() < deadline, f"still refused: {refusal!r}\n{self.server.log_tail()}"
            time.sleep(0.05)


def is_clear(refusal: bytes) -> bool:
    """An error a person understands: a code, and a word about the disk."""
    return refusal.startswith((b"-MISCONF ", b"-OOM ", b"-NOSPACE ")) and b"disk" in refusal.lower()


@pytest.mark.needs_root
def test_a_full_disk_refuses_writes_and_still_serves_reads(server: RiverbedServer, small_disk: Path) -> None:
    writer = Writer(server)
    with server.client() as client:
        assert is_clear(writer.fill(client, [b"a", b"b"]))
        # a checkpoint may let writes go on, so from here on less than the reserve is free whatever it gives back
        assert client.ask("SAVE") == b"+OK\r\n"
        ballast = fill_up(small_disk, 8 * ROOM)
        refusal = writer.fill(client, [b"a", b"b"])
        assert is_clear(refusal), refusal
        for _ in range(50):
            assert writer.append(client, b"a") is not None, "refused once, then accepted without any room"
        assert client.ask("PING") == b"+PONG\r\n"
        length = int(parse(client.ask("XLEN", "a")).text)
        assert length == sum(add.stream == b"a" and add.fate is Fate.ACKNOWLEDGED for add in writer.account.adds)
        assert len(client.tree("XRANGE", "a", "-", "+").children or ()) == length
        assert client.tree("XREAD", "COUNT", 1, "STREAMS", "b", "0").children
        assert client.tree("XINFO", "STREAM", "a", "FULL").children
        assert client.ask("XADD", "new", "1-1", "f", "v").startswith(b"-MISCONF ")
        assert client.ask("EXISTS", "new") == b":0\r\n"
        assert client.pipeline([("MULTI",), ("XADD", "new", "1-1", "f", "v"), ("EXEC",)])[-1].startswith(b"-")
    server.kill()
    ballast.unlink()
    server.start()
    assert list(writer.ledger.verify(read_streams(server, writer.ledger.streams()))) == []


@pytest.mark.needs_root
@pytest.mark.parametrize("way", ["DEL", "XTRIM", "XDEL", "FLUSHDB"])
def test_deleting_works_on_a_full_disk(server: RiverbedServer, small_disk: Path, way: str) -> None:
    """What a command removes leaves the tables; the log shrinks when it is rewritten, so the ballast stands in."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (DISK_BYTES // 4))
    writer = Writer(server)
    with server.client() as client:
        writer.fill(client, [b"kept", b"big"])
        entries = client.tree("XRANGE", "big", "-", "+").children or ()
        ids = [entry.children[0].text for entry in entries if entry.children]
        assert len(ids) > 100
        remove(client, way, ids)
        assert client.ask("XLEN", "big") == b":0\r\n"
        kept = client.ask("XRANGE", "kept", "-", "+")
        ballast.unlink()
        writer.append_until_accepted(client, b"after")
        assert client.ask("XRANGE", "kept", "-", "+") == kept
        after = client.ask("XRANGE", "after", "-", "+")
    server.kill()
    server.start()
    with server.client() as client:
        assert client.ask("XLEN", "big") == b":0\r\n"
        assert client.ask("XRANGE", "kept", "-", "+") == kept
        assert client.ask("XRANGE", "after", "-", "+") == after


def remove(client: RawClient, way: str, ids: list[bytes]) -> None:
    """Take all entries out of `big`, one way or another."""
    match way:
        case "DEL":
            assert client.ask("DEL", "big") == b":1\r\n"
        case "XTRIM":
            assert client.ask("XTRIM", "big", "MAXLEN", "=", 0) == b":%d\r\n" % len(ids)
        case "XDEL":
            for start in range(0, len(ids), 50):
                part = ids[start : start + 50]
                assert client.ask("XDEL", "big", *part) == b":%d\r\n" % len(part)
        case _:
            assert client.pipeline([("MOVE", "kept", 1), ("FLUSHDB",)]) == [b":1\r\n", b"+OK\r\n"]
            assert client.pipeline([("SELECT", 1), ("MOVE", "kept", 0), ("SELECT", 0)])[1] == b":1\r\n"


@pytest.mark.needs_root
def test_the_service_returns_when_somebody_else_makes_room(server: RiverbedServer, small_disk: Path) -> None:
    ballast = [small_disk / "ballast-1", small_disk / "ballast-2"]
    for file in ballast:
        file.write_bytes(b"\0" * (DISK_BYTES // 4))
    writer = Writer(server)
    with server.client() as client:
        for file in ballast:
            assert is_clear(writer.fill(client, [b"a"]))
            file.unlink()
            writer.append_until_accepted(client, b"a")
    server.kill()
    server.start()
    assert list(writer.ledger.verify(read_streams(server, {b"a"}))) == []


def bytes_of_log(disk: Path) -> int:
    total = 0
    for path in (disk / "appendonlydir").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it went between the two looks
            total += path.stat().st_size
    return total


@pytest.mark.needs_root
def test_a_rewrite_that_does_not_fit_leaves_the_log_as_it_was(server: RiverbedServer, small_disk: Path) -> None:
    writer = Writer(server)
    with server.client() as client:
        writer.fill(client, [b"a"])
        # how much of the disk is the log, and would fit once more, depends on how often there was a checkpoint
        assert bytes_of_log(small_disk) > 4 * ROOM
        ballast = fill_up(small_disk, ROOM)
        client.ask("BGREWRITEAOF")
        assert rewrite_ended(client)["aof_last_bgrewrite_status"] == "err"
        ballast.unlink()
        assert {path.suffixes[-2] for path in (small_disk / "appendonlydir").glob("*.aof")} == {".incr"}
        assert client.ask("XLEN", "a").startswith(b":")
    server.kill()
    server.start()
    assert list(writer.ledger.verify(read_streams(server, {b"a"}))) == []


@pytest.mark.needs_root
def test_a_rewrite_makes_room_on_a_full_disk(server: RiverbedServer, small_disk: Path) -> None:
    writer = Writer(server)
    with server.client() as client:
        writer.fill_for_good(client, b"a")
        full = bytes_of_log(small_disk)
        assert client.ask("DEL", "a") == b":1\r\n"
        client.ask("BGREWRITEAOF")
        assert rewrite_ended(client)["aof_last_bgrewrite_status"] == "ok", server.log_tail()
        until(lambda: bytes_of_log(small_disk) < full // 10, "the end of the old files")
        writer.append_until_accepted(client, b"b")
        after = client.ask("XRANGE", "b", "-", "+")
    server.kill()
    server.start()
    with server.client() as client:
        assert client.ask("XRANGE", "b", "-", "+") == after
        assert client.ask("EXISTS", "a") == b":0\r\n"


@pytest.mark.needs_root
def test_a_trim_alone_brings_writes_back(server: RiverbedServer, small_disk: Path) -> None:
    writer = Writer(server)
    with server.client() as client:
        writer.fill(client, [b"a"])
        assert client.ask("XTRIM", "a", "MAXLEN", 10).startswith(b":")
        writer.append_until_accepted(client, b"b")
        assert client.ask("XLEN", "a") == b":10\r\n"
    assert "the disk is nearly full: writes are refused" in server.log_text()
    server.kill()
    server.start()
    with server.client() as client:
        assert client.ask("XLEN", "a") == b":10\r\n"
        assert client.ask("XLEN", "b") != b":0\r\n"


@pytest.mark.needs_root
def test_a_snapshot_leaves_the_reserve_of_a_small_disk_and_no_more(server: RiverbedServer) -> None:
    with server.client() as client:
        client.ask("XADD", "a", "*", "f", "v")
        assert client.ask("RIVERBED", "SNAPSHOT").startswith(b"*"), server.log_tail()


@pytest.mark.needs_root
def test_a_replica_takes_nothing_into_the_reserve_and_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    with (
        RiverbedServer(tmp_path / "primary", tmp_path / "logs") as primary,
        RiverbedServer(small_disk, tmp_path / "logs") as replica,
    ):
        follow(replica, primary.port)
        ballast = fill_up(small_disk, DISK_BYTES // 2)
        with primary.client() as client:
            for _ in range(DISK_BYTES // VALUE_BYTES // 100):
                client.pipeline([("XADD", "s", "MAXLEN", "=", 10, "*", "f", "v" * VALUE_BYTES) for _ in range(100)])
        until(lambda: "nearly full" in info(replica).get("riverbed_master_link_reason", ""), "a link that is given up")
        assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize > DISK_BYTES // 8 - (256 << 10)
        before = offset_of(replica)
        time.sleep(2)
        assert offset_of(replica) == before
        assert "nearly full" in info(replica)["riverbed_master_link_reason"]
        ballast.unlink()
        until_linked(replica)
    assert broken_invariants(small_disk) == []


# -- starts ------------------------------------------------------------------------------------------------------------

# More than is answered in one piece.  A byte of log that is in no checkpoint yet counts as three bytes of tables.
# So twice as much would be refused when the checkpoints come at another moment, as they do on a slow machine.
LONG_BYTES = 5 << 18


def fill_wholly(disk: Path) -> Path:
    """Leave no room at all; -> the file to delete."""
    ballast = fill_up(disk, 0)
    assert os.statvfs(disk).f_bavail == 0
    return ballast


@pytest.mark.needs_root
def test_long_replies_are_answered_without_any_room(server: RiverbedServer, small_disk: Path) -> None:
    """Although the tables cannot be committed, so that there is no view of them for long."""
    writer = Writer(server)
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "checkpoint-interval-ms", 60_000) == b"+OK\r\n"
        while len(writer.account.adds) * VALUE_BYTES < LONG_BYTES:
            assert writer.append(client, b"a") is None
        ballast = fill_wholly(small_disk)
        length = len(writer.account.adds)
        for _ in range(3):
            entries = client.tree("XRANGE", "a", "-", "+").children or ()
            assert len(entries) == length
            assert client.tree("XREVRANGE", "a", "+", "-").children == tuple(reversed(entries))
            ((_, read),) = [stream.children for stream in client.tree("XREAD", "STREAMS", "a", 0).children or ()]
            assert read.children == entries
            assert client.tree("XINFO", "STREAM", "a", "FULL", "COUNT", 0).children
            assert client.ask("PING") == b"+PONG\r\n"
        assert b"rdb_last_bgsave_status:err" in client.ask("INFO", "persistence")
        ballast.unlink()
        writer.append_until_accepted(client, b"a")
        until(lambda: b"rdb_last_bgsave_status:ok" in client.ask("INFO", "persistence"), "a checkpoint")
        assert client.tree("XRANGE", "a", "-", "+").children
    server.kill()
    server.start()
    assert list(writer.ledger.verify(read_streams(server, writer.ledger.streams()))) == []


@pytest.mark.needs_root
@pytest.mark.parametrize("way", [*SIGNALS, *COMMANDS[:2], KILL])
def test_a_server_starts_and_reads_without_any_room(server: RiverbedServer, small_disk: Path, way: str) -> None:
    writer = Writer(server)
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "checkpoint-interval-ms", 60_000) == b"+OK\r\n"  # a kill leaves it to do
        while len(writer.account.adds) * VALUE_BYTES < LONG_BYTES:
            assert writer.append(client, b"a") is None
        before = client.ask("XRANGE", "a", "-", "+")
    assert len(before) > LONG_BYTES
    end(server, way)
    ballast = fill_wholly(small_disk)
    server.start()
    with server.client() as client:
        for _ in range(3):
            assert client.ask("XRANGE", "a", "-", "+") == before
            assert client.ask("XLEN", "a") == b":%d\r\n" % len(writer.account.adds)
            refusal = client.ask("XADD", "new", "1-1", "f", "v")
            assert is_clear(refusal), refusal
        assert client.ask("EXISTS", "new") == b":0\r\n"
        ballast.unlink()
        writer.append_until_accepted(client, b"a")
        after = client.ask("XRANGE", "a", "-", "+")
    server.kill()
    server.start()
    with server.client() as client:
        assert client.ask("XRANGE", "a", "-", "+") == after
    assert list(writer.ledger.verify(read_streams(server, writer.ledger.streams()))) == []


@pytest.mark.needs_root
@pytest.mark.parametrize("way", ["TERM", "SHUTDOWN", KILL])
@pytest.mark.parametrize("lost", ["state/lock.mdb", "state"])
def test_a_start_that_needs_room_and_finds_none_leaves_every_byte_as_it_was(
    server: RiverbedServer, small_disk: Path, way: str, lost: str
) -> None:
    writer = Writer(server)
    with server.client() as client:
        for _ in range(300):
            assert writer.append(client, b"a") is None
    end(server, way)
    remove_path(small_disk / lost)
    ballast = fill_wholly(small_disk)
    before = tree(small_disk)
    with pytest.raises(StartError, match="the disk is full"):
        server.start()
    assert changes(before, tree(small_disk)) == []
    ballast.unlink()
    server.start()
    assert list(writer.ledger.verify(read_streams(server, writer.ledger.streams()))) == []


@pytest.mark.needs_root
def test_a_first_start_without_any_room_makes_nothing(small_disk: Path, tmp_path: Path) -> None:
    fill_wholly(small_disk)
    before = tree(small_disk)
    with pytest.raises(StartError, match="the disk is full"):
        RiverbedServer(small_disk, tmp_path / "logs").start()
    assert changes(before, tree(small_disk)) == []


@pytest.mark.needs_root
@pytest.mark.parametrize("way", ["TERM", "SHUTDOWN", KILL])
def test_a_start_that_is_refused_without_any_room_leaves_every_byte_as_it_was(
    server: RiverbedServer, small_disk: Path, way: str
) -> None:
    writer = Writer(server)
    with server.client() as client:
        for _ in range(300):
            assert writer.append(client, b"a") is None
    end(server, way)
    manifest = small_disk / "appendonlydir" / "appendonly.aof.manifest"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b"seq 1", b"seq 7"))
    ballast = fill_wholly(small_disk)
    before = tree(small_disk)
    with pytest.raises(StartError, match="damaged data"):
        server.start()
    assert changes(before, tree(small_disk)) == []
    ballast.unlink()
    manifest.write_bytes(whole)
    server.start()
    assert list(writer.ledger.verify(read_streams(server, writer.ledger.streams()))) == []


def remove_path(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
