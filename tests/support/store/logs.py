"""Logs on a file system in memory: what to write into one, and how to look at what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from riverbed.store.disk.files import Files
from riverbed.store.format.log_lines import encode_annotation, encode_command, encode_extension
from riverbed.store.log.append_log import Base, Batch, Log
from riverbed.store.position import LogPosition
from tests.support.store.faulty_files import FaultyFiles

ROOT = Path("/data")
HOME = ROOT / "appendonlydir"
FIRST = HOME / "appendonly.aof.1.incr.aof"
SECOND = HOME / "appendonly.aof.2.incr.aof"
MANIFEST = HOME / "appendonly.aof.manifest"

Words = list[bytes]

SELECT = [b"SELECT", b"0"]
SETTINGS = [b"XCFGSET", b"s", b"IDMP-DURATION", b"100"]


def xadd(number: int, value: bytes = b"value") -> Words:
    return [b"XADD", b"s", b"%d-1" % number, b"field", value]


def append(log: Log, commands: list[Words], now_ms: int = 1_700_000_000_000) -> None:
    """One batch; what Redis 7 does not know goes into comment lines."""
    plain = [encode_command(words) for words in commands if words[0] != b"XCFGSET"]
    parts = [(encode_extension if words[0] == b"XCFGSET" else encode_command)(words) for words in commands]
    log.writer.append(b"".join(parts), sum(map(len, plain)), now_ms)


def open_log(directory: Path, files: Files, **options: Any) -> Log:
    """The log in `directory`, made if there is none."""
    log = Log.find(directory, files, **options)
    if log.is_missing:
        log.create()
    return log


def reopened(files: FaultyFiles, **options: int) -> tuple[Log, list[Batch]]:
    log = open_log(ROOT, files, **options)
    return log, list(log.read())


def adopt_base(log: Log, temporary: Path, size: int, command_bytes: int, from_seq: int) -> Base:
    """Make the state in `temporary` the base of the log, at once."""
    log.listing.complete(log.history.begin_adoption(temporary, size, command_bytes, from_seq))
    assert log.base is not None
    return log.base


def told(batches: list[Batch]) -> list[tuple[object, ...]]:
    """All that is known of batches, in a form that can be compared."""
    return [(batch.commands, *batch[1:]) for batch in batches]


def commands_of(batches: list[Batch]) -> list[list[Words]]:
    return [batch.commands for batch in batches]


def filled(batches: list[list[Words]], segment_bytes: int = 1 << 30) -> tuple[FaultyFiles, list[LogPosition]]:
    """A file system with a log of these batches, and where each of them ends."""
    files = FaultyFiles()
    log = open_log(ROOT, files, segment_bytes=segment_bytes)
    ends = []
    for number, commands in enumerate(batches):
        log.rotate_if_needed()
        append(log, commands, now_ms=1_700_000_000_000 + number)
        ends.append(log.end)
    log.writer.sync()
    log.close()
    assert files.open_count == 0
    return files, ends


def plain(commands: list[Words]) -> bytes:
    return b"".join(map(encode_command, commands))


def lookalike(offset: int) -> bytes:
    """A value that holds whole batches, sound to the last bit, with an annotation that closes nothing."""
    text = encode_command(xadd(1))
    return b"\r\n" + (text + encode_annotation(text, offset, 1)) * 3 + b"\r\n#CK:crc32c=00000000;len=1;off=1;t=1\r\n"


SOME = [
    [SELECT, xadd(1)],
    [xadd(2), SETTINGS, xadd(3)],
    [SETTINGS],
    [xadd(4, b"\r\n# not a comment\r\n#RB:neither\r\n"), xadd(5, b"")],
    [[b"MULTI"], xadd(6), xadd(7), [b"EXEC"]],
]
