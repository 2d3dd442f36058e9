"""The next file of the log begins while more is appended: whatever fails, each batch is there, and once."""

from __future__ import annotations

import errno
import random
from typing import Final
from unittest.mock import MagicMock

import pytest

from riverbed.store.disk.page_cache import CachedEnd
from riverbed.store.errors import CorruptionError, LogWriteError
from riverbed.store.format.log_lines import encode_command, encode_preface
from riverbed.store.log import tail as tail_module
from riverbed.store.log.append_log import Log
from riverbed.store.log.appending.replacement import Replacement
from riverbed.store.log.home import LogHome
from riverbed.store.log.scrub import scrubbed_part
from riverbed.store.log.search import KnownOffsets, LogSearch
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.log.tail import LogTail
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import FIRST, ROOT, SECOND, SELECT, append, commands_of, open_log, reopened, xadd

NOW_MS: Final = 1_700_000_000_000
FIRST_BATCH: Final = [SELECT, xadd(1)]
ALL: Final = [FIRST_BATCH, *([xadd(number)] for number in range(2, 6))]


def preface(log: Log) -> bytes:
    return encode_preface(0, log.offset, NOW_MS)


def begun(files: FaultyFiles) -> tuple[Log, Replacement]:
    """A log that begins its second file behind two batches, which are durable, and has two more since.

    -> it, and what a thread has to run.
    """
    log = open_log(ROOT, files)
    append(log, ALL[0])
    append(log, ALL[1])
    log.writer.sync()
    replacement = begin_next(log)
    append(log, ALL[2])
    append(log, ALL[3])
    return log, replacement


def begin_next(log: Log) -> Replacement:
    """Begin the next file; -> what a thread has to run."""
    return log.begin_next_file(preface(log))


def found(files: FaultyFiles) -> list[list[list[bytes]]]:
    """The batches that the next start finds, without prefaces; it appends one more, and a start after it finds that."""
    log, batches = reopened(files)
    append(log, [xadd(99)])
    log.close()
    again, more = reopened(files)
    again.close()
    assert commands_of(more) == [*commands_of(batches), [xadd(99)]]
    assert files.open_count == 0
    return [commands for commands in commands_of(batches) if commands != [SELECT]]


def test_the_file_before_ends_where_the_next_one_begins() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    begins_at = log.lasting_end
    assert log.end.file_seq == 1 and log.end > begins_at
    assert not log.home.has_incr(2)
    log.listing.settle()
    assert log.home.has_incr(2)
    assert log.end.file_seq == 2 and log.end == log.lasting_end
    assert log.home.manifest.incrs[0].size == begins_at.position
    append(log, ALL[4])
    assert log.size_bytes == begins_at.position + len(files.data(SECOND))
    log.writer.sync()
    log.close()
    assert len(files.data(FIRST)) == begins_at.position
    assert found(files.crash()) == ALL


def test_a_batch_behind_the_beginning_is_whole_in_both_files_and_its_offset_is_the_same() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    offset, start = log.offset, log.lasting_end
    first, second = bytes(files.data(FIRST)), bytes(files.data(SECOND))
    assert first[start.position :] and second.endswith(first[start.position :])
    assert second.removesuffix(first[start.position :]) == encode_preface(0, start.offset, NOW_MS)
    log.listing.settle()
    assert (log.offset, log.end.position) == (offset, len(second))


@pytest.mark.parametrize("runs", [False, True])
def test_a_kill_before_and_behind_the_list_loses_nothing_and_repeats_nothing(runs: bool) -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, ALL[0])
    append(log, ALL[1])
    replacement = begin_next(log)
    append(log, ALL[2])
    if runs:
        replacement.run()
    append(log, ALL[3])
    killed = files.kill()
    assert len(killed.data(FIRST)) > log.lasting_end.position
    assert found(killed) == ALL[:4]
    if runs:
        assert len(killed.data(FIRST)) == log.lasting_end.position, "other readers would execute it twice"


