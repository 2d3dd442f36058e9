"""What a reader of the log makes of one that was cut, changed, or only looks like it."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest
from crc32c import crc32c

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError, LogWriteError
from riverbed.store.format.log_lines import encode_annotation, encode_command, encode_extension
from riverbed.store.log import manifest as manifests
from riverbed.store.log.append_log import Batch, TornTail
from riverbed.store.log.files import checksummed
from riverbed.store.log.files.part_reader import CHUNK_BYTES
from riverbed.store.position import LogPosition
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import (
    FIRST,
    HOME,
    MANIFEST,
    ROOT,
    SELECT,
    SETTINGS,
    SOME,
    Words,
    append,
    commands_of,
    filled,
    lookalike,
    open_log,
    plain,
    reopened,
    told,
    xadd,
)

pytestmark = pytest.mark.usefixtures("log_parser")

# -- torn tails --------------------------------------------------------------------------------------------------------


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
        log = open_log(ROOT, cut)
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
        list(open_log(ROOT, files, load_truncated=False).read())


def test_a_tail_below_what_a_checkpoint_covers_is_corrupt() -> None:
    files, ends = filled(SOME)
    for number, end in enumerate(ends):
        cut = files.copy()
        del cut.data(FIRST)[end.position - 1 :]
        for durable in ends:
            log = open_log(ROOT, cut)
            if durable < end:
                list(log.read(min_position=durable))
                assert log.torn_tail is not None
                assert log.end == (ends[number - 1] if number else LogPosition(1, 0, 0))
            else:
                with pytest.raises(CorruptionError):
                    list(log.read(min_position=durable))
                with pytest.raises(CorruptionError):
                    list(open_log(ROOT, cut).read(durable))


def test_a_log_cut_at_a_batch_is_corrupt_when_a_checkpoint_covers_more() -> None:
    files, ends = filled(SOME)
    del files.data(FIRST)[ends[2].position :]
    with pytest.raises(CorruptionError, match="checkpoint"):
        list(open_log(ROOT, files).read(min_position=ends[3]))


# -- damage ------------------------------------------------------------------------------------------------------------


def forty_commands() -> list[list[Words]]:
    """In batches of every size: the time of the test below grows with the square of their bytes."""
    source = random.Random(3)
    batches: list[list[Words]] = []
    left = 40
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
    log = open_log(ROOT, files)
    found: list[Batch] = []
    try:
        found.extend(log.read())
    except CorruptionError as error:
        return error, found
    return log.torn_tail, found


@pytest.mark.slow
@pytest.mark.parametrize("segment_bytes", [1 << 30, 1000])
def test_every_flipped_byte_of_a_log_is_noticed(segment_bytes: int) -> None:
    batches = forty_commands()
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
                assert isinstance(damage, CorruptionError)
                assert damage.file == str(path)
                assert damage.offset is not None
                assert damage.offset <= at
                assert "replication offset" in damage.reason
                if seq == whole.file_seq and at >= whole.position:
                    assert f"a bit is flipped in byte {at}, " in damage.reason
                    assert commands_of(found) == batches[:-1]
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


@pytest.mark.parametrize("is_flood", [False, True])
def test_a_torn_value_full_of_ends_of_batches_is_not_looked_through_for_hours(
    monkeypatch: pytest.MonkeyPatch, is_flood: bool
) -> None:
    """Each of them says that it covers nearly all before it: to sum that up for each takes the square of the bytes."""
    monkeypatch.setattr(checksummed, "_LEAST_LOOKED_AT", 1 << 20)
    value = b""
    for _ in range(5000 if is_flood else 50):
        value += b"\n#CK:crc32c=00000000;len=%08d;off=99999999999999999999;t=1\r\n" % (len(value) + 1)
    files, _ = filled([[SELECT, xadd(1)], [xadd(2, value)]])
    del files.data(FIRST)[-100:]
    if is_flood:
        with pytest.raises(CorruptionError, match="too much behind it looks like the ends of batches"):
            reopened(files)
    else:
        log, found = reopened(files)
        assert commands_of(found) == [[SELECT, xadd(1)]]
        assert log.torn_tail is not None


def test_damage_before_the_last_file_is_never_a_torn_tail() -> None:
    files, ends = filled(SOME, segment_bytes=150)
    assert ends[0].file_seq < ends[-1].file_seq
    for size in (0, 10, ends[0].position - 1):
        cut = files.copy()
        del cut.data(FIRST)[size:]
        with pytest.raises(CorruptionError):
            reopened(cut)
        # A Redis that wrote the manifest again forgot how long the file was.
        text = bytes(cut.data(MANIFEST)).splitlines(keepends=True)
        text[0] = b"file appendonly.aof.1.incr.aof seq 1 type i startoffset 0 checksum crc32c\n"
        cut.put(MANIFEST, b"".join(text[:-1]))
        with pytest.raises(CorruptionError):
            reopened(cut)


def test_a_listed_file_that_is_missing_is_named() -> None:
    files, _ = filled(SOME, segment_bytes=150)
    files.remove(FIRST)
    with pytest.raises(CorruptionError, match="is missing") as caught:
        open_log(ROOT, files)
    assert caught.value.file == str(FIRST)


def test_log_files_without_a_manifest_are_not_written_over() -> None:
    files, _ = filled(SOME)
    files.remove(MANIFEST)
    with pytest.raises(CorruptionError, match="no manifest lists it"):
        open_log(ROOT, files)
    files.put(FIRST, b"")
    assert open_log(ROOT, files).end == LogPosition(1, 0, 0)


def test_a_file_that_does_not_begin_where_the_one_before_ends_is_refused() -> None:
    files, _ = filled(SOME, segment_bytes=150)
    manifest = manifests.load(MANIFEST, files)
    assert manifest is not None
    first = manifest.incrs[0]
    files.put(MANIFEST, manifests.serialize(manifests.Manifest(incrs=(first, *manifest.incrs[2:]))))
    with pytest.raises(CorruptionError, match="ends elsewhere"):
        reopened(files)


def test_reading_takes_no_more_memory_than_a_batch_and_a_few_chunks(tmp_path: Path) -> None:
    log = open_log(tmp_path, OsFiles())
    append(log, [SELECT, xadd(1)])
    log.close()
    with (tmp_path / "appendonlydir" / FIRST.name).open("r+b") as file:
        file.truncate(256 * CHUNK_BYTES)
    log = open_log(tmp_path, OsFiles())
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
    log = open_log(ROOT, files)
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
        assert told(list(open_log(ROOT, files).read(batch.end))) == told(found[number + 1 :])
    data = files.data(HOME / "appendonly.aof.2.base.aof")
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        assert isinstance(damage_of(files)[0], CorruptionError)
        data[at] ^= 1 << at % 8
