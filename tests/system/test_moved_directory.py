"""A server whose directory is moved or deleted stops, and leaves alone the store that another has begun at its path."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.store.disk.locks.held_directory import LOG_MOVED, MOVED
from riverbed.store.layout import LOG_DIRECTORY
from tests.support.servers import RiverbedServer
from tests.support.trees import tree

COUNT = 300


def fill(server: RiverbedServer, key: str, count: int = COUNT) -> None:
    with server.client() as client:
        for number in range(1, count + 1):
            assert client.ask("XADD", key, f"{number}-1", "f", "v").startswith(b"$")


def length(server: RiverbedServer, key: str) -> int:
    with server.client() as client:
        return int(client.ask("XLEN", key)[1:-2])


@pytest.mark.parametrize("ending", ["", "TERM", "BGREWRITEAOF", "RIVERBED SNAPSHOT one", "RIVERBED REPAIR", "SHUTDOWN"])
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_a_server_whose_directory_is_gone_stops_and_harms_no_other(
    tmp_path: Path, is_deleted: bool, policy: str, ending: str
) -> None:
    """It took the other's log for a damaged one of its own, and put its manifest in the place of the other's."""
    path, moved = tmp_path / "data", tmp_path / "moved"
    path.mkdir()
    with RiverbedServer(path, tmp_path / "logs", {"appendfsync": policy}) as server:
        fill(server, "old")
        require_harmless(server, moved, is_deleted=is_deleted, ending=ending)


def require_harmless(server: RiverbedServer, moved: Path, *, is_deleted: bool, ending: str) -> None:
    path, logs = server.directory, server.log_path.parent
    if is_deleted:
        shutil.rmtree(path)
    else:
        path.rename(moved)
    path.mkdir()
    other = RiverbedServer(path, logs)
    with other:
        if ending == "TERM":
            server.stop()
        elif ending:
            with server.client() as client, contextlib.suppress(OSError):
                client.ask(*ending.split())
        fill(other, "new")
        if ending not in ("TERM", "SHUTDOWN"):
            assert server.wait_ended() == 1
            assert f"{MOVED} ({path}); stopping" in server.log_text()
        assert length(other, "new") == COUNT
        other.stop()
        before = tree(path)
        other.start()
        assert (length(other, "new"), length(other, "old")) == (COUNT, 0)
        assert before.keys() <= tree(path).keys()
    if not is_deleted:
        with RiverbedServer(moved, logs) as again:
            assert (length(again, "new"), length(again, "old")) == (0, COUNT)


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_server_whose_log_is_gone_stops_and_the_tables_have_all_that_was_acknowledged(
    tmp_path: Path, how: str
) -> None:
    with RiverbedServer(tmp_path / "data", tmp_path / "logs", {"appendfsync": "always"}) as server:
        fill(server, "s")
        log = server.directory / LOG_DIRECTORY
        log.rename(tmp_path / "moved") if how == "moved" else shutil.rmtree(log)
        if how == "replaced":
            log.mkdir()
        count = COUNT
        with server.client() as client, contextlib.suppress(OSError, AssertionError):
            while client.ask("XADD", "s", f"{count + 1}-1", "f", "v").startswith(b"$"):
                count += 1
        assert count > COUNT
        assert server.wait_ended() == 1
        assert f"{LOG_MOVED} ({log}); the tables have everything" in server.log_text()
    words = [sys.executable, "-m", "riverbed.tools.entry", "check", str(server.directory), "--repair"]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    with RiverbedServer(server.directory, tmp_path / "logs") as again:
        assert length(again, "s") == count
