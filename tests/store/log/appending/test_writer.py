"""What is written to the file that is appended to, and what is left of a write or a sync that fails."""

from __future__ import annotations

import errno
import tracemalloc

import pytest

from riverbed.store.errors import LogWriteError
from riverbed.store.format.log_lines import encode_annotation, encode_command
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import FIRST, ROOT, SELECT, SOME, append, commands_of, open_log, reopened, xadd


def test_what_is_written_is_the_commands_and_the_annotation_of_the_format() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    text = encode_command(xadd(1))
    log.writer.append(text, len(text), 1234)
    assert files.data(FIRST) == text + encode_annotation(text, len(text), 1234)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_long_batch_is_not_copied_and_is_cut_back_when_a_part_of_it_cannot_be_written(failing: int) -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [xadd(1)])
    before, end = bytes(files.data(FIRST)), log.end
    text = encode_command(xadd(2, b"x" * (1 << 20)))
    files.fail("write", errno.ENOSPC, after=failing)
    with pytest.raises(LogWriteError):
        log.writer.append(text, len(text), 1234)
    assert (files.data(FIRST), log.end) == (before, end)

    tracemalloc.start()
    annotation = log.writer.append(text, len(text), 1234)
    copied = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert files.data(FIRST) == before + text + annotation
    assert annotation == encode_annotation(text, log.end.offset, 1234)
    assert copied < 2.5 * len(text)  # a file in memory grows by that; with a copy it would be above three
    assert commands_of(reopened(files)[1]) == [[xadd(1)], [xadd(2, b"x" * (1 << 20))]]


def test_short_writes_are_completed() -> None:
    files = FaultyFiles()
    files.write_limit = 7
    log = open_log(ROOT, files)
    for commands in SOME:
        append(log, commands)
    _, found = reopened(files)
    assert commands_of(found) == SOME


def test_a_disk_that_fills_up_at_any_byte_leaves_whole_batches_and_is_survived() -> None:
    text_bytes = len(encode_command(xadd(3))) + len(encode_annotation(encode_command(xadd(3)), 100, 1_700_000_000_000))
    for free in range(text_bytes):
        files = FaultyFiles()
        log = open_log(ROOT, files)
        append(log, [SELECT, xadd(1)])
        append(log, [xadd(2)])
        before = bytes(files.data(FIRST))
        files.free = free
        with pytest.raises(LogWriteError, match="No space left") as caught:
            append(log, [xadd(3)])
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.ENOSPC
        assert not log.broken
        assert files.data(FIRST) == before
        files.free = None
        append(log, [xadd(4)])
        log.writer.sync()
        _, found = reopened(files.crash())
        assert commands_of(found) == [[SELECT, xadd(1)], [xadd(2)], [xadd(4)]]


def test_a_write_that_cannot_be_cut_back_breaks_the_log_for_good() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    log.writer.sync()
    files.free = 10
    files.fail("truncate", errno.EIO)
    with pytest.raises(LogWriteError, match="cutting it back"):
        append(log, [xadd(2)])
    files.free = None
    assert log.broken
    for operation in (lambda: append(log, [xadd(3)]), log.writer.sync, log.rotate):
        with pytest.raises(LogWriteError):
            operation()
    # What was written before can still be read here; the next start finds a torn tail.
    assert commands_of(list(log.read())) == [[SELECT, xadd(1)]]
    again, found = reopened(files)
    assert commands_of(found) == [[SELECT, xadd(1)]]
    assert again.torn_tail is not None


def test_a_sync_that_failed_is_never_tried_again() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    log.writer.sync()
    append(log, [xadd(2)])
    files.fail("sync", errno.EIO)
    with pytest.raises(LogWriteError, match="Input/output error"):
        log.writer.sync()
    assert log.broken
    files.operations.clear()
    for operation in (log.writer.sync, lambda: append(log, [xadd(3)]), log.rotate_if_needed, log.rotate):
        if operation == log.rotate_if_needed:
            assert operation() is False
            continue
        with pytest.raises(LogWriteError):
            operation()
    assert files.operations == []
    assert log.synced_offset == len(encode_command(SELECT) + encode_command(xadd(1)))


def test_what_was_not_synced_is_lost_from_its_end() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    log.writer.sync()
    synced = log.end
    append(log, [xadd(2)])
    second = log.end
    append(log, [xadd(3)])
    assert log.unsynced_bytes == log.end.position - synced.position
    for kept in range(log.end.position - synced.position + 1):
        again, found = reopened(files.crash(kept))
        expected = 1 + (synced.position + kept >= second.position) + (synced.position + kept >= log.end.position)
        assert len(found) == expected
        assert (again.torn_tail is None) == (
            synced.position + kept in (synced.position, second.position, log.end.position)
        )


def test_syncing_nothing_costs_nothing() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT])
    log.writer.sync()
    files.operations.clear()
    log.writer.sync()
    assert files.operations == []
