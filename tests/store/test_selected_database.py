"""A command is executed in the database that it was logged for, whatever becomes of the files of the log.

A batch that follows others has no SELECT of its own, and what each file begins with is no part of what replicas are
sent: so a file that begins with the SELECT of another database shows first in a replica, or behind the next start.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.disk.files import OsFiles
from riverbed.store.format.log_lines import encode_annotation, encode_command
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.log.tail import LogTail
from riverbed.store.offline.compaction import Compaction
from riverbed.store.position import LogPosition
from riverbed.store.progress import ignore
from riverbed.store.rewrite.log_from_tables import rebuild_log
from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.snapshot.restore import restore_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from tests.support.store.stores import Store


class Link:
    """What a primary sends to a replica: batches as they are in its log, or made up."""

    def __init__(self, replica: Store) -> None:
        self.replica = replica
        replica.txn.follows = True
        self._stream = LogStream(0, 1 << 26)
        self._offset = 0

    def forward(self, primary: Store, start: LogPosition) -> None:
        """Send all that the log of `primary` has behind `start`."""
        tail = LogTail(primary.engine.log, OsFiles(), start, verbatim=True)
        while data := tail.read(1 << 20):
            self._stream.feed(data)
        tail.close()
        self._apply()

    def send(self, *commands: list[bytes]) -> None:
        """Send a batch of `commands`."""
        self.feed(*commands)
        self._apply()

    def feed(self, *commands: list[bytes]) -> None:
        """As `send`, together with the next one."""
        lines = b"".join(map(encode_command, commands))
        self._offset += len(lines)
        self._stream.feed(lines + encode_annotation(lines, self._offset, 1_700_000_000_000))

    def _apply(self) -> None:
        self.replica.engine.apply(list(iter(self._stream.next, None)))


def xadd(key: bytes, entry_id: bytes, value: bytes = b"v") -> list[bytes]:
    return [b"XADD", key, entry_id, b"f", value]


def lengths(store: Store) -> dict[tuple[int, bytes], int]:
    """The streams by database and key."""
    return {
        (db.number, key): stream.length
        for db in store.txn.databases
        for key in (b"a", b"b")
        if (stream := db.stream(key, 0)) is not None
    }


def test_a_file_that_begins_while_a_command_is_undone_does_not_begin_with_what_that_had_selected(
    tmp_path: Path,
) -> None:
    primary = Store(tmp_path / "primary", segment_bytes=2000)
    link = Link(Store(tmp_path / "replica", is_replica=True))
    primary.add(b"a", "1-0")
    primary.checkpoint()
    primary.add(b"a", "2-0", words=(b"f", b"x" * 5000))
    mark = primary.txn.mark()
    primary.add(b"b", "1-0", db=5)
    primary.engine.rollback(primary.clock.now_ms, mark)
    assert primary.engine.log.end.file_seq == 2
    primary.add(b"b", "7-0", db=5)
    primary.commit()

    link.forward(primary, LogPosition(1, 0, 0))
    assert lengths(link.replica) == lengths(primary) == {(0, b"a"): 2, (5, b"b"): 1}
    primary.crash()
    assert lengths(primary) == lengths(link.replica)
    primary.kill()
    link.replica.kill()


class RefusesAPreface(OsFiles):
    """A disk that is full when the next SELECT is written alone."""

    is_full = False

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        if self.is_full and position == 0 and bytes(data[:16]).startswith(b"*2\r\n$6\r\nSELECT"):
            self.is_full = False
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_at(fd, data, position)


def test_a_replica_whose_file_has_got_its_select_late_has_the_one_before_the_next_batches(tmp_path: Path) -> None:
    files = RefusesAPreface()
    link = Link(Store(tmp_path / "replica", is_replica=True, segment_bytes=2000, files=files))
    link.send([b"SELECT", b"0"], xadd(b"a", b"1-0"))
    files.is_full = True
    link.send(xadd(b"a", b"2-0", b"x" * 5000))
    assert not files.is_full
    link.feed(xadd(b"a", b"3-0"))
    link.send([b"SELECT", b"1"], xadd(b"b", b"1-0"))

    expected = {(0, b"a"): 3, (1, b"b"): 1}
    assert lengths(link.replica) == expected
    link.replica.crash()
    assert lengths(link.replica) == expected
    link.replica.kill()


def compacted(directory: Path) -> Path:
    with Compaction(directory, Replayer().execute, now_ms=1) as compaction:
        assert not compaction.run().has_new_id
    return directory


def restored(directory: Path) -> Path:
    snapshot = directory.with_name("snapshot")
    take_snapshot(directory, snapshot, program="test")
    target = directory.with_name("restored")
    restore_snapshot(open_snapshot(snapshot), target, steps=ignore)
    return target


def logged_again(directory: Path) -> Path:
    shutil.rmtree(directory / "appendonlydir")
    rebuild_log(directory, now_ms=1)
    return directory


@pytest.mark.parametrize("make", [compacted, restored, logged_again])
@pytest.mark.parametrize("keeps_tables", [True, False])
def test_a_log_that_a_tool_has_made_says_what_is_selected_behind_its_base(
    tmp_path: Path, make: Callable[[Path], Path], keeps_tables: bool
) -> None:
    """The base ends with the highest database, which is not the one that the primary's next batch is for."""
    replica = Store(tmp_path / "replica", is_replica=True)
    link = Link(replica)
    link.send([b"SELECT", b"3"], xadd(b"a", b"1-0"), [b"SELECT", b"0"], xadd(b"b", b"1-0"))
    replica.engine.close()

    replica.directory = make(replica.directory)
    if not keeps_tables:
        shutil.rmtree(replica.directory / "state")
    replica.open()
    assert (replica.engine.recovery.commands == 0) == keeps_tables
    replica.txn.follows = True
    link.send(xadd(b"b", b"2-0"))
    assert lengths(replica) == {(3, b"a"): 1, (0, b"b"): 2}
    assert replica.violations() == []
    replica.kill()
