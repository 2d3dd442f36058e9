"""What the functions of `native.c` do, in Python: the two are compared with each other, byte for byte.

A request is plain when it is an array of bulk strings with canonical lengths of at most nine digits, and whole.  The
two bytes behind a word may be any, as in Redis; in a log they are CR LF.  What is anything else, also an empty array,
is left to another reader.

Neighbours may become a `Run`, with which nothing is done but to copy pieces of the chunk: XADDs with every word closed
by CR LF, all numbers canonical and of 64 bits, lengths of nine digits at most

    XADD key [NOMKSTREAM] [MAXLEN | MINID [= | ~] threshold] * | ms-seq | ms field value ...
                                            with APPENDED, of any keys, as clients send it, also in lower case
    XADD key ms-seq field value ...         with LOGGED, of one key and as many words each

If XACKs of one entry of one group of one stream are among the former, they become a `Mix`, and so do two such XACKs.

    *7\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nv\r\n ...
    ^ start                        ^ id      ^ fields                ^ end

What a client sends is appended to a `Tail`, which says what the open node of a stream takes.  An entry that is not so
simple, because its options act or the node is full, ends the appending and is left to others.  Of exact trims the tail
only counts how many entries they remove.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from itertools import accumulate, groupby
from struct import Struct, unpack_from
from typing import Any, Final, NamedTuple

from riverbed.store.checksum import crc32c

# Of which interface this is: a native module of another one was built from an older source, and is not used.
INTERFACE: Final = 16

NO_RUNS: Final = 0
APPENDED: Final = 1
LOGGED: Final = 2

_MIN_WORD_BYTES: Final = len(b"$0\r\n\r\n")
_MIN_XADD_WORDS: Final = 5
_XACK_WORDS: Final = 4
_RUN_ENTRIES: Final = 256
_MAX_TRIMMED: Final = 256
_TRIMMED_BYTES: Final = 64
_KEY_BYTES: Final = 24
_PREFIX_BYTES: Final = 8  # of a key: the number of a stream or group
_ID_BYTES: Final = 16
SEAL_BYTES: Final = 5  # behind the row of an entry: CRC-32C of the stream's number and the row, and the mark
SEAL_MARK: Final = b"\1"
_CHECKSUM_BYTES: Final = 4  # behind a run; those of format version 2 have none
_RUN_HEAD: Final = 20  # consumer_no:u32 delivery_time_ms:u64 delivery_count:u64, then the IDs
_MAX_HALF: Final = (1 << 64) - 1
_MAX_ID: Final = (1 << 128) - 1
_MAX_NUMBER: Final = 9  # digits of a length
_ARRAY = re.compile(rb"\*([1-9][0-9]{0,8})\r\n")
_BULK = re.compile(rb"\$(0|[1-9][0-9]{0,8})\r\n")
_NUMBER = re.compile(rb"0|[1-9][0-9]*")
_LENGTH = re.compile(rb"([0-9]{1,9})\r\n")

# A leaf of LMDB 0.9: pgno:u64 pad:u16 flags:u16 lower:u16 upper:u16, then where each row begins; all in the order of
# the machine.  Before a row stand its size:u32 flags:u16 and the size of its key:u16.
_PAGE_HEAD: Final = Struct("=12xHH")
_NODE_HEAD: Final = Struct("=IHH")

_NO_ID: Final = bytes(_ID_BYTES)
_NO_TIME: Final = bytes(8)

Rows = list[tuple[bytes, bytes]]
Requests = list["list[bytes] | Run | Mix"]
# Owner, delivery time, delivery count; the owner 0 is none, and the time is then the number of the release.
Delivery = tuple[int, int, int]
_Piece = tuple[Delivery, list[bytes]]  # a run: its delivery and its IDs
TableChange = tuple[list[bytes], Rows]  # keys that are gone, rows to be put
Buffer = Any  # `collections.abc.Buffer` came with Python 3.12


class Trim(NamedTuple):
    """The trim of an XADD by length or by ID, approximate or exact."""

    by_id: bool
    is_approximate: bool
    threshold: int


class Entry(NamedTuple):
    """One XADD: where its head, ID, first field and the byte behind its last value stand in its chunk; its words.

    `wanted` is the ID that it asks for, None for `*`; `word_count` are its fields and values.
    """

    start: int
    id: int
    fields: int
    end: int
    key: bytes
    word_count: int
    wanted: int | None
    trim: Trim | None

    @property
    def size(self) -> int:
        """Bytes of the fields."""
        return self.end - self.fields


class Node(NamedTuple):
    """What a node was given: how many entries, the bytes of their fields, the first and the last packed ID."""

    entries: int
    size: int
    first: bytes
    last: bytes


class Run:
    """XADDs that are neighbours in a chunk.

    Among requests it passes for one, so that those of other kinds need not be asked what they are: its length is the
    number of entries, and what stands in the place of the name is the class, which no client can send.
    """

    __slots__ = ("_chunk", "entries")

    def __init__(self, chunk: bytes, entries: list[Entry]) -> None:
        self._chunk = chunk
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> type[Run]:
        if index:
            raise IndexError("a run has no words")
        return type(self)

    @property
    def key(self) -> bytes:
        """The first entry's."""
        return self.entries[0].key

    @property
    def word_count(self) -> int:
        """The first entry's fields and values."""
        return self.entries[0].word_count

    @property
    def is_plain(self) -> bool:
        """Whether the first entry has the ID `*` and no trim."""
        return self.entries[0].wanted is None and self.entries[0].trim is None

    @property
    def size(self) -> int:
        """Bytes of the requests."""
        return self.entries[-1].end - self.entries[0].start

    def requests(self) -> list[list[bytes]]:
        """The requests one by one, as lists of words."""
        return [self.request(at) for at in range(len(self))]

    def request(self, at: int) -> list[bytes]:
        """The request of entry `at` as a list of words.  ValueError when there is no such entry."""
        _checked(at, len(self) - 1)
        return _words_at(self._chunk, self.entries[at].start, self.entries[at].end)[0]

    def entry(self, at: int) -> tuple[bytes, int, bool]:
        """-> (key, bytes of fields, whether it trims) of entry `at`.  ValueError when there is no such entry."""
        _checked(at, len(self) - 1)
        entry = self.entries[at]
        return entry.key, entry.size, entry.trim is not None

    def rest(self, at: int) -> Run:
        """The run from entry `at` on.  ValueError when there is no such entry."""
        _checked(at, len(self) - 1)
        return Run(self._chunk, self.entries[at:])

    def fitting(self, at: int, most: int, room: int) -> list[Entry]:
        """The entries from `at` on, `most` of them, whose fields have less than `room` bytes together."""
        if not 0 <= at <= len(self) or most < 0 or room < 0:
            raise ValueError("not a place in the run, or a negative bound")
        entries = []
        for entry in self.entries[at : at + most]:
            room -= entry.size
            if room <= 0:
                break
            entries.append(entry)
        return entries

    def fields(self, entry: Entry) -> bytes:
        return self._chunk[entry.fields : entry.end]

    def id_bulk(self, entry: Entry) -> bytes:
        return self._chunk[entry.id : entry.fields]


