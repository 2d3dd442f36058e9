"""A disk refuses a write of the tables: the server's log says which error it was, and nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartRiverbed
from tests.support.faults.processes import failing_calls
from tests.support.faults.processes.failing_calls import FailingCalls
from tests.support.replicas import fill, follow, info, until_level
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

_REFUSED = f"mdb_txn_commit: {os.strerror(errno.EIO)}"


@pytest.fixture
def calls(tmp_path: Path) -> FailingCalls:
    return FailingCalls(failing_calls.build(tmp_path), tmp_path / "calls", tmp_path / "data" / "state")


@pytest.fixture
def server(tmp_path: Path, calls: FailingCalls) -> RiverbedServer:
    """A server whose checkpoints the tests make."""
    server = RiverbedServer(tmp_path / "data", tmp_path / "logs", {"checkpoint-interval-ms": 600_000})
    server.environment = calls.environment
    return server


@contextlib.contextmanager
def behind_its_log(server: RiverbedServer, calls: FailingCalls) -> Iterator[None]:
    """The server, started where the disk refused the first write of its tables; it says so."""
    with server, server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("SAVE")
        client.ask("XADD", "s", "2-1", "f", "v")
        server.kill()
        calls.fail("pwrite", errno.EIO, after=1, times=1)  # the first one is of LMDB's lock file
        server.start()
        assert f"the tables could not be brought up to the log, to be tried again: {_REFUSED}" in server.log_text()
        yield


def test_a_start_whose_tables_the_disk_refuses_says_so_and_goes_on(server: RiverbedServer, calls: FailingCalls) -> None:
    with behind_its_log(server, calls):
        with server.client() as again:
            assert again.ask("XLEN", "s") == b":2\r\n"
            assert again.ask("SAVE") == b"+OK\r\n"
        assert server.stop() == 0


def test_tables_that_a_start_could_not_write_are_written_although_nobody_writes(
    server: RiverbedServer, calls: FailingCalls
) -> None:
    """Writes may be refused until they are: when more is in no table than a checkpoint may lack."""
    with behind_its_log(server, calls):
        with server.client() as again:
            until(lambda: b"rdb_last_bgsave_status:ok" in again.ask("INFO", "persistence"), "a checkpoint")
        assert server.stop() == 0


def test_a_server_whose_meta_page_the_disk_refuses_ends_with_the_reason_and_starts_again(
    server: RiverbedServer, calls: FailingCalls
) -> None:
    """LMDB begins no other transaction then, and does not say why any more."""
    with server, server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        with contextlib.suppress(ConnectionError):
            for number in itertools.count():  # the meta page is the last of the few writes of a commit
                calls.fail("pwrite", errno.EIO, after=number, times=1)
                assert _REFUSED.encode() in client.ask("SAVE")
        assert server.wait_ended() == 1
        assert f"the tables could not be written: {_REFUSED}; the state could not be rebuilt: " in server.log_text()
        calls.forgive()
        server.start()
        with server.client() as again:
            assert again.ask("XLEN", "s") == b":1\r\n"
        assert server.stop() == 0


def test_a_replica_makes_tables_again_that_the_disk_did_not_sync(
    server: RiverbedServer, calls: FailingCalls, start_riverbed: StartRiverbed
) -> None:
    """Its primary goes on, and so does its log, of which a checkpoint is wanted some time."""
    primary = start_riverbed()
    with server, server.client() as client, primary.client() as writer:
        follow(server, primary.port)
        fill(writer, "s", 1000)
        until_level(primary, server)
        calls.fail("fdatasync", errno.EIO, times=1)
        assert client.ask("SAVE").startswith(b"-ERR the checkpoint failed: mdb_env_sync: Input")
        fill(writer, "s", 1000)
        until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", f"a repair\n{server.log_tail()}")
        until_level(primary, server)
        assert client.ask("SAVE") == b"+OK\r\n"
        assert client.ask("XLEN", "s") == b":2000\r\n"
        assert info(primary, "stats")["sync_full"] == "1"
        assert server.stop() == 0
        server.start()
        with server.client() as again:
            assert again.ask("XLEN", "s") == b":2000\r\n"
        assert server.stop() == 0


def test_a_stop_says_that_the_tables_could_not_be_synced(server: RiverbedServer, calls: FailingCalls) -> None:
    """There is no checkpoint then, as no other commit may follow."""
    with server, server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        calls.fail("fdatasync", errno.EIO, times=1)
        assert client.ask("SAVE").startswith(b"-")
        assert server.stop() == 0
        rest = "the next start executes the log behind the last checkpoint that is durable"
        assert f"the tables could not be synced: {rest}" in server.log_text()
        server.start()
        with server.client() as again:
            assert again.ask("XLEN", "s") == b":1\r\n"
