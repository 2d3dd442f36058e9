from __future__ import annotations

import errno
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverbed.store.errors import CorruptionError
from riverbed.store.log import manifest as manifests
from riverbed.store.log.manifest import (
    FileType,
    LogFile,
    Manifest,
    ReplacedError,
    parse,
    serialize,
)
from riverbed.store.replication_id import MAX_OLDER, Branch, ReplicationIds
from tests.support.store.faulty_files import FaultyFiles

PATH = Path("/data/appendonlydir/appendonly.aof.manifest")
REPLID_LINE = b"#RB:replid %b %b -1\n" % (b"1" * 40, b"0" * 40)
OLDER_LINE = b"#RB:older %b 7\n" % (b"2" * 40)
BASE = LogFile("appendonly.aof.2.base.aof", 2, FileType.BASE)
FULL = Manifest(
    base=LogFile("appendonly.aof.2.base.aof", 2, FileType.BASE, size=81234, is_checksummed=True),
    history=(LogFile("appendonly.aof.1.base.rdb", 1, FileType.HISTORY),),
    incrs=(
        LogFile("appendonly.aof.5.incr.aof", 5, FileType.INCR, 900100, 4001822, is_checksummed=True),
        LogFile("appendonly.aof.6.incr.aof", 6, FileType.INCR, 4818544, is_checksummed=True),
    ),
    replids=ReplicationIds("7c2a8d3f" * 5, "0" * 40, -1, "51d04be6" * 5),
)


def refusal(data: bytes) -> CorruptionError:
    with pytest.raises(CorruptionError) as caught:
        parse(data, "the manifest")
    assert caught.value.file == "the manifest"
    return caught.value


def test_a_manifest_reads_back_as_it_was_written() -> None:
    assert parse(serialize(FULL), "m") == FULL
    assert serialize(FULL).startswith(
        b"#RB:replid 7c2a8d3f7c2a8d3f7c2a8d3f7c2a8d3f7c2a8d3f 0000000000000000000000000000000000000000 -1\n"
        b"#RB:store 51d04be651d04be651d04be651d04be651d04be6\n"
        b"file appendonly.aof.2.base.aof seq 2 type b size 81234 checksum crc32c\n"
        b"file appendonly.aof.1.base.rdb seq 1 type h\n"
        b"file appendonly.aof.5.incr.aof seq 5 type i startoffset 900100 size 4001822 checksum crc32c\n"
        b"file appendonly.aof.6.incr.aof seq 6 type i startoffset 4818544 checksum crc32c\n"
        b"#CK:crc32c="
    )
    assert FULL.files == (FULL.base, *FULL.incrs)


@pytest.mark.parametrize("line", [b"#RB:store abc\n", b"#RB:store " + b"A" * 40 + b"\n"])
def test_a_store_id_that_is_none_is_refused(line: bytes) -> None:
    lines = b"#RB:replid " + b"1" * 40 + b" " + b"0" * 40 + b" -1\n" + line
    assert "malformed line about the store's id" in refusal(lines).reason


def test_a_store_id_without_a_replication_id_is_refused() -> None:
    assert "follows no replication id" in refusal(b"#RB:store " + b"1" * 40 + b"\n").reason


