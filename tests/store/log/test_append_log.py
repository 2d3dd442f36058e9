from __future__ import annotations

import errno
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.store.errors import CorruptionError, LogWriteError
from riverbed.store.format.log_lines import encode_command
from riverbed.store.log.files.checksummed import ChecksummedReader
from riverbed.store.log.files.part_reader import CHUNK_BYTES
from riverbed.store.position import LogPosition
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import (
    FIRST,
    MANIFEST,
    ROOT,
    SECOND,
    SELECT,
    SETTINGS,
    SOME,
    Words,
    append,
    commands_of,
    filled,
    open_log,
    reopened,
    xadd,
)

# -- written and read back ---------------------------------------------------------------------------------------------


def test_a_new_log_is_one_empty_file_that_begins_with_select() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    assert log.end == LogPosition(1, 0, 0)
    assert log.rotate_if_needed()
    assert files.data(FIRST) == b""
    listed = files.data(MANIFEST).splitlines(keepends=True)
    assert [line for line in listed if not line.startswith(b"#")] == [
        b"file appendonly.aof.1.incr.aof seq 1 type i startoffset 0 checksum crc32c\n"
    ]
    append(log, [SELECT])
    assert not log.rotate_if_needed()


def test_batches_are_read_back_in_order_with_their_ends_and_times() -> None:
    files, ends = filled(SOME)
    log, batches = reopened(files)
    assert commands_of(batches) == SOME
    assert [batch.end for batch in batches] == ends
    assert [batch.time_ms for batch in batches] == [1_700_000_000_000 + number for number in range(5)]
    assert [batch.start for batch in batches] == [0, *(end.position for end in ends[:-1])]
    assert {batch.file for batch in batches} == {str(FIRST)}
    assert log.end == ends[-1]
    assert log.torn_tail is None
    assert log.size_bytes == len(files.data(FIRST)) == sum(batch.size for batch in batches)


def test_lines_in_values_that_look_like_comments_do_not_make_reading_slow() -> None:
    batches = [[xadd(1, b"\r\n# not a comment\r\n#C")], [xadd(2, b"\n#\n#RB:")]]
    files, _ = filled(batches)
    with patch.object(ChecksummedReader, "_exact_batch", side_effect=AssertionError("the slow way")):
        assert commands_of(reopened(files)[1]) == batches


def test_the_offset_counts_commands_and_not_comment_lines() -> None:
    _, ends = filled([[xadd(1)], [SETTINGS], [xadd(2), SETTINGS]])
    size = len(encode_command(xadd(1)))
    assert [end.offset for end in ends] == [size, size, 2 * size]


def test_reading_begins_at_the_end_of_any_batch() -> None:
    files, ends = filled(SOME, segment_bytes=200)
    assert ends[-1].file_seq > 1
    for number, end in enumerate(ends):
        log = open_log(ROOT, files)
        assert commands_of(list(log.read(end))) == SOME[number + 1 :]
        assert log.end == ends[-1]


@pytest.mark.parametrize("shift", [(0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 10_000, 0), (7, 0, 0)])
def test_reading_from_where_no_batch_ends_is_refused(shift: tuple[int, int, int]) -> None:
    files, ends = filled(SOME)
    place = LogPosition(*(value + change for value, change in zip(ends[2], shift, strict=True)))
    with pytest.raises(CorruptionError):
        list(open_log(ROOT, files).read(place))


def test_nothing_is_appended_before_the_log_was_read_to_its_end() -> None:
    files, _ = filled(SOME)
    log = open_log(ROOT, files)
    for operation in (lambda: append(log, [xadd(9)]), log.writer.sync, log.rotate, lambda: log.end):
        with pytest.raises(LogWriteError, match="not read"):
            operation()
    reading = log.read()
    next(reading)
    with pytest.raises(LogWriteError, match="not read"):
        append(log, [xadd(9)])
    list(reading)
    append(log, [xadd(9)])
    assert commands_of(list(log.read())) == [*SOME, [xadd(9)]]


def test_a_reader_sees_what_the_log_held_when_it_began() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [xadd(1)])
    reading = log.read()
    first = next(reading)
    append(log, [xadd(2)])
    log.rotate()
    append(log, [xadd(3)])
    assert list(reading) == []
    assert commands_of(list(log.read(first.end))) == [[xadd(2)], [xadd(3)]]


def test_a_reopened_log_goes_on_where_it_ended() -> None:
    files, _ = filled(SOME)
    for number in range(3):
        log, _ = reopened(files)
        assert log.rotate_if_needed() is False
        append(log, [xadd(100 + number)])
        log.close()
    _, batches = reopened(files)
    assert commands_of(batches) == [*SOME, [xadd(100)], [xadd(101)], [xadd(102)]]


def test_what_a_killed_process_left_is_synced_before_it_is_read() -> None:
    files, ends = filled(SOME, segment_bytes=200)
    log = open_log(ROOT, files)
    files.operations.clear()
    assert log.synced_offset == 0
    reading = log.read()
    next(reading)
    assert files.operations.count("sync") == ends[-1].file_seq
    list(reading)
    assert log.synced_offset == ends[-1].offset
    assert log.unsynced_bytes == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.binary(max_size=60), min_size=1, max_size=4), min_size=1, max_size=4), max_size=8),
    st.integers(1, 400),
)
def test_any_words_are_read_back(batches: list[list[Words]], segment_bytes: int) -> None:
    files, ends = filled(batches, segment_bytes)
    log, found = reopened(files)
    assert commands_of(found) == batches
    assert [batch.end for batch in found] == ends
    assert log.torn_tail is None


