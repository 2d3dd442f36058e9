from __future__ import annotations

import errno
import random
import shutil
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from store import manifest as manifests
from store.errors import CorruptionError, LogWriteError
from store.files import OsFiles
from store.log import Batch, Log, LogPosition, TornTail
from store.logfile import CHUNK_BYTES, PLAIN_BATCH_COMMANDS
from store.logformat import encode_annotation, encode_command, encode_extension
from store.logreader import LogReader, list_parts
from store.rdb import is_empty_rdb
from tests.raw import RawClient
from tests.servers import RedisServer
from tests.store.faulty_files import FaultyFiles

ROOT = Path("/data")
HOME = ROOT / "appendonlydir"
FIRST = HOME / "appendonly.aof.1.incr.aof"
SECOND = HOME / "appendonly.aof.2.incr.aof"
MANIFEST = HOME / "appendonly.aof.manifest"

Words = list[bytes]
StartRedis = Callable[..., RedisServer]

SELECT = [b"SELECT", b"0"]
SETTINGS = [b"XCFGSET", b"s", b"IDMP-DURATION", b"100"]


def xadd(number: int, value: bytes = b"value") -> Words:
    return [b"XADD", b"s", b"%d-1" % number, b"field", value]


def append(log: Log, commands: list[Words], now_ms: int = 1_700_000_000_000) -> None:
    """One batch; what Redis 7 does not know goes into comment lines."""
    plain = [encode_command(words) for words in commands if words[0] != b"XCFGSET"]
    parts = [(encode_extension if words[0] == b"XCFGSET" else encode_command)(words) for words in commands]
    log.append(b"".join(parts), sum(map(len, plain)), now_ms)


def reopened(files: FaultyFiles, **options: int) -> tuple[Log, list[Batch]]:
    log = Log.open(ROOT, files, **options)
    return log, list(log.read())


def commands_of(batches: list[Batch]) -> list[list[Words]]:
    return [batch.commands for batch in batches]


def filled(batches: list[list[Words]], segment_bytes: int = 1 << 30) -> tuple[FaultyFiles, list[LogPosition]]:
    """A file system with a log of these batches, and where each of them ends."""
    files = FaultyFiles()
    log = Log.open(ROOT, files, segment_bytes=segment_bytes)
    ends = []
    for number, commands in enumerate(batches):
        log.rotate_if_needed()
        append(log, commands, now_ms=1_700_000_000_000 + number)
        ends.append(log.end)
    log.sync()
    log.close()
    assert files.open_count == 0
    return files, ends


SOME = [
    [SELECT, xadd(1)],
    [xadd(2), SETTINGS, xadd(3)],
    [SETTINGS],
    [xadd(4, b"\r\n# not a comment\r\n#RB:neither\r\n"), xadd(5, b"")],
    [[b"MULTI"], xadd(6), xadd(7), [b"EXEC"]],
]


# -- written and read back ---------------------------------------------------------------------------------------------