def test_a_manifest_of_redis_is_read() -> None:
    found = parse(
        b"# written by hand\n"
        b"file appendonly.aof.2.base.aof seq 2 type b\n"
        b"FILE appendonly.aof.1.incr.aof SEQ 1 TYPE h endoffset 7\n"
        b"file \"a b.2.incr.aof\" seq 2 type i startoffset 12 someday 'x y'\n"
        b"seq 3 file appendonly.aof.3.incr.aof type i\n",
        "m",
    )
    assert found.base == BASE
    assert [(file.name, file.seq, file.start_offset) for file in found.incrs] == [
        ("a b.2.incr.aof", 2, 12),
        ("appendonly.aof.3.incr.aof", 3, None),
    ]
    assert [file.seq for file in found.history] == [1]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\n", "pairs"),
        (b"file a seq 1 type b\n\n", "pairs"),
        (b"file a seq 1 type b", "no end"),
        (b"file a seq 1\n", "pairs"),
        (b"file a seq 1 type b extra\n", "pairs"),
        (b"file a seq 1 kind b\n", "no type"),
        (b"name a seq 1 type b\n", "no file"),
        (b"file '' seq 1 type b\n", "no file"),
        (b"file a seq 0 type b\n", "seq is 0"),
        (b"file a seq -1 type b\n", "seq is not a number"),
        (b"file a seq 1x type b\n", "seq is not a number"),
        (b"file a seq 1 type x\n", "unknown file type"),
        (b"file a seq 1 type bi\n", "unknown file type"),
        (b"file a seq 1 seq 1 type b\n", "seq is given twice"),
        (b"file ../a seq 1 type b\n", "not a bare file name"),
        (b"file /etc/passwd seq 1 type b\n", "not a bare file name"),
        (b'file "a\\\\b" seq 1 type b\n', "not a bare file name"),
        (b'file ".." seq 1 type b\n', "not a bare file name"),
        (b'file "a seq 1 type b\n', "quote"),
        (b'file "a"b seq 1 type b\n', "quote"),
        (b"file a seq 1 type b startoffset x\n", "startoffset is not a number"),
        (
            b"file a seq 1 type b startoffset 9999999999999999999\n",
            "9999999999999999999 is more than 4611686018427387903",
        ),
        (b"file a seq 4611686018427387904 type i\n", "is more than 4611686018427387903"),
        (b"#RB:replid " + b"a" * 40 + b" " + b"b" * 40 + b" 4611686018427387904\n", "is more than"),
        (REPLID_LINE + b"#RB:older " + b"a" * 40 + b" 4611686018427387904\n", "is more than"),
        (b'file "the manifest" seq 1 type i\n', "the manifest lists itself"),
        (b'file "temp-the manifest" seq 1 type i\n', "the manifest lists itself"),
        (b"file a seq 1 type b checksum md5\n", "unknown checksum"),
        (b"file a seq 1 type b\nfile b seq 2 type b\n", "second base"),
        (b"file a seq 2 type i\nfile b seq 2 type i\n", "do not increase"),
        (b"file a seq 2 type i\nfile b seq 1 type i\n", "do not increase"),
        (b"file " + b"a" * 1100 + b" seq 1 type b\n", "more than 1024"),
        (b"#" + b"a" * 1100 + b"\n", "more than 1024"),
        (b"# no files\n", "no file is listed"),
        (b"file a seq 1 type b\n# seen", "no end"),
        (b"file a seq 1 type b size 7\n", "is not at the end"),
        (b"file a seq 1 type b checksum crc32c\n", "is not at the end"),
        (b"file a seq 1 type b commandbytes 7\n", "is not at the end"),
        (b"file a seq 1 type h nextoffset 7\n", "is not at the end"),
        (REPLID_LINE + b"#RB:older 12\n", "malformed line about an older"),
        (OLDER_LINE, "malformed line about an older"),
        (serialize(Manifest(incrs=FULL.incrs[:1])), "the last incr file has a size"),
        (REPLID_LINE + (MAX_OLDER + 1) * OLDER_LINE, "malformed line about an older"),
    ],
)
def test_a_malformed_manifest_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    assert reason in refusal(data).reason


def test_the_refusal_names_the_byte_where_the_line_begins() -> None:
    assert refusal(b"file a seq 1 type b\nfile b seq 1 type x\n").offset == 20


def test_a_new_file_takes_no_name_that_the_log_has() -> None:
    base = LogFile("appendonly.aof.2.incr.aof", 7, FileType.BASE)
    history = LogFile("appendonly.aof.3.incr.aof", 1, FileType.HISTORY)
    manifest = Manifest(base, (history,), (LogFile("appendonly.aof.1.incr.aof", 1, FileType.INCR),))
    assert manifest.continued(0, 0, 1)[1].name == "appendonly.aof.4.incr.aof"
    assert manifest.next_seq(7) == 8


def test_what_could_not_be_read_again_is_not_written() -> None:
    files = FaultyFiles()
    path = PATH
    files.make_directory(path.parent)
    last = Manifest(None, (), (LogFile.incr((1 << 62) - 1, 0),))
    manifests.replace(path, last, files)
    before = files.data(path)
    for manifest in (last.continued(0, 0, 1)[0], Manifest(None, (), (LogFile.incr(1, 1 << 62),))):
        with pytest.raises(OSError, match="could not be read again: 4611686018427387904 is more than"):
            manifests.replace(path, manifest, files)
        assert files.data(path) == before


def test_a_line_may_be_as_long_as_redis_reads_it() -> None:
    name = "a" * (1024 - len("file  seq 1 type b\n"))
    assert parse(f"file {name} seq 1 type b\n".encode(), "m").base == LogFile(name, 1, FileType.BASE)
    refusal(f"file {name}a seq 1 type b\n".encode())


def test_every_flipped_bit_of_a_manifest_is_noticed() -> None:
    data = serialize(FULL)
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            refusal(bytes(damaged))


NAMES = st.binary(min_size=1, max_size=20).map(os.fsdecode).filter(lambda name: not {*name} & {*"/\\\0"})
NUMBERS = st.none() | st.integers(0, 2**60)
FILES = st.builds(
    LogFile, NAMES, st.integers(1, 2**60), st.just(FileType.INCR), NUMBERS, NUMBERS, st.booleans(), NUMBERS, NUMBERS
)
BRANCHES = st.lists(st.builds(Branch, st.just("2" * 40), st.integers(0, 2**60)), max_size=3).map(tuple)
REPLIDS = st.builds(
    ReplicationIds,
    st.sampled_from(["7c2a8d3f" * 5, "0" * 40]),
    st.just("1" * 40),
    st.integers(-1, 2**60),
    st.sampled_from(["", "51d04be6" * 5]),
    BRANCHES,
)


