"""The lines of `#` behind the last batch of a log whose batches are synced one by one."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError, LogWriteError
from riverbed.store.format.log_lines import encode_annotation, encode_command
from riverbed.store.log.append_log import Log
from riverbed.store.log.padding import (
    LINE_BYTES,
    MAX_BATCH_BYTES,
    MAX_BYTES,
    MIN_BYTES,
    SHORT_LINE,
    end_of_batches,
    padding,
)
from riverbed.store.log.tail import LogTail
from tests.conftest import StartRedis
from tests.support.read_log import unpadded
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import (
    FIRST,
    MANIFEST,
    ROOT,
    SECOND,
    SELECT,
    append,
    commands_of,
    open_log,
    reopened,
    xadd,
)

REDIS_LINE_BYTES = 1023  # what it reads of a comment at once


def put(log: Log, number: int, value: bytes = b"value") -> None:
    """A batch as the engine commits it where each is synced."""
    append(log, [SELECT, xadd(number, value)])
    log.writer.sync()
    log.writer.pad()


def padded(*values: bytes) -> tuple[FaultyFiles, Log]:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    for number, value in enumerate(values, 1):
        put(log, number, value)
    return files, log


def rest_of(files: FaultyFiles, log: Log) -> bytes:
    return bytes(files.data(FIRST)[log.end.position :])


def batch_of(log: Log, value: bytes) -> bytes:
    """Batch 2, as `append` writes it."""
    commands = encode_command(SELECT) + encode_command(xadd(2, value))
    return commands + encode_annotation(commands, log.end.offset + len(commands), 1_700_000_000_000)


def ending_at(log: Log, head: int, least: int = 0) -> bytes:
    """A value of `least` bytes or more with which batch 2 ends `head` bytes behind the beginning of a line."""
    for length in range(least, least + 2 * LINE_BYTES):
        if (log.end.position + len(batch_of(log, b"v" * length))) % LINE_BYTES == head:
            return b"v" * length
    raise AssertionError("some length fits")


def put_verbatim(log: Log, value: bytes) -> None:
    """Batch 2, in two pieces, as a replica gets it and commits it where each is synced."""
    batch = batch_of(log, value)
    offset = log.end.offset + batch.rfind(b"\n#CK") + 1
    log.writer.append_verbatim((batch[:20], batch[20:]), offset)
    log.writer.sync()
    log.writer.pad()


def assert_comments(rest: bytes) -> None:
    """What Redis skips, and what ends so that Redis may append to it."""
    assert rest.endswith(b"\n")
    for line in rest.splitlines(keepends=True):
        assert line.startswith(b"#")
        assert line.strip(b"#") == b"\n"
        assert len(line) < REDIS_LINE_BYTES


# -- what is written ---------------------------------------------------------------------------------------------------


def test_the_next_batches_replace_padding_and_leave_the_length_of_the_file() -> None:
    files, log = padded(b"a")
    size = len(files.data(FIRST))
    assert MIN_BYTES - LINE_BYTES < size <= MIN_BYTES + 3 * log.end.position
    count = 1
    while log.end.position < MIN_BYTES - 4000:
        count += 1
        put(log, count, b"v" * 1000)
        assert len(files.data(FIRST)) == size
        assert log.size_bytes == log.end.position
    put(log, count + 1, b"v" * 4000)
    assert len(files.data(FIRST)) > size + MIN_BYTES // 2
    assert_comments(rest_of(files, log))
    assert len(reopened(files)[1]) == count + 1


def test_a_batch_may_end_at_any_place_of_a_line() -> None:
    files, log = padded(b"a")
    for head in [*range(LINE_BYTES), LINE_BYTES - 1, LINE_BYTES - 1, 0]:
        put(log, 2, ending_at(log, head))
        assert log.end.position % LINE_BYTES == head
        assert_comments(rest_of(files, log))
        fd = files.open_read(FIRST)
        assert end_of_batches(files, fd, files.size(fd)) == log.end.position
        files.close(fd)
    again, found = reopened(files)
    assert (again.end, again.torn_tail) == (log.end, None)
    assert len(found) == LINE_BYTES + 4


def test_a_batch_too_long_to_be_copied_may_end_at_any_place_of_a_line() -> None:
    for head in (0, 1, 300, LINE_BYTES - 2, LINE_BYTES - 1):
        files, log = padded(b"v" * (200 << 10))
        size = len(files.data(FIRST))
        append(log, [SELECT, xadd(2, ending_at(log, head, 1 << 20))])
        assert log.end.position % LINE_BYTES == head
        assert log.end.position < size == len(files.data(FIRST))
        assert_comments(rest_of(files, log))
        assert len(reopened(files)[1]) == 2


def test_batches_of_another_log_replace_padding_and_leave_the_length_of_the_file() -> None:
    files, log = padded(b"a")
    size = len(files.data(FIRST))
    files.operations.clear()
    for head in (0, 1, 300, LINE_BYTES - 2, LINE_BYTES - 1, LINE_BYTES - 1, 0):
        put_verbatim(log, ending_at(log, head))
        assert log.end.position % LINE_BYTES == head
        assert len(files.data(FIRST)) == size
        assert_comments(rest_of(files, log))
    assert "truncate" not in files.operations
    again, found = reopened(files)
    assert (again.end, again.torn_tail) == (log.end, None)
    assert len(found) == 8


@given(
    st.lists(
        st.integers(0, 3000) | st.sampled_from([20_000, MAX_BATCH_BYTES - 200, MAX_BATCH_BYTES, 2 * MAX_BYTES]),
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None)
def test_batches_of_any_lengths_are_read_back(lengths: list[int]) -> None:
    values = [b"#" * length for length in lengths]
    files, log = padded(*values)
    assert unpadded(bytes(files.data(FIRST))) == bytes(files.data(FIRST)[: log.end.position])
    again, found = reopened(files)
    assert (again.end, again.torn_tail) == (log.end, None)
    assert commands_of(found) == [[SELECT, xadd(number, value)] for number, value in enumerate(values, 1)]
    put(again, 999)
    assert len(reopened(files)[1]) == len(values) + 1


@given(st.integers(0, 3 * LINE_BYTES), st.integers(1, 5))
def test_padding_is_lines_from_anywhere_to_the_beginning_of_a_line(start: int, lines: int) -> None:
    end = (start // LINE_BYTES + 1 + lines) * LINE_BYTES
    assert len(padding(start, end)) == end - start
    assert_comments(padding(start, end))


@pytest.mark.parametrize(("length", "least"), [(100, MIN_BYTES), (30_000, 480_000), (MAX_BATCH_BYTES - 200, MAX_BYTES)])
def test_longer_batches_are_followed_by_more_padding(length: int, least: int) -> None:
    files, log = padded(b"v" * length)
    assert least <= len(rest_of(files, log)) <= 2 * MAX_BYTES


class CountedFiles(FaultyFiles):
    """Notes the first and the last byte of each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int, int]] = []

    def write_at(self, fd: int, data: bytes | memoryview, position: int) -> int:
        self.written.append((position, position + len(data) - 1))
        return super().write_at(fd, data, position)


