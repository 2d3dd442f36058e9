"""Words as the oracle reads them: numbers, IDs, blocks of options.

A second opinion on `server/commands/arguments.py`.

"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from riverbed.server.errors import CommandError
from tests.support.oracle.model import Words

MAX_HALF = (1 << 64) - 1
MAX_ID = (1 << 128) - 1
INT64_MAX = (1 << 63) - 1
REFERENCES = (b"KEEPREF", b"DELREF", b"ACKED")

NOT_AN_INTEGER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"
INVALID_ID = "ERR Invalid stream ID specified as stream command argument"


def text(entry_id: int) -> bytes:
    return b"%d-%d" % (entry_id >> 64, entry_id & MAX_HALF)


def number(word: bytes, error: str = NOT_AN_INTEGER) -> int:
    if re.fullmatch(rb"0|-?[1-9][0-9]*", word) and -INT64_MAX - 1 <= int(word) <= INT64_MAX:
        return int(word)
    raise CommandError(error)


def plain_id(word: bytes, missing_seq: int = 0) -> int:
    match = re.fullmatch(rb"([0-9]+)(?:-([0-9]+))?", word)
    if match is None or len(word) > 127:
        raise CommandError(INVALID_ID)
    ms, seq = int(match[1]), missing_seq if match[2] is None else int(match[2])
    if max(ms, seq) > MAX_HALF:
        raise CommandError(INVALID_ID)
    return ms << 64 | seq


def edge_id(word: bytes, missing_seq: int, *, at_start: bool) -> int:
    """An end of a range: `-`, `+`, an ID, or `(` and an ID."""
    if word in (b"-", b"+"):
        return 0 if word == b"-" else MAX_ID
    if not (word.startswith(b"(") and len(word) > 1):
        return plain_id(word, missing_seq)
    entry_id = plain_id(word[1:], missing_seq)
    if at_start and entry_id == MAX_ID:
        raise CommandError("ERR invalid start ID for the interval")
    if not at_start and entry_id == 0:
        raise CommandError("ERR invalid end ID for the interval")
    return entry_id + 1 if at_start else entry_id - 1


def ids_block(words: Words) -> tuple[bytes, Words]:
    """The options of XDELEX and XACKDEL: what happens to references, and the IDs."""
    references, entry_ids, at = b"", None, 0
    while at < len(words):
        word = words[at].upper()
        if word in REFERENCES and not references:
            references, at = word, at + 1
        elif word == b"IDS" and at + 1 < len(words):
            count = number(words[at + 1], "ERR Number of IDs must be a positive integer")
            if count <= 0:
                raise CommandError("ERR Number of IDs must be a positive integer")
            if count > len(words) - at - 2:
                raise CommandError("ERR The `numids` parameter must match the number of arguments")
            entry_ids, at = words[at + 2 : at + 2 + count], at + 2 + count
        else:
            raise CommandError(SYNTAX)
    if entry_ids is None:
        raise CommandError("ERR IDS option is required")
    return references or b"KEEPREF", entry_ids


@dataclass
class Read:
    """The options of XREAD and XREADGROUP."""

    count: int = 0
    maxcount: int = 0
    claim: int | None = None
    no_ack: bool = False
    group: bytes | None = None
    consumer: bytes = b""
    pairs: list[tuple[bytes, bytes]] = field(default_factory=list)

    def room(self, emitted: int) -> int | None:
        """How many entries the next stream may give; None is no limit."""
        limits = [limit for limit in (self.count, self.maxcount and self.maxcount - emitted) if limit]
        return min(limits, default=None)


def read_options(words: Words, unbalanced: str) -> Read:
    command, read, at = words[0].lower().decode(), Read(), 1
    while at < len(words):
        word, more = words[at].upper(), len(words) - at - 1
        at += 1
        if word == b"COUNT" and more:
            read.count, at = max(number(words[at]), 0), at + 1
        elif word == b"MAXCOUNT" and more:
            read.maxcount, at = number(words[at], "ERR MAXCOUNT must be a positive integer"), at + 1
            if read.maxcount <= 0:
                raise CommandError("ERR MAXCOUNT must be a positive integer")
        elif word == b"BLOCK" and more:
            if number(words[at], "ERR timeout is not an integer or out of range") < 0:
                raise CommandError("ERR timeout is negative")
            at += 1
        elif word == b"STREAMS" and more:
            if more % 2:
                raise CommandError(unbalanced.replace("%s", command))
            half = at + more // 2
            read.pairs, at = list(zip(words[at:half], words[half:], strict=True)), len(words)
        elif (word == b"GROUP" and more >= 2) or (word == b"CLAIM" and more) or word == b"NOACK":
            if command == "xread":
                name = word.decode()
                raise CommandError(f"ERR The {name} option is only supported by XREADGROUP. You called XREAD instead.")
            if word == b"GROUP":
                read.group, read.consumer, at = words[at], words[at + 1], at + 2
            elif word == b"NOACK":
                read.no_ack = True
            else:
                read.claim, at = number(words[at], "ERR min-idle-time is not an integer or out of range"), at + 1
                if read.claim < 0:
                    raise CommandError("ERR min-idle-time must be a positive integer")
        else:
            raise CommandError(SYNTAX)
    if not read.pairs:
        raise CommandError(SYNTAX)
    if command == "xreadgroup" and read.group is None:
        raise CommandError("ERR Missing GROUP option for XREADGROUP")
    if read.maxcount and read.count > read.maxcount:
        raise CommandError("ERR MAXCOUNT must be greater than or equal to COUNT")
    return read