@given(st.lists(FILES, min_size=1, max_size=5, unique_by=lambda file: file.name), REPLIDS)
def test_a_manifest_that_is_cut_anywhere_is_refused(files: list[LogFile], replids: ReplicationIds) -> None:
    """Files of a Redis that we took over have no mark of ours; the line about the replication id stands above them."""
    kinds = [FileType.BASE, FileType.HISTORY]
    marked = [replace(file, type=kind) for file, kind in zip(files, kinds, strict=False)]
    incrs = tuple(replace(file, seq=number) for number, file in enumerate(files[2:], 1))
    incrs = (*incrs[:-1], *(replace(file, size=None) for file in incrs[-1:]))
    manifest = Manifest(marked[0], tuple(marked[1:]), incrs, replids)
    whole = serialize(manifest)
    if any(file.name in (".", "..") for file in files) or max(map(len, whole.splitlines(True))) > manifests.MAX_LINE:
        return
    assert parse(whole, PATH.name) == manifest  # no file of these is called so, and a manifest may not list itself
    for end in range(len(whole)):
        refusal(whole[:end])


def test_the_manifest_of_a_single_file_that_is_cut_is_refused_or_the_same() -> None:
    whole = serialize(Manifest(base=BASE))
    for end in range(len(whole)):
        try:
            assert parse(whole[:end], "m") == Manifest(base=BASE)
        except CorruptionError:
            assert end != whole.index(b"#CK"), "what a Redis would have written is no error"


def test_nothing_may_stand_behind_the_line_that_guards_the_others() -> None:
    whole = serialize(FULL)
    for more in (b"file appendonly.aof.7.incr.aof seq 7 type i\n", b"# seen\n"):
        assert "is not at the end" in refusal(whole + more).reason


def test_the_manifest_is_replaced_in_one_step_that_survives_a_crash() -> None:
    files = FaultyFiles()
    files.make_directory(PATH.parent)
    manifests.replace(PATH, Manifest(base=BASE), files)
    manifests.replace(PATH, FULL, files)
    assert files.operations[-5:] == ["sync", "close", "sync_directory", "rename", "sync_directory"]
    assert manifests.load(PATH, files) == FULL
    assert manifests.load(PATH, files.crash()) == FULL
    assert files.open_count == 0


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
def test_a_failure_before_the_step_leaves_the_old_manifest(operation: str) -> None:
    files = FaultyFiles()
    files.make_directory(PATH.parent)
    manifests.replace(PATH, Manifest(base=BASE), files)
    files.fail(operation, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        manifests.replace(PATH, FULL, files)
    assert files.paths() == [PATH]
    assert manifests.load(PATH, files) == Manifest(base=BASE)
    assert manifests.load(PATH, files.crash()) == Manifest(base=BASE)
    assert files.open_count == 0


def test_a_failure_after_the_step_is_told_apart() -> None:
    files = FaultyFiles()
    files.make_directory(PATH.parent)
    files.fail("sync_directory", errno.EIO, after=1)
    with pytest.raises(ReplacedError):
        manifests.replace(PATH, FULL, files)


def test_no_manifest_is_none_and_an_empty_one_is_an_error() -> None:
    files = FaultyFiles()
    assert manifests.load(PATH, files) is None
    files.put(PATH, b"")
    with pytest.raises(CorruptionError, match="empty"):
        manifests.load(PATH, files)


def test_redis_check_aof_accepts_our_manifest(tmp_path: Path) -> None:
    for file in FULL.files:
        (tmp_path / file.name).write_bytes(b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n#CK:crc32c=00000000\r\n")
    path = tmp_path / PATH.name
    path.write_bytes(serialize(FULL))
    program = shutil.which("redis-check-aof")
    assert program is not None, "redis-check-aof comes with redis-server"
    done = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "All AOF files and manifest are valid" in done.stdout


def history(seq: int, start: int, end: int | None) -> LogFile:
    return LogFile.incr(seq, start).as_history(end)


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        ([history(2, 100, 200), history(3, 200, 300), history(4, 300, 400)], [2, 3, 4]),
        ([history(2, 100, 200), history(4, 300, 400)], [4]),
        ([history(2, 100, 200), history(3, 200, 299), history(4, 300, 400)], [4]),
        ([history(2, 100, 200), history(3, 200, None), history(4, 300, 400)], [4]),
        ([history(2, 100, 200), history(3, 200, 300)], []),
        ([history(3, 300, 400), history(4, 300, 400)], [4]),
    ],
    ids=["none", "a file", "an offset", "one that was given up", "the newest", "two for the same"],
)
def test_a_gap_ends_the_backlog(files: list[LogFile], kept: list[int]) -> None:
    manifest = Manifest(LogFile.base(2, 10, 5), tuple(files), (LogFile.incr(5, 400), LogFile.incr(6, 500)))
    assert [file.seq for file in manifest.backlog] == kept
    assert [file.seq for file in manifest.streamed] == [*kept, 5, 6]


def test_no_backlog_goes_before_a_log_without_offsets() -> None:
    manifest = Manifest(None, (history(2, 100, 200),), (LogFile("x.incr.aof", 5, FileType.INCR, start_offset=200),))
    assert manifest.backlog == ()
