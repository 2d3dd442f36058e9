"""A new base takes the place of what came before it in one step, whatever fails and whenever it crashes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from riverbed.store.errors import CorruptionError, LogWriteError
from riverbed.store.format.log_lines import encode_command, encode_extension
from riverbed.store.log.append_log import Log
from riverbed.store.log.base_file import write_base
from riverbed.store.log.commands import Piece
from riverbed.store.log.home import TEMPORARY_PREFIX, Base
from riverbed.store.log.search import KnownOffsets, LogSearch
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.log.tail import LogTail, start_of
from riverbed.store.position import LogPosition
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import HOME, MANIFEST, SELECT, Words, adopt_base, append, commands_of, reopened, xadd

TEMPORARY = HOME / f"{TEMPORARY_PREFIX}1.aof"
FIRST_BASE = HOME / "appendonly.aof.1.base.aof"

PAST = [[SELECT, xadd(1)], [xadd(2), xadd(3)]]
LATER = [[SELECT, xadd(4)], [xadd(5)]]
STATE: list[Words] = [SELECT, xadd(1, b"made shorter"), [b"XSEEN", b"s", b"g", b"c", b"1", b"1"]]


def pieces_of(commands: list[Words]) -> list[Piece]:
    """Each command a piece."""
    pieces = []
    for words in commands:
        hidden = words[0] == b"XSEEN"
        data = encode_extension(words) if hidden else encode_command(words)
        pieces.append(Piece(data, 0 if hidden else len(data), int(words[0] == b"XADD")))
    return pieces


def begun(files: FaultyFiles, past: list[list[Words]] = PAST) -> tuple[Log, int]:
    """A log with a past in two files and a present in the third; -> it, and the number of that one."""
    log, _ = reopened(files)
    for commands in past:
        append(log, commands)
        log.rotate()
    return log, log.end.file_seq


def adopt(log: Log, files: FaultyFiles, from_seq: int, state: list[Words] = STATE) -> Base:
    """What a rewrite that began where `from_seq` begins does to the log."""
    begin = next(file.start_offset for file in log.home.manifest.incrs if file.seq == from_seq)
    assert begin is not None
    size = write_base(TEMPORARY, pieces_of(state), files, offset=begin, now_ms=1)
    return adopt_base(log, TEMPORARY, size.size, size.command_bytes, from_seq)


def remove_leftovers(log: Log, files: FaultyFiles) -> None:
    for path in log.home.leftovers():
        if files.exists(path):
            files.unlink(path)
    log.history.forget_deleted()


def test_the_log_begins_with_the_new_base_and_goes_on_with_what_was_written_meanwhile() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    begin = log.end.offset
    append(log, LATER[0])
    base = adopt(log, files, seq)
    append(log, LATER[1])
    log.writer.sync()
    end, size = log.end, log.size_bytes
    assert base == log.base
    assert base == Base(FIRST_BASE, 1, len(files.data(FIRST_BASE)), base.command_bytes, begin)
    assert base.command_bytes == sum(piece.command_bytes for piece in pieces_of(STATE))
    again, batches = reopened(files.crash())
    assert commands_of(batches) == [[words] for words in STATE] + LATER
    assert again.end == end
    assert again.base == base
    assert again.size_bytes == size == sum(batch.size for batch in batches)


def test_what_came_before_is_history_until_it_is_deleted() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    adopt(log, files, seq)
    assert [file.name for file in log.home.manifest.history] == [
        "appendonly.aof.1.incr.aof",
        "appendonly.aof.2.incr.aof",
    ]
    assert b"appendonly.aof.1.incr.aof seq 1 type h" in files.data(MANIFEST)
    remove_leftovers(log, files)
    assert log.home.manifest.history == ()
    assert b" type h" not in files.data(MANIFEST)
    assert sorted(files.names(HOME)) == ["appendonly.aof.1.base.aof", "appendonly.aof.3.incr.aof", MANIFEST.name]


def test_history_that_is_still_there_stays_listed() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    adopt(log, files, seq)
    files.unlink(HOME / "appendonly.aof.1.incr.aof")
    log.history.forget_deleted()
    assert [file.name for file in log.home.manifest.history] == ["appendonly.aof.2.incr.aof"]


def test_a_base_replaces_the_base_before_it_and_gets_a_new_name() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    adopt(log, files, seq)
    append(log, LATER[0])
    log.rotate()
    base = adopt(log, files, log.end.file_seq, [SELECT, xadd(7)])
    assert base.path.name == "appendonly.aof.2.base.aof"
    remove_leftovers(log, files)
    _, batches = reopened(files.crash())
    assert commands_of(batches) == [[SELECT], [xadd(7)]]


def test_an_empty_state_is_an_empty_base() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    base = adopt(log, files, seq, [])
    assert (base.size, base.command_bytes) == (0, 0)
    append(log, LATER[0])
    log.writer.sync()
    _, batches = reopened(files.crash())
    assert commands_of(batches) == [LATER[0]]


def test_files_that_a_killed_rewrite_left_are_found_and_not_read() -> None:
    files = FaultyFiles()
    log, _ = begun(files)
    write_base(TEMPORARY, pieces_of(STATE), files, offset=0, now_ms=1)
    assert log.home.leftovers() == [TEMPORARY]
    _, batches = reopened(files)
    assert commands_of(batches) == PAST


def watch(files: FaultyFiles, stop: int, copies: list[FaultyFiles]) -> None:
    """Put what a crash before operation number `stop` leaves into `copies`."""
    step = files._step

    def watched(operation: str) -> None:
        if len(files.operations) == stop:
            copies.extend([files.crash(), files.crash(kept=7), files.crash(kept=10_000, names=True)])
        step(operation)

    files._step = watched


def test_a_crash_at_any_operation_leaves_the_old_log_or_the_new_one() -> None:
    """The state is the same either way: that is what a rewrite is."""
    old, new = PAST, [[words] for words in STATE]
    seen = set()
    for stop in range(1_000):
        files = FaultyFiles()
        log, seq = begun(files)
        append(log, LATER[0])
        log.writer.sync()
        first = len(files.operations)
        copies: list[FaultyFiles] = []
        watch(files, first + stop, copies)
        adopt(log, files, seq)
        remove_leftovers(log, files)
        if not copies:
            assert stop > 8, "too few operations were seen"
            break
        for copy in copies:
            found = commands_of(reopened(copy)[1])
            assert found in ([*old, LATER[0]], [*new, LATER[0]]), stop
            seen.add(len(found))
    assert len(seen) == 2, "one of the two outcomes was never seen"


@pytest.mark.parametrize("operation", ["rename", "create", "write", "sync", "sync_directory"])
def test_an_adoption_that_fails_leaves_the_log_as_it_was(operation: str) -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    append(log, LATER[0])
    begin = next(file.start_offset for file in log.home.manifest.incrs if file.seq == seq)
    assert begin is not None
    size = write_base(TEMPORARY, pieces_of(STATE), files, offset=begin, now_ms=1)
    before = log.home.manifest
    files.fail(operation, errno.ENOSPC)
    with pytest.raises(LogWriteError):
        adopt_base(log, TEMPORARY, size.size, size.command_bytes, seq)
    assert log.home.manifest == before
    assert log.base is None
    assert not files.exists(FIRST_BASE)
    append(log, LATER[1])
    log.writer.sync()
    assert commands_of(reopened(files.crash())[1]) == PAST + LATER


def test_an_adoption_nobody_knows_the_outcome_of_breaks_the_log() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    size = write_base(TEMPORARY, pieces_of(STATE), files, offset=log.end.offset, now_ms=1)
    files.fail("sync_directory", errno.EIO, after=1)
    with pytest.raises(LogWriteError):
        adopt_base(log, TEMPORARY, size.size, size.command_bytes, seq)
    assert log.broken
    for names in (False, True):
        assert commands_of(reopened(files.crash(names=names))[1]) in (PAST, [[words] for words in STATE])


def test_a_base_that_is_damaged_is_noticed_wherever_it_is() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    adopt(log, files, seq)
    log.close()
    for at in range(len(files.data(FIRST_BASE))):
        damaged = files.copy()
        damaged.data(FIRST_BASE)[at] ^= 1
        with pytest.raises(CorruptionError):
            reopened(damaged)


def test_pieces_become_batches_that_stand_at_one_offset(tmp_path: Path) -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    adopt(log, files, seq)
    _, batches = reopened(files)
    assert {batch.end.offset for batch in batches} == {log.end.offset}
    assert [batch.end.file_seq for batch in batches] == [-1] * len(STATE)


# -- what replicas may ask for -----------------------------------------------------------------------------------------


def kept(log: Log) -> list[str]:
    return [file.name for file in log.home.manifest.backlog]


def test_the_end_of_the_former_log_is_kept_in_whole_files() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    adopt(log, files, seq)
    first, second = log.home.manifest.backlog
    assert log.home.superseded(0) == []
    assert first.end_offset is not None
    assert log.home.superseded(first.end_offset - 1) == []
    assert log.home.superseded(first.end_offset) == [first.name]
    assert log.home.superseded(log.end.offset) == log.home.superseded() == [first.name, second.name]
    again, _ = reopened(files.crash())
    assert kept(again) == [first.name, second.name]


def test_the_former_bases_are_not_kept() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    adopt(log, files, seq)
    append(log, LATER[0])
    log.rotate()
    adopt(log, files, log.end.file_seq)
    assert [path.name for path in log.history.begin_removal(0)] == ["appendonly.aof.1.base.aof"]
    assert kept(log) == [f"appendonly.aof.{seq}.incr.aof" for seq in (1, 2, 3)]


def test_files_that_are_about_to_be_deleted_are_sent_to_no_further_replica() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    adopt(log, files, seq)
    first, second = kept(log)
    tail = LogTail(log, files, LogPosition(1, 0, 0), verbatim=True)
    offset = log.home.manifest.backlog[0].end_offset
    assert offset is not None
    assert [path.name for path in log.history.begin_removal(offset)] == [first]
    assert kept(log) == [second]
    files.unlink(HOME / first)
    assert b"".join(iter(lambda: tail.read(1000), b"")).count(b"XADD") == 3  # it has the file open
    tail.close()
    log.history.forget_deleted()
    again, _ = reopened(files.crash())
    assert kept(again) == [second]


def test_the_log_is_read_from_before_its_base_on() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    whole = read_all(log, files, LogPosition(1, 0, 0))
    adopt(log, files, seq)
    append(log, LATER[0])
    for offset in range(log.end.offset + 1):
        search = LogSearch(log, files, offset, KnownOffsets(), any_byte=True)
        assert search.step(1000)
        assert search.place is not None
        found = read_all(log, files, search.place, search.skip)
        assert found == (whole + b"".join(map(encode_command, LATER[0])))[offset:]


def read_all(log: Log, files: FaultyFiles, place: LogPosition, skip: int = 0) -> bytes:
    tail = LogTail(log, files, place, verbatim=False, skip=skip)
    try:
        return b"".join(iter(lambda: tail.read(7), b""))
    finally:
        tail.close()


def test_a_full_sync_begins_with_the_base_and_not_before_it() -> None:
    files = FaultyFiles()
    log, seq = begun(files)
    adopt(log, files, seq)
    append(log, LATER[0])
    found = read_all(log, files, start_of(log.home.manifest))
    assert found == b"".join(map(encode_command, [*STATE[:2], *LATER[0]]))


@pytest.mark.parametrize("begins", ["before", "meanwhile"])
def test_a_tail_in_the_base_before_goes_on_in_the_files_behind_that(begins: str) -> None:
    """Also one that begins while a thread replaces the manifest."""

    def begin_tail() -> tuple[LogStream, LogTail]:
        start = start_of(log.home.manifest)
        tail = LogTail(log, files, start, verbatim=True, preface_of=log.home.manifest.incrs[0].seq)
        return LogStream(start.offset, 1 << 20, from_file=True), tail

    files = FaultyFiles()
    log, seq = begun(files)
    base = adopt(log, files, seq)
    append(log, LATER[0])
    log.rotate()
    append(log, LATER[1])
    middle = log.home.manifest.incrs[-1]
    assert middle.start_offset is not None
    stream, tail = begin_tail()
    size = write_base(TEMPORARY, pieces_of(STATE), files, offset=middle.start_offset, now_ms=1)
    replacement = log.history.begin_adoption(TEMPORARY, size.size, size.command_bytes, middle.seq)
    if begins == "meanwhile":
        stream, tail = begin_tail()
    replacement.run()
    log.listing.complete(replacement)
    for path in log.history.begin_removal(1 << 40):
        files.unlink(path)
    data = b"".join(iter(lambda: tail.read(1 << 20), b""))
    stream.feed(data[base.size :])
    batches = list(iter(stream.next, None))
    assert [batch.offset for batch in batches][-1] == log.end.offset
    assert len(batches) == len(LATER)