def test_a_new_log_is_one_empty_file_that_begins_with_select() -> None:
    files = FaultyFiles()
    log = Log.open(ROOT, files)
    assert log.end == LogPosition(1, 0, 0)
    assert log.rotate_if_needed()
    assert files.data(FIRST) == b""
    assert files.data(MANIFEST).splitlines(keepends=True)[1:2] == [
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


def test_what_is_written_is_the_commands_and_the_annotation_of_the_format() -> None:
    files = FaultyFiles()
    log = Log.open(ROOT, files)
    text = encode_command(xadd(1))
    log.append(text, len(text), 1234)
    assert files.data(FIRST) == text + encode_annotation(text, len(text), 1234)


def test_the_offset_counts_commands_and_not_comment_lines() -> None:
    _, ends = filled([[xadd(1)], [SETTINGS], [xadd(2), SETTINGS]])
    size = len(encode_command(xadd(1)))
    assert [end.offset for end in ends] == [size, size, 2 * size]


def test_reading_begins_at_the_end_of_any_batch() -> None:
    files, ends = filled(SOME, segment_bytes=200)
    assert ends[-1].file_seq > 1
    for number, end in enumerate(ends):
        log = Log.open(ROOT, files)
        assert commands_of(list(log.read(end))) == SOME[number + 1 :]
        assert log.end == ends[-1]


@pytest.mark.parametrize("shift", [(0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 10_000, 0), (7, 0, 0)])
def test_reading_from_where_no_batch_ends_is_refused(shift: tuple[int, int, int]) -> None:
    files, ends = filled(SOME)
    place = LogPosition(*(value + change for value, change in zip(ends[2], shift, strict=True)))
    with pytest.raises(CorruptionError):
        list(Log.open(ROOT, files).read(place))


def test_nothing_is_appended_before_the_log_was_read_to_its_end() -> None:
    files, _ = filled(SOME)
    log = Log.open(ROOT, files)
    for operation in (lambda: append(log, [xadd(9)]), log.sync, log.rotate, lambda: log.end):
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
    log = Log.open(ROOT, files)
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
    log = Log.open(ROOT, files)
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
    log = Log.open(ROOT, files)
    long = [b"XCFGSET", b"k" * 5000]
    commands = [SELECT, long, SETTINGS, xadd(1), SETTINGS]
    append(log, commands)
    assert max(map(len, files.data(FIRST).splitlines(keepends=True))) < 1000
    assert commands_of(list(log.read())) == [commands]


# -- rotation ----------------------------------------------------------------------------------------------------------


def test_a_full_file_is_closed_durably_before_the_next_begins() -> None:
    files = FaultyFiles()
    log = Log.open(ROOT, files, segment_bytes=100)
    append(log, [SELECT, xadd(1), xadd(2)])
    end = log.end
    assert log.rotate_if_needed()
    assert log.end == LogPosition(2, 0, end.offset)
    append(log, [SELECT, xadd(3)])
    log.sync()
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
    log = Log.open(ROOT, files, segment_bytes=100)
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
    log.sync()
    _, found = reopened(files.crash())
    assert [words for batch in found for words in batch.commands] == [SELECT, *map(xadd, (1, 2, 3, 4)), SELECT, xadd(5)]


def test_a_rotation_nobody_knows_the_outcome_of_breaks_the_log() -> None:
    files = FaultyFiles()
    log = Log.open(ROOT, files, segment_bytes=100)
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
        log = Log.open(ROOT, files, segment_bytes=250)
        for number in range(12):
            head = [SELECT] if log.rotate_if_needed() else []
            tried.append([*head, xadd(number), SETTINGS])
            append(log, tried[-1])
            log.sync()
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


# -- faults ------------------------------------------------------------------------------------------------------------


def test_short_writes_are_completed() -> None:
    files = FaultyFiles()
    files.write_limit = 7
    log = Log.open(ROOT, files)
    for commands in SOME:
        append(log, commands)
    _, found = reopened(files)
    assert commands_of(found) == SOME


def test_a_disk_that_fills_up_at_any_byte_leaves_whole_batches_and_is_survived() -> None:
    text_bytes = len(encode_command(xadd(3))) + len(encode_annotation(encode_command(xadd(3)), 100, 1_700_000_000_000))
    for free in range(text_bytes):
        files = FaultyFiles()
        log = Log.open(ROOT, files)
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
        log.sync()
        _, found = reopened(files.crash())
        assert commands_of(found) == [[SELECT, xadd(1)], [xadd(2)], [xadd(4)]]


def test_a_write_that_cannot_be_cut_back_breaks_the_log_for_good() -> None:
    files = FaultyFiles()
    log = Log.open(ROOT, files)
    append(log, [SELECT, xadd(1)])
    log.sync()
    files.free = 10
    files.fail("truncate", errno.EIO)
    with pytest.raises(LogWriteError, match="cutting it back"):
        append(log, [xadd(2)])
    files.free = None
    assert log.broken
    for operation in (lambda: append(log, [xadd(3)]), log.sync, log.rotate):
        with pytest.raises(LogWriteError):
            operation()
    # What was written before can still be read here; the next start finds a torn tail.
    assert commands_of(list(log.read())) == [[SELECT, xadd(1)]]
    again, found = reopened(files)
    assert commands_of(found) == [[SELECT, xadd(1)]]
    assert again.torn_tail is not None


def test_a_sync_that_failed_is_never_tried_again() -> None:
    files = FaultyFiles()
    log = Log.open(ROOT, files)
    append(log, [SELECT, xadd(1)])
    log.sync()
    append(log, [xadd(2)])
    files.fail("sync", errno.EIO)
    with pytest.raises(LogWriteError, match="Input/output error"):
        log.sync()
    assert log.broken
    files.operations.clear()
    for operation in (log.sync, lambda: append(log, [xadd(3)]), log.rotate_if_needed, log.rotate):
        if operation == log.rotate_if_needed:
            assert operation() is False
            continue
        with pytest.raises(LogWriteError):
            operation()
    assert files.operations == []
    assert log.synced_offset == len(encode_command(SELECT) + encode_command(xadd(1)))


def test_what_was_not_synced_is_lost_from_its_end() -> None:
    files = FaultyFiles()
    log = Log.open(ROOT, files)
    append(log, [SELECT, xadd(1)])
    log.sync()
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
    log = Log.open(ROOT, files)
    append(log, [SELECT])
    log.sync()
    files.operations.clear()
    log.sync()
    assert files.operations == []


# -- torn tails --------------------------------------------------------------------------------------------------------


def lookalike(offset: int) -> bytes:
    """A value that holds whole batches, sound to the last bit, with an annotation that closes nothing."""
    text = encode_command(xadd(1))
    return b"\r\n" + (text + encode_annotation(text, offset, 1)) * 3 + b"\r\n#CK:crc32c=00000000;len=1;off=1;t=1\r\n"


TAILS = {
    "plain": [[xadd(3), xadd(4)], [xadd(5)], [xadd(6), xadd(7)]],
    "extensions": [[xadd(3), SETTINGS], [SETTINGS], [SETTINGS, xadd(4), [b"XCFGSET", b"k" * 800]]],
    "lookalikes": [[xadd(3, lookalike(40))], [xadd(4, lookalike(80)), xadd(5)], [xadd(6, lookalike(0)), xadd(7)]],
    "comments in values": [[xadd(3, b"\n#\n")], [xadd(4, b"\r\n#CK:\r\n")], [xadd(5, b"\r\n#RB:AAAA\r\n"), xadd(6)]],
    "transactions": [[[b"MULTI"], xadd(3), xadd(4), [b"EXEC"]]] * 3,
}


@pytest.mark.parametrize("tail", TAILS)
def test_every_prefix_of_the_last_three_batches_is_cut_back_to_whole_batches(tail: str) -> None:
    batches = [[SELECT, xadd(1)], [xadd(2)], *TAILS[tail]]
    files, ends = filled(batches)
    whole = bytes(files.data(FIRST))
    for size in range(ends[1].position, len(whole)):
        cut = files.copy()
        del cut.data(FIRST)[size:]
        count = sum(end.position <= size for end in ends)
        log = Log.open(ROOT, cut)
        assert commands_of(list(log.read())) == batches[:count]
        last = ends[count - 1]
        if last.position == size:
            assert log.torn_tail is None
            assert log.cut_tail() is None
        else:
            torn = log.torn_tail
            assert torn is not None
            assert torn.file == str(FIRST)
            assert (torn.position, torn.byte_count, torn.offset) == (last.position, size - last.position, last.offset)
            # Nothing is removed before it is asked for, and nothing is appended behind a torn tail.
            assert len(cut.data(FIRST)) == size
            with pytest.raises(LogWriteError, match="torn tail"):
                append(log, [xadd(8)])
            assert log.cut_tail() == torn
            assert log.cut_tail() is None
        assert bytes(cut.data(FIRST)) == whole[: last.position]
        assert log.end == last
        append(log, [xadd(8)])
        _, found = reopened(cut.crash(1000))
        assert commands_of(found) == [*batches[:count], [xadd(8)]]


def test_a_torn_tail_may_be_any_bytes() -> None:
    files, ends = filled(SOME)
    whole = bytes(files.data(FIRST))
    source = random.Random(7)
    for junk in (
        b"\0" * 5000,
        b"#",
        b"*",
        b"\r\n",
        b"*3\r\n$99999999999\r\nx",
        b"#CK:crc32c=",
        b"*1\r\n$4\r\nPING\r\n",
    ):
        for data in (junk, source.randbytes(300) + junk, b"#comment\r\n" + junk):
            damaged = files.copy()
            damaged.data(FIRST).extend(data)
            log, found = reopened(damaged)
            assert commands_of(found) == SOME
            assert log.torn_tail is not None
            assert (log.torn_tail.position, log.torn_tail.byte_count) == (len(whole), len(data))
            assert log.end == ends[-1]


def test_a_torn_first_batch_leaves_an_empty_log() -> None:
    files, ends = filled([[SELECT, *map(xadd, range(5))]])
    for size in range(1, ends[0].position):
        cut = files.copy()
        del cut.data(FIRST)[size:]
        log, found = reopened(cut)
        assert found == []
        assert log.torn_tail is not None
        log.cut_tail()
        assert log.end == LogPosition(1, 0, 0)
        assert log.rotate_if_needed()


def test_a_torn_tail_is_an_error_when_truncation_is_not_allowed() -> None:
    files, _ = filled(SOME)
    del files.data(FIRST)[-1:]
    with pytest.raises(CorruptionError, match="aof-load-truncated"):
        list(Log.open(ROOT, files, load_truncated=False).read())


def test_a_tail_below_what_a_checkpoint_covers_is_corrupt() -> None:
    files, ends = filled(SOME)
    for number, end in enumerate(ends):
        cut = files.copy()
        del cut.data(FIRST)[end.position - 1 :]
        for durable in ends:
            log = Log.open(ROOT, cut)
            if durable < end:
                list(log.read(min_position=durable))
                assert log.torn_tail is not None
                assert log.end == (ends[number - 1] if number else LogPosition(1, 0, 0))
            else:
                with pytest.raises(CorruptionError):
                    list(log.read(min_position=durable))
                with pytest.raises(CorruptionError):
                    list(Log.open(ROOT, cut).read(durable))


def test_a_log_cut_at_a_batch_is_corrupt_when_a_checkpoint_covers_more() -> None:
    files, ends = filled(SOME)
    del files.data(FIRST)[ends[2].position :]
    with pytest.raises(CorruptionError, match="checkpoint"):
        list(Log.open(ROOT, files).read(min_position=ends[3]))


# -- damage ------------------------------------------------------------------------------------------------------------


def two_hundred_commands() -> list[list[Words]]:
    source = random.Random(3)
    batches: list[list[Words]] = []
    left = 200
    while left:
        size = min(left, source.choice([1, 1, 2, 5, 11]))
        batch = [xadd(1000 - left + number, source.randbytes(source.choice([0, 3, 12]))) for number in range(size)]
        if source.random() < 0.2:
            batch[-1] = SETTINGS
        batches.append(batch)
        left -= size
    return [[SELECT, *batches[0]], *batches[1:]]


def damage_of(files: FaultyFiles) -> tuple[CorruptionError | TornTail | None, list[Batch]]:
    """What reading the log reports, and the batches it gives before that."""
    log = Log.open(ROOT, files)
    found: list[Batch] = []
    try:
        found.extend(log.read())
    except CorruptionError as error:
        return error, found
    return log.torn_tail, found


@pytest.mark.parametrize("segment_bytes", [1 << 30, 6000])
def test_every_flipped_byte_of_a_log_is_noticed(segment_bytes: int) -> None:
    batches = two_hundred_commands()
    files, ends = filled(batches, segment_bytes)
    whole = ends[-2]
    for seq in range(1, ends[-1].file_seq + 1):
        path = HOME / f"appendonly.aof.{seq}.incr.aof"
        data = files.data(path)
        for at in range(len(data)):
            # One bit, each in its turn; and the flip that makes a letter of the other case, a digit a control code.
            for mask in {1 << at % 8, 0x20}:
                data[at] ^= mask
                damage, found = damage_of(files)
                data[at] ^= mask
                if seq == whole.file_seq and at >= whole.position:
                    assert isinstance(damage, TornTail)
                    assert damage.position == whole.position
                    assert commands_of(found) == batches[:-1]
                else:
                    assert isinstance(damage, CorruptionError)
                    assert damage.file == str(path)
                    assert damage.offset is not None
                    assert damage.offset <= at
                    assert "replication offset" in damage.reason
    assert damage_of(files)[0] is None


def test_a_batch_that_is_missing_or_given_twice_is_noticed() -> None:
    files, ends = filled([[SELECT, xadd(1)], [xadd(2)], [xadd(3)], [xadd(4)]])
    data = bytes(files.data(FIRST))
    second = data[ends[0].position : ends[1].position]
    for damaged in (
        data[: ends[0].position] + data[ends[1].position :],
        data[: ends[1].position] + second + data[ends[1].position :],
        second + data,
    ):
        files.put(FIRST, damaged)
        with pytest.raises(CorruptionError, match="replication offset"):
            reopened(files)


def test_bytes_put_in_or_taken_out_are_noticed() -> None:
    files, ends = filled(SOME)
    data = bytes(files.data(FIRST))
    for at in range(ends[-2].position):
        for damaged in (data[:at] + b"\n" + data[at:], data[:at] + data[at + 1 :], data[:at] + b"#\r\n" + data[at:]):
            files.put(FIRST, damaged)
            with pytest.raises(CorruptionError):
                reopened(files)


def test_a_length_that_grew_does_not_swallow_the_batches_after_it() -> None:
    files, _ = filled([[SELECT, xadd(1, b"x" * 100)], *([xadd(number)] for number in range(2, 40))])
    data = bytes(files.data(FIRST))
    for size in (b"101", b"900", b"2000", b"99999", b"999999999999"):
        files.put(FIRST, data.replace(b"$100\r\n", b"$" + size + b"\r\n", 1))
        with pytest.raises(CorruptionError, match="sound again") as caught:
            reopened(files)
        assert caught.value.offset == 0


def test_damage_before_the_last_file_is_never_a_torn_tail() -> None:
    files, ends = filled(SOME, segment_bytes=150)
    assert ends[0].file_seq < ends[-1].file_seq
    for size in (0, 10, ends[0].position - 1):
        cut = files.copy()
        del cut.data(FIRST)[size:]
        with pytest.raises(CorruptionError):
            reopened(cut)
        # A Redis that wrote the manifest anew forgot how long the file was.
        text = bytes(cut.data(MANIFEST)).splitlines(keepends=True)
        text[0] = b"file appendonly.aof.1.incr.aof seq 1 type i startoffset 0 checksum crc32c\n"
        cut.put(MANIFEST, b"".join(text[:-1]))
        with pytest.raises(CorruptionError):
            reopened(cut)


def test_a_listed_file_that_is_missing_is_named() -> None:
    files, _ = filled(SOME, segment_bytes=150)
    files.remove(FIRST)
    with pytest.raises(CorruptionError, match="is missing") as caught:
        Log.open(ROOT, files)
    assert caught.value.file == str(FIRST)


def test_log_files_without_a_manifest_are_not_written_over() -> None:
    files, _ = filled(SOME)
    files.remove(MANIFEST)
    with pytest.raises(CorruptionError, match="no manifest lists it"):
        Log.open(ROOT, files)
    files.put(FIRST, b"")
    assert Log.open(ROOT, files).end == LogPosition(1, 0, 0)


def test_a_file_that_does_not_begin_where_the_one_before_ends_is_refused() -> None:
    files, _ = filled(SOME, segment_bytes=150)
    manifest = manifests.load(MANIFEST, files)
    assert manifest is not None
    first = manifest.incrs[0]
    files.put(MANIFEST, manifests.serialize(manifests.Manifest(incrs=(first, *manifest.incrs[2:]))))
    with pytest.raises(CorruptionError, match="ends elsewhere"):
        reopened(files)


def test_reading_takes_no_more_memory_than_a_batch_and_a_few_chunks(tmp_path: Path) -> None:
    log = Log.open(tmp_path, OsFiles())
    append(log, [SELECT, xadd(1)])
    log.close()
    with (tmp_path / "appendonlydir" / FIRST.name).open("r+b") as file:
        file.truncate(256 * CHUNK_BYTES)
    log = Log.open(tmp_path, OsFiles())
    tracemalloc.start()
    list(log.read())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log.torn_tail is not None
    assert peak < 8 * CHUNK_BYTES


# -- values that look like the log -------------------------------------------------------------------------------------


def test_a_value_that_closes_its_own_batch_is_a_value() -> None:
    """The checksum and the length fit what stands before; only framing tells that a value goes on."""
    outer = [b"XADD", b"s", b"1-1", b"field"]
    value_bytes = 500
    head = b"*5\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in outer) + b"$%d\r\n" % value_bytes
    text = head + b"x\r\n"
    value = (b"x\r\n" + encode_annotation(text, len(text), 5) + b"*1\r\n$4\r\nPING\r\n").ljust(value_bytes, b"y")
    batches = [[[*outer, value]], [xadd(2)]]
    files, _ = filled(batches)
    assert text + encode_annotation(text, len(text), 5) in files.data(FIRST)
    log, found = reopened(files)
    assert commands_of(found) == batches
    assert log.torn_tail is None


def test_a_log_stored_in_itself_is_read_back_and_cut_anywhere() -> None:
    files = FaultyFiles()
    log = Log.open(ROOT, files)
    batches = [[SELECT, xadd(1)], [SETTINGS, xadd(2)], [SETTINGS]]
    for commands in batches:
        append(log, commands)
    for number in range(3):
        batches.append([xadd(10 + number, bytes(files.data(FIRST))), xadd(20 + number)])
        append(log, batches[-1])
    batches.append([SETTINGS])
    append(log, batches[-1])
    start = log.end
    batches.append([xadd(30, bytes(files.data(FIRST))), xadd(40)])
    append(log, batches[-1])
    _, found = reopened(files)
    assert commands_of(found) == batches
    for size in range(start.position, log.end.position, 7):
        cut = files.copy()
        del cut.data(FIRST)[size:]
        again, found = reopened(cut)
        assert commands_of(found) == batches[:-1]
        assert (again.torn_tail is None) == (size == start.position)


# -- a base of ours ----------------------------------------------------------------------------------------------------


def test_the_commands_of_a_base_do_not_move_the_offset() -> None:
    state = [[SELECT, xadd(1)], [SETTINGS], [xadd(2), xadd(3)]]
    base = b""
    for commands in state:
        parts = [(encode_extension if words[0] == b"XCFGSET" else encode_command)(words) for words in commands]
        base += b"".join(parts) + encode_annotation(b"".join(parts), 5000, 7)
    text = plain([SELECT, xadd(4)])
    files = FaultyFiles()
    files.put(HOME / "appendonly.aof.2.base.aof", base)
    files.put(HOME / "appendonly.aof.3.incr.aof", text + encode_annotation(text, 5000 + len(text), 8))
    lines = (
        b"file appendonly.aof.2.base.aof seq 2 type b size %d checksum crc32c\n" % len(base)
        + b"file appendonly.aof.3.incr.aof seq 3 type i startoffset 5000 checksum crc32c\n"
    )
    files.put(MANIFEST, lines + b"#CK:crc32c=%08x\n" % crc32c(lines))
    log, found = reopened(files)
    assert commands_of(found) == [*state, [SELECT, xadd(4)]]
    assert [(batch.end.file_seq, batch.end.offset) for batch in found] == [(-2, 5000)] * 3 + [(3, 5000 + len(text))]
    assert log.base_bytes == len(base)
    assert sorted(batch.end for batch in found) == [batch.end for batch in found]
    for number, batch in enumerate(found):
        assert list(Log.open(ROOT, files).read(batch.end)) == found[number + 1 :]
    data = files.data(HOME / "appendonly.aof.2.base.aof")
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        assert isinstance(damage_of(files)[0], CorruptionError)
        data[at] ^= 1 << at % 8


# -- logs of Redis -----------------------------------------------------------------------------------------------------


def plain(commands: list[Words]) -> bytes:
    return b"".join(map(encode_command, commands))


def redis_log(incr: bytes, base: bytes | None = None) -> FaultyFiles:
    files = FaultyFiles()
    lines = b"file appendonly.aof.1.incr.aof seq 1 type i\n"
    if base is not None:
        lines = b"file appendonly.aof.1.base.aof seq 1 type b\n" + lines
        files.put(HOME / "appendonly.aof.1.base.aof", base)
    files.put(MANIFEST, lines)
    files.put(FIRST, incr)
    return files


def flat(batches: list[Batch]) -> list[Words]:
    return [words for batch in batches for words in batch.commands]


def test_a_log_without_annotations_is_read_and_continued_in_a_file_of_ours() -> None:
    base, incr = [SELECT, *map(xadd, range(5))], [SELECT, *map(xadd, range(5, 1000))]
    files = redis_log(b"#TS:1700000000\r\n#\n" + plain(incr), b"#TS:1700000000\r\n" + plain(base))
    log, found = reopened(files)
    assert flat(found) == [*base, *incr]
    assert {batch.time_ms for batch in found} == {None}
    assert max(len(batch.commands) for batch in found) <= PLAIN_BATCH_COMMANDS
    assert found[0].end.file_seq == -1
    assert log.end == LogPosition(1, len(files.data(FIRST)), len(plain(incr)))
    for batch in found:
        assert flat(list(Log.open(ROOT, files).read(batch.end))) == flat(found[found.index(batch) + 1 :])
    with pytest.raises(LogWriteError, match="rotate"):
        append(log, [xadd(1000)])
    assert log.rotate_if_needed()
    append(log, [SELECT, xadd(1000)])
    log.sync()
    again, found = reopened(files.crash())
    assert flat(found) == [*base, *incr, SELECT, xadd(1000)]
    assert again.end.file_seq == 2
    assert again.base_bytes == len(files.data(HOME / "appendonly.aof.1.base.aof"))
    assert again.size_bytes == sum(len(files.data(HOME / name)) for name in files.names(HOME) if "manifest" not in name)


def test_a_batch_of_redis_holds_what_was_written_in_one_second_and_whole_transactions() -> None:
    text = (
        plain([SELECT])
        + b"#TS:1700000000\r\n"
        + plain([xadd(1), xadd(2), [b"MULTI"], xadd(3)])
        + b"#TS:1700000001\r\n"
        + plain([xadd(4), [b"EXEC"], xadd(5)])
        + b"#TS:1700000001\r\n#TS:not a number\r\n"
        + plain([xadd(6)])
        + b"#TS:1700000009\r\n"
    )
    _, found = reopened(redis_log(text))
    assert [(batch.noted_ms, len(batch.commands)) for batch in found] == [
        (None, 1),
        (1_700_000_000_000, 6),
        (1_700_000_001_000, 1),
        (None, 1),
    ]
    parts = list_parts(HOME, Log.open(ROOT, redis_log(text)).manifest, redis_log(text))
    single = list(LogReader(parts, redis_log(text), plain_batch_commands=1).batches(None, None))
    assert [len(batch.commands) for batch in single] == [1, 1, 1, 4, 1, 1]
    assert flat(single) == flat(found)


EMPTY_RDB = bytes.fromhex(
    "524544495330303130 fa 09 72656469732d766572 06 372e302e3135 fa 0a 72656469732d62697473 c040"
    "fa 05 6374696d65 c2 0c91016b fa 08 616f662d62617365 c001 ff 2d0500e53f536667"
)


def test_the_empty_rdb_of_a_new_redis_is_an_empty_base() -> None:
    files = redis_log(plain([SELECT, xadd(1)]), EMPTY_RDB)
    log, found = reopened(files)
    assert flat(found) == [SELECT, xadd(1)]
    log.rotate_if_needed()
    append(log, [SELECT, xadd(2)])
    log.sync()
    assert flat(reopened(files.crash())[1]) == [SELECT, xadd(1), SELECT, xadd(2)]


@pytest.mark.parametrize(
    "content",
    [
        EMPTY_RDB[:9],
        EMPTY_RDB[:-1],
        EMPTY_RDB + b"\0",
        EMPTY_RDB + plain([SELECT]),
        EMPTY_RDB.replace(b"\xff", b"\xfe\x00\xfb\x01\x00\x00\x01a\x01b\xff"),
        EMPTY_RDB.replace(b"REDIS0010", b"REDIS00x0"),
        EMPTY_RDB.replace(b"\xc2", b"\xc3"),
        EMPTY_RDB + bytes(5000),
    ],
)
def test_an_rdb_that_may_hold_anything_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptionError, match="riverbed import"):
        reopened(redis_log(plain([SELECT, xadd(1)]), content))


