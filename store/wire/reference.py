"""What the functions of `native.c` do, in Python: the two are compared with each other, byte for byte.

A request is plain when it is an array of bulk strings with canonical lengths of at most nine digits, and whole.  The
two bytes behind a word may be any, as in Redis; in a log they are CR LF.  What is anything else, also an empty array,
is left to another reader.

Neighbours may become a `Run`, with which nothing is done but to copy pieces of the chunk: XADDs of one key and as many
words each, the name spelled alike, every word closed by CR LF, and where others have options

    XADD key [MAXLEN ~ n] * field value ...     with APPENDED, as clients send it, the words also in lower case
    XADD key ms-seq field value ...             with LOGGED, both halves canonical and of 64 bits

    *7\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nv\r\n ...
    ^ start                        ^ id      ^ fields                ^ end
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# Of which interface this is: a native module of another one was built from an older source, and is not used.
INTERFACE: Final = 4

NO_RUNS: Final = 0
APPENDED: Final = 1
LOGGED: Final = 2

_MIN_WORD_BYTES: Final = len(b"$0\r\n\r\n")
_MIN_XADD_WORDS: Final = 5
_RUN_ENTRIES: Final = 256
_HALF_BYTES: Final = 8
_KEY_BYTES: Final = 24
_MAX_ID_BYTES: Final = 41
_RUN_HEAD: Final = 20  # consumer_no:u32 delivery_time_ms:u64 delivery_count:u64, then the IDs
_MAX_HALF: Final = (1 << 64) - 1
_ARRAY = re.compile(rb"\*([1-9][0-9]{0,8})\r\n")
_BULK = re.compile(rb"\$(0|[1-9][0-9]{0,8})\r\n")
_MAXLEN = re.compile(rb"(?:MAXLEN|maxlen) ~ (0|[1-9][0-9]{0,8})")
_ID = re.compile(rb"(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})")

Rows = list[tuple[bytes, bytes]]


class Entry(NamedTuple):
    """Where one XADD stands in its chunk: its head, its ID, its first field, and the byte behind its last value."""

    start: int
    id: int
    fields: int
    end: int


class Run:
    """XADDs of one key and as many words each, neighbours in a chunk.

    Among requests it passes for one, so that those of other kinds need not be asked what they are: its length is the
    number of entries, and what stands in the place of the name is the class, which no client can send.
    """

    __slots__ = ("_chunk", "_entries", "key", "maxlen", "word_count")

    def __init__(self, chunk: bytes, key: bytes, word_count: int, maxlen: int, entries: list[Entry]) -> None:
        """`word_count` are the fields and values of each entry, `maxlen` is that of MAXLEN ~, -1 without."""
        self._chunk = chunk
        self.key = key
        self.word_count = word_count
        self.maxlen = maxlen
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> type[Run]:
        if index:
            raise IndexError("a run has no words")
        return type(self)

    @property
    def size(self) -> int:
        """Bytes of the requests."""
        return self._entries[-1].end - self._entries[0].start

    def requests(self) -> list[list[bytes]]:
        """The requests one by one, as lists of words."""
        requests: list[list[bytes] | Run] = []
        for entry in self._entries:
            _take_words(self._chunk, entry.start, entry.end, requests)
        return [request for request in requests if isinstance(request, list)]

    def rest(self, at: int) -> Run:
        """The run from entry `at` on.  ValueError when there is no such entry."""
        if not 0 <= at < len(self):
            raise ValueError(f"{at} is not from 0 to {len(self) - 1}")
        return Run(self._chunk, self.key, self.word_count, self.maxlen, self._entries[at:])

    def fitting(self, at: int, most: int, room: int) -> list[Entry]:
        """The entries from `at` on, `most` of them, whose fields have less than `room` bytes together."""
        if not 0 <= at <= len(self) or most < 0 or room < 0:
            raise ValueError("not a place in the run, or a negative bound")
        entries = []
        for entry in self._entries[at : at + most]:
            room -= entry.end - entry.fields
            if room <= 0:
                break
            entries.append(entry)
        return entries

    def fields(self, entry: Entry) -> bytes:
        return self._chunk[entry.fields : entry.end]

    def id_bulk(self, entry: Entry) -> bytes:
        return self._chunk[entry.id : entry.fields]


# -- parsing -----------------------------------------------------------------------------------------------------------


def parse(runs: int, chunk: bytes, start: int = 0, end: int | None = None) -> list[list[bytes] | Run] | None:
    """The requests between two bytes of `chunk`; None when there is anything but whole plain requests.

    `runs` says what may become a run: NO_RUNS, APPENDED or LOGGED.  ValueError when the bytes are not of the chunk.
    """
    if end is None:
        end = len(chunk)
    if not 0 <= start <= end <= len(chunk):
        raise ValueError("these are no bytes of the chunk")
    requests: list[list[bytes] | Run] = []
    at = _take_requests(chunk, start, end, runs, requests)
    return requests if requests and at == end else None


def parse_front(runs: int, chunk: bytes, requests: list[list[bytes] | Run]) -> int:
    """Append the whole plain requests at the front of `chunk` to `requests`; -> how many bytes they are."""
    return _take_requests(chunk, 0, len(chunk), runs, requests)


def _take_requests(chunk: bytes, start: int, end: int, runs: int, requests: list[list[bytes] | Run]) -> int:
    if not NO_RUNS <= runs <= LOGGED:
        raise ValueError(f"{runs} is not from {NO_RUNS} to {LOGGED}")
    at: int | None = start
    while at is not None and at < end:
        start = at
        at = _take_run(chunk, start, end, runs, requests) if runs else None
        if at is None:
            at = _take_words(chunk, start, end, requests, is_closed=runs == LOGGED)
    return start if at is None else at


def _take_head(chunk: bytes, at: int, end: int) -> tuple[int, int] | None:
    """-> how many words, and where they begin; None when there are too few bytes for so many."""
    head = _ARRAY.match(chunk, at, end)
    if head is None or int(head[1]) > (end - head.end()) // _MIN_WORD_BYTES:
        return None
    return int(head[1]), head.end()


def _take_word(chunk: bytes, at: int, end: int) -> tuple[bytes, int] | None:
    """A word, and where the next thing begins, behind two bytes that may be any."""
    head = _BULK.match(chunk, at, end)
    if head is None or int(head[1]) > end - head.end() - 2:
        return None
    word_end = head.end() + int(head[1])
    return chunk[head.end() : word_end], word_end + 2


def _take_words(
    chunk: bytes, at: int, end: int, requests: list[list[bytes] | Run], *, is_closed: bool = False
) -> int | None:
    head = _take_head(chunk, at, end)
    if head is None:
        return None
    count, at = head
    words = []
    for _ in range(count):
        found = _take_word(chunk, at, end)
        if found is None:
            return None
        word, at = found
        if is_closed and chunk[at - 2 : at] != b"\r\n":
            return None
        words.append(word)
    requests.append(words)
    return at


def _take_run(chunk: bytes, start: int, end: int, runs: int, requests: list[list[bytes] | Run]) -> int | None:
    first = _take_xadd(chunk, start, end, runs)
    if first is None:
        return None
    key, word_count, maxlen, entry = first
    shared = chunk[start : entry.id]
    entries = [entry]
    while len(entries) < _RUN_ENTRIES and chunk.startswith(shared, entries[-1].end, end):
        found = _take_xadd(chunk, entries[-1].end, end, runs)
        if found is None:
            break
        entries.append(found[3])
    requests.append(Run(chunk, key, word_count, maxlen, entries))
    return entries[-1].end


def _take_xadd(chunk: bytes, start: int, end: int, runs: int) -> tuple[bytes, int, int, Entry] | None:
    """-> key, how many fields and values, that of MAXLEN ~ or -1, and where it stands."""
    requests: list[list[bytes] | Run] = []
    after = _take_words(chunk, start, end, requests)
    if after is None or not isinstance(words := requests[0], list):
        return None
    id_no, maxlen = 2, -1
    if runs == APPENDED and not len(words) % 2:
        found = _MAXLEN.fullmatch(b" ".join(words[2:5]))
        if found is None:
            return None
        id_no, maxlen = 5, int(found[1])
    count = len(words) - id_no - 1
    if count < 2 or count % 2:
        return None
    if words[0] != b"XADD" and (words[0] != b"xadd" or runs == LOGGED):
        return None
    if not (words[id_no] == b"*" if runs == APPENDED else _is_id(words[id_no])):
        return None
    wire = [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
    if b"".join(wire) != chunk[start:after]:  # a word is not closed by CR LF
        return None
    id_at = start + sum(map(len, wire[: id_no + 1]))
    return words[1], count, maxlen, Entry(start, id_at, id_at + len(wire[id_no + 1]), after)


def _is_id(text: bytes) -> bool:
    found = _ID.fullmatch(text)
    return found is not None and max(int(found[1]), int(found[2])) <= _MAX_HALF


# -- formatting --------------------------------------------------------------------------------------------------------


def expand(
    run: Run, at: int, most: int, room: int, key: bytes, log_head: bytes, rows: Rows
) -> tuple[int, int, bytes, bytes]:
    """Give the entries of `run` from `at` on the IDs from that in `key` on; -> (count, bytes of fields, log, replies).

    As many as there are, at most `most`, and those whose fields have less than `room` bytes together.  Their rows of
    the table of entries are appended to `rows`; `key` is the first one's.  Each line of the log is `log_head`, the ID
    and the fields.  OverflowError when the IDs are of more than one millisecond, and then nothing is appended.
    """
    prefix, ms, seq = _unpacked(key)
    entries = run.fitting(at, most, room)
    if entries and seq + len(entries) - 1 > _MAX_HALF:
        raise OverflowError("the IDs do not fit")
    log, replies, size = [], [], 0
    for number, entry in enumerate(entries, seq):
        fields = run.fields(entry)
        text = b"%d-%d" % (ms, number)
        bulk = b"$%d\r\n%b\r\n" % (len(text), text)
        rows.append((_packed(prefix, ms, number), b"%b*%d\r\n%b" % (bulk, run.word_count, fields)))
        log += [log_head, bulk, fields]
        replies.append(bulk)
        size += len(fields)
    return len(entries), size, b"".join(log), b"".join(replies)


def expand_one(run: Run, key: bytes, log_head: bytes) -> tuple[bytes, int, bytes, bytes]:
    """As `expand`, of the first entry alone; -> (row, bytes of fields, log, reply)."""
    rows: Rows = []
    _, size, log, reply = expand(run, 0, 1, 1 << 62, key, log_head, rows)
    return rows[0][1], size, log, reply


def load_xadds(run: Run, at: int, most: int, room: int, last_key: bytes, rows: Rows) -> tuple[int, int, bytes]:
    """As `expand`, of a run out of a log, with the IDs that stand there; -> (count, bytes of fields, last key).

    `last_key` is that of the row before.  The first entry whose ID is not above the last one ends it.
    """
    prefix, _, _ = _unpacked(last_key)
    count = size = 0
    for entry in run.fitting(at, most, room):
        bulk, fields = run.id_bulk(entry), run.fields(entry)
        found = _ID.search(bulk, bulk.index(b"\n"))
        if found is None:  # as a client sent it, so this is no log
            break
        key = _packed(prefix, int(found[1]), int(found[2]))
        if key <= last_key:
            break
        rows.append((key, b"%b*%d\r\n%b" % (bulk, run.word_count, fields)))
        count += 1
        size += len(fields)
        last_key = key
    return count, size, last_key


def packed_id(text: bytes) -> bytes | None:
    """The 16 bytes of an entry's ID in keys; None when `text` is not `ms-seq`, both canonical and of 64 bits."""
    ms, _, seq = text.partition(b"-")
    if len(text) > _MAX_ID_BYTES or not (ms.isdigit() and seq.isdigit()):
        return None
    if (ms[:1] == b"0" and ms != b"0") or (seq[:1] == b"0" and seq != b"0"):
        return None
    high, low = int(ms), int(seq)
    return None if high > _MAX_HALF or low > _MAX_HALF else (high << 64 | low).to_bytes(2 * _HALF_BYTES, "big")


