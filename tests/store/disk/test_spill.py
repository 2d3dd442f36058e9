"""Batches that are too long for memory: what `streamed/` puts into a file, and what comes out of it."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.store.disk import spill
from riverbed.store.disk.spill import Spill
from riverbed.store.errors import LacksRoomError
from riverbed.store.format.log_lines import FrameError, encode_annotation, encode_command, encode_extension
from riverbed.store.log.streamed import stream as log_stream
from riverbed.store.log.streamed.batch import StreamedBatch, data_of
from riverbed.store.log.streamed.stream import LogStream

START = 1000
HELD = 20_000
SHORT = 64 << 10  # a batch of fewer bytes is not looked into before it is whole
MOST = 1 << 22
PLENTY = 1 << 40


class Spills:
    """Makes spills in `directory`, and remembers them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.free = PLENTY
        self.made: list[Spill] = []

    def __call__(self) -> Spill:
        self.made.append(Spill(self.directory, lambda path: self.free, 1 << 20))
        return self.made[-1]

    @property
    def are_closed(self) -> bool:
        return all(made._file.closed for made in self.made)

    def close(self) -> None:
        for made in self.made:
            made.close()


@pytest.fixture
def spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spills]:
    """With the bounds of memory lowered to a few kilobytes."""
    monkeypatch.setattr(log_stream, "_KEPT_BYTES", 10_000)
    monkeypatch.setattr(log_stream, "HELD_BYTES", HELD)
    monkeypatch.setattr(log_stream, "PIECE_BYTES", 3000)
    monkeypatch.setattr(spill, "PIECE_BYTES", 3000)
    made = Spills(tmp_path)
    yield made
    made.close()


def batch(commands: list[list[bytes]], hidden: list[list[bytes]], offset: int) -> tuple[bytes, int]:
    """-> (the bytes of a batch, the offset behind it)."""
    plain = b"".join(map(encode_command, commands))
    covered = plain + b"".join(map(encode_extension, hidden))
    return covered + encode_annotation(covered, offset + len(plain), 1), offset + len(plain)


def add(number: int, size: int) -> list[bytes]:
    return [b"XADD", b"s", b"%d-1" % number, b"f", b"\n#CK:"[: number % 6] + b"x" * size]


LONG: dict[str, list[list[bytes]]] = {
    "small commands": [add(number, 50) for number in range(2000)],
    "words": [[b"XACK", b"s", b"g", *[b"%d-1" % number for number in range(12_000)]]],
    "a value": [add(1, 30), add(2, 150_000), add(3, 30)],
    "values": [add(number, 9000 + number) for number in range(20)],
    "a value at the end": [add(1, 30), add(2, 150_000)],
}


def mixed() -> tuple[bytes, int]:
    """Short batches, and a long one of each kind."""
    data, offset = b"", START
    for commands in LONG.values():
        for part, hidden in (([[b"PING"]], []), (commands, [[b"XSEEN", b"g" * 2000]])):
            piece, offset = batch(part, hidden, offset)
            data += piece
    return data, offset


def received(stream: LogStream, data: bytes, size: int, most: int = 1 << 62) -> list[StreamedBatch]:
    found: list[StreamedBatch] = []
    for at in range(0, len(data), size):
        stream.feed(data[at : at + size])
        while (taken := stream.next(most)) is not None or stream.is_unfinished:
            found += () if taken is None else (taken,)
        assert stream.pending_bytes <= SHORT + size + 3000
    return found


@pytest.mark.parametrize("most", [50, 1 << 62])
@pytest.mark.parametrize("size", [37, 1000, 70_000, 1 << 22])
def test_long_batches_are_the_same_out_of_a_file(spills: Spills, size: int, most: int) -> None:
    data, offset = mixed()
    in_memory = LogStream(START, MOST)
    in_memory.feed(data)
    expected = list(iter(in_memory.next, None))
    stream = LogStream(START, MOST, spills)
    found = received(stream, data, size, most)
    assert [sound.commands for sound in found] == [sound.commands for sound in expected]
    assert [(sound.covered, sound.command_bytes, sound.offset) for sound in found] == [
        (sound.covered, sound.command_bytes, sound.offset) for sound in expected
    ]
    assert [sound.size for sound in found] == [len(sound.data) for sound in expected]
    assert b"".join(piece for sound in found for piece in data_of([sound])) == data
    assert stream.offset == offset
    assert stream.pending_bytes == 0
    if size < HELD:
        assert len(spills.made) == len(LONG)
    assert os.listdir(spills.directory) == []  # they never had a name
    for sound in found:
        sound.release()
    assert spills.are_closed