@given(st.binary(max_size=60), st.integers(0, len(EMPTY_RDB)))
def test_no_bytes_make_the_look_into_an_rdb_fail(noise: bytes, at: int) -> None:
    for data in (b"REDIS0011" + noise, EMPTY_RDB[:at] + noise):
        assert is_empty_rdb(data) in (True, False)


def test_a_truncated_log_of_redis_is_cut_back_to_a_command_or_before_multi() -> None:
    safe = [SELECT, xadd(1), [b"MULTI"], xadd(2), [b"EXEC"], xadd(3)]
    tail = [xadd(4), [b"MULTI"], xadd(5), xadd(6), [b"EXEC"], xadd(7)]
    marks, size = [], 0
    for words in [*safe, *tail]:
        size += len(encode_command(words))
        marks.append(size)
    text = plain([*safe, *tail])
    for size in range(marks[len(safe) - 1], len(text)):
        whole = sum(mark <= size for mark in marks)
        if len(safe) + 2 <= whole < len(safe) + 5:
            whole = len(safe) + 1
        files = redis_log(text[:size])
        log, found = reopened(files)
        assert flat(found) == [*safe, *tail][:whole]
        torn = log.cut_tail()
        if marks[whole - 1] == size:
            assert torn is None
        else:
            assert torn is not None
            assert (torn.position, torn.byte_count) == (marks[whole - 1], size - marks[whole - 1])
        assert len(files.data(FIRST)) == marks[whole - 1]
        assert log.rotate_if_needed()


