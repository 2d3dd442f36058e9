"""Logs that a Redis has written: read here."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError, LogWriteError
from riverbed.store.format.log_lines import encode_command, encode_extension
from riverbed.store.log.append_log import Batch, TornTail
from riverbed.store.log.empty_rdb import is_empty_rdb
from riverbed.store.log.files.plain import PLAIN_BATCH_COMMANDS
from riverbed.store.log.manifest import FileType, LogFile, Manifest, load, serialize
from riverbed.store.log.reader import LogReader, list_parts
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.wire import IS_NATIVE, Run
from tests.support.servers import RedisServer
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
    filled,
    lookalike,
    open_log,
    plain,
    reopened,
    xadd,
)
from tests.support.waiting import rewrite_ended

StartRedis = Callable[..., RedisServer]


def redis_log(incr: bytes, base: bytes | None = None) -> FaultyFiles:
    """Files of a Redis under a manifest of ours: a log that was taken over before such logs were refused."""
    files = FaultyFiles()
    listed = None
    if base is not None:
        listed = LogFile("appendonly.aof.1.base.aof", 1, FileType.BASE)
        files.put(HOME / listed.name, base)
    manifest = Manifest(listed, (), (LogFile(FIRST.name, 1, FileType.INCR),), ReplicationIds.new())
    files.put(MANIFEST, serialize(manifest))
    files.put(FIRST, incr)
    return files


def reader_of(directory: Path) -> LogReader:
    """As `riverbed replay` reads the log in `directory`."""
    home, files = directory / "appendonlydir", OsFiles()
    manifest = load(home / "appendonly.aof.manifest", files)
    assert manifest is not None
    assert not manifest.is_ours
    return LogReader(list_parts(home, manifest, files), files)


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
        assert flat(list(open_log(ROOT, files).read(batch.end))) == flat(found[found.index(batch) + 1 :])
    with pytest.raises(LogWriteError, match="rotate"):
        append(log, [xadd(1000)])
    assert log.rotate_if_needed()
    append(log, [SELECT, xadd(1000)])
    log.writer.sync()
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
    parts = list_parts(HOME, open_log(ROOT, redis_log(text)).home.manifest, redis_log(text))
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
    log.writer.sync()
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


EXTENSION = encode_extension(SETTINGS)
PIECES = st.one_of(
    st.integers(1, 600).map(lambda count: plain([xadd(n, b"\r\n*1\r\n" * (n % 3)) for n in range(count)])),
    st.sampled_from(
        [
            plain([[b"XADD", b"t", b"MAXLEN", b"=", b"2", b"5-5", b"f", b"v"], [b"xadd", b"t", b"*", b"f", b"v"]]),
            plain([[b"XACK", b"s", b"g", b"1-1"], SELECT, [b"SET", b"k", b"v" * 40_000]]),
            plain([[b"MULTI"], xadd(1), xadd(2), [b"EXEC"]]),
            plain([[b"MULTI"], *map(xadd, range(300)), [b"DEL", b"s"], [b"EXEC"]]),
            b"#\n",
            b"#TS:1700000000\r\n",
            b"#TS:1700000001\r\n",
            EXTENSION,
        ]
    ),
)


def noted(batches: list[Batch]) -> list[tuple[int | None, Words]]:
    return [(batch.noted_ms, words) for batch in batches for words in batch.commands]


# commands in comment lines, which end where the next request begins
@example([plain([xadd(1)]), EXTENSION, plain([*map(xadd, range(256))])], 0)
@example([EXTENSION, plain([*map(xadd, range(256))])], 0)
@example([plain([SELECT]), plain([*map(xadd, range(254))]), EXTENSION, plain([xadd(1)] * 3)], 0)
@example([(EXTENSION + b"#\n") * 300], 0)
@example([plain([[b"MULTI"], *map(xadd, range(250))]), EXTENSION, plain([*map(xadd, range(250))])], 0)
@settings(max_examples=60)
@given(st.lists(PIECES, max_size=12), st.integers(0, 200))
def test_what_is_taken_together_is_what_is_taken_one_by_one(pieces: list[bytes], cut: int) -> None:
    text = b"".join(pieces)
    files = redis_log(text[: max(len(text) - cut, 0)])
    parts = list_parts(HOME, open_log(ROOT, files).home.manifest, files)
    together, single = LogReader(parts, files), LogReader(parts, files, plain_batch_commands=1)
    found, expected = list(together.batches(None, None)), list(single.batches(None, None))
    assert noted(found) == noted(expected)
    assert (together.end, str(together.torn_tail)) == (single.end, str(single.torn_tail))
    assert {batch.end.offset for batch in found} <= {batch.end.offset for batch in expected}
    assert [batch.start for batch in found] == [0, *(batch.end.position for batch in found)][: len(found)]
    for batch in found:
        assert len(batch.commands) <= PLAIN_BATCH_COMMANDS or [b"MULTI"] in batch.commands


def test_xadds_of_redis_are_taken_as_runs() -> None:
    _, found = reopened(redis_log(plain([SELECT, *map(xadd, range(600))])))
    runs = [request for batch in found for request in batch.requests if isinstance(request, Run)]
    assert sum(map(len, runs)) == (600 if IS_NATIVE else 0)


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
        open_log(ROOT, files)


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


# -- with a real Redis -------------------------------------------------------------------------------------------------


def test_a_real_redis_loads_the_directory(tmp_path: Path, start_redis: StartRedis) -> None:
    log = open_log(tmp_path, OsFiles(), segment_bytes=2000)
    count = 0
    for number in range(100):
        head = [SELECT] if log.rotate_if_needed() else []
        append(log, [*head, xadd(2 * number + 1, lookalike(number)), SETTINGS, xadd(2 * number + 2)])
        count += 2
    append(log, [[b"XCFGSET", b"k" * 5000]])
    log.writer.sync()
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
        rewrite_ended(client)
    server.stop()
    # And back again: what Redis made of it is read here.
    found = flat(list(reader_of(tmp_path).batches(None, None)))
    assert sum(words[0].upper() == b"XADD" for words in found) == count + 1


def test_logs_of_a_real_redis_are_read_back(tmp_path: Path, start_redis: StartRedis) -> None:
    server = start_redis(tmp_path, {"aof-timestamp-enabled": "yes"})
    with server.client() as client:
        for number in range(1, 40):
            client.ask("XADD", "s", f"{number}-1", "field", b"binary \r\n#CK:\0 value")
        client.ask("BGREWRITEAOF")
        rewrite_ended(client)
        client.ask("SELECT", "3")
        client.ask("MULTI")
        client.ask("XADD", "t", "1-1", "a", "b")
        client.ask("XADD", "t", "2-1", "a", "b")
        client.ask("EXEC")
        client.ask("XDEL", "t", "1-1")
    server.stop()
    directory = tmp_path / "appendonlydir"
    assert b"#TS:" in b"".join(path.read_bytes() for path in directory.iterdir())
    reader = reader_of(tmp_path)
    found = flat(list(reader.batches(None, None)))
    names = [words[0].upper() for words in found]
    assert names.count(b"XADD") == 41
    assert names[-6:] == [b"SELECT", b"MULTI", b"XADD", b"XADD", b"EXEC", b"XDEL"]
    assert reader.torn_tail is None


def test_an_rdb_base_of_a_real_redis_is_refused(tmp_path: Path, start_redis: StartRedis) -> None:
    server = start_redis(tmp_path, {"aof-use-rdb-preamble": "yes"})
    server.stop()
    assert list(reader_of(tmp_path).batches(None, None)) == []  # nothing is in it yet
    server.start()
    with server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("BGREWRITEAOF")
        rewrite_ended(client)
    server.stop()
    with pytest.raises(CorruptionError, match="aof-use-rdb-preamble no"):
        reader_of(tmp_path)


def test_a_torn_tail_says_where_it_is() -> None:
    torn = TornTail("the file", 10, 5, 8, "because")
    assert str(torn) == (
        "the file: 5 bytes from byte 10 on are not a whole batch (because); the log is whole up to replication offset 8"
    )
