"""Every byte of the log's files: commands, annotation lines, extension lines.  Pure functions, no files.

A log file is a Redis append-only file: RESP commands one after the other, and comment lines that start with `#`, which
a real Redis skips.  Ours carry two kinds of comment:

    #CK:crc32c=<8 hex>;len=<bytes covered>;off=<offset after>;t=<unix ms>\r\n    the annotation that closes a batch
    #RB:<base64>\r\n  #RB+<base64>\r\n ...                                       a command a Redis 7 does not know

    | *5..XADD.. | *3..XDEL.. | #RB:.. | #RB+.. | #CK:crc32c=..;len=..;off=..;t=..\r\n |
    '------------------ len bytes --------------' '--- also under the checksum ---'

The checksum covers the `len` bytes since the previous annotation and then the rest of its own line from `;len=` on, so
that a change of any byte is found: a flipped bit in an offset would otherwise move every replica.  The offset
counts bytes of plain commands, which replicas are sent; comment lines do not count.

This module does not decide which files exist or what to do about damage.  `FORMAT.md` describes the same bytes with
worked examples.
"""

from __future__ import annotations

import binascii
import re
import sys
from typing import Final, NamedTuple

# crc32c and google-crc32c take the same time (190 ns on 200 bytes, 1.0 us on 20 KB, annotation's tail included);
# crc32c also reads memoryviews and continues a sum in one call.
from riverbed.store.checksum import crc32c
from riverbed.store.format.meta import NO_DATABASE

ANNOTATION_START: Final = b"#CK:"
EXTENSION_START: Final = b"#RB:"
EXTENSION_NEXT: Final = b"#RB+"
# A line of Redis's own, with `aof-timestamp-enabled yes`: the second in which the following commands were written.
TIMESTAMP_START: Final = b"#TS:"

# Redis reads a comment into 1024 bytes, terminator and NUL included: the longest that it skips has 1023 bytes.
MAX_COMMENT_LINE: Final = 1023
# 720 bytes make 960 characters of base64; with the prefix and the line end the line stays under 1000.
EXTENSION_PIECE: Final = 720
# `#CK:crc32c=` + 8, then three numbers of at most 20 digits behind their names, then the line end.
MAX_ANNOTATION_BYTES: Final = 19 + 25 + 25 + 23 + 2

_HASH: Final = ord("#")
# The longest length line: nothing in a file is so large that it needs a longer number.
_MAX_HEADER: Final = 1 + 18 + 2
UNCLOSED_WORD: Final = "a bulk string is not closed by a line end where its length says"

_ANNOTATION = re.compile(rb"#CK:crc32c=([0-9a-f]{8})(;len=(\d{1,20});off=(\d{1,20});t=(\d{1,20})\r\n)")
_TIMESTAMP = re.compile(rb"#TS:(\d{1,12})\r?\n")
_ARRAY = re.compile(rb"\*([1-9]\d{0,17})\r\n")
_BULK = re.compile(rb"\$(0|[1-9]\d{0,17})\r\n")
# A header that was cut short matches these; anything else in its place is damage, not an early end.
_CUT_ARRAY = re.compile(rb"\*(?:[1-9]\d{0,17}\r?)?")
_CUT_BULK = re.compile(rb"\$(?:(?:0|[1-9]\d{0,17})\r?)?")

match_annotation = _ANNOTATION.match

# Lists of fewer than 100 elements do no harm.
_find_long_count = re.compile(rb"\*[0-9]{3}").search
_long_counts = re.compile(rb"\*([0-9]{3,})").findall
_find_other_long_count = re.compile(rb"[>~%|][0-9]{3}").search
_SMALLEST_WORD_BYTES: Final = len(b"$0\r\n\r\n")


class FrameError(ValueError):
    """The bytes are neither a command nor a comment line, or a comment line of ours is not what it should be."""


class ShortFrame(FrameError):
    """The bytes end inside a command or line, which needs at least `needed` bytes to be whole.

    Everything before `resume_at`, where a line or a word begins, is whole.  `line_end` is where a bulk string of known
    length must be closed by CR LF, or None inside of a header or a line.
    """

    def __init__(self, needed: int, resume_at: int, line_end: int | None = None) -> None:
        super().__init__("the file ends in the middle of a command")
        self.needed = needed
        self.resume_at = resume_at
        self.line_end = line_end