@pytest.mark.parametrize(
    "text",
    [
        b"\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*1\n$4\nPING\n",
        b"+PING\r\n",
        b"PING\r\n",
        b"*1\r\n:4\r\n",
        b"*1\r\n$4\r\nPINGxx",
        b"*1\r\n$04\r\nPING\r\n",
        b"*1\r\n$+4\r\nPING\r\n",
        b"*2\r\n$4\r\nECHO\r\n#comment\r\n$1\r\nx\r\n",
        b"*11111111111111111111111\r\n",
        b"#" + b"x" * 1100 + b"\r\n",
        b"\0" * 100,
    ],
)
def test_bytes_that_are_no_command_stop_a_log_of_redis(text: bytes) -> None:
    good = plain([SELECT, xadd(1)])
    for tail in (b"", plain([xadd(2)])):
        with pytest.raises(CorruptionError) as caught:
            reopened(redis_log(good + text + tail))
        assert caught.value.offset == len(good)


def test_only_the_last_file_of_redis_may_end_early() -> None:
    text = plain([SELECT, xadd(1)])
    for base in (text[:-1], text + plain([[b"MULTI"]])):
        with pytest.raises(CorruptionError, match="more files follow"):
            reopened(redis_log(text, base))


def test_an_empty_file_is_fine_anywhere() -> None:
    log, found = reopened(redis_log(b"", b""))
    assert found == []
    assert log.end == LogPosition(1, 0, 0)