# -- pending entries ---------------------------------------------------------------------------------------------------


def show_pending(
    rows: list[bytes], first: bytes, last: bytes, owners: dict[int, bytes], now_ms: int, until_ms: int, most: int
) -> tuple[bytes, int]:
    """The pending entries of `rows` as XPENDING shows them; -> (elements of its reply, how many).

    Rows of the table `pel`, which are runs: those of the `owners`, whose names are there as bulk strings by number, and
    delivered by `until_ms` or without an owner, which is number 0.  Of these the IDs from `first` to `last`, `most` of
    them.  ValueError when a row is no run.
    """
    if len(first) != 2 * _HALF_BYTES or len(last) != 2 * _HALF_BYTES or most < 0:
        raise ValueError("not two packed IDs, or a negative number of entries")
    shown: list[bytes] = []
    for row in rows:
        if len(shown) == most:
            break
        if len(row) < _RUN_HEAD or (len(row) - _RUN_HEAD) % (2 * _HALF_BYTES):
            raise ValueError("this is no run")
        number, time_ms, deliveries = (int.from_bytes(row[a:b], "big") for a, b in ((0, 4), (4, 12), (12, 20)))
        owner = owners.get(number)
        if owner is None or (number and time_ms > until_ms):
            continue
        idle_ms = max(now_ms - time_ms, 0) if number else -1
        ids = [row[at : at + 2 * _HALF_BYTES] for at in range(_RUN_HEAD, len(row), 2 * _HALF_BYTES)]
        for packed in [packed for packed in ids if first <= packed <= last][: most - len(shown)]:
            text = b"%d-%d" % (int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:], "big"))
            shown.append(b"*4\r\n$%d\r\n%b\r\n%b:%d\r\n:%d\r\n" % (len(text), text, owner, idle_ms, deliveries))
    return b"".join(shown), len(shown)


def _packed(prefix: bytes, ms: int, seq: int) -> bytes:
    return b"".join((prefix, ms.to_bytes(_HALF_BYTES, "big"), seq.to_bytes(_HALF_BYTES, "big")))


def _unpacked(key: bytes) -> tuple[bytes, int, int]:
    """-> what the keys of all rows of the stream begin with, and both halves of the ID."""
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{_KEY_BYTES} bytes are needed")
    prefix, ms, seq = key[:-16], key[-16:-8], key[-8:]
    return prefix, int.from_bytes(ms, "big"), int.from_bytes(seq, "big")
