from __future__ import annotations

import random
import sys
import tracemalloc
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.store.format.log_lines import FrameError, encode_annotation, encode_command, encode_extension
from riverbed.store.log.streamed import batch as log_batch
from riverbed.store.log.streamed import stream as log_stream
from riverbed.store.log.streamed.batch import StreamedBatch
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.wire import IS_NATIVE, count_of, words_of
from tests.support.effort import measured

Words = list[bytes]

START = 1000
TRICKY = [b"v", b"#CK:", b"\n#CK:crc32c=00000000;len=1;off=2;t=3\r\n", b"x" * 5000, b"y" * 70_000, b""]


def written(batches: list[tuple[list[Words], list[Words]]], offset: int = START) -> bytes:
    """The bytes of batches, each of plain commands and of commands in extension lines."""
    data = b""
    for plain, hidden in batches:
        commands = b"".join(map(encode_command, plain))
        offset += len(commands)
        covered = commands + b"".join(map(encode_extension, hidden))
        data += covered + encode_annotation(covered, offset, 1_700_000_000_000)
    return data


def some_batches(seed: int, count: int = 6) -> list[tuple[list[Words], list[Words]]]:
    chance = random.Random(seed)
    return [
        (
            [[b"XADD", b"s", b"1-1", b"f", chance.choice(TRICKY)] for _ in range(chance.randint(1, 4))],
            [[b"XSEEN", b"g" * 2000]] * chance.randint(0, 1),
        )
        for _ in range(count)
    ]


def received(stream: LogStream, data: bytes, size: int) -> list[StreamedBatch]:
    found: list[StreamedBatch] = []
    for at in range(0, len(data), size):
        stream.feed(data[at : at + size])
        found += iter(stream.next, None)
    return found


def told(batch: StreamedBatch | None) -> tuple[object, ...]:
    assert batch is not None
    return batch.data, batch.covered, batch.command_bytes, batch.commands, batch.offset


@pytest.mark.parametrize("size", [1, 2, 3, 50, 1000, 65_536, 1 << 20])
def test_batches_come_out_whole_however_they_arrive(size: int) -> None:
    batches = some_batches(size, 3 if size < 50 else 12)
    if size < 50:
        batches = [([[*words[:4], words[4][:100]] for words in plain], hidden) for plain, hidden in batches]
    data = written(batches)
    stream = LogStream(START, 1 << 20)
    found = received(stream, data, size)
    assert [list(batch.commands) for batch in found] == [plain + hidden for plain, hidden in batches]
    assert b"".join(batch.data for batch in found) == data
    assert [batch.command_data() for batch in found] == [b"".join(map(encode_command, plain)) for plain, _ in batches]
    assert stream.pending_bytes == 0
    assert stream.offset == START + sum(len(batch.command_data()) for batch in found)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_byte_is_refused_or_waits_for_more(data: st.DataObject) -> None:
    sound = written([([[b"XADD", b"s", b"1-1", b"f", b"value"]], [[b"XSEEN", b"x"]])] * 2)
    at = data.draw(st.integers(0, len(sound) - 1))
    flipped = sound[at] ^ 1 << data.draw(st.integers(0, 7))
    damaged = sound[:at] + bytes([flipped]) + sound[at + 1 :]
    stream = LogStream(START, 1 << 20)
    first_ends = len(sound) // 2
    try:
        found = received(stream, damaged, 64)
    except FrameError:
        return
    assert len(found) < 2
    assert len(found) == (at >= first_ends)


@pytest.mark.parametrize("garbage", [b"\0" * 100, b"GET / HTTP/1.1\r\n", b"+OK\r\n" * 20, b"*x\r\n", b"*1\r\n:5\r\n"])
def test_garbage_is_refused_at_once(garbage: bytes) -> None:
    stream = LogStream(0, 1 << 30)
    with pytest.raises(FrameError):
        received(stream, garbage * 20_000, 1000)
    assert stream.pending_bytes < 200_000


def test_commands_that_no_annotation_ever_closes_are_refused_at_the_limit() -> None:
    stream = LogStream(0, 1 << 20)
    endless = encode_command([b"XADD", b"s", b"1-1", b"f", b"v" * 5000]) * 1000
    with pytest.raises(FrameError, match="more than 1048576 bytes"):
        received(stream, endless, 1 << 16)


def test_a_huge_length_is_refused_before_anything_is_kept_for_it() -> None:
    stream = LogStream(0, 1 << 20)
    stream.feed(b"*2\r\n$3\r\nDEL\r\n$99999999999\r\n" + b"x" * (64 << 10))
    with pytest.raises(FrameError, match="more than"):
        stream.next()


@pytest.mark.parametrize("offset", [START - 1, START + 1, 0])
def test_a_batch_that_does_not_continue_the_one_before_is_refused(offset: int) -> None:
    stream = LogStream(offset, 1 << 20)
    stream.feed(written([([[b"PING"]], [])]))
    with pytest.raises(FrameError, match="offset"):
        stream.next()


