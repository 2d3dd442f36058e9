from __future__ import annotations

import random
import tracemalloc

import pytest

from riverbed.store.errors import CorruptionError
from riverbed.store.format.log_lines import encode_annotation, encode_command
from riverbed.store.log import tail as tail_module
from riverbed.store.log.append_log import Log
from riverbed.store.log.manifest import FileType, LogFile
from riverbed.store.log.search import KnownOffsets, LogSearch
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.log.tail import LogTail, start_of
from riverbed.store.position import LogPosition
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import FIRST, HOME, ROOT, SELECT, SETTINGS, append, open_log, xadd

PREFACE = encode_command(SELECT)


def grown(log: Log, numbers: range) -> list[LogPosition]:
    """Append batches of one to three commands, some hidden; begin a new file now and then; -> their ends."""
    chance = random.Random(numbers.start)
    ends = []
    for number in numbers:
        if log.rotate_if_needed() and log.end.offset:
            log.writer.write_preface(0, 1_700_000_000_000)
        commands = [xadd(number, chance.randbytes(chance.randint(0, 300))) for _ in range(chance.randint(1, 3))]
        append(log, [*([SELECT] if not log.end.offset else []), *commands, *([SETTINGS] * chance.randint(0, 1))])
        ends.append(log.end)
    return ends


def all_of(tail: LogTail, most: int) -> bytes:
    parts = []
    while (data := tail.read(most)) != b"":
        parts.append(data or b"")
    assert tail.read(most) == b"", "the end stays the end"
    return b"".join(parts)


@pytest.fixture
def log() -> Log:
    return open_log(ROOT, FaultyFiles(), segment_bytes=1500)


def read(log: Log, place: LogPosition, most: int, *, verbatim: bool, skip: int = 0) -> bytes:
    tail = LogTail(log, log._files, place, verbatim=verbatim, skip=skip)
    try:
        return all_of(tail, most)
    finally:
        tail.close()


LONG_BATCHES = pytest.mark.parametrize("longest", [0, 300, 1 << 20])


@LONG_BATCHES
@pytest.mark.parametrize("most", [1, 37, 1000, 1 << 20])
def test_a_feed_reads_every_file_from_any_batch_on_and_leaves_prefaces_out(
    log: Log, monkeypatch: pytest.MonkeyPatch, most: int, longest: int
) -> None:
    monkeypatch.setattr(tail_module, "_LONG_BATCH_BYTES", longest)
    ends = [LogPosition(1, 0, 0), *grown(log, range(40))]
    assert log.incr_count > 5
    whole = read(log, ends[0], most, verbatim=True)
    commands = read(log, ends[0], most, verbatim=False)
    assert len(commands) == log.end.offset
    assert b"#CK" not in commands and b"#RB" not in commands
    stream = LogStream(0, 1 << 20)
    stream.feed(whole)
    found = list(iter(stream.next, None))
    assert [batch.offset for batch in found] == [end.offset for end in ends[1:]]
    for number in range(0, 41, 7):
        assert read(log, ends[number], most, verbatim=True) == b"".join(batch.data for batch in found[number:])
        assert read(log, ends[number], most, verbatim=False) == commands[ends[number].offset :]


@LONG_BATCHES
@pytest.mark.parametrize("verbatim", [True, False])
def test_a_feed_goes_on_as_the_log_grows(
    log: Log, monkeypatch: pytest.MonkeyPatch, verbatim: bool, longest: int
) -> None:
    monkeypatch.setattr(tail_module, "_LONG_BATCH_BYTES", longest)
    tail = LogTail(log, log._files, LogPosition(1, 0, 0), verbatim=verbatim)
    got = all_of(tail, 100)
    for number in range(30):
        grown(log, range(number, number + 1 + number % 3))
        got += all_of(tail, 100 + number)
    tail.close()
    assert got == read(log, LogPosition(1, 0, 0), 1 << 20, verbatim=verbatim)
    assert not log.history.tails


def test_a_feed_of_commands_keeps_no_long_batch(log: Log) -> None:
    """A replica may take it as slowly as it likes, and there may be many of them."""
    append(log, [SELECT, xadd(1), xadd(2, b"\n#RB:" * (1 << 20)), xadd(3)])
    append(log, [xadd(4)])
    tail = LogTail(log, log._files, LogPosition(1, 0, 0), verbatim=False)
    tracemalloc.start()
    try:
        while (got := tail.read(100)) is None:
            assert tracemalloc.get_traced_memory()[0] < 100_000
        assert tracemalloc.get_traced_memory()[0] < 100_000
        while data := tail.read(1 << 16):
            got += data
    finally:
        tracemalloc.stop()
        tail.close()
    assert got == b"".join(map(encode_command, [SELECT, xadd(1), xadd(2, b"\n#RB:" * (1 << 20)), xadd(3), xadd(4)]))