def test_only_the_last_batch_of_a_slice_is_in_a_file(spills: Spills) -> None:
    data, _ = mixed()
    stream = LogStream(START, MOST, spills)
    slices = []
    for at in range(0, len(data), 500):
        stream.feed(data[at : at + 500])
        while (taken := stream.next_slice(1 << 30, 1 << 30)) or stream.is_unfinished:
            if taken:
                slices.append(taken)
    assert len(spills.made) == len(LONG)
    for taken in slices:
        assert all(sound.spill is None for sound in taken[:-1])
    assert b"".join(piece for taken in slices for piece in data_of(taken)) == data


@pytest.mark.parametrize("kind", LONG)
def test_damage_anywhere_in_a_long_batch_is_refused(spills: Spills, kind: str) -> None:
    sound, _ = batch(LONG[kind], [], START)
    source = random.Random(kind)
    places = [*(source.randrange(len(sound)) for _ in range(25)), *range(len(sound) - 90, len(sound), 7)]
    for at in places:
        damaged = bytearray(sound)
        damaged[at] ^= 1 << source.randrange(8)
        stream = LogStream(START, MOST, spills)
        found: list[StreamedBatch] = []
        try:
            found = received(stream, bytes(damaged), 900)
            # a length that is longer now waits for more
            assert not found, at
        except FrameError:
            pass
        stream.close()
    assert len(spills.made) > len(places) // 2
    assert spills.are_closed


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (b"", encode_command([b"PING"]) * 100),
        (b"*40000000\r\n", b"$1\r\nx\r\n" * 300),
        (b"*2\r\n$3\r\nDEL\r\n$3140000\r\n", b"x" * 2500),
        (b"", b"#X\r\n" * 800),
    ],
    ids=["commands", "words", "a value", "comments"],
)
def test_a_batch_that_is_never_closed_stays_out_of_memory(spills: Spills, first: bytes, piece: bytes) -> None:
    stream = LogStream(START, 3 << 20, spills)
    with pytest.raises(FrameError, match=r"more than|closed by"):
        received(stream, first + piece * ((4 << 20) // len(piece)), 2000)
    assert len(spills.made) == 1
    assert spills.made[0].size > (3 << 20) - HELD - 5000
    stream.close()
    assert spills.are_closed


def test_a_long_batch_is_refused_when_the_disk_has_little_more_than_its_reserve(spills: Spills) -> None:
    data, _ = batch(LONG["small commands"], [], START)
    spills.free = (1 << 20) + (10 << 20)
    stream = LogStream(START, MOST, spills)
    with pytest.raises(LacksRoomError) as caught:
        received(stream, data, 1000)
    assert caught.value.errno == errno.ENOSPC
    stream.close()
    assert spills.are_closed
    spills.free = (1 << 20) + (40 << 20)
    assert len(received(LogStream(START, MOST, spills), data, 1000)) == 1


def test_room_is_measured_again_while_a_batch_grows(spills: Spills, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_BYTES_A_SPACE_CHECK", 10_000)
    data, _ = batch(LONG["small commands"], [], START)
    spills.free = (1 << 20) + 50_000  # for half of it in the file, and again in the log
    with pytest.raises(LacksRoomError):
        received(LogStream(START, MOST, spills), data, 1000)
    assert 30_000 < spills.made[0].size < 60_000


def test_bytes_that_change_in_the_file_are_noticed_before_one_is_executed(spills: Spills) -> None:
    data, _ = batch(LONG["small commands"], [], START)
    (found,) = received(LogStream(START, MOST, spills), data, 1000)
    assert found.spill is not None
    place = found.spill.size // 2
    os.pwrite(found.spill._file.fileno(), bytes([data[place] ^ 1]), place)
    with pytest.raises(OSError, match="other bytes"):
        next(iter(found.pieces()))
    with pytest.raises(OSError, match="other bytes"):
        list(data_of([found]))
    os.ftruncate(found.spill._file.fileno(), place)
    with pytest.raises(OSError, match="shorter"):
        next(iter(found.pieces()))


def test_a_long_one_is_closed_without_waiting_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of gigabytes end in the loop that serves all clients."""
    closed: list[int] = []
    monkeypatch.setattr(spill, "close_file", lambda fd: closed.append(os.fstat(fd).st_size) or os.close(fd))
    made = Spill(tmp_path, lambda path: PLENTY, 1 << 20)
    made.append(memoryview(b"x" * 5000))
    made.close()
    made.close()
    assert closed == [5000]
    assert made._file.closed
