from __future__ import annotations

import errno
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
