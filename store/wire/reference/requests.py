"""Bytes to requests: lists of words, and runs or mixes in the place of neighbours."""

from __future__ import annotations

from typing import Final

from riverbed.store.wire.interface import APPENDED, LOGGED, NO_RUNS
from riverbed.store.wire.reference.claims import Claim, Claims
from riverbed.store.wire.reference.ids import ID_BYTES, MAX_HALF, MAX_ID, parse_id, parse_number
from riverbed.store.wire.reference.mixes import Ack, Mix
from riverbed.store.wire.reference.ranges import Range, Ranges
from riverbed.store.wire.reference.runs import Entry, Run, Trim
from riverbed.store.wire.reference.words import MAX_NUMBER, words_at

_MIN_XADD_WORDS: Final = 5
_XACK_WORDS: Final = 4
_RUN_ENTRIES: Final = 256
_XCLAIM_WORDS: Final = 7
_MOST_CLAIMS: Final = 128
_XRANGE_WORDS: Final = 6
_MOST_RANGES: Final = 128

Requests = list[list[bytes] | Run | Mix | Claims | Ranges]


def parse(runs: int, chunk: bytes, start: int = 0, end: int | None = None) -> Requests | None:
    """The requests between two bytes of `chunk`; None when there is anything but whole plain requests.

    `runs` says what may become a run: NO_RUNS, APPENDED or LOGGED.  ValueError when the bytes are not of the chunk.
    """
    if end is None:
        end = len(chunk)
    if not 0 <= start <= end <= len(chunk):
        raise ValueError("these are no bytes of the chunk")
    requests: Requests = []
    at = _take_requests(chunk, start, end, runs, requests)
    return requests if requests and at == end else None


def parse_front(runs: int, chunk: bytes, requests: Requests) -> int:
    """Append the whole plain requests at the front of `chunk` to `requests`; -> how many bytes they are."""
    return _take_requests(chunk, 0, len(chunk), runs, requests)


def _take_requests(chunk: bytes, start: int, end: int, runs: int, requests: Requests) -> int:
    if not NO_RUNS <= runs <= LOGGED:
        raise ValueError(f"{runs} is not from {NO_RUNS} to {LOGGED}")
    at: int | None = start
    while at is not None and at < end:
        start = at
        if runs:
            at = (_take_appended if runs == APPENDED else _take_logged_run)(chunk, start, end, requests)
        else:
            at = None
        if at is None and runs == APPENDED:
            at = _take_claims(chunk, start, end, requests)
        if at is None and runs == APPENDED:
            at = _take_ranges(chunk, start, end, requests)
        if at is None:
            at = _take_words(chunk, start, end, requests, is_closed=runs == LOGGED)
    return start if at is None else at


def _take_words(chunk: bytes, at: int, end: int, requests: Requests, *, is_closed: bool = False) -> int | None:
    words, after = words_at(chunk, at, end, is_closed=is_closed)
    if after is not None:
        requests.append(words)
    return after


def _take_logged_run(chunk: bytes, start: int, end: int, requests: Requests) -> int | None:
    entries: list[Entry] = []
    at = start
    while at < end and len(entries) < _RUN_ENTRIES:
        found = _take_xadd(chunk, at, end, LOGGED)
        if found is None:
            break
        entries.append(found)
        at = found.end
    if not entries:
        return None
    requests.append(Run(chunk, entries))
    return at


def _take_appended(chunk: bytes, start: int, end: int, requests: Requests) -> int | None:
    entries: list[Entry] = []
    acks: list[Ack] = []
    of: tuple[bytes, bytes] | None = None
    at = start
    while at < end and len(entries) + len(acks) < _RUN_ENTRIES:
        entry = _take_xadd(chunk, at, end, APPENDED)
        if entry is not None:
            entries.append(entry)
            at = entry.end
            continue
        found = _take_xack(chunk, at, end, len(entries))
        if found is None or of not in (None, found[0]):
            break
        of, ack = found
        acks.append(ack)
        at = ack.end
    if of is not None and len(entries) + len(acks) > 1:
        requests.append(Mix(chunk, entries, *of, acks))
    elif of is None and entries:
        requests.append(Run(chunk, entries))
    else:
        return None
    return at


def _take_xack(chunk: bytes, start: int, end: int, before: int) -> tuple[tuple[bytes, bytes], Ack] | None:
    """-> the key and the group of an XACK of one entry, and the XACK."""
    words, after = words_at(chunk, start, end, is_closed=True)
    if after is None or len(words) != _XACK_WORDS or words[0] not in (b"XACK", b"xack"):
        return None
    entry_id = parse_id(words[3], may_be_short=False)
    if entry_id is None:
        return None
    return (words[1], words[2]), Ack(start, after, before, entry_id.to_bytes(ID_BYTES, "big"), words[3])