@pytest.mark.parametrize("place", ["base", "incr"])
def test_an_rdb_file_is_refused_with_the_commands_that_convert_it(place: str) -> None:
    rdb = b"REDIS0009\xfe\x00\xff" + b"\0" * 8
    files = redis_log(b"", rdb) if place == "base" else redis_log(rdb)
    with pytest.raises(CorruptionError, match="CONFIG SET aof-use-rdb-preamble no` and `BGREWRITEAOF"):
        Log.open(ROOT, files)


def test_a_file_of_ours_that_redis_took_over_is_still_held_to_its_checksums() -> None:
    files, _ = filled(SOME)
    files.put(MANIFEST, b"file appendonly.aof.1.incr.aof seq 1 type i\n")
    files.data(FIRST).extend(plain([SELECT, xadd(50), xadd(51)]))
    log, found = reopened(files)
    assert flat(found) == [*(words for batch in SOME for words in batch), SELECT, xadd(50), xadd(51)]
    assert log.torn_tail is None
    data = files.data(FIRST)
    at = data.index(b"value")
    data[at] ^= 1
    with pytest.raises(CorruptionError, match="checksum"):
        reopened(files)


def test_the_single_file_of_an_old_redis_becomes_the_base() -> None:
    text = plain([SELECT, xadd(1), xadd(2)])
    single = ROOT / "appendonly.aof"
    files = FaultyFiles()
    files.put(single, text)
    log, found = reopened(files)
    assert flat(found) == [SELECT, xadd(1), xadd(2)]
    assert not files.exists(single)
    assert bytes(files.data(MANIFEST)).startswith(b"file appendonly.aof seq 1 type b\n")
    assert log.rotate_if_needed()
    append(log, [SELECT, xadd(3)])
    log.sync()
    _, found = reopened(files.crash())
    assert flat(found) == [SELECT, xadd(1), xadd(2), SELECT, xadd(3)]


