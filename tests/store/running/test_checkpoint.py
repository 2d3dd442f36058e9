from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import LogWriteError
from riverbed.store.options import Fsync
from riverbed.store.tables.data_file.power_loss import is_in_doubt
from tests.support.store.stores import Store


class FailsOneSync(OsFiles):
    """The kernel tells of what it has lost once: the next sync succeeds."""

    fails = False

    def sync(self, fd: int, /) -> None:
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "Input/output error")
        super().sync(fd)


class LosesAWrite(OsFiles):
    """As Linux tells of a write that has failed: once for each time that the file was opened."""

    def __init__(self) -> None:
        self.in_sync: list[Callable[[], None]] = []  # called within the next sync of this thread
        self.lost: Path | None = None  # the file
        self._told: list[int] = []

    def sync(self, fd: int, /) -> None:
        if self.in_sync and threading.current_thread() is threading.main_thread():
            self.in_sync.pop()()
        if self.lost is not None and os.path.samestat(os.fstat(fd), self.lost.stat()) and fd not in self._told:
            self._told.append(fd)
            raise OSError(errno.EIO, "Input/output error")
        OsFiles.sync(fd)


def test_a_batch_is_not_answered_whose_write_was_lost_as_a_thread_syncs_the_file(tmp_path: Path) -> None:
    files = LosesAWrite()
    store = Store(tmp_path / "store", files=files, fsync=Fsync.ALWAYS)
    store.add(b"s", "1-0")
    store.commit()
    durability = store.engine.begin_checkpoint(divides_log=True)

    def meanwhile() -> None:
        files.lost = store.engine.log.home.parts()[-1].path
        thread = threading.Thread(target=durability.run)
        thread.start()
        thread.join()

    files.in_sync.append(meanwhile)
    store.add(b"s", "2-0")
    with pytest.raises(LogWriteError, match="syncing the log failed"):
        store.commit()
    assert store.engine.log.broken
    assert store.engine.refusal is not None
    store.kill()


@pytest.mark.parametrize("divides_log", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_checkpoint_is_not_believed_when_another_sync_of_the_log_fails_meanwhile(
    tmp_path: Path, divides_log: bool, is_late: bool
) -> None:
    """Whichever of the two was first at the disk: only one is told what was lost of both."""
    files = FailsOneSync()
    store = Store(tmp_path / "store", files=files, fsync=Fsync.EVERYSEC)
    store.add(b"s", "1-0")
    store.checkpoint()
    store.add(b"s", "2-0")
    store.commit()
    durability = store.engine.begin_checkpoint(divides_log=divides_log)
    if is_late:
        durability.run()
    store.add(b"s", "3-0")
    store.commit()
    files.fails = True
    with pytest.raises(LogWriteError):
        store.engine.keeper.sync()
    if not is_late:
        durability.run()

    with pytest.raises(LogWriteError, match="syncing the log failed"):
        store.engine.end_checkpoint()
    assert not store.engine.checkpoints.last_ok
    assert store.engine.refusal is not None
    assert is_in_doubt(store.directory / "state")
    store.kill()
    store.open()
    assert store.stream().length == 3
    assert store.violations() == []
    store.kill()