def _take_claims(chunk: bytes, start: int, end: int, requests: Requests) -> int | None:
    claims: list[Claim] = []
    first: tuple[bytes, ...] | None = None
    at = start
    while at < end and len(claims) < _MOST_CLAIMS:
        found = _take_xclaim(chunk, at, end)
        if found is None or first not in (None, found[0]):
            break
        first, claim = found
        claims.append(claim)
        at = claim.end
    if first is None or len(claims) < 2:
        return None
    _, key, group, consumer, min_idle, _ = first
    requests.append(Claims(chunk, (key, group, consumer, min_idle), claims))
    return at


def _take_xclaim(chunk: bytes, start: int, end: int) -> tuple[tuple[bytes, ...], Claim] | None:
    """-> the words of an XCLAIM with JUSTID of one entry but for the ID, and the XCLAIM."""
    words, after = words_at(chunk, start, end, is_closed=True)
    if after is None or len(words) != _XCLAIM_WORDS or words[0] not in (b"XCLAIM", b"xclaim"):
        return None
    entry_id = parse_id(words[5], may_be_short=False)
    if entry_id is None or _option(words[6]) != b"JUSTID":
        return None
    return (*words[:5], words[6]), Claim(start, after, entry_id.to_bytes(ID_BYTES, "big"), words[5])


def _take_ranges(chunk: bytes, start: int, end: int, requests: Requests) -> int | None:
    ranges: list[Range] = []
    at = start
    while at < end and len(ranges) < _MOST_RANGES:
        found = _take_xrange(chunk, at, end)
        if found is None:
            break
        ranges.append(found)
        at = found.end
    if len(ranges) < 2:
        return None
    requests.append(Ranges(chunk, ranges))
    return at


def _take_xrange(chunk: bytes, start: int, end: int) -> Range | None:
    words, after = words_at(chunk, start, end, is_closed=True)
    if after is None or len(words) != _XRANGE_WORDS or words[0] not in (b"XRANGE", b"xrange"):
        return None
    if _option(words[4]) != b"COUNT" or words[5] != b"1":
        return None
    low = 0 if words[2] == b"-" else parse_id(words[2], may_be_short=True)
    high = MAX_ID if words[3] == b"+" else parse_id(words[3], may_be_short=True)
    if low is None or high is None:
        return None
    return Range(start, after, words[1], low, high if b"-" in words[3] else high | MAX_HALF)


def _take_xadd(chunk: bytes, start: int, end: int, runs: int) -> Entry | None:
    words, after = words_at(chunk, start, end)
    if after is None or len(words) < _MIN_XADD_WORDS:
        return None
    if words[0] != b"XADD" and (words[0] != b"xadd" or runs == LOGGED):
        return None
    options = _take_options(words) if runs == APPENDED else _take_logged_trim(words)
    if options is None:
        return None
    id_no, trim = options
    count = len(words) - id_no - 1
    if count < 2 or count % 2:
        return None
    wanted = None
    if words[id_no] != b"*" or runs == LOGGED:
        wanted = parse_id(words[id_no], may_be_short=runs == APPENDED)
        if wanted is None:
            return None
    wire = [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
    if b"".join(wire) != chunk[start:after]:  # a word is not closed by CR LF
        return None
    id_at = start + sum(map(len, wire[: id_no + 1]))
    return Entry(start, id_at, id_at + len(wire[id_no + 1]), after, words[1], count, wanted, trim)


def _take_options(words: list[bytes]) -> tuple[int, Trim | None] | None:
    """-> where the ID stands among the words of an XADD, and the trim before it."""
    at, trim = 2, None
    while at < len(words):
        option = _option(words[at])
        if option == b"NOMKSTREAM":
            at += 1
        elif option in (b"MAXLEN", b"MINID") and trim is None:
            how = words[at + 1 : at + 2]
            at += 2 if how in ([b"~"], [b"="]) else 1
            if at >= len(words):
                return None
            by_id = option == b"MINID"
            threshold = parse_id(words[at], may_be_short=True) if by_id else parse_number(words[at])
            if threshold is None or (not by_id and len(words[at]) > MAX_NUMBER):
                return None
            trim = Trim(by_id, how == [b"~"], threshold)
            at += 1
        else:
            return at, trim
    return None


def _take_logged_trim(words: list[bytes]) -> tuple[int, Trim | None] | None:
    """The same of an XADD in a log."""
    if words[2:4] != [b"MAXLEN", b"="]:
        return 2, None
    threshold = parse_number(words[4])
    if threshold is None or len(words[4]) > MAX_NUMBER:
        return None
    return 5, Trim(by_id=False, is_approximate=False, threshold=threshold)


def _option(word: bytes) -> bytes:
    """The word in upper case, if each of its letters is a letter."""
    return word.upper() if word.isalpha() else b""