class Ack(NamedTuple):
    """One XACK of one entry: where it stands in its chunk, how many XADDs come before it, and its ID."""

    start: int
    end: int
    before: int
    packed: bytes
    text: bytes


class Mix:
    """XADDs, and XACKs of one group, that are neighbours in a chunk: what a worker sends that passes entries on.

    An XACK changes nothing that an XADD looks at, and the other way round.  So the XADDs may be executed together, and
    the XACKs behind them, if the replies come in the order of the requests.  Among requests it passes for one, like a
    run.
    """

    __slots__ = ("_acks", "_chunk", "adds", "group", "key")

    def __init__(self, chunk: bytes, adds: list[Entry], key: bytes, group: bytes, acks: list[Ack]) -> None:
        self._chunk = chunk
        self._acks = acks
        self.adds = Run(chunk, adds) if adds else None
        self.key = key  # of the XACKs
        self.group = group

    def __len__(self) -> int:
        return self._add_count + len(self._acks)

    def __getitem__(self, index: int) -> type[Mix]:
        if index:
            raise IndexError("a mix has no words")
        return type(self)

    @property
    def _add_count(self) -> int:
        return 0 if self.adds is None else len(self.adds)

    @property
    def size(self) -> int:
        """Bytes of the requests."""
        places = self._places()
        return places[-1][1] - places[0][0]

    def _places(self) -> list[tuple[int, int]]:
        entries = [] if self.adds is None else self.adds.entries
        return sorted([(entry.start, entry.end) for entry in entries] + [(ack.start, ack.end) for ack in self._acks])

    def requests(self, first: int = 0) -> list[list[bytes]]:
        """The requests from number `first` on, as lists of words, in order.  ValueError when there is no such one."""
        return [self.request(at) for at in range(_checked(first, len(self) - 1), len(self))]

    def request(self, at: int) -> list[bytes]:
        """Request number `at` as a list of words.  ValueError when there is no such request."""
        start, end = self._places()[_checked(at, len(self) - 1)]
        return _words_at(self._chunk, start, end)[0]

    def acks_before(self, added: int) -> int:
        """How many XACKs there are in front of XADD number `added`, or of the end."""
        _checked(added, self._add_count)
        return sum(ack.before <= added for ack in self._acks)

    def acks(self, count: int) -> tuple[list[bytes], bytes]:
        """-> (packed IDs, the same as bulk strings) of the first XACKs.  ValueError when there are not so many."""
        acks = self._acks[: _checked(count, len(self._acks))]
        return [ack.packed for ack in acks], b"".join([b"$%d\r\n%b\r\n" % (len(ack.text), ack.text) for ack in acks])

    def replies(self, ids: bytes, acked: bytes) -> bytes:
        """The replies in the order of the requests.

        `ids` are the bulk strings that answer the first XADDs, `acked` has a byte for each of the first XACKs: 1 if the
        entry was pending.  ValueError when these are no such answers, or too many.
        """
        _checked(len(acked), len(self._acks))
        answers: list[bytes] = []
        at = added = 0
        for ack, was_pending in [*zip(self._acks, acked, strict=False), (None, 0)]:
            until = self._add_count if ack is None else ack.before
            while added < until and at < len(ids):
                found = _take_word(ids, at, len(ids))
                if found is None:
                    raise ValueError("not the bulk strings of IDs")
                answers.append(ids[at : found[1]])
                at, added = found[1], added + 1
            if ack is not None:
                answers.append(b":1\r\n" if was_pending else b":0\r\n")
        if at < len(ids):
            raise ValueError("more answers than XADDs")
        return b"".join(answers)


