"""The manifest of a log that is appended to, and what a disk that cannot take it means for the log."""

from __future__ import annotations

import errno

import pytest

from riverbed.store.errors import LogWriteError
from riverbed.store.replication_id import ReplicationIds
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import MANIFEST, ROOT, SELECT, append, commands_of, open_log, reopened, xadd

IDS = ReplicationIds("a" * 40, store_id="b" * 40)


def test_ids_that_could_not_be_written_are_written_before_the_next_batch() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    files.fail("create", errno.ENOSPC)
    with pytest.raises(LogWriteError, match="manifest"):
        log.listing.set_replids(IDS)
    assert log.replids == IDS
    assert not log.broken
    assert b"a" * 40 not in files.data(MANIFEST)
    files.operations.clear()
    append(log, [SELECT, xadd(1)])
    assert b"a" * 40 in files.data(MANIFEST)
    assert files.operations.index("rename") < len(files.operations) - 1  # the batch comes last
    assert files.operations[-1] == "write"


def test_no_batch_is_written_while_the_ids_cannot_be() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    for operation in (
        lambda: log.listing.set_replids(IDS),
        lambda: append(log, [SELECT, xadd(1)]),
        lambda: log.writer.append_verbatim((b"some batch",), 10),
    ):
        files.fail("create", errno.ENOSPC)
        with pytest.raises(LogWriteError, match="manifest"):
            operation()
    assert log.end.position == log.size_bytes == 0
    append(log, [SELECT, xadd(1)])
    again, batches = reopened(files)
    assert commands_of(batches) == [[SELECT, xadd(1)]]
    assert again.replids == IDS


def test_a_manifest_that_a_crash_may_take_back_breaks_the_log() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    files.fail("sync_directory", errno.EIO, after=1)
    with pytest.raises(LogWriteError):
        log.listing.note_policy(is_unsynced=True)
    assert log.broken
    for operation in (lambda: append(log, [xadd(2)]), log.writer.sync, log.rotate):
        with pytest.raises(LogWriteError):
            operation()
    assert commands_of(reopened(files)[1]) == [[SELECT, xadd(1)]]
