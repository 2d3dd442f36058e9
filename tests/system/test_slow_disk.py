"""A real server on a disk that does not answer for a while: writes wait for it, and nothing else does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.faults.processes.slow_sync import FOR_EVER_MS, SlowSync
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

_VALUE = b"x" * (1 << 20)
_ENTRIES = 60  # of a megabyte: nearly twice what may wait for the disk
_OTHER = b"*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"


class Writer:
    """A client that adds entries to `s`, each when it has the reply to the one before; and their replies."""

    def __init__(self, server: RiverbedServer) -> None:
        self.replies: list[bytes] = []
        self._client = server.client(timeout_s=240)
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        with self._client, contextlib.suppress(OSError):  # when the server ends
            for number in range(1, _ENTRIES + 1):
                self.replies.append(self._client.ask("XADD", "s", f"{number}-1", "f", _VALUE))

    def join(self) -> None:
        self._thread.join()


@contextlib.contextmanager
def held(tmp_path: Path) -> Iterator[tuple[RiverbedServer, SlowSync, RawClient, Writer]]:
    """A server whose disk has stopped to answer, and which has writes wait for it by now."""
    disk = SlowSync(tmp_path / "slow")
    directory = tmp_path / "data"
    directory.mkdir()
    server = RiverbedServer(directory, tmp_path / "logs", {"appendfsync": "everysec"})
    server.environment = disk.environment
    with server, server.client() as client:
        assert client.ask("XADD", "other", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
        disk.delay(FOR_EVER_MS)
        writer = Writer(server)
        until(lambda: client.info("persistence")["riverbed_writes_wait_for_disk"] == "1", "writes wait for the disk")
        try:
            yield server, disk, client, writer
        finally:
            disk.delay(0)
            writer.join()


def test_writes_wait_for_a_disk_that_does_not_answer_and_all_else_goes_on(tmp_path: Path) -> None:
    with held(tmp_path) as (_, disk, client, writer):
        added = client.ask("XLEN", "s")
        assert 30 < int(added[1:]) < _ENTRIES
        assert client.ask("PING") == b"+PONG\r\n"
        assert client.ask("XRANGE", "other", "-", "+") == _OTHER
        assert client.ask("XLEN", "s") == added
        disk.delay(0)
        writer.join()
        assert len(writer.replies) == _ENTRIES
        assert client.ask("XLEN", "s") == b":%d\r\n" % _ENTRIES
        found = client.info("persistence")
        assert found["riverbed_writes_wait_for_disk"] == "0"
        assert int(found["aof_delayed_fsync"]) > 0


def _kill(server: RiverbedServer, disk: SlowSync) -> None:
    server.kill()


def _stop(server: RiverbedServer, disk: SlowSync) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    disk.delay(0)
    assert server.wait_ended() == 0


@pytest.mark.parametrize("end", [_kill, _stop])
def test_what_was_acknowledged_survives_an_end_while_writes_wait_for_the_disk(
    tmp_path: Path, end: Callable[[RiverbedServer, SlowSync], None]
) -> None:
    with held(tmp_path) as (server, disk, _client, writer):
        end(server, disk)
        disk.delay(0)
        writer.join()
        server.start()
        with server.client() as again:
            added = int(again.ask("XLEN", "s")[1:])
            # a write that was executed may have lost its reply
            assert len(writer.replies) <= added <= len(writer.replies) + 1 <= _ENTRIES
            assert again.ask("XRANGE", "other", "-", "+") == _OTHER


@contextlib.contextmanager
def between_files(tmp_path: Path) -> Iterator[tuple[RiverbedServer, SlowSync, RawClient, int]]:
    """A server whose disk does not answer while the next file of the log is begun; and how many entries it has."""
    disk = SlowSync(tmp_path / "slow")
    directory = tmp_path / "data"
    directory.mkdir()
    server = RiverbedServer(directory, tmp_path / "logs", {"appendfsync": "everysec", "log-segment-bytes": "1mb"})
    server.environment = disk.environment
    following = directory / "appendonlydir" / "appendonly.aof.2.incr.aof"
    with server, server.client(timeout_s=240) as client:
        disk.delay(FOR_EVER_MS)
        number = 0

        def add() -> bool:
            nonlocal number
            number += 1
            assert client.ask("XADD", "s", f"{number}-1", "f", _VALUE[: 128 << 10]).startswith(b"$")
            return following.exists()

        until(add, "the next file of the log is begun")
        for _ in range(50):
            add()
        yield server, disk, client, number
        disk.delay(0)


def test_clients_are_served_while_the_next_file_of_the_log_waits_for_the_disk(tmp_path: Path) -> None:
    with between_files(tmp_path) as (server, disk, client, number):
        manifest = server.directory / "appendonlydir" / "appendonly.aof.manifest"
        assert b".2.incr" not in manifest.read_bytes()
        assert client.ask("PING") == b"+PONG\r\n"
        disk.delay(0)
        until(lambda: b".2.incr" in manifest.read_bytes(), "the next file is listed")
        assert client.ask("XADD", "s", f"{number + 1}-1", "f", "v").startswith(b"$")
        assert client.ask("XLEN", "s") == b":%d\r\n" % (number + 1)


@pytest.mark.parametrize("end", [_kill, _stop])
def test_what_was_acknowledged_survives_an_end_while_the_next_file_of_the_log_is_begun(
    tmp_path: Path, end: Callable[[RiverbedServer, SlowSync], None]
) -> None:
    with between_files(tmp_path) as (server, disk, _client, number):
        end(server, disk)
        disk.delay(0)
        server.start()
        with server.client() as again:
            assert again.ask("XLEN", "s") == b":%d\r\n" % number
            assert again.ask("XADD", "s", f"{number + 1}-1", "f", "v").startswith(b"$")
        server.kill()
        server.start()
        with server.client() as again:
            assert again.ask("XLEN", "s") == b":%d\r\n" % (number + 1)