def _checked(number: int, most: int) -> int:
    if not 0 <= number <= most:
        raise ValueError(f"{number} is not from 0 to {most}")
    return number


# -- parsing -----------------------------------------------------------------------------------------------------------


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


def _take_words(chunk: bytes, at: int, end: int, requests: Requests, *, is_closed: bool = False) -> int | None:
    words, after = _words_at(chunk, at, end, is_closed=is_closed)
    if after is not None:
        requests.append(words)
    return after


def _words_at(chunk: bytes, at: int, end: int, *, is_closed: bool = False) -> tuple[list[bytes], int | None]:
    """-> the words of a request, and where the next thing begins: None when it is not whole, or odd."""
    words: list[bytes] = []
    head = _take_head(chunk, at, end)
    if head is None:
        return words, None
    count, at = head
    for _ in range(count):
        found = _take_word(chunk, at, end)
        if found is None:
            return words, None
        word, at = found
        if is_closed and chunk[at - 2 : at] != b"\r\n":
            return words, None
        words.append(word)
    return words, at


def _take_logged_run(chunk: bytes, start: int, end: int, requests: Requests) -> int | None:
    first = _take_xadd(chunk, start, end, LOGGED)
    if first is None:
        return None
    shared = chunk[start : first.id]
    if not chunk.startswith(shared, first.end, end):
        shared = b""
    entries = [first]
    while len(entries) < _RUN_ENTRIES and chunk.startswith(shared, entries[-1].end, end):
        found = _take_xadd(chunk, entries[-1].end, end, LOGGED)
        if found is None:
            break
        entries.append(found)
    requests.append(Run(chunk, entries))
    return entries[-1].end


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
    words, after = _words_at(chunk, start, end, is_closed=True)
    if after is None or len(words) != _XACK_WORDS or words[0] not in (b"XACK", b"xack"):
        return None
    entry_id = _parse_id(words[3], may_be_short=False)
    if entry_id is None:
        return None
    return (words[1], words[2]), Ack(start, after, before, entry_id.to_bytes(_ID_BYTES, "big"), words[3])


def _take_xadd(chunk: bytes, start: int, end: int, runs: int) -> Entry | None:
    words, after = _words_at(chunk, start, end)
    if after is None or len(words) < _MIN_XADD_WORDS:
        return None
    if words[0] != b"XADD" and (words[0] != b"xadd" or runs == LOGGED):
        return None
    options = _take_options(words) if runs == APPENDED else (2, None)
    if options is None:
        return None
    id_no, trim = options
    count = len(words) - id_no - 1
    if count < 2 or count % 2:
        return None
    wanted = None
    if words[id_no] != b"*" or runs == LOGGED:
        wanted = _parse_id(words[id_no], may_be_short=runs == APPENDED)
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
            threshold = _parse_id(words[at], may_be_short=True) if by_id else _parse_number(words[at])
            if threshold is None or (not by_id and len(words[at]) > _MAX_NUMBER):
                return None
            trim = Trim(by_id, how == [b"~"], threshold)
            at += 1
        else:
            return at, trim
    return None


def _option(word: bytes) -> bytes:
    """The word in upper case, if each of its letters is a letter."""
    return word.upper() if word.isalpha() else b""


def _parse_number(text: bytes) -> int | None:
    """A canonical number of 64 bits."""
    if not _NUMBER.fullmatch(text) or len(text) > len(str(_MAX_HALF)) or int(text) > _MAX_HALF:
        return None
    return int(text)


def _parse_id(text: bytes, *, may_be_short: bool) -> int | None:
    """`ms-seq`, both of them canonical, or `ms` for `ms-0`."""
    ms_text, dash, seq_text = text.partition(b"-")
    if not dash and not may_be_short:
        return None
    ms, seq = _parse_number(ms_text), _parse_number(seq_text if dash else b"0")
    return None if ms is None or seq is None else ms << 64 | seq


# -- formatting --------------------------------------------------------------------------------------------------------