def test_a_batch_that_comes_twice_is_refused() -> None:
    data = written([([[b"PING"]], [])])
    stream = LogStream(START, 1 << 20)
    stream.feed(data + data)
    assert stream.next() is not None
    with pytest.raises(FrameError, match="offset"):
        stream.next()


def test_a_preface_is_taken_where_a_file_begins_and_nowhere_else() -> None:
    select = encode_command([b"SELECT", b"3"])
    preface = select + encode_annotation(select, START, 1_700_000_000_000)
    stream = LogStream(START, 1 << 20, from_file=True)
    stream.feed(preface + written([([[b"PING"]], [])]))
    first = stream.next()
    assert first is not None and first.offset == START
    assert stream.next() is not None
    for later in (LogStream(START, 1 << 20), stream):
        later.feed(preface)
        with pytest.raises(FrameError):
            later.next()


def test_words_that_look_like_long_lists_are_words() -> None:
    words = [[b"XADD", b"s", b"1-1", b"f", word] for word in (b"*9999999\r\n", b">12345", b"a|2024", b"*" + b"9" * 100)]
    data = written([([command], []) for command in words])
    for size in (1, 100, 1 << 20):
        found = received(LogStream(START, 1 << 20), data, size)
        assert [command for batch in found for command in batch.commands] == words