def test_adopting_a_single_file_survives_a_crash_at_any_operation() -> None:
    text = plain([SELECT, xadd(1), xadd(2)])
    for operation in ("make_directory", "create", "write", "sync", "rename", "sync_directory"):
        for after in range(4):
            for names in (False, True):
                files = FaultyFiles()
                files.put(ROOT / "appendonly.aof", text)
                files.fail(operation, errno.EIO, after=after)
                try:
                    log = Log.open(ROOT, files)
                    list(log.read())
                    log.rotate_if_needed()
                except (OSError, LogWriteError):
                    pass
                _, found = reopened(files.crash(names=names))
                assert flat(found) == [SELECT, xadd(1), xadd(2)]


def test_a_single_file_that_is_an_rdb_stays_where_it_is() -> None:
    files = FaultyFiles()
    files.put(ROOT / "appendonly.aof", b"REDIS0009")
    with pytest.raises(CorruptionError, match="BGREWRITEAOF"):
        Log.open(ROOT, files)
    assert files.exists(ROOT / "appendonly.aof")
    assert not files.exists(MANIFEST)


# -- with a real Redis -------------------------------------------------------------------------------------------------


def test_a_real_redis_loads_the_directory(tmp_path: Path, start_redis: StartRedis) -> None:
    log = Log.open(tmp_path, OsFiles(), segment_bytes=2000)
    count = 0
    for number in range(100):
        head = [SELECT] if log.rotate_if_needed() else []
        append(log, [*head, xadd(2 * number + 1, lookalike(number)), SETTINGS, xadd(2 * number + 2)])
        count += 2
    append(log, [[b"XCFGSET", b"k" * 5000]])
    log.sync()
    log.close()
    assert log.incr_count > 3
    program = shutil.which("redis-check-aof")
    assert program is not None, "redis-check-aof comes with redis-server"
    path = tmp_path / "appendonlydir" / "appendonly.aof.manifest"
    done = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    server = start_redis(tmp_path)
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":%d\r\n" % count
        assert client.ask("XADD", "s", "1000-1", "from", "redis") == b"$6\r\n1000-1\r\n"
        assert client.ask("BGREWRITEAOF").startswith(b"+")
        wait_for_rewrite(client)
    server.stop()
    # And back again: what Redis made of it is read here.
    log = Log.open(tmp_path, OsFiles())
    found = flat(list(log.read()))
    assert sum(words[0].upper() == b"XADD" for words in found) == count + 1
    assert log.rotate_if_needed()