class Tail:
    """What may be appended to a stream, and what was.

    Whoever opens it answers for the rest: that no client waits for the stream, that it does not expire, and that
    nothing else looks at it or changes it in the meantime.
    """

    __slots__ = (
        "_last_id",
        "_length",
        "_most",
        "_new_node",
        "_node_end",
        "_node_live",
        "_nodes",
        "_nodes_left",
        "_oldest",
        "_prefix",
        "_room",
        "_rows",
        "size",
        "trimmed",
    )

    def __init__(
        self,
        last_key: bytes,
        oldest: bytes,
        node_end: bytes,
        length: int,
        node_live: int,
        most: int,
        room: int,
        max_entries: int,
        max_bytes: int,
        nodes: int,
    ) -> None:
        self._prefix, self._last_id = _unpacked(last_key)
        self._oldest = int.from_bytes(oldest, "big")
        self._node_end = int.from_bytes(node_end, "big")
        numbers = (length, node_live, most, room, max_entries, max_bytes, nodes)
        if not len(oldest) == len(node_end) == _ID_BYTES or min(numbers) < 0:
            raise ValueError("not two packed IDs, or a negative number")
        self._length = length
        self._node_live = node_live
        self._most = most
        self._room = room
        self._new_node = max_entries, max_bytes
        self._nodes_left = nodes
        self._nodes = [Node(0, 0, _NO_ID, _NO_ID)]
        self._rows: Rows = []
        self.size = 0  # bytes of these rows and their keys, and of what is to be removed
        self.trimmed = 0  # entries to be removed from the front

    @property
    def last_id(self) -> bytes:
        return self._last_id.to_bytes(_ID_BYTES, "big")

    def nodes(self) -> list[Node]:
        """What each node was given; in front that which was open at first."""
        return list(self._nodes)

    def take_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The rows of the table of entries that were appended since the last call."""
        rows, self._rows, self.size = self._rows, [], self.trimmed * _TRIMMED_BYTES
        return iter(rows)

    def takes(self, entry: Entry, now: int) -> int | None:
        """The ID that the entry gets; None when the tail does not take it as it is."""
        if not self._has_room(entry.size) and (not self._nodes_left or entry.size >= self._new_node[1]):
            return None
        wanted = max(now, self._last_id + 1) if entry.wanted is None else entry.wanted
        if not self._last_id < wanted <= _MAX_ID or self.count_trimmed(entry.trim) is None:
            return None
        return wanted

    def _has_room(self, size: int) -> bool:
        count, used, _, _ = self._nodes[-1]
        return count < self._most and size < self._room - used

    def count_trimmed(self, trim: Trim | None) -> int | None:
        """How many entries a trim removes when the entry has been appended; None: unknown, or not to be left for later.

        An exact trim that removes one entry is left for later, up to some hundreds of them.
        """
        if trim is None:
            return 0
        if trim.by_id:
            return 0 if trim.threshold <= (self._node_end if trim.is_approximate else self._oldest) else None
        excess = self._length + 1 - trim.threshold
        if excess <= 0:
            return 0
        if trim.threshold == 0:
            return None
        if trim.is_approximate:
            return 0 if excess < self._node_live else None
        return 1 if excess == 1 and self.trimmed < _MAX_TRIMMED else None

    def trim_one(self) -> int:
        """Note that the first entry is to be removed; -> for how many bytes that counts."""
        self.trimmed += 1
        self.size += _TRIMMED_BYTES
        self._length -= 1
        self._node_live = max(self._node_live - 1, 0)
        return _TRIMMED_BYTES

    def add(self, run: Run, entry: Entry, entry_id: int, bulk: bytes) -> int:
        """Append the entry, whose ID is `bulk` as a bulk string; -> the bytes of its row and the key."""
        if not self._has_room(entry.size):
            self._most, self._room = self._new_node
            self._nodes_left -= 1
            self._nodes.append(Node(0, 0, _NO_ID, _NO_ID))
        packed = entry_id.to_bytes(_ID_BYTES, "big")
        row = b"%b*%d\r\n%b" % (bulk, entry.word_count, run.fields(entry))
        row = seal(self._prefix, row)
        self._rows.append((self._prefix + packed, row))
        count, size, first, _ = self._nodes[-1]
        self._nodes[-1] = Node(count + 1, size + entry.size, first if count else packed, packed)
        self._last_id = entry_id
        self._length += 1
        self.size += _KEY_BYTES + len(row)
        return _KEY_BYTES + len(row)


def open_tail(
    last_key: bytes,
    oldest: bytes,
    node_end: bytes,
    length: int,
    node_live: int,
    most: int,
    room: int,
    max_entries: int,
    max_bytes: int,
    nodes: int,
) -> Tail:
    """A tail that takes at most `most` entries, whose fields have less than `room` bytes together, into the open node.

    Further ones go into at most `nodes` new nodes of `max_entries` and less than `max_bytes`.  `last_key` has the
    prefix of the stream's rows and its last ID; `length` is the stream's.  An approximate trim by length removes
    `node_live` entries at least, none with a threshold of 0; an approximate trim by ID removes nothing up to
    `node_end`, an exact one up to `oldest`.  ValueError when a number is negative, or the bytes are too many.
    """
    return Tail(last_key, oldest, node_end, length, node_live, most, room, max_entries, max_bytes, nodes)


def append(
    run: Run, at: int, tails: dict[bytes, Tail], watched: dict[bytes, int], now_ms: int
) -> tuple[int, int, bytes, bytes]:
    """Append the entries of `run` from `at` on to the tails of their keys; -> (count, bytes of rows, log, replies).

    Ends before the first entry whose key has no tail or is `watched`, or that its tail does not take.
    """
    if not 0 <= at <= len(run) or now_ms < 0:
        raise ValueError("not a place in the run, or a negative time")
    log, replies, size = [], [], 0
    for entry, tail, entry_id in _taken(run, at, tails, watched, now_ms << 64):
        text = b"%d-%d" % (entry_id >> 64, entry_id & _MAX_HALF)
        bulk = b"$%d\r\n%b\r\n" % (len(text), text)
        front = [b"XADD", entry.key]
        is_trimming = tail.count_trimmed(entry.trim)
        size += tail.add(run, entry, entry_id, bulk)
        if is_trimming and entry.trim is not None:
            front += [b"MAXLEN", b"=", b"%d" % entry.trim.threshold]
            size += tail.trim_one()
        words = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in front])
        log += [b"*%d\r\n" % (len(front) + 1 + entry.word_count), words, bulk, run.fields(entry)]
        replies.append(bulk)
    return len(replies), size, b"".join(log), b"".join(replies)


def load(run: Run, at: int, tails: dict[bytes, Tail], watched: dict[bytes, int]) -> tuple[int, int]:
    """As `append`, for a run out of a log, which has the IDs of its entries; -> (count, bytes of rows)."""
    if not 0 <= at <= len(run):
        raise ValueError("not a place in the run")
    count = size = 0
    for entry, tail, entry_id in _taken(run, at, tails, watched, 0):
        trimmed = tail.count_trimmed(entry.trim)
        size += tail.add(run, entry, entry_id, run.id_bulk(entry))
        if trimmed:
            size += tail.trim_one()
        count += 1
    return count, size


def _taken(
    run: Run, at: int, tails: dict[bytes, Tail], watched: dict[bytes, int], now: int
) -> Iterator[tuple[Entry, Tail, int]]:
    """The entries of `run` from `at` on, with their tails and IDs; each is added before the next one is asked for."""
    for entry in run.entries[at:]:
        tail = None if entry.key in watched else tails.get(entry.key)
        entry_id = None if tail is None else tail.takes(entry, now)
        if tail is None or entry_id is None:
            return
        yield entry, tail, entry_id


def expand_one(run: Run, key: bytes, log_head: bytes) -> tuple[bytes, int, bytes, bytes]:
    """The first entry of `run` with the ID in `key`, whatever it asks for; -> (row, bytes of fields, log, reply).

    The line of the log is `log_head`, the ID and the fields.
    """
    prefix, entry_id = _unpacked(key)
    text = b"%d-%d" % (entry_id >> 64, entry_id & _MAX_HALF)
    bulk = b"$%d\r\n%b\r\n" % (len(text), text)
    entry = run.entries[0]
    fields = run.fields(entry)
    row = b"%b*%d\r\n%b" % (bulk, entry.word_count, fields)
    return seal(prefix, row), entry.size, b"".join((log_head, bulk, fields)), bulk


def load_xadds(run: Run, at: int, most: int, room: int, last_key: bytes, rows: Rows) -> tuple[int, int, bytes]:
    """The rows of a run out of a log are appended to `rows`; -> (count, bytes of fields, last key).

    As many as there are, at most `most`, and those whose fields have less than `room` bytes together.  `last_key` is
    that of the row before.  The first entry that has another key, or whose ID is not above the last one, ends it.
    """
    prefix, _ = _unpacked(last_key)
    count = size = 0
    for entry in run.fitting(at, most, room):
        key = prefix + (entry.wanted or 0).to_bytes(_ID_BYTES, "big")
        if key <= last_key or entry.key != run.key:
            break
        row = b"%b*%d\r\n%b" % (run.id_bulk(entry), entry.word_count, run.fields(entry))
        rows.append((key, seal(prefix, row)))
        count += 1
        size += entry.size
        last_key = key
    return count, size, last_key


def packed_id(text: bytes) -> bytes | None:
    """The 16 bytes of an entry's ID in keys; None when `text` is not `ms-seq`, both canonical and of 64 bits."""
    found = _parse_id(text, may_be_short=False)
    return None if found is None else found.to_bytes(_ID_BYTES, "big")