@pytest.mark.parametrize("size", [100, 1400])
def test_each_word_of_a_long_command_is_parsed_once_however_it_arrives(size: int) -> None:
    words = [b"XACK", b"s", b"g", *(b"%d-1" % number for number in range(20_000))]
    data = written([([words], [])])
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    stream = LogStream(START, 1 << 20)
    sys.setprofile(count)
    try:
        found = received(stream, data, size)
    finally:
        sys.setprofile(None)
    assert [batch.commands for batch in found] == [[words]]
    assert calls < 20 * (len(words) + len(data) // size)


@pytest.mark.parametrize("size", [700, 1 << 20])
@pytest.mark.parametrize("most", [1, 7, 100])
def test_a_long_batch_is_parsed_so_many_frames_or_a_piece_at_a_time(
    size: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (log_batch, log_stream):
        monkeypatch.setattr(module, "NATIVE_PIECE_BYTES", 500)
    in_a_piece = 4
    long = [[b"XADD", b"s", b"%d-1" % number, b"f", b"x" * 60] for number in range(1, 1500)]
    data = written([([[b"PING"]], []), (long, [[b"XSEEN", b"s", b"g", b"c", b"1", b"2"]]), ([[b"PING"]], [])])
    stream, bounded = LogStream(START, 1 << 20), LogStream(START, 1 << 20)
    stream.feed(data)
    whole = [stream.next() for _ in range(3)]
    found: list[StreamedBatch] = []
    for at in range(0, len(data), size):
        bounded.feed(data[at : at + size])
        while True:
            before = count_of([*bounded._found.commands])
            batch = bounded.next(most)
            if batch is not None:
                found.append(batch)
            elif bounded.is_unfinished:
                assert count_of([*bounded._found.commands]) <= before + most + in_a_piece
            else:
                break
    assert [told(batch) for batch in found] == [told(batch) for batch in whole]
    assert not bounded.is_unfinished


@pytest.mark.parametrize("size", [100, 1 << 20])
@pytest.mark.parametrize("filler", [1, 800])
def test_a_word_that_is_not_closed_is_refused_though_the_checksum_fits(size: int, filler: int) -> None:
    commands = encode_command([b"XADD", b"s", b"1-1", b"f", b"v" * 100]) * filler
    commands += b"*2\r\n$3\r\nDEL\r\n$1\r\nsx\n"
    data = commands + encode_annotation(commands, START + len(commands), 1)
    stream = LogStream(START, 1 << 20)
    with pytest.raises(FrameError):
        received(stream, data, size)


# Each is longer than any simple batch.
MANY: list[list[Words]] = [
    [[b"PING"]] * 20_000,
    [[b"XADD", b"s", b"%d-1" % number, b"f", b"v"] for number in range(1, 7000)],
    [[b"XACK", b"s", b"g", *(b"%d-1" % number for number in range(25_000))]],
    [[b"XADD", b"s", b"1-1", b"f", b"x" * 200_000, b"g", b"y" * 100_000], [b"PING"]],
]


@pytest.mark.parametrize("size", [300, 5000, 1 << 20])
@pytest.mark.parametrize("plain", MANY, ids=["pings", "adds", "words", "values"])
@pytest.mark.parametrize("kept", [20_000, 1 << 20])
def test_a_long_batch_is_the_same_when_its_words_are_not_kept(
    size: int, plain: list[Words], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "_KEPT_BYTES", kept)
    hidden = [[b"XSEEN", b"g" * 2000]]
    data = written([([[b"PING"]], []), (plain, hidden), ([[b"PING"]], []), (plain, [])])
    found = received(LogStream(START, 1 << 20), data, size)
    assert [batch.commands for batch in found] == [[[b"PING"]], plain + hidden, [[b"PING"]], plain]
    assert [batch.requests is None for batch in found] == [False, kept < 1 << 20, False, kept < 1 << 20]
    assert b"".join(batch.data for batch in found) == data


ENDLESS = {
    "commands": (b"", b"*1\r\n$4\r\nPING\r\n" * 4000),
    "words": (b"*40000000\r\n", b"$1\r\nx\r\n" * 8000),
    "a value": (b"*2\r\n$3\r\nDEL\r\n$33000000\r\n", b"x" * 60_000),
    "comments": (b"", b"#X\r\n" * 16_000),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_batch_that_never_ends_takes_its_own_bytes_and_little_more(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, piece = ENDLESS[kind]
    monkeypatch.setattr(log_stream, "_KEPT_BYTES", 200_000)
    stream = LogStream(START, 64 << 20)
    stream.feed(first)
    tracemalloc.start()
    try:
        while stream.pending_bytes < 4 << 20:
            stream.feed(piece)
            assert stream.next() is None
        assert tracemalloc.get_traced_memory()[1] < 2 * stream.pending_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_long_value_that_is_not_closed_is_refused_when_its_batch_is_not_kept(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "_KEPT_BYTES", 1000)
    commands = encode_command([b"XADD", b"s", b"1-1", b"f", b"v" * 100_000, b"g", b"w" * 100_000])
    wrong = bytearray(commands)
    wrong[commands.index(b"v\r\n") + 1 if is_first else len(commands) - 1] ^= 1
    data = bytes(wrong) + encode_annotation(bytes(wrong), START + len(wrong), 1)
    with pytest.raises(FrameError, match="closed"):
        received(LogStream(START, 1 << 20), data, 7000)


def test_a_slice_ends_amid_a_flood_of_comments_and_says_that_there_is_more() -> None:
    stream = LogStream(START, 1 << 30)
    stream.feed(b"#\n" * 100_000)
    slices = 0
    while True:
        assert stream.next_slice(1 << 18, 512) == []
        if not stream.is_unfinished:
            break
        slices += 1
    assert 100_000 // 512 // 2 <= slices <= 100_000 // 512 + 1


@pytest.mark.parametrize("word", [b"k", b"v" * 200])
def test_a_request_of_very_many_words_is_parsed_in_many_pieces(word: bytes) -> None:
    """While one is parsed no other client has its turn."""
    words = [b"XADD", b"s", b"1-1", *[word] * 60_000]
    data = encode_command(words)
    stream = LogStream(0, 1 << 30)
    stream.feed(data + encode_annotation(data, len(data), 1))
    turns = 0
    while (batch := stream.next(512)) is None:
        assert stream.is_unfinished
        turns += 1
    assert turns >= len(data) >> 17
    assert batch.commands == [words]


def test_a_request_of_very_many_words_is_parsed_again_natively() -> None:
    words = [b"XADD", b"s", b"1-1", *[b"k"] * 1_000_000]
    commands = [[b"SELECT", b"0"], words, [b"XDEL", b"s", b"1-1"], words]
    data = b"".join(map(encode_command, commands))
    stream = LogStream(0, 1 << 30)
    stream.feed(data + encode_annotation(data, len(data), 1))
    batch = stream.next()
    assert batch is not None
    assert batch.requests is None
    with measured() as effort:
        pieces = list(batch.pieces())
    assert words_of([request for piece in pieces for request in piece]) == commands
    if IS_NATIVE:
        assert effort.units < 4  # 40 where each word is parsed here


def test_a_slice_has_sound_batches_before_a_damaged_one() -> None:
    data = written(some_batches(7))
    stream = LogStream(START, 1 << 20)
    stream.feed(data + b"garbage\r\n")
    found: list[StreamedBatch] = []
    while sum(len(batch.data) for batch in found) < len(data):
        found += stream.next_slice(1 << 18, 512)
    assert b"".join(batch.data for batch in found) == data
    with pytest.raises(FrameError):
        stream.next_slice(1 << 18, 512)


def test_a_damaged_batch_behind_sound_ones_is_refused_each_time() -> None:
    sound = written([([[b"XADD", b"s", b"1-1", b"f", b"v"]], [])])
    half = b"*4\r\n$3\r\nDEL\r\n$1\r\nk\r\n"  # its first words, taken twice, would be as many as it announces
    offset = START + sound.index(b"#CK:") + len(half)
    stream = LogStream(START, 1 << 20)
    stream.feed(sound + half + encode_annotation(half, offset, 1))
    assert [batch.data for batch in stream.next_slice(1 << 18, 512)] == [sound]
    for _ in range(3):
        with pytest.raises(FrameError, match="malformed length line"):
            stream.next_slice(1 << 18, 512)