def test_a_start_that_is_refused_leaves_what_lies_behind_a_closed_file() -> None:
    files = FaultyFiles()
    _, replacement = begun(files)
    replacement.run()
    killed = files.kill()
    killed.data(SECOND)[90] ^= 1  # a sound batch follows
    before = bytes(killed.data(FIRST))
    with pytest.raises(CorruptionError):
        reopened(killed)
    assert bytes(killed.data(FIRST)) == before


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("kept", [0, 7, 150, 10_000])
@pytest.mark.parametrize("operations", range(12))
def test_a_power_cut_at_any_step_loses_nothing_that_was_synced(
    monkeypatch: pytest.MonkeyPatch, operations: int, kept: int, names: bool
) -> None:
    """Synced with each batch, as under `always`; the power goes after so many operations of the thread."""
    files = FaultyFiles()
    log, replacement = begun(files)
    log.writer.sync()

    left = operations
    crashed: list[FaultyFiles] = []
    step = files._step

    def counted(operation: str) -> None:
        nonlocal left
        if left == 0 and not crashed:
            crashed.append(files.crash(kept, names=names))
        left -= 1
        step(operation)

    monkeypatch.setattr(files, "_step", counted)
    replacement.run()
    assert found(crashed[0] if crashed else files.crash(kept, names=names)) == ALL[:4]


@pytest.mark.parametrize("names", [False, True])
def test_what_lies_before_the_next_file_is_durable_before_that_is_listed(names: bool) -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, ALL[0])
    append(log, ALL[1])
    begin_next(log)
    append(log, ALL[2])
    log.listing.settle()
    assert found(files.crash(names=names))[:2] == ALL[:2]


def test_a_sync_makes_both_files_durable() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, ALL[0])
    replacement = begin_next(log)
    replacement.run()
    append(log, ALL[1])
    log.writer.sync()
    assert found(files.crash()) == ALL[:2]
    log.listing.settle()
    assert log.synced == log.end
    assert found(files.crash()) == ALL[:2]


def test_what_was_not_synced_is_not_called_durable() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    log.listing.settle()
    assert log.synced.file_seq == 2
    assert log.synced_offset == log.home.manifest.incrs[1].start_offset
    assert log.unsynced_bytes > 0
    log.writer.sync()
    assert log.unsynced_bytes == 0


@pytest.mark.parametrize("later", range(3))
def test_a_batch_that_one_of_the_files_does_not_take_is_in_neither(later: int) -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    before = log.end, bytes(files.data(FIRST)), bytes(files.data(SECOND))
    files.fail("write", errno.ENOSPC, later)
    with pytest.raises(LogWriteError, match="No space"):
        append(log, ALL[4])
    assert (log.end, bytes(files.data(FIRST)), bytes(files.data(SECOND))) == before
    append(log, ALL[4])
    log.listing.settle()
    assert found(files.kill()) == ALL


def test_a_batch_that_was_cut_off_is_cut_off_durably_in_the_next_file_as_well() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    log.writer.sync()
    files.fail("write", errno.ENOSPC, 1)
    with pytest.raises(LogWriteError):
        append(log, ALL[4])
    log.listing.settle()
    before = len(files.operations)
    log.writer.sync()
    assert files.operations[before:] == ["sync"]
    log.writer.sync()
    assert files.operations[before:] == ["sync"]


def test_a_batch_of_the_primary_is_in_both_files() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    batch = bytes(files.data(FIRST)[log.lasting_end.position :])
    others = FaultyFiles()
    other = open_log(ROOT, others)
    append(other, FIRST_BATCH)
    other.writer.sync()
    begin_next(other)
    other.writer.append_verbatim([batch[:30], batch[30:]], log.offset)
    assert bytes(others.data(SECOND)).endswith(batch)
    other.listing.settle()
    assert other.end.position == len(others.data(SECOND))


def test_an_undone_batch_is_in_neither_file() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    log.writer.sync()
    append(log, ALL[4])
    files.fail("sync", errno.EIO)
    with pytest.raises(LogWriteError):
        log.writer.sync()
    assert log.writer.drop_last_batch()
    log.listing.settle()
    assert not log.home.has_incr(2), "a sync has failed, and no later one is believed"
    assert found(files.crash()) == ALL[:4]