@pytest.mark.parametrize("value_bytes", [CHUNK_BYTES - 300, CHUNK_BYTES, 3 * CHUNK_BYTES, 40 * CHUNK_BYTES])
@pytest.mark.parametrize("filler", [b"x", b"line\n# title\n"])
def test_batches_longer_than_a_chunk_are_read_back(value_bytes: int, filler: bytes) -> None:
    value = (filler * (value_bytes // len(filler) + 1))[:value_bytes]
    batches = [[xadd(1)], [xadd(2, value), SETTINGS, xadd(3)], [xadd(4)], [xadd(5, value)], [xadd(6)]]
    files, ends = filled(batches)
    _, found = reopened(files)
    assert [batch.end for batch in found] == ends
    assert commands_of(found) == batches


def test_batches_of_many_commands_are_read_back() -> None:
    batches = [[xadd(batch * 100_000 + number) for number in range(50_000)] for batch in range(3)]
    files, ends = filled(batches)
    _, found = reopened(files)
    assert commands_of(found) == batches
    assert [batch.end for batch in found] == ends


def test_an_extension_of_any_length_keeps_its_place_and_its_lines_short() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    long = [b"XCFGSET", b"k" * 5000]
    commands = [SELECT, long, SETTINGS, xadd(1), SETTINGS]
    append(log, commands)
    assert max(map(len, files.data(FIRST).splitlines(keepends=True))) < 1000
    assert commands_of(list(log.read())) == [commands]


# -- rotation ----------------------------------------------------------------------------------------------------------


def test_a_full_file_is_closed_durably_before_the_next_begins() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files, segment_bytes=100)
    append(log, [SELECT, xadd(1), xadd(2)])
    end = log.end
    assert log.rotate_if_needed()
    assert log.end == LogPosition(2, 0, end.offset)
    append(log, [SELECT, xadd(3)])
    log.writer.sync()
    assert log.incr_count == 2
    assert log.size_bytes == len(files.data(FIRST)) + len(files.data(SECOND))
    text = bytes(files.data(MANIFEST)).decode()
    assert f"appendonly.aof.1.incr.aof seq 1 type i startoffset 0 size {end.position} checksum crc32c\n" in text
    assert f"appendonly.aof.2.incr.aof seq 2 type i startoffset {end.offset} checksum crc32c\n" in text
    _, found = reopened(files.crash())
    assert commands_of(found) == [[SELECT, xadd(1), xadd(2)], [SELECT, xadd(3)]]


@pytest.mark.parametrize("operation", ["create", "write", "rename"])
def test_a_rotation_that_fails_goes_on_in_the_present_file(operation: str) -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files, segment_bytes=100)
    append(log, [SELECT, xadd(1), xadd(2)])
    files.fail(operation, errno.ENOSPC)
    assert log.rotate_if_needed() is False
    assert log.rotate_error is not None
    append(log, [xadd(3)])
    assert log.end.file_seq == 1
    append(log, [xadd(4)])
    assert log.rotate_if_needed() is True
    assert log.rotate_error is None
    append(log, [SELECT, xadd(5)])
    log.writer.sync()
    _, found = reopened(files.crash())
    assert [words for batch in found for words in batch.commands] == [SELECT, *map(xadd, (1, 2, 3, 4)), SELECT, xadd(5)]


def test_a_rotation_nobody_knows_the_outcome_of_breaks_the_log() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files, segment_bytes=100)
    append(log, [SELECT, xadd(1), xadd(2)])
    files.fail("sync_directory", errno.EIO, after=1)
    with pytest.raises(LogWriteError):
        log.rotate_if_needed()
    assert log.broken
    for names in (False, True):
        _, found = reopened(files.crash(names=names))
        assert commands_of(found) == [[SELECT, xadd(1), xadd(2)]]


def script(files: FaultyFiles) -> tuple[list[list[Words]], list[list[Words]]]:
    """Append, sync and rotate until something fails; -> what was written or tried, and how much of it was durable."""
    tried: list[list[Words]] = []
    durable = 0
    try:
        log = open_log(ROOT, files, segment_bytes=250)
        for number in range(12):
            head = [SELECT] if log.rotate_if_needed() else []
            tried.append([*head, xadd(number), SETTINGS])
            append(log, tried[-1])
            log.writer.sync()
            durable = len(tried)
    except (LogWriteError, OSError):
        pass
    return tried, tried[:durable]


def test_a_crash_at_any_operation_loses_nothing_that_was_synced() -> None:
    files = FaultyFiles()
    script(files)
    for operation in ("open", "create", "write", "sync", "rename", "sync_directory", "make_directory"):
        for after in range(files.operations.count(operation)):
            for kept in (0, 5, 150, 1000):
                for names in (False, True):
                    faulty = FaultyFiles()
                    faulty.fail(operation, errno.EIO, after=after)
                    tried, durable = script(faulty)
                    log, found = reopened(faulty.crash(kept, names=names))
                    assert commands_of(found)[: len(durable)] == durable
                    assert commands_of(found) == tried[: len(found)]
                    log.cut_tail()
                    log.rotate_if_needed()
                    append(log, [xadd(99)])


def test_the_log_is_fresh_until_something_that_counts_is_written() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    assert not log.is_fresh
    log.rotate()
    assert log.is_fresh
    log.writer.write_preface(0, 1)
    assert log.is_fresh
    append(log, [SELECT, xadd(2)])
    assert not log.is_fresh