class CountingFiles(FaultyFiles):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read_at(self, fd: int, size: int, position: int) -> bytes:
        data = super().read_at(fd, size, position)
        self.read_bytes += len(data)
        return data

    def counted(self) -> int:
        count, self.read_bytes = self.read_bytes, 0
        return count


LONG_VALUES = [b"v" * (5 << 20), b"\n" + encode_annotation(b"x", 1, 1) * (5 << 15)]


@pytest.mark.parametrize("value", LONG_VALUES)
def test_a_feed_of_commands_reads_a_long_batch_in_slices(value: bytes) -> None:
    files = CountingFiles()
    log = open_log(ROOT, files)
    batches = [[SELECT, xadd(1)], [xadd(2, value), SETTINGS, xadd(3)], [xadd(4)], [xadd(5, value)]]
    for batch in batches:
        append(log, batch)
    tail = LogTail(log, files, LogPosition(1, 0, 0), verbatim=False)
    files.counted()
    got = []
    while (data := tail.read(1 << 16)) != b"":
        got.append(data or b"")
        assert files.counted() < 3 << 20
        assert len(got[-1]) <= 1 << 16
    tail.close()
    assert b"".join(got) == b"".join(encode_command(words) for batch in batches for words in batch if words != SETTINGS)


def test_a_feed_of_commands_reads_many_short_batches_in_slices_also_those_that_are_not_for_it() -> None:
    files = CountingFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    for words in [SETTINGS] * 1000 + [xadd(2)] * 1000:
        append(log, [words])
    tail = LogTail(log, files, LogPosition(1, 0, 0), verbatim=False)
    tail.read(1)
    got = []
    while (data := tail.read(1 << 20)) != b"":
        got.append(data or b"")
        assert len(got[-1]) < 200 * len(encode_command(xadd(2)))
    tail.close()
    assert got.count(b"") > 3
    assert b"".join(got).count(b"XADD") == 1001


def test_nothing_of_a_damaged_long_batch_is_fed() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    append(log, [xadd(2, b"v" * (5 << 20))])
    append(log, [xadd(3)])
    data = files.data(FIRST)
    data[4 << 20] ^= 1
    tail = LogTail(log, files, LogPosition(1, 0, 0), verbatim=False)
    assert tail.read(1 << 16) == encode_command(SELECT) + encode_command(xadd(1))
    with pytest.raises(CorruptionError, match="checksum does not match"):
        assert not any(tail.read(1 << 16) for _ in range(1000))
    tail.close()


@pytest.mark.parametrize("value", LONG_VALUES)
def test_a_search_passes_over_long_batches_in_slices(value: bytes) -> None:
    files = CountingFiles()
    log = open_log(ROOT, files)
    for number in range(3):
        append(log, [xadd(number + 1, value)])
    places = [log.end]
    append(log, [xadd(9)])
    found = LogSearch(log, files, places[0].offset, KnownOffsets(), any_byte=False)
    files.counted()
    is_over = False
    while not is_over:
        is_over = found.step(1000)
        assert files.counted() < 3 << 20
    assert (found.place, found.skip) == (places[0], 0)


@pytest.mark.parametrize("verbatim", [True, False])
def test_a_feed_that_holds_its_files_outlives_them(log: Log, verbatim: bool) -> None:
    ends = grown(log, range(30))
    expected = read(log, ends[3], 1 << 20, verbatim=verbatim)
    tail = LogTail(log, log._files, ends[3], verbatim=verbatim)
    got = tail.read(100)
    log.history.hold_tails()
    kept = log.home.manifest.incrs[-1:]
    for file in log.home.manifest.incrs[:-1]:
        log._files.unlink(HOME / file.name)
    log.home.manifest = type(log.home.manifest)(incrs=kept, replids=log.home.manifest.replids)
    got += all_of(tail, 100)
    tail.close()
    assert got == expected


def test_files_are_open_once_for_all_who_read_them(log: Log) -> None:
    files = log._files
    assert isinstance(files, FaultyFiles)
    ends = grown(log, range(30))
    before = files.open_count
    tails = [LogTail(log, files, ends[0], verbatim=number % 2 == 0) for number in range(60)]
    for tail in tails:
        tail.read(100)
    log.history.hold_tails()
    assert files.open_count - before <= log.incr_count
    expected = [all_of(tail, 1000) for tail in tails[:2]]
    assert files.open_count - before <= log.incr_count
    for tail in tails[:-2]:
        tail.close()
    assert [all_of(tail, 1000) for tail in tails[-2:]] == expected
    for tail in tails[-2:]:
        tail.close()
    assert files.open_count == before