def find_id(packed_ids: bytes, packed_id: bytes) -> int:
    """Where `packed_id` begins among these ascending IDs of 16 bytes each, which all differ; -1 if it is not there."""
    if len(packed_id) != _ID_BYTES:
        raise ValueError(f"{_ID_BYTES} bytes are needed")
    low, high = 0, len(packed_ids) // _ID_BYTES
    while low < high:
        middle = (low + high) // 2
        found = packed_ids[middle * _ID_BYTES : (middle + 1) * _ID_BYTES]
        if found == packed_id:
            return middle * _ID_BYTES
        if found < packed_id:
            low = middle + 1
        else:
            high = middle
    return -1


# -- rows of entries ---------------------------------------------------------------------------------------------------


def seal(prefix: bytes, row: bytes) -> bytes:
    """The row of an entry of the stream with this number, with its seal: a checksum of both."""
    if len(prefix) != _KEY_BYTES - _ID_BYTES:
        raise ValueError("not the number of a stream")
    return b"%b%b%b" % (row, crc32c(row, crc32c(prefix)).to_bytes(4, "big"), SEAL_MARK)


def unseal_one(key: bytes, row: bytes) -> bytes | None:
    """The row of an entry without its seal, None when it is damaged, or has another key."""
    prefix, _ = _unpacked(key)
    bare = _unsealed(prefix, row)
    return bare if bare is not None and bare.startswith(_id_bulk(key)) else None


def _unsealed(prefix: bytes, row: bytes) -> bytes | None:
    """The row without its seal, None when it is damaged.

    Rows that were written in format version 2 have no seal, and are taken apart.
    """
    if len(prefix) != _KEY_BYTES - _ID_BYTES:
        raise ValueError("not the number of a stream")
    if len(row) > SEAL_BYTES and row.endswith(SEAL_MARK):
        bare = row[:-SEAL_BYTES]
        return bare if seal(prefix, bare) == row else None
    return row if _take_row(row) is not None else None


