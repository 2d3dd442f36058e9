from __future__ import annotations

import random

import pytest

from riverbed.store.format.log_lines import FrameError, encode_annotation, encode_command, encode_extension
from riverbed.store.log.files import long_batch
from riverbed.store.log.files.long_batch import LEAST_BYTES, LongBatch
from riverbed.store.position import LogPosition

PLACE = LogPosition(3, 100, 5000)


def gone_over(data: bytes, most: int, *, counts: bool = True) -> tuple[bytes, LogPosition]:
    """Go over the batch that `data` begins with, so many bytes at a time; -> its commands and its end."""
    batch = LongBatch(PLACE, counts=counts)
    parts = []
    while batch.end is None:
        at = batch.at - PLACE.position
        parts.append(batch.take(data[at : at + most]))
    return b"".join(parts), batch.end


def some_batch(chance: random.Random, *, counts: bool) -> tuple[bytes, bytes]:
    """A batch of words of all lengths, some with what looks like lines of the log; -> it, and its commands."""
    parts, commands = [], []
    forged = b"\n" + encode_annotation(b"x", PLACE.offset, 1)
    for _ in range(chance.randint(1, 10)):
        if chance.random() < 0.3:
            parts.append(encode_extension([b"XCFGSET", b"k", chance.randbytes(chance.choice((1, 2000)))]))
            continue
        words = [chance.choice((b"a", b"\r\n", forged)) * chance.choice((0, 1, 30, 1000)) for _ in range(3)]
        commands.append(encode_command([*words, *([b"v"] * chance.choice((0, 3000)))]))
        parts.append(commands[-1])
    data, plain = b"".join(parts), b"".join(commands)
    return data + encode_annotation(data, PLACE.offset + (len(plain) if counts else 0), 7), plain


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("counts", [True, False])
def test_slices_of_any_size_are_the_commands_of_the_batch(
    monkeypatch: pytest.MonkeyPatch, counts: bool, is_native: bool
) -> None:
    if not is_native:
        monkeypatch.setattr(long_batch, "IS_NATIVE", False)
    chance = random.Random(1)
    for _ in range(6):
        data, commands = some_batch(chance, counts=counts)
        offset = PLACE.offset + (len(commands) if counts else 0)
        for most in (LEAST_BYTES, LEAST_BYTES + chance.randrange(200), 100_000, len(data) + LEAST_BYTES):
            found, end = gone_over(data + b"*1\r\n$4\r\nPING\r\n", most, counts=counts)
            assert found == commands
            assert end == LogPosition(3, 100 + len(data), offset)


def test_a_batch_that_is_not_sound_is_an_error_at_its_end_at_the_latest() -> None:
    chance = random.Random(2)
    data, _ = some_batch(chance, counts=True)
    for _ in range(30):
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        with pytest.raises(FrameError):
            gone_over(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], 1 << 20)
    for size in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(FrameError, match="the file ends before an annotation closes the batch"):
            gone_over(data[:size], 1 << 20)


@pytest.mark.parametrize(("covered", "offset"), [(b"*1\r\n$4\r\nPING\r\n", PLACE.offset), (b"", PLACE.offset)])
def test_an_annotation_of_another_place_is_an_error(covered: bytes, offset: int) -> None:
    with pytest.raises(FrameError, match="annotation"):
        gone_over(covered + encode_annotation(covered, offset, 7), 1 << 20)


def test_a_slice_of_very_many_words_is_cut_short() -> None:
    command = encode_command([b"v"] * 100_000)
    data = command + encode_annotation(command, PLACE.offset + len(command), 7)
    assert len(LongBatch(PLACE, counts=True).take(data)) < 50_000
    assert gone_over(data, 1 << 20)[0] == command