def test_a_feed_whose_file_is_gone_says_so(log: Log) -> None:
    ends = grown(log, range(30))
    log.home.manifest = type(log.home.manifest)(incrs=log.home.manifest.incrs[-1:])
    tail = LogTail(log, log._files, ends[0], verbatim=True)
    with pytest.raises(CorruptionError, match="not there any more"):
        tail.read(100)
    tail.close()


def test_a_feed_may_jump_over_what_was_sent_otherwise(log: Log) -> None:
    ends = grown(log, range(30))
    for verbatim in (True, False):
        tail = LogTail(log, log._files, ends[2], verbatim=verbatim)
        tail.read(1)
        tail.jump(ends[20])
        assert all_of(tail, 1000) == read(log, ends[20], 1000, verbatim=verbatim)
        tail.close()


def test_a_feed_that_jumps_lets_go_of_the_files_it_passes_over(log: Log) -> None:
    files = log._files
    assert isinstance(files, FaultyFiles)
    ends = grown(log, range(30))
    before = files.open_count
    tail = LogTail(log, files, ends[0], verbatim=True)
    tail.read(1)
    log.history.hold_tails()
    tail.jump(log.end)
    assert files.open_count <= before + 1
    tail.close()
    assert files.open_count == before


def test_a_full_sync_reads_the_base_and_the_first_preface_too() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    log.rotate()
    log.writer.write_preface(0, 1_700_000_000_000)
    append(log, [xadd(2)])
    covered = encode_command([b"SELECT", b"5"]) + encode_command(xadd(1, b"\n#value"))
    text = covered + encode_annotation(covered, log.home.manifest.incrs[1].start_offset or 0, 1)
    files.put(HOME / "base", text)
    base = LogFile("base", 1, FileType.BASE, is_checksummed=True)
    log.home.manifest = type(log.home.manifest)(base=base, incrs=log.home.manifest.incrs[1:])
    start = start_of(log.home.manifest)
    tail = LogTail(log, files, start, verbatim=True, preface_of=2)
    got = all_of(tail, 50)
    assert got == text + bytes(files.data(HOME / "appendonly.aof.2.incr.aof"))
    tail = LogTail(log, files, start, verbatim=False, preface_of=2)
    assert all_of(tail, 50) == covered + PREFACE + encode_command(xadd(2))


# -- offsets -----------------------------------------------------------------------------------------------------------


def search(
    log: Log, offset: int, *, any_byte: bool, known_offsets: KnownOffsets | None = None
) -> tuple[LogPosition | None, int]:
    found = LogSearch(log, log._files, offset, known_offsets or KnownOffsets(), any_byte=any_byte)
    while not found.step(3):
        pass
    return found.place, found.skip


def test_a_search_and_a_feed_do_not_wait_for_the_disk_when_their_file_is_deleted_meanwhile() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files, segment_bytes=1500)
    grown(log, range(5))
    search(log, 1, any_byte=True)
    assert files.operations[-2:] == ["close_deleted", "close"]
    read(log, LogPosition(1, 0, 0), 1 << 20, verbatim=True)
    assert files.operations[-2:] == ["close_deleted", "close"]


@pytest.mark.parametrize("with_anchors", [True, False])
def test_any_offset_is_found_by_those_who_count_bytes_and_batches_by_the_others(log: Log, with_anchors: bool) -> None:
    ends = grown(log, range(40))
    commands = read(log, LogPosition(1, 0, 0), 1 << 20, verbatim=False)
    known_offsets = KnownOffsets()
    if with_anchors:
        known_offsets.places += ends[::7]
    boundaries = {0, *(end.offset for end in ends)}
    for offset in [*range(0, log.end.offset, 41), *boundaries]:
        place, skip = search(log, offset, any_byte=True, known_offsets=known_offsets)
        assert place is not None and place.offset + skip == offset
        assert read(log, place, 5000, verbatim=False, skip=skip) == commands[offset:]
        place, skip = search(log, offset, any_byte=False, known_offsets=known_offsets)
        assert (place is not None) is (offset in boundaries)
        assert place is None or (place.offset, skip) == (offset, 0)


def test_an_offset_that_the_log_does_not_reach_is_not_found(log: Log) -> None:
    grown(log, range(40))
    log.home.manifest = type(log.home.manifest)(incrs=log.home.manifest.incrs[3:])
    first = log.home.manifest.incrs[0].start_offset or 0
    assert search(log, first - 1, any_byte=True) == (None, 0)
    assert search(log, log.end.offset + 1, any_byte=True) == (None, 0)
    assert search(log, first, any_byte=False)[0] is not None


def test_anchors_are_few_however_long_the_log() -> None:
    known_offsets = KnownOffsets()
    for number in range(100_000):
        known_offsets.add(LogPosition(1, number << 17, number << 17))
    assert len(known_offsets.places) < 5000
    assert known_offsets.places == sorted(known_offsets.places)