@pytest.mark.parametrize("operation", ["create", "write", "rename", "sync_directory"])
def test_a_file_that_cannot_be_listed_leaves_the_log_in_the_one_before(operation: str) -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, ALL[0])
    append(log, ALL[1])
    files.fail(operation, errno.ENOSPC, after=int(operation == "write"))  # the preface is a write as well
    if operation == "create":
        with pytest.raises(LogWriteError, match="could not be begun"):
            begin_next(log)
    else:
        replacement = begin_next(log)
        replacement.run()
        append(log, ALL[2])
        log.listing.settle()
        assert "No space" in str(log.rotate_error)
    assert log.end.file_seq == 1 and not log.broken
    assert not files.exists(SECOND)
    append(log, ALL[3])
    begin_next(log)
    append(log, ALL[4])
    log.listing.settle()
    assert log.end.file_seq == 2 and log.rotate_error is None
    assert found(files.kill()) == [batch for batch in ALL if operation != "create" or batch != ALL[2]]


def test_a_preface_that_cannot_be_written_leaves_nothing_begun() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, ALL[0])
    files.fail("write", errno.ENOSPC)
    with pytest.raises(LogWriteError, match="could not be begun"):
        begin_next(log)
    assert not files.exists(SECOND)
    append(log, ALL[1])
    log.close()
    assert found(files) == ALL[:2]


@pytest.mark.parametrize("after", [0, 1])
def test_a_file_that_cannot_be_synced_breaks_the_log(after: int) -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    files.fail("sync", errno.EIO, after)
    log.listing.settle()
    assert log.broken and log.end.file_seq == 1
    with pytest.raises(LogWriteError):
        append(log, ALL[4])


def test_a_list_that_may_not_be_durable_breaks_the_log_and_a_start_finds_all_with_either() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    log.writer.sync()
    files.fail("sync_directory", errno.EIO, after=1)
    log.listing.settle()
    assert log.broken
    for after in (files.crash(), files.crash(names=True)):
        assert found(after) == ALL[:4]


def test_another_change_of_the_list_waits_for_the_one_under_way() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    replids = ReplicationIds.new()
    log.listing.set_replids(replids)
    assert log.end.file_seq == 2
    log.close()
    again, _ = reopened(files)
    assert again.replids == replids and again.home.has_incr(2)


def test_the_copy_behind_a_closed_file_stays_until_the_file_after_the_next_one_begins() -> None:
    """Readers of other processes may have the manifest from before."""
    files = FaultyFiles()
    log, _ = begun(files)
    log.listing.settle()
    closed = log.home.manifest.incrs[0].size
    assert closed is not None and len(files.data(FIRST)) > closed
    begin_next(log)
    log.listing.settle()
    assert len(files.data(FIRST)) == closed


def test_a_file_that_could_not_be_cut_is_read_once_and_cut_by_the_next_start() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    log.listing.settle()
    append(log, ALL[4])
    closed = log.home.manifest.incrs[0].size
    files.fail("truncate", errno.EIO)
    log.close()
    assert closed is not None and len(files.data(FIRST)) > closed
    assert found(files) == ALL
    assert len(files.data(FIRST)) == closed


def test_no_file_is_listed_once_the_log_is_broken() -> None:
    files = FaultyFiles()
    log, replacement = begun(files)
    replacement.sync()
    log.condition.break_log("a sync of the loop has failed")
    replacement.run()
    log.listing.settle()
    assert not log.home.has_incr(2)
    assert found(files.crash())[:2] == ALL[:2]


@pytest.mark.parametrize("error", [MemoryError("a defect"), ValueError("a defect")])
@pytest.mark.parametrize("operation", ["sync", "rename", "sync_directory"])
def test_a_defect_while_a_file_is_listed_ends_with_a_log_that_says_so(
    monkeypatch: pytest.MonkeyPatch, operation: str, error: Exception
) -> None:
    """It is a thread that meets it; the loop, which looks afterwards, must not take that for done."""
    files = FaultyFiles()
    log, replacement = begun(files)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(files, operation, fail)
        replacement.run()
    log.listing.settle()
    assert log.broken
    assert log.writer.successor is None
    with pytest.raises(LogWriteError, match="a defect"):
        append(log, ALL[4])
    assert found(files.crash())[:2] == ALL[:2]