def wait_for_rewrite(client: RawClient) -> None:
    for _ in range(1000):
        if b"aof_rewrite_in_progress:0" in client.ask("INFO", "persistence"):
            return
        time.sleep(0.01)
    raise AssertionError("the rewrite did not end")


def test_logs_of_a_real_redis_are_read_back(tmp_path: Path, start_redis: StartRedis) -> None:
    server = start_redis(tmp_path, {"aof-timestamp-enabled": "yes"})
    with server.client() as client:
        for number in range(1, 40):
            client.ask("XADD", "s", f"{number}-1", "field", b"binary \r\n#CK:\0 value")
        client.ask("BGREWRITEAOF")
        wait_for_rewrite(client)
        client.ask("SELECT", "3")
        client.ask("MULTI")
        client.ask("XADD", "t", "1-1", "a", "b")
        client.ask("XADD", "t", "2-1", "a", "b")
        client.ask("EXEC")
        client.ask("XDEL", "t", "1-1")
    server.stop()
    directory = tmp_path / "appendonlydir"
    assert b"#TS:" in b"".join(path.read_bytes() for path in directory.iterdir())
    log = Log.open(tmp_path, OsFiles())
    found = flat(list(log.read()))
    names = [words[0].upper() for words in found]
    assert names.count(b"XADD") == 41
    assert names[-6:] == [b"SELECT", b"MULTI", b"XADD", b"XADD", b"EXEC", b"XDEL"]
    assert log.torn_tail is None
    assert log.base_bytes > 0


def test_an_rdb_base_of_a_real_redis_is_refused(tmp_path: Path, start_redis: StartRedis) -> None:
    server = start_redis(tmp_path, {"aof-use-rdb-preamble": "yes"})
    server.stop()
    assert list(Log.open(tmp_path, OsFiles()).read()) == []  # nothing is in it yet
    server.start()
    with server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("BGREWRITEAOF")
        while b"aof_rewrite_in_progress:1" in client.ask("INFO", "persistence"):
            pass
    server.stop()
    with pytest.raises(CorruptionError, match="aof-use-rdb-preamble no"):
        Log.open(tmp_path, OsFiles())


def test_a_torn_tail_says_where_it_is() -> None:
    torn = TornTail("the file", 10, 5, 8, "because")
    assert str(torn) == (
        "the file: 5 bytes from byte 10 on are not a whole batch (because); the log is whole up to replication offset 8"
    )
