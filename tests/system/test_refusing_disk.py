"""A disk refuses for a moment what is new on it, and recovers: nothing is lost that was acknowledged before and after.

ext4 keeps such places marked as never written, also when the same bytes are written there again: they are zeros once
the file system is mounted again.  A start puts such files in other places.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import broken_invariants
from tests.support.faults.disks import RefusingDisk, small_tmpfs, unmount
from tests.support.raw import parse
from tests.support.servers import RiverbedServer, Server
from tests.support.waiting import until

pytestmark = [pytest.mark.needs_root, pytest.mark.slow]

DISK_BYTES = 96 << 20
MANY = 500
# The tests make their checkpoints.
SELDOM = {"checkpoint-interval-ms": 600_000}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RefusingDisk]:
    with (
        small_tmpfs(tmp_path / "memory", DISK_BYTES + (8 << 20)) as memory,
        RefusingDisk(memory / "disk.img", tmp_path / "disk", DISK_BYTES) as disk,
    ):
        yield disk


class Writer:
    """Adds entries to a stream; `acknowledged` are the IDs of those that were taken."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.acknowledged: list[bytes] = []

    def add(self, count: int) -> bool:
        """Add so many entries; -> whether all of them were taken: none is sent behind one that is refused."""
        with self.server.client() as client:
            for _ in range(count):
                try:
                    reply = client.ask("XADD", "s", "*", "v", b"x" * 3000)
                except ConnectionError:  # the server cannot tell what came of it
                    return False
                if not reply.startswith(b"$"):
                    assert reply.startswith(b"-MISCONF"), reply
                    return False
                self.acknowledged.append(parse(reply).text)
        return True

    def found(self) -> list[bytes]:
        with self.server.client() as client:
            return [entry.children[0].text for entry in parse(client.ask("XRANGE", "s", "-", "+")).children]


def saved(server: Server) -> bool:
    with server.client() as client:
        reply = client.ask("SAVE")
    assert reply == b"+OK\r\n" or b"checkpoint failed" in reply, reply
    return reply == b"+OK\r\n"


@pytest.mark.parametrize("way", [Server.kill, Server.stop])
@pytest.mark.parametrize(("folder", "file"), [("appendonlydir", "appendonly.aof.1.incr.aof"), ("state", "data.mdb")])
def test_what_a_disk_refused_is_there_after_the_next_boot(
    disk: RefusingDisk,
    tmp_path: Path,
    folder: str,
    file: str,
    way: Callable[[Server], object],
) -> None:
    place = tmp_path / "data" / folder
    on_disk = disk.directory / folder
    place.mkdir(parents=True)
    on_disk.mkdir()
    subprocess.run(["mount", "--bind", on_disk, place], check=True)
    server = RiverbedServer(place.parent, tmp_path / "logs", SELDOM | {"appendfsync": "everysec"})
    try:
        server.start()
        writer = Writer(server)
        writer.add(MANY)
        assert saved(server)
        with disk.refusing():
            # what ext4 has set apart for a file is not free
            until(lambda: not (writer.add(MANY) and saved(server)), "a write that the disk refuses")
        way(server)
        server.options["appendfsync"] = "always"
        server.start()
        assert f"{file} was copied: the disk had refused part of it" in server.log_text()
        assert writer.found() == writer.acknowledged
        for _ in range(2):  # two commits, so that none counts that was there before
            assert writer.add(MANY)
            assert saved(server)
        assert writer.add(MANY)
        server.kill()

        unmount(place)
        disk.unmount()
        disk.mount()
        subprocess.run(["mount", "--bind", on_disk, place], check=True)
        (server.directory / "state" / "in-use").write_text("another boot")
        server.start()
        assert writer.found() == writer.acknowledged
        server.stop()
        assert broken_invariants(server.directory) == []
        assert server.log_text().count("was copied") == 1
    finally:
        server.kill()
        unmount(place)