def test_a_new_manifest_that_memory_is_too_short_to_put_into_effect_breaks_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is on the disk by then, and batches may go to the file before."""
    files = FaultyFiles()
    log, replacement = begun(files)
    before = found(files.crash())

    def short(*_: object) -> None:
        raise MemoryError

    replacement.run()
    with monkeypatch.context() as patch:
        patch.setattr(LogHome, "cut_copies", short)
        with pytest.raises(LogWriteError, match="could not be put into effect: MemoryError"):
            log.listing.settle()
    assert log.broken
    with pytest.raises(LogWriteError):
        append(log, ALL[4])
    log.close()
    assert found(files)[: len(before)] == before


def test_a_file_whose_beginning_memory_is_too_short_to_end_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles()
    log, replacement = begun(files)
    replacement.run()
    with monkeypatch.context() as patch:
        patch.setattr(CachedEnd, "begin_file", MagicMock(side_effect=MemoryError))
        with pytest.raises(LogWriteError, match="could not be put into effect: MemoryError"):
            log.listing.settle()
    monkeypatch.setattr(files, "close", close := MagicMock(wraps=files.close))
    log.close()
    close.assert_called_once()


def test_a_file_that_memory_is_too_short_to_begin_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches went to it as well, and nothing was ever to list it."""
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, ALL[0])
    with monkeypatch.context() as patch:
        patch.setattr(log.listing, "begin", MagicMock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            begin_next(log)
    assert log.lasting_end == log.end
    append(log, ALL[1])
    assert not files.exists(SECOND)
    log.close()
    assert found(files) == ALL[:2]


def test_nothing_is_begun_behind_a_file_that_takes_no_appends() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, FIRST_BATCH)
    log.writer.close()
    with pytest.raises(LogWriteError, match="takes no appends"):
        begin_next(log)
    assert not files.exists(SECOND)


# -- readers of what grows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbatim", [True, False])
@pytest.mark.parametrize("most", [1, 40, 10_000])
@pytest.mark.parametrize("longest", [0, 1 << 20])
def test_a_replica_is_sent_each_byte_once_wherever_it_is_when_the_file_begins(
    monkeypatch: pytest.MonkeyPatch, longest: int, most: int, verbatim: bool
) -> None:
    monkeypatch.setattr(tail_module, "_LONG_BATCH_BYTES", longest)
    for seed in range(30):
        chance = random.Random(seed)
        files = FaultyFiles()
        log = open_log(ROOT, files)
        append(log, FIRST_BATCH)
        tail = LogTail(log, files, LogPosition(1, 0, 0), verbatim=verbatim)
        got = b""
        number = 2
        for _ in range(3):
            for step in range(6):
                if step == 2:
                    begin_next(log)
                if chance.random() < 0.5:
                    append(log, [xadd(number), xadd(number + 1)])
                    number += 2
                for _ in range(chance.randrange(4)):
                    got += tail.read(most) or b""
                if chance.random() < 0.2:
                    log.history.hold_tails()
            log.listing.settle()
        while (data := tail.read(most)) != b"":
            got += data or b""
        tail.close()
        if verbatim:
            stream = LogStream(0, 1 << 20)
            stream.feed(got)
            batches = list(iter(stream.next, None))
            commands = [words for batch in batches for words in batch.commands]
            assert batches[-1].offset == log.offset
        else:
            assert len(got) == log.offset
            commands = [xadd(each) for each in range(1, number) if encode_command(xadd(each)) in got]
            assert got == b"".join(map(encode_command, [SELECT, *commands]))
        assert [words for words in commands if words != SELECT] == [xadd(each) for each in range(1, number)]


def test_a_search_under_way_finds_what_has_become_a_place_of_the_next_file() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, FIRST_BATCH)
    for number in range(2, 40):
        append(log, [xadd(number)])
    begin_next(log)
    for number in range(40, 60):
        append(log, [xadd(number)])
    offset = log.offset
    append(log, [xadd(60)])
    search = LogSearch(log, files, offset, KnownOffsets(), any_byte=False)
    assert not search.step(45)
    log.listing.settle()
    while not search.step(5):
        pass
    assert search.place is not None and search.place.file_seq == 2
    tail = LogTail(log, files, search.place, verbatim=False)
    assert tail.read(10_000) == encode_command(xadd(60))


def test_the_scrub_reads_only_what_stays_where_it_is() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    part = scrubbed_part(log, log.home.manifest.incrs[0], files)
    assert part.size == log.lasting_end.position < log.end.position
    log.listing.settle()
    assert part.size == scrubbed_part(log, log.home.manifest.incrs[0], files).size < len(files.data(FIRST))