class Annotation(NamedTuple):
    """One `#CK` line: `checksum` of the `covered` bytes before it and of `tail`, the line from `;len=` on."""

    checksum: int
    covered: int
    offset: int
    time_ms: int
    tail: bytes


# -- commands ----------------------------------------------------------------------------------------------------------


def encode_command(words: list[bytes]) -> bytes:
    """`words` as one RESP array of bulk strings."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def command_size(words: list[bytes]) -> int:
    """How many bytes `encode_command` makes of `words`."""
    return len(b"*%d\r\n" % len(words)) + sum([len(word) + len(b"$%d\r\n\r\n" % len(word)) for word in words])


def encode_extension(words: list[bytes]) -> bytes:
    """`words` as comment lines: for commands that a Redis 7 would refuse to load."""
    payload = encode_command(words)
    lines = []
    start = EXTENSION_START
    for at in range(0, len(payload), EXTENSION_PIECE):
        piece = binascii.b2a_base64(payload[at : at + EXTENSION_PIECE], newline=False)
        lines.append(b"%b%b\r\n" % (start, piece))
        start = EXTENSION_NEXT
    return b"".join(lines)


def parse_frame(data: bytes, position: int) -> tuple[list[bytes] | None, int]:
    """The command at `position` and where it ends, or (None, end) for a comment line.

    The slow and exact parser, for bytes that `hiredis` cannot be trusted with: comment lines, logs without checksums,
    damage.  Raises ShortFrame where `data` ends too early, FrameError where it is not a frame.  Lengths are compared
    with what `data` holds before memory is allocated.
    """
    size = len(data)
    if position >= size:
        raise ShortFrame(position + 1, position)
    if data[position] == _HASH:
        end = data.find(b"\n", position, position + MAX_COMMENT_LINE)
        if end >= 0:
            return None, end + 1
        if size - position < MAX_COMMENT_LINE:
            raise ShortFrame(size + 1, position)
        raise FrameError(f"comment line of more than {MAX_COMMENT_LINE} bytes")
    words: list[bytes] = []
    count, at = parse_head(data, position)
    return words, parse_words(data, at, count, words)


def parse_head(data: bytes, position: int) -> tuple[int, int]:
    """How many words the command at `position` has, and where they begin.  Raises as `parse_frame`."""
    head = _ARRAY.match(data, position)
    if head is None:
        if data[position : position + 1] not in (b"", b"*"):
            raise FrameError(f"byte {data[position]:#04x} where a command or a comment must begin")
        raise _bad_header(data, position, _CUT_ARRAY)
    return int(head[1]), head.end()


def parse_words(data: bytes, position: int, count: int, words: list[bytes]) -> int:
    """Append the `count` words from `position` on to `words`; -> where they end.  Raises as `parse_frame`.

    Words before the error are appended.  A ShortFrame says in `resume_at` where the next word begins.
    """
    size = len(data)
    at = position
    for _ in range(count):
        word_at = at
        head = _BULK.match(data, at)
        if head is None:
            raise _bad_header(data, at, _CUT_BULK)
        start = head.end()
        at = start + int(head[1])
        if at + 2 > size:
            raise ShortFrame(at + 2, word_at, line_end=at)
        if data[at : at + 2] != b"\r\n":
            raise FrameError(UNCLOSED_WORD)
        words.append(data[start:at])
        at += 2
    return at


def _bad_header(data: bytes, position: int, cut: re.Pattern[bytes]) -> FrameError:
    rest = data[position : position + _MAX_HEADER]
    if position + len(rest) == len(data) and (not rest or cut.fullmatch(rest)):
        return ShortFrame(len(data) + 1, position)
    return FrameError("malformed length line")


def announces_too_much(data: bytes) -> bool:
    """Whether `hiredis`, given `data`, might make lists for more words than `data` can hold.

    `hiredis` makes a list of the announced length before the first element arrives, lists in lists too: 16 bytes would
    take gigabytes.  Also true where a word only looks like such a head, so the caller must not treat it as an error,
    but take the slow path.
    """
    if (b">" in data or b"~" in data or b"%" in data or b"|" in data) and _find_other_long_count(data):
        return True
    if not _find_long_count(data):
        return False
    most = len(data) // _SMALLEST_WORD_BYTES
    counts = _long_counts(data)
    return len(max(counts, key=len)) > len(str(most)) or sum(map(int, counts)) > most


# -- comment lines -----------------------------------------------------------------------------------------------------


def encode_preface(selected: int, offset: int, now_ms: int) -> bytes:
    """What a file of the log begins with: SELECT of the database in force, which no offset counts; else nothing."""
    if selected == NO_DATABASE:
        return b""
    select = encode_command([b"SELECT", b"%d" % selected])
    return select + encode_annotation(select, offset, now_ms)


def encode_annotation(covered: bytes, offset: int, now_ms: int) -> bytes:
    """The line that closes the batch `covered`; `offset` is the replication offset after it."""
    tail = b";len=%d;off=%d;t=%d\r\n" % (len(covered), offset, now_ms)
    return b"#CK:crc32c=%08x%b" % (crc32c(tail, crc32c(covered)), tail)


def find_line(data: bytes | bytearray, beginning: bytes, at: int, end: int = sys.maxsize) -> int:
    """Where the first line of those behind `at` begins whose `beginning` is this, before `end`; 0 when there is none.

    Values rarely have the sign of a comment, and one byte is found in a tenth of the time of several.
    """
    sign, line = data.find(beginning[:1], at, end), b"\n" + beginning
    if sign > at and data.startswith(line, sign - 1, end):
        return sign
    return 0 if sign < 0 else data.find(line, max(sign - 1, at), end) + 1


def parse_annotation(line: bytes, position: int = 0) -> Annotation | None:
    """The annotation line at `position`, or None when there is none or only a part of one."""
    match = _ANNOTATION.match(line, position)
    if match is None:
        return None
    checksum, tail, covered, offset, time_ms = match.groups()
    return Annotation(int(checksum, 16), int(covered), int(offset), int(time_ms), tail)


def parse_timestamp(line: bytes) -> int | None:
    """The unix milliseconds in a `#TS:` line, whole seconds; None when it does not hold a number."""
    match = _TIMESTAMP.fullmatch(line)
    return None if match is None else int(match[1]) * 1000


def is_sound(annotation: Annotation, covered_sum: int) -> bool:
    """Whether the checksum fits; `covered_sum` is the CRC-32C of the covered bytes."""
    return crc32c(annotation.tail, covered_sum) == annotation.checksum


def decode_extension(lines: list[bytes]) -> list[bytes]:
    """The command in an extension line and its continuations.  Raises FrameError when they are not exactly one."""
    if not lines[0].startswith(EXTENSION_START):
        raise FrameError("an extension line stands behind no command")
    try:
        payload = b"".join(
            binascii.a2b_base64(line[len(EXTENSION_START) :].rstrip(b"\r\n"), strict_mode=True) for line in lines
        )
    except binascii.Error as error:
        raise FrameError(f"an extension line is not base64: {error}") from error
    words, end = parse_frame(payload, 0)
    if words is None or end != len(payload):
        raise FrameError("extension lines do not hold exactly one command")
    return words


class CommandCollector:
    """Collects commands in the order in which they were logged, also those in extension lines.

    A command in extension lines is whole only when something else follows, so `finish` must be called at the end.
    """

    def __init__(self) -> None:
        self.commands: list[list[bytes]] = []
        self._lines: list[bytes] = []

    def take_command(self, words: list[bytes]) -> None:
        if self._lines:
            self.finish()
        self.commands.append(words)

    def take_comment(self, line: bytes) -> None:
        continues = line.startswith(EXTENSION_NEXT)
        if self._lines and not continues:
            self.finish()
        if continues or line.startswith(EXTENSION_START):
            self._lines.append(line)

    @property
    def is_settled(self) -> bool:
        """Whether every line taken belongs to a command that is whole."""
        return not self._lines

    def finish(self) -> None:
        if self._lines:
            self.commands.append(decode_extension(self._lines))
            self._lines = []