def unseal(prefix: bytes, rows: list[bytes]) -> int:
    """Take the seals off the rows in their list; -> the index of the first damaged row, -1 when there is none."""
    for number, row in enumerate(rows):
        bare = _unsealed(prefix, row)
        if bare is None:
            return number
        rows[number] = bare
    return -1


def unseal_in(buffer: Buffer, starts: Buffer, ends: Buffer, stream_nos: Buffer) -> int:
    """As `unseal`, for the rows of the streams `stream_nos` from `starts` to `ends` in a buffer; changes `ends`.

    All numbers are native ones of 64 bits.
    """
    places, found, numbers = (memoryview(each).cast("B").cast("q") for each in (starts, ends, stream_nos))
    if not len(places) == len(found) == len(numbers):
        raise ValueError("not as many numbers of 64 bits")
    rows = memoryview(buffer).cast("B")
    for at, (start, end, number) in enumerate(zip(places, found, numbers, strict=True)):
        if not 0 <= start <= end <= len(rows):
            return at
        bare = _unsealed((number % (1 << 64)).to_bytes(8, "big"), bytes(rows[start:end]))
        if bare is None:
            return at
        found[at] = start + len(bare)
    return -1


def find_values(
    buffer: Buffer, starts: Buffer, ends: Buffer, heads: list[bytes], tail: bytes, places: Buffer, found: Buffer
) -> int:
    """Where values are in the rows from `starts` to `ends` in a buffer -> how many rows are of this shape:

        head 1 | length | CR LF | value 1 | head 2 | length | CR LF | value 2 | tail

    `places` has room for the begin of value 1 in each row, then for its end in each row, and so on; `found` is one byte
    a row: whether it is of this shape.  The places of a row that is not are of no use.  Lengths have at most nine
    digits, which may begin with zeros.  All numbers are native ones of 64 bits.
    """
    begins, stops = (memoryview(each).cast("B").cast("q") for each in (starts, ends))
    into, flags = memoryview(places).cast("B").cast("q"), memoryview(found).cast("B")
    count = len(begins)
    if len(stops) != count or len(into) != 2 * len(heads) * count:
        raise ValueError("not as many numbers of 64 bits")
    if len(flags) != count:
        raise ValueError("not as many flags as rows")
    data = bytes(memoryview(buffer).cast("B"))
    for row, (start, stop) in enumerate(zip(begins, stops, strict=True)):
        values = _values_in(data[start:stop], heads, tail) if 0 <= start <= stop <= len(data) else None
        flags[row] = values is not None
        for number, place in enumerate(values or ()):
            into[number * count + row] = start + place
    return sum(flags)


def _values_in(row: bytes, heads: list[bytes], tail: bytes) -> list[int] | None:
    """Begin and end of each value in a row; None when it is of another shape."""
    at, places = 0, []
    for head in heads:
        length = _LENGTH.match(row, at + len(head))
        if not row.startswith(head, at) or length is None or int(length[1]) > len(row) - length.end():
            return None
        places += [length.end(), at := length.end() + int(length[1])]
    return places if row[at:] == tail else None


def gather(buffer: Buffer, starts: Buffer, ends: Buffer, offsets: Buffer, pieces: Buffer) -> bool:
    """Put the bytes from `starts` to `ends` in a buffer one behind the other -> whether all of them are ASCII.

    `offsets`, one more than there are pieces, are native numbers of 32 bits: where each piece begins, and the end of
    the last.  `pieces` has room for exactly what there is.
    """
    data, into = memoryview(buffer).cast("B"), memoryview(pieces).cast("B")
    begins, stops = (memoryview(each).cast("B").cast("q") for each in (starts, ends))
    if len(begins) != len(stops):
        raise ValueError("not as many numbers of 64 bits")
    at = memoryview(offsets).cast("B")
    if len(at) != 4 * (len(begins) + 1) or len(into) >= 1 << 31:
        raise ValueError("not as many offsets as pieces, or too many bytes for them")
    places = list(zip(begins, stops, strict=True))
    sizes = [stop - start if 0 <= start <= stop <= len(data) else -1 for start, stop in places]
    if min(sizes, default=0) < 0 or sum(sizes) != len(into):
        raise ValueError("the pieces are not in the buffer, or not as long as the room for them")
    into[:] = gathered = b"".join([data[start:stop] for start, stop in places])
    at.cast("i")[:] = memoryview(array("i", accumulate(sizes, initial=0)))
    return gathered.isascii()


def unseal_pairs(pairs: Rows) -> int:
    """As `unseal`, for (key, row) of any streams."""
    for number, (key, row) in enumerate(pairs):
        bare = unseal_one(key, row)
        if bare is None:
            return number
        pairs[number] = key, bare
    return -1


