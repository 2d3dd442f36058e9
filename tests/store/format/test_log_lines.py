from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverbed.store.format import log_lines
from riverbed.store.format.log_lines import (
    CommandCollector,
    FrameError,
    ShortFrame,
    command_size,
    decode_extension,
    encode_annotation,
    encode_command,
    encode_extension,
    find_line,
    parse_annotation,
    parse_frame,
)
from riverbed.store.log import manifest
from tests.support.servers import ROOT

FORMAT = (ROOT / "store" / "FORMAT.md").read_text()
WORDS = st.lists(st.binary(max_size=50), min_size=1, max_size=6)


def examples(kind: str) -> list[str]:
    found = re.findall(rf"^```{kind}\n(.*?)^```$", FORMAT, re.DOTALL | re.MULTILINE)
    assert found
    return found


def test_the_documents_batches_are_what_the_module_reads_and_writes() -> None:
    add = [b"XADD", b"s", b"1-1", b"f", b"v"]
    setting = [b"XCFGSET", b"s", b"IDMP-DURATION", b"60"]
    for text, commands in zip(examples("resp"), ([add], [add, setting]), strict=True):
        data = text.replace("\n", "\r\n").encode()
        found = CommandCollector()
        at = 0
        while not data.startswith(log_lines.ANNOTATION_START, at):
            words, end = parse_frame(data, at)
            if words is None:
                found.take_comment(data[at:end])
            else:
                found.take_command(words)
            at = end
        found.finish()
        assert found.commands == commands
        annotation = parse_annotation(data, at)
        assert annotation is not None
        assert (annotation.covered, annotation.offset, annotation.time_ms) == (at, 67, 1700000000000)
        assert data[at:] == encode_annotation(data[:at], 67, 1700000000000)
        assert data[:at] == b"".join([encode_command(add), *map(encode_extension, commands[1:])])


def test_the_documents_manifest_is_what_the_module_reads_and_writes() -> None:
    (text,) = examples("manifest")
    found = manifest.parse(text.encode(), "FORMAT.md")
    assert manifest.serialize(found) == text.encode()
    assert [file.seq for file in found.files] == [2, 5, 6]


@given(WORDS, st.binary(max_size=20))
def test_a_command_is_parsed_whole_and_with_a_tail_but_not_short(words: list[bytes], tail: bytes) -> None:
    data = encode_command(words)
    assert command_size(words) == len(data)
    assert parse_frame(data, 0) == (words, len(data))
    assert parse_frame(tail + data + tail, len(tail)) == (words, len(tail) + len(data))
    for size in range(len(data)):
        with pytest.raises(ShortFrame) as caught:
            parse_frame(data[:size], 0)
        assert size < caught.value.needed <= len(data)


def test_a_length_is_not_believed_beyond_the_data() -> None:
    with pytest.raises(ShortFrame) as caught:
        parse_frame(b"*1\r\n$999999999999\r\nabc", 0)
    assert caught.value.needed == 21 + 999999999999
    assert caught.value.line_end == 19 + 999999999999


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"\r\n",
        b"*0\r\n",
        b"*01\r\n",
        b"*x",
        b"*1\rx",
        b"*1\r\n*1",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$1\r\nabc",
        b"*" + b"1" * 30,
    ],
)
def test_what_is_no_command_is_an_error_even_when_short(data: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        parse_frame(data, 0)
    assert not isinstance(caught.value, ShortFrame)


def test_a_comment_is_a_line_that_redis_can_read() -> None:
    assert parse_frame(b"#\nrest", 0) == (None, 2)
    longest = b"#" + b"x" * 1021 + b"\n"
    assert parse_frame(longest + b"more", 0) == (None, len(longest))
    with pytest.raises(ShortFrame):
        parse_frame(longest[:-1], 0)
    with pytest.raises(FrameError, match="comment line"):
        parse_frame(b"#x" + longest[1:], 0)


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_an_annotation_reads_back_and_fits_its_bytes_alone(covered: bytes, offset: int, now_ms: int) -> None:
    line = encode_annotation(covered, offset, now_ms)
    assert len(line) <= log_lines.MAX_ANNOTATION_BYTES
    found = parse_annotation(b"xx" + line + b"yy", 2)
    assert found is not None
    assert found[1:4] == (len(covered), offset, now_ms)
    assert log_lines.is_sound(found, log_lines.crc32c(covered))
    assert not log_lines.is_sound(found, log_lines.crc32c(covered + b"x"))


def test_every_flipped_bit_of_an_annotation_is_noticed() -> None:
    line = encode_annotation(b"covered", 123456, 1700000000000)
    for at in range(len(line)):
        for bit in range(8):
            damaged = bytearray(line)
            damaged[at] ^= 1 << bit
            found = parse_annotation(bytes(damaged))
            assert found is None or not log_lines.is_sound(found, log_lines.crc32c(b"covered"))


@given(st.lists(st.binary(max_size=900), min_size=1, max_size=4))
def test_an_extension_reads_back_from_short_lines(words: list[bytes]) -> None:
    lines = encode_extension(words).splitlines(keepends=True)
    assert decode_extension(lines) == words
    assert max(map(len, lines)) < 1000
    assert all(line.startswith(b"#RB") and line.endswith(b"\r\n") for line in lines)


@pytest.mark.parametrize(
    "lines",
    [
        [b"#RB+AAAA\r\n"],
        [b"#RB:\r\n"],
        [b"#RB:A\r\n"],
        [b"#RB:AAAA\r\n"],
        [b"#RB:*(&^\r\n"],
        encode_extension([b"x" * 1000]).splitlines(keepends=True)[:1],
        [*encode_extension([b"x"]).splitlines(keepends=True), b"#RB+AAAA\r\n"],
    ],
)
def test_extension_lines_that_are_not_one_command_are_an_error(lines: list[bytes]) -> None:
    with pytest.raises(FrameError):
        decode_extension(lines)


def test_extensions_keep_their_place_between_the_commands() -> None:
    found = CommandCollector()
    for line in [*encode_extension([b"A" * 1000]).splitlines(keepends=True), b"#TS:1\r\n"]:
        found.take_comment(line)
    found.take_command([b"B"])
    found.take_comment(encode_extension([b"C"]))
    found.take_comment(encode_extension([b"D"]))
    assert not found.is_settled
    found.finish()
    assert found.is_settled
    assert found.commands == [[b"A" * 1000], [b"B"], [b"C"], [b"D"]]


@pytest.mark.parametrize("beginning", [b"#", b"#CK:"])
def test_a_line_is_found_among_signs_that_begin_none(beginning: bytes) -> None:
    """It is looked for by its first byte, which values, comments and extensions have as well."""
    rng = random.Random(13)
    pieces = [b"#", b"\n#", b"\r\n", b"a value ", b"#RB:Kg==\r\n", b"\n#C", b"\n#CK:", b"#CK:crc32c="]
    for _ in range(3000):
        data = b"".join(rng.choices(pieces, k=rng.randint(0, 6)))
        end = rng.randint(0, len(data) + 1)
        for at in range(len(data) + 1):
            assert find_line(data, beginning, at, end) == data.find(b"\n" + beginning, at, end) + 1, (data, at, end)
            assert find_line(bytearray(data), beginning, at) == data.find(b"\n" + beginning, at) + 1, (data, at)