def test_padding_for_small_batches_is_written_in_pages_of_the_cache() -> None:
    """The system counts all of a larger write as written whenever a batch replaces a part of it."""
    files = CountedFiles()
    log = open_log(ROOT, files)
    for number in range(1, 3000):
        put(log, number)
    assert log.end.position > MIN_BYTES
    assert all(first // 4096 == last // 4096 for first, last in files.written if last - first > 1000)
    files.written.clear()
    put(log, 3000, b"v" * MAX_BYTES)
    put(log, 3001, b"v" * 8192)
    assert len(files.written) == 4, "two of the long batch, and few for batches that are longer themselves"


def test_a_long_batch_is_followed_by_no_padding() -> None:
    files, log = padded(b"v" * MAX_BATCH_BYTES)
    assert rest_of(files, log) == b""


def test_a_log_that_is_read_again_goes_on_in_its_padding() -> None:
    files, log = padded(b"a")
    size = len(files.data(FIRST))
    again, _ = reopened(files)
    assert again.end == log.end
    for head in (LINE_BYTES - 1, 300):
        put(again, 2, ending_at(again, head))
        assert len(files.data(FIRST)) == size
        assert_comments(rest_of(files, again))
    again.rotate()
    assert len(files.data(FIRST)) == again.size_bytes


def test_the_next_file_is_padded_where_a_batch_went_beyond_the_padding() -> None:
    files, log = padded(b"a", b"v" * 2 * MAX_BYTES)
    assert rest_of(files, log) == b""
    log.rotate()
    put(log, 3)
    assert len(files.data(SECOND)) >= MIN_BYTES


def test_nothing_is_put_behind_batches_without_padding() -> None:
    log = open_log(ROOT, files := FaultyFiles())
    append(log, [SELECT, xadd(2, ending_at(log, LINE_BYTES - 1))])
    assert rest_of(files, log) == b""
    batch = batch_of(log, ending_at(log, LINE_BYTES - 1))
    log.writer.append_verbatim((batch,), log.end.offset + batch.rfind(b"\n#CK") + 1)
    assert rest_of(files, log) == b""


def test_a_batch_may_end_one_byte_before_the_padding_does() -> None:
    files, log = padded(b"a")
    room = len(files.data(FIRST)) - log.end.position
    value = b"v" * (2 * room - 1 - len(batch_of(log, b"v" * room)))
    append(log, [SELECT, xadd(2, value)])
    assert rest_of(files, log) == SHORT_LINE
    log.writer.sync()
    files.free = 0
    log.writer.pad()
    assert rest_of(files, log) == SHORT_LINE  # and no half of it
    files.free = None
    log.rotate()
    assert len(files.data(FIRST)) == log.size_bytes


# -- what is read ------------------------------------------------------------------------------------------------------


def test_only_what_padding_may_be_is_taken_for_it() -> None:
    files = FaultyFiles()
    for data, end in (
        (b"", 0),
        (b"batch\r\n", 7),
        (b"batch\r\n#", 8),
        (b"batch\r\n#\n", 9),
        (b"batch\r\n" + b"#" * 505, 512),
        (b"batch\r\n" + b"#" * 504 + b"\n", 7),
        (b"batch\r\n" + b"#" * 504 + b"\n" + b"#" * 512, 1024),
        (b"batch\r\n" + b"#" * 504 + b"\n" + b"#" * 511 + b"\n", 7),
        (b"x" * 509 + b"\r\n#\n", 511),
        (b"#" * 511 + b"\n", 0),
        (b"x\r\n" + b"#" * ((4 << 20) - 4) + b"\n", 4 << 20),
    ):
        files.put(FIRST, data)
        fd = files.open_read(FIRST)
        assert end_of_batches(files, fd, len(data)) == end, data[:20]
        files.close(fd)


def test_a_batch_that_a_power_cut_has_torn_within_padding_is_cut_off() -> None:
    for kept in range(130):
        files, log = padded(b"a", b"b")
        expected = log.end
        append(log, [xadd(3, b"v" * 10)])
        after = files.crash(kept)
        again, found = reopened(after)
        size = log.end.position - expected.position
        assert len(found) == 2 + (kept >= size)
        if 0 < kept < size:
            assert again.torn_tail is not None
            assert again.torn_tail.position == expected.position
            assert again.torn_tail.byte_count <= kept
            again.cut_tail()
        put(again, 4)
        assert len(reopened(after)[1]) == len(found) + 1


def test_a_bit_that_flips_in_padding_loses_nothing() -> None:
    files, log = padded(b"a", b"b")
    data = files.data(FIRST)
    begin, end = log.end.position, len(data)
    for at in (begin, begin + 1, LINE_BYTES - 1, LINE_BYTES, begin + 5000, end - 513, end - 2, end - 1):
        for bit in range(8):
            damaged = files.copy()
            damaged.data(FIRST)[at] ^= 1 << bit
            again, found = reopened(damaged)
            assert len(found) == 2
            again.cut_tail()
            put(again, 3)
            assert len(reopened(damaged)[1]) == 3


def test_a_bit_that_flips_in_the_batch_before_padding_is_damage() -> None:
    files, log = padded(b"a", b"b")
    for at in range(log.end.position - 60, log.end.position):
        for bit in range(8):
            damaged = files.copy()
            damaged.data(FIRST)[at] ^= 1 << bit
            with pytest.raises(CorruptionError):
                reopened(damaged)


# -- a disk that refuses -----------------------------------------------------------------------------------------------


def test_a_disk_that_refuses_padding_takes_batches() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    files.fail("write", errno.ENOSPC, after=1)
    put(log, 1)
    assert rest_of(files, log) == b""
    files.operations.clear()
    for number in range(2, 20):
        put(log, number)
    assert files.operations.count("write") == 18  # and no other try so soon
    assert rest_of(files, log) == b""
    put(log, 20, b"v" * MIN_BYTES)
    put(log, 21)
    assert_comments(rest_of(files, log))
    assert len(reopened(files)[1]) == 21


def padded_in_part(value: bytes, *faults: str) -> tuple[FaultyFiles, Log]:
    """A log of one batch, for whose padding the disk had a thousand bytes; operations of `faults` fail."""
    files, log = padded()
    append(log, [SELECT, xadd(1, value)])
    log.writer.sync()
    files.free = 1000
    for operation in faults:
        files.fail(operation, errno.EIO)
    log.writer.pad()
    return files, log


def test_a_disk_that_fills_up_within_padding_is_cut_back_to_the_batch() -> None:
    files, log = padded_in_part(b"value")
    assert rest_of(files, log) == b""
    assert files.free == 1000


def test_no_padding_is_put_behind_some_that_is_there_in_part() -> None:
    files, log = padded_in_part(b"v" * 100_000, "truncate")
    assert len(rest_of(files, log)) == 1000
    files.free = None
    for number in range(2, 12):
        put(log, number, b"v" * 200_000)
    assert_comments(rest_of(files, log))
    assert len(reopened(files)[1]) == 11


def test_a_file_ends_with_its_last_batch_where_padding_could_not_be_cut_off_at_once() -> None:
    files, log = padded_in_part(b"value", "truncate")
    files.free = None
    end = log.end.position
    log.rotate()
    assert len(files.data(FIRST)) == end
    put(log, 2)
    assert len(reopened(files)[1]) == 2


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_batch_that_fails_within_padding_is_cut_off(number: int) -> None:
    files, log = padded(b"a")
    files.fail("write", number)
    with pytest.raises(LogWriteError):
        append(log, [xadd(2)])
    assert rest_of(files, log) == b""
    files.operations.clear()
    log.writer.sync()  # with the new length
    log.writer.sync()
    assert files.operations == ["sync"]
    put(log, 3)
    assert_comments(rest_of(files, log))
    assert len(reopened(files)[1]) == 2


def test_a_batch_whose_sync_fails_is_cut_off_with_its_padding() -> None:
    files, log = padded(b"a")
    append(log, [xadd(2)])
    files.fail("sync", errno.EIO)
    with pytest.raises(LogWriteError):
        log.writer.sync()
    assert log.writer.drop_last_batch()
    assert rest_of(files, log) == b""
    log.close()
    assert len(reopened(files)[1]) == 1


# -- files that end ----------------------------------------------------------------------------------------------------


def test_a_file_that_is_closed_ends_with_its_last_batch() -> None:
    files, log = padded(b"a")
    append(log, [xadd(2)])
    log.writer.sync()  # with the padding behind it
    end = log.end.position
    log.rotate()
    assert len(files.data(FIRST)) == len(files.crash().data(FIRST)) == end
    assert b" size %d " % end in bytes(files.data(MANIFEST))
    put(log, 3)
    log.close()
    assert not any(b"##" in files.data(path) for path in files.paths())


def test_a_file_whose_padding_cannot_be_cut_off_is_appended_to_further() -> None:
    files, log = padded(b"a")
    files.fail("truncate", errno.EIO)
    with pytest.raises(LogWriteError, match="padding"):
        log.rotate()
    assert not log.broken
    put(log, 2)
    assert len(reopened(files)[1]) == 2


def test_a_log_that_is_broken_is_left_as_it_is() -> None:
    files, log = padded(b"a")
    size = len(files.data(FIRST))
    files.fail("sync", errno.EIO)
    append(log, [xadd(2)])
    with pytest.raises(LogWriteError):
        log.writer.sync()
    log.close()
    assert len(files.data(FIRST)) == size


def test_a_closed_file_may_have_padding() -> None:
    """As of a server that was killed, where a power cut then took the last cut of an offline compaction."""
    files, log = padded(b"a", b"b")
    before = bytes(files.data(FIRST))
    log.rotate()
    put(log, 3)
    files.data(FIRST)[:] = before
    again, found = reopened(files)
    assert (len(found), again.torn_tail) == (3, None)
    tail = LogTail(again, files, found[0].end, verbatim=True)
    sent = b"".join(iter(lambda: tail.read(1 << 20), b""))
    assert sent.count(b"XADD") == 2
    assert b"##" not in sent
    tail.close()


# -- a real Redis ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [0, 1, 2, 300, LINE_BYTES - 2, LINE_BYTES - 1])
def test_a_real_redis_loads_a_padded_log_appends_to_it_and_loads_it_again(
    tmp_path: Path, start_redis: StartRedis, head: int
) -> None:
    log = open_log(tmp_path, OsFiles())
    put(log, 1)
    append(log, [SELECT, xadd(2, ending_at(log, head))])
    assert log.end.position % LINE_BYTES == head
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "appendonlydir", copy / "appendonlydir")
    program = shutil.which("redis-check-aof")
    assert program is not None, "redis-check-aof comes with redis-server"
    done = subprocess.run(
        [program, str(copy / "appendonlydir" / MANIFEST.name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    for number in range(3, 6):
        server = start_redis(copy)
        with server.client() as client:
            assert client.ask("XADD", "s", f"{number}-1", "from", "redis") == b"$3\r\n%d-1\r\n" % number
            assert client.ask("XLEN", "s") == b":%d\r\n" % number
        server.stop()
    log.close()