def measure_entries(
    rows: Iterator[tuple[bytes, bytes]], prefix: bytes, most: int
) -> tuple[list[bytes], list[int], Rows]:
    """Take at most `most` rows of entries out of an iterator; -> (keys, sizes, odd rows).

    Ends at the first key that does not begin with `prefix`, which is lost.  A size is the bytes of the fields; -1 when
    we would not have written the row so, or not under this key, and then the row is among the odd ones too.
    """
    if len(prefix) != _KEY_BYTES - _ID_BYTES or most < 0:
        raise ValueError("not the number of a stream, or a negative number of rows")
    keys: list[bytes] = []
    sizes: list[int] = []
    odd: Rows = []
    while len(keys) < most and (item := next(rows, None)) is not None:
        key, row = item
        if not key.startswith(prefix):
            break
        sound = _unsealed(prefix, row)
        parts = None if sound is None else _take_row(sound)
        if sound is None or parts is None or len(key) != _KEY_BYTES or row[: parts[0]] != _id_bulk(key):
            odd.append(item)
            sizes.append(-1)
        else:
            sizes.append(len(sound) - parts[1])
        keys.append(key)
    return keys, sizes, odd


def measure_leaf(page: bytes, last_key: bytes | None) -> tuple[int, bytes | None] | None:
    """The rows of a leaf of LMDB 0.9; -> (count, last key), None when it is not a sound page of plain rows.

    The keys ascend from above `last_key` on, which is None before the first leaf.  Rows are plain that stand in the
    page as a whole and are no tables.
    """
    size, head = len(page), _PAGE_HEAD.size
    if size < head:
        return None
    lower, upper = _PAGE_HEAD.unpack_from(page)
    if not head <= lower <= upper <= size:
        return None
    count = (lower - head) // 2
    for at in unpack_from(f"={count}H", page, head):
        if not upper <= at <= size - _NODE_HEAD.size:
            return None
        value_size, flags, key_size = _NODE_HEAD.unpack_from(page, at)
        at += _NODE_HEAD.size
        key = page[at : at + key_size]
        if flags or at + key_size + value_size > size or (last_key is not None and key <= last_key):
            return None
        last_key = key
    return count, last_key


def log_entries(rows: Iterator[bytes], last_key: bytes, head: bytes, room: int) -> tuple[bytes, int, bytes]:
    """Make XADDs of the rows of entries that an iterator gives, until they have `room` bytes.

    -> (XADDs, count, last key).  `last_key` is that of the row before, `head` are the name and the key as bulk strings.
    ValueError when a row is damaged, not above the one before, or we would not have written it so.
    """
    prefix, last_id = _unpacked(last_key)
    if room < 0:
        raise ValueError("a negative bound")
    log: list[bytes] = []
    size = count = 0
    while size < room and (row := next(rows, None)) is not None:
        sound = _unsealed(prefix, row)
        parts = None if sound is None else _take_row(sound)
        if sound is None or parts is None:
            raise ValueError("this is not the row of an entry")
        id_end, fields, word_count = parts
        entry_id = _parse_id(sound[sound.index(b"\n") + 1 : id_end - 2], may_be_short=False)
        if entry_id is None or entry_id <= last_id:
            raise ValueError("the entries are not in the order of their IDs")
        last_id = entry_id
        line = b"*%d\r\n%b%b%b" % (word_count + 3, head, sound[:id_end], sound[fields:])
        log.append(line)
        size += len(line)
        count += 1
    return b"".join(log), count, prefix + last_id.to_bytes(_ID_BYTES, "big")


def _take_row(row: bytes) -> tuple[int, int, int] | None:
    """-> where the ID ends and where the fields begin, and how many words these are."""
    match, size = _BULK.match, len(row)
    found = match(row)
    if found is None:
        return None
    id_end = found.end() + int(found[1]) + 2
    head = _take_head(row, id_end, size) if row[id_end - 2 : id_end] == b"\r\n" else None
    if head is None or head[0] % 2:
        return None
    count, at = head
    fields = at
    for _ in range(count):
        found = match(row, at)
        if found is None:
            return None
        at = found.end() + int(found[1]) + 2
        if row[at - 2 : at] != b"\r\n":
            return None
    return (id_end, fields, count) if at == size else None


def _id_bulk(key: bytes) -> bytes:
    _, entry_id = _unpacked(key)
    text = b"%d-%d" % (entry_id >> 64, entry_id & _MAX_HALF)
    return b"$%d\r\n%b\r\n" % (len(text), text)


# -- pending entries ---------------------------------------------------------------------------------------------------


def show_pending(
    prefix: bytes,
    rows: list[bytes],
    first: bytes,
    last: bytes,
    owners: dict[int, bytes],
    now_ms: int,
    until_ms: int,
    most: int,
) -> tuple[bytes, int]:
    """The pending entries of `rows` as XPENDING shows them; -> (elements of its reply, how many).

    Rows of the table `pel` whose keys begin with `prefix`, which are runs: those of the `owners`, whose names are there
    as bulk strings by number, and delivered by `until_ms` or without an owner, which is number 0.  Of these the IDs
    from `first` to `last`, `most` of them.  ValueError when a row is no run.
    """
    if len(prefix) != _PREFIX_BYTES or len(first) != _ID_BYTES or len(last) != _ID_BYTES or most < 0:
        raise ValueError("no prefix of a group, not two packed IDs, or a negative number of entries")
    shown: list[bytes] = []
    for row in rows:
        if len(shown) == most:
            break
        (number, time_ms, deliveries), ids = _decoded(prefix, row)
        owner = owners.get(number)
        if owner is None or (number and time_ms > until_ms):
            continue
        idle_ms = max(now_ms - time_ms, 0) if number else -1
        for packed in [packed for packed in ids if first <= packed <= last][: most - len(shown)]:
            text = b"%d-%d" % (int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:], "big"))
            shown.append(b"*4\r\n$%d\r\n%b\r\n%b:%d\r\n:%d\r\n" % (len(text), text, owner, idle_ms, deliveries))
    return b"".join(shown), len(shown)


def change_runs(
    prefix: bytes,
    rows: list[tuple[bytes, bytes] | None],
    order: list[bytes],
    changed: dict[bytes, Delivery | None],
    most: int,
) -> tuple[TableChange, TableChange, TableChange]:
    """What becomes of runs when entries of theirs change; -> the keys that are gone and the rows to be put, by table.

    The tables are `pel`, `pel_by_consumer` and `pel_by_time`.  `rows` are rows of `pel` whose keys begin with `prefix`,
    None between those that are no neighbours.  They have the ascending IDs `order`, whose deliveries `changed` has,
    None when they are not pending any more.  Neighbouring pieces of an owner that differ in their IDs only become one
    run of at most `most`.  ValueError when a row is no run, or is not in order, and when an ID is in none of them.
    """
    if len(prefix) != _PREFIX_BYTES or most < 0:
        raise ValueError("no prefix of a group, or a negative number of entries")
    old: list[_Piece] = []
    new: list[_Piece] = []
    left = order[::-1]
    last = b""
    first = 0  # of the pieces that may be joined
    for item in rows:
        if item is None:
            first = len(new)
            continue
        key, row = item
        own, ids = _decoded(prefix, row)
        if not ids or key != prefix + ids[-1] or [last, *ids] != sorted({last, *ids}):
            raise ValueError("the IDs of runs do not ascend, or the key is another one")
        last = ids[-1]
        old.append((own, ids))
        states: list[tuple[bool, Delivery | None, bytes]] = []
        for packed in ids:
            changes = bool(left) and left[-1] == packed
            states.append((changes, changed[left.pop()] if changes else own, packed))
        stays = [state for state in states if state[1] is not None]
        for (_, delivery), those in groupby(stays, lambda state: state[:2]):
            assert delivery is not None
            piece = [packed for _, _, packed in those]
            if len(new) > first and delivery[0] and new[-1][0] == delivery and len(new[-1][1]) + len(piece) <= most:
                new[-1][1].extend(piece)
            else:
                new.append((delivery, piece))
    if left:
        raise ValueError("an ID that is in none of these runs")
    was = [_rows_of_run(prefix, *piece) for piece in old]
    tables = [_rows_of_run(prefix, *piece) for piece in new]
    by_id, by_owner, by_time = (
        _table_change([run[table][0] for run in was], [run[table] for run in tables], stays=table > 0)
        for table in range(3)
    )
    return by_id, by_owner, by_time


def _table_change(old: list[bytes], new: Rows, *, stays: bool) -> TableChange:
    """From the keys that a table has to the rows that it shall have; what `stays` under its key is not put again."""
    keys = {key for key, _ in new}
    return [key for key in old if key not in keys], [row for row in new if not (stays and row[0] in old)]


def open_run(key: bytes, row: bytes) -> tuple[int, int, int, bytes]:
    """A row of `pel`; -> (owner, delivery time, delivery count, IDs).  ValueError when it is no run."""
    prefix, _ = _unpacked(key)
    delivery, ids = _decoded(prefix, row)
    return *delivery, b"".join(ids)


def _decoded(prefix: bytes, row: bytes) -> _Piece:
    if (len(row) - _RUN_HEAD) % _ID_BYTES == _CHECKSUM_BYTES:
        row, checksum = row[:-_CHECKSUM_BYTES], row[-_CHECKSUM_BYTES:]
        sums = [crc32c(row, crc32c(prefix)), crc32c(row)]  # that without a prefix is of format version 3
        if int.from_bytes(checksum, "big") not in sums:
            raise ValueError("this is no run")
    if len(row) < _RUN_HEAD or (len(row) - _RUN_HEAD) % _ID_BYTES:
        raise ValueError("this is no run")
    owner, time_ms, count = (int.from_bytes(row[a:b], "big") for a, b in ((0, 4), (4, 12), (12, 20)))
    return (owner, time_ms, count), [row[at : at + _ID_BYTES] for at in range(_RUN_HEAD, len(row), _ID_BYTES)]


def _rows_of_run(prefix: bytes, delivery: Delivery, ids: list[bytes]) -> Rows:
    """The (key, row) of a run in each of its three tables."""
    owner, time_ms, count = delivery
    row = owner.to_bytes(4, "big") + time_ms.to_bytes(8, "big") + count.to_bytes(8, "big") + b"".join(ids)
    moment = (time_ms + 1).to_bytes(8, "big") + ids[-1] if owner else _NO_TIME + time_ms.to_bytes(_ID_BYTES, "big")
    return [
        (prefix + ids[-1], row + crc32c(row, crc32c(prefix)).to_bytes(_CHECKSUM_BYTES, "big")),
        (prefix + owner.to_bytes(4, "big") + ids[-1], b""),
        (prefix + moment, b"" if owner else ids[-1]),
    ]


def _unpacked(key: bytes) -> tuple[bytes, int]:
    """-> what the keys of all rows of the stream begin with, and the ID."""
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{_KEY_BYTES} bytes are needed")
    return key[:-_ID_BYTES], int.from_bytes(key[-_ID_BYTES:], "big")
