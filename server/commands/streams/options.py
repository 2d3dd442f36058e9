"""The option languages of the stream commands: trims, ranges, reads.  Words to values, with Redis's own errors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from riverbed.server import errors
from riverbed.server.commands.arguments import INT64_MAX, Args, parse_entry_id, parse_timeout_ms
from riverbed.server.errors import CommandError
from riverbed.server.numbers import parse_digits
from riverbed.store.ids import MAX_HALF, MAX_ID, MAX_TEXT_BYTES, MIN_ID, StreamID, make_id
from riverbed.store.model import References, Strategy, Trim

MAXLEN_NEGATIVE: Final = "ERR The MAXLEN argument must be >= 0."
LIMIT_NEGATIVE: Final = "ERR The LIMIT argument must be >= 0."
TWO_STRATEGIES: Final = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
LIMIT_WITHOUT_STRATEGY: Final = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
LIMIT_WITHOUT_TILDE: Final = "ERR syntax error, LIMIT cannot be used without the special ~ option"
NO_STRATEGY: Final = "ERR syntax error, XTRIM must be called with a trimming strategy"
IDMP_TWICE: Final = "ERR syntax error, IDMP/IDMPAUTO specified multiple times"
IDMPAUTO_EMPTY_PID: Final = "ERR syntax error, IDMPAUTO requires a non-empty producer ID"
IDMP_EMPTY_PID: Final = "ERR syntax error, IDMP requires a non-empty producer ID"
IDMP_EMPTY_IID: Final = "ERR syntax error, IDMP requires a non-empty idempotent ID"
IDMP_EXPLICIT_ID: Final = "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
INVALID_START: Final = "ERR invalid start ID for the interval"
INVALID_END: Final = "ERR invalid end ID for the interval"

_AUTO_SEQ = re.compile(rb"(\d+)-\*", re.ASCII)
_DEFAULT_LIMIT_MOST: Final = 1_000_000
_DEFAULT_LIMIT_UNBOUNDED_NODES: Final = 10_000


@dataclass(frozen=True, slots=True)
class AutoSeq:
    """The ID `ms-*`: the millisecond is given, the server chooses the sequence number."""

    ms: int


@dataclass(frozen=True, slots=True)
class Producer:
    """`IDMP pid iid`, or `IDMPAUTO pid` with `iid` None."""

    pid: bytes
    iid: bytes | None


@dataclass(slots=True)
class AppendOptions:
    """What stands before the fields of an XADD.  `entry_id` None is `*`; `first_field` is a position in argv."""

    entry_id: StreamID | AutoSeq | None
    first_field: int
    trim: Trim | None
    make_stream: bool
    producer: Producer | None


class TrimParser:
    """Collects the trim options, which XADD and XTRIM share, word by word."""

    def __init__(self) -> None:
        self.strategy: Strategy | None = None
        self.threshold = 0
        self.approximate = False
        self.limit: int | None = None
        self.references: References | None = None

    def take(self, args: Args) -> bool:
        """Take one option if the next word begins one; False leaves the word."""
        option = args.peek_option()
        more = len(args) - 1
        if option in (b"MAXLEN", b"MINID") and more:
            args.take()
            self._take_threshold(args, Strategy(option))
        elif option == b"LIMIT" and more:
            args.take()
            self.limit = args.take_int()
            if self.limit < 0:
                raise CommandError(LIMIT_NEGATIVE)
        elif option in (b"KEEPREF", b"DELREF", b"ACKED") and self.references is None:
            args.take()
            self.references = References(option)
        else:
            return False
        return True

    def _take_threshold(self, args: Args, strategy: Strategy) -> None:
        if self.strategy is not None:
            raise CommandError(TWO_STRATEGIES)
        self.strategy = strategy
        if len(args) >= 2 and args.peek_option() in (b"~", b"="):
            self.approximate = args.take() == b"~"
        if strategy is Strategy.MAXLEN:
            self.threshold = args.take_int()
            if self.threshold < 0:
                raise CommandError(MAXLEN_NEGATIVE)
        else:
            self.threshold = args.take_id()

    def finish(self, node_max_entries: int, *, must: bool, from_log: bool) -> Trim | None:
        """The trim, once all options are read.  `must` is for XTRIM, which needs one."""
        if self.limit and self.strategy is None:
            raise CommandError(LIMIT_WITHOUT_STRATEGY)
        if must and self.strategy is None:
            raise CommandError(NO_STRATEGY)
        limit = 0
        if not from_log:  # a replayed trim has been limited already
            if self.limit is not None and not self.approximate:
                raise CommandError(LIMIT_WITHOUT_TILDE)
            if self.limit is not None:
                limit = self.limit
            elif self.approximate:
                limit = _default_limit(node_max_entries)
        if self.strategy is None:
            return None
        return Trim(self.strategy, self.threshold, self.approximate, limit, self.references or References.KEEPREF)


def _default_limit(node_max_entries: int) -> int:
    limit = 100 * node_max_entries
    return min(limit, _DEFAULT_LIMIT_MOST) if limit > 0 else _DEFAULT_LIMIT_UNBOUNDED_NODES


def parse_append(argv: list[bytes], node_max_entries: int, *, from_log: bool) -> AppendOptions:
    """XADD's words between the key and the fields."""
    args = Args(argv, 2)
    trims = TrimParser()
    make_stream = True
    producer: Producer | None = None
    entry_id: StreamID | AutoSeq | None = None
    while len(args):
        option = args.peek_option()
        if option == b"*":
            args.take()
            break
        if trims.take(args):
            continue
        if option == b"NOMKSTREAM":
            args.take()
            make_stream = False
        elif option in (b"IDMP", b"IDMPAUTO") and len(args) > (2 if option == b"IDMP" else 1):
            args.take()
            if producer is not None:
                raise CommandError(IDMP_TWICE)
            producer = _take_producer(args, option)
        else:
            entry_id = _parse_new_id(args.take())
            break
    trim = trims.finish(node_max_entries, must=False, from_log=from_log)
    if producer is not None and entry_id is not None and not from_log:
        raise CommandError(IDMP_EXPLICIT_ID)
    return AppendOptions(entry_id, args.position, trim, make_stream, producer)


def _take_producer(args: Args, option: bytes) -> Producer:
    pid = args.take()
    if option == b"IDMPAUTO":
        if not pid:
            raise CommandError(IDMPAUTO_EMPTY_PID)
        return Producer(pid, None)
    iid = args.take()
    if not pid:
        raise CommandError(IDMP_EMPTY_PID)
    if not iid:
        raise CommandError(IDMP_EMPTY_IID)
    return Producer(pid, iid)


def _parse_new_id(word: bytes) -> StreamID | AutoSeq:
    # of 100 MB of digits the match alone would take seconds
    auto = _AUTO_SEQ.fullmatch(word) if len(word) <= MAX_TEXT_BYTES else None
    if auto is not None and (ms := parse_digits(auto[1])) <= MAX_HALF:
        return AutoSeq(ms)
    return parse_entry_id(word)


def parse_trim(argv: list[bytes], node_max_entries: int, *, from_log: bool) -> Trim:
    """XTRIM's words after the key."""
    args = Args(argv, 2)
    trims = TrimParser()
    while len(args):
        if not trims.take(args):
            raise CommandError(errors.SYNTAX)
    trim = trims.finish(node_max_entries, must=True, from_log=from_log)
    assert trim is not None
    return trim


# -- ranges ------------------------------------------------------------------------------------------------------------


def parse_range_start(word: bytes) -> StreamID:
    """`-`, `+`, an ID, or `(` and an ID for the one after it."""
    if word[:1] == b"(" and len(word) > 1:
        start = parse_entry_id(word[1:])
        if start == MAX_ID:
            raise CommandError(INVALID_START)
        return StreamID(start + 1)
    return _parse_edge(word, 0)


def parse_range_end(word: bytes) -> StreamID:
    """As the start, but a missing sequence number is the largest, and `(` means the one before."""
    if word[:1] == b"(" and len(word) > 1:
        end = parse_entry_id(word[1:], MAX_HALF)
        if end == MIN_ID:
            raise CommandError(INVALID_END)
        return StreamID(end - 1)
    return _parse_edge(word, MAX_HALF)


def _parse_edge(word: bytes, missing_seq: int) -> StreamID:
    if word == b"-":
        return MIN_ID
    if word == b"+":
        return MAX_ID
    return parse_entry_id(word, missing_seq)


# -- reads -------------------------------------------------------------------------------------------------------------

READ_GROUP_ONLY = "ERR The {} option is only supported by XREADGROUP. You called XREAD instead."
UNBALANCED_XREAD = "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified."
UNBALANCED_XREADGROUP = (
    "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified."
)
MISSING_GROUP = "ERR Missing GROUP option for XREADGROUP"
MAXCOUNT_NOT_POSITIVE = "ERR MAXCOUNT must be a positive integer"
MAXSIZE_NOT_POSITIVE = "ERR MAXSIZE must be a positive integer"
MAXCOUNT_BELOW_COUNT = "ERR MAXCOUNT must be greater than or equal to COUNT"
MIN_IDLE_NOT_INTEGER = "ERR min-idle-time is not an integer or out of range"
MIN_IDLE_NEGATIVE = "ERR min-idle-time must be a positive integer"


@dataclass(slots=True)
class ReadOptions:
    """XREAD's and XREADGROUP's words.  `count` None is unlimited; `block_ms` None does not block, 0 is for ever."""

    count: int | None = None
    max_count: int | None = None
    max_size: int | None = None
    block_ms: int | None = None
    group: bytes | None = None
    consumer: bytes = b""
    noack: bool = False
    claim_min_idle_ms: int | None = None
    keys: list[bytes] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    first_id: int = 0  # where in argv the IDs begin
    heads: dict[int, bytes] = field(default_factory=dict)  # of the reply with one entry, by version of RESP

    @property
    def is_plain(self) -> bool:
        """Whether it reads new entries of one stream, with no limit but COUNT."""
        has_limits = self.max_count is not None or self.max_size is not None
        return self.ids == [b">"] and not has_limits and self.claim_min_idle_ms is None


# Consumers repeat the same words: finding them again takes 0.4 us, parsing them 3.2 (COUNT 1: of 20).
_known_reads: dict[tuple[bytes, ...], ReadOptions] = {}
_MAX_KNOWN_READS = 1024
_MAX_KNOWN_WORDS = 16
_MAX_KNOWN_BYTES = 500


def parse_read(argv: list[bytes], now_ms: int, *, with_group: bool) -> ReadOptions:
    """Parse XREAD, or XREADGROUP when `with_group`.  The result is shared and must not be changed."""
    if argv[-1] != b">" or len(argv) > _MAX_KNOWN_WORDS:
        return _parse_read(argv, now_ms, with_group=with_group)
    words = tuple(argv)
    options = _known_reads.get(words)
    if options is None or (options.block_ms is not None and options.block_ms + now_ms > INT64_MAX):
        options = _parse_read(argv, now_ms, with_group=with_group)
        if sum(map(len, argv)) <= _MAX_KNOWN_BYTES:
            if len(_known_reads) >= _MAX_KNOWN_READS:
                _known_reads.clear()
            _known_reads[words] = options
    return options


def _parse_read(argv: list[bytes], now_ms: int, *, with_group: bool) -> ReadOptions:
    args = Args(argv)
    options = ReadOptions()
    while True:
        option = args.take_option()
        if option == b"STREAMS" and len(args):
            break
        _take_read_option(args, option, options, now_ms, with_group)
    words = args.rest()
    if len(words) % 2:
        raise CommandError(UNBALANCED_XREADGROUP if with_group else UNBALANCED_XREAD)
    half = len(words) // 2
    options.keys, options.ids = words[:half], words[half:]
    options.first_id = len(argv) - half
    if with_group and options.group is None:
        raise CommandError(MISSING_GROUP)
    count = options.count
    if options.max_count is not None and count is not None and options.max_count < count:
        raise CommandError(MAXCOUNT_BELOW_COUNT)
    return options


def _take_read_option(args: Args, option: bytes, options: ReadOptions, now_ms: int, with_group: bool) -> None:
    if option == b"COUNT" and len(args):
        count = args.take_int()
        options.count = count if count > 0 else None
    elif option == b"BLOCK" and len(args):
        options.block_ms = parse_timeout_ms(args.take(), now_ms)
    elif option == b"MAXCOUNT" and len(args):
        options.max_count = _take_positive(args, MAXCOUNT_NOT_POSITIVE)
    elif option == b"MAXSIZE" and len(args):
        options.max_size = _take_positive(args, MAXSIZE_NOT_POSITIVE)
    elif option == b"GROUP" and len(args) >= 2:
        if not with_group:
            raise CommandError(READ_GROUP_ONLY.format("GROUP"))
        options.group, options.consumer = args.take(), args.take()
    elif option == b"NOACK":
        if not with_group:
            raise CommandError(READ_GROUP_ONLY.format("NOACK"))
        options.noack = True
    elif option == b"CLAIM" and len(args):
        if not with_group:
            raise CommandError(READ_GROUP_ONLY.format("CLAIM"))
        options.claim_min_idle_ms = args.take_int(MIN_IDLE_NOT_INTEGER)
        if options.claim_min_idle_ms < 0:
            raise CommandError(MIN_IDLE_NEGATIVE)
    else:
        raise CommandError(errors.SYNTAX)


def _take_positive(args: Args, error: str) -> int:
    number = args.take_int(error)
    if number <= 0:
        raise CommandError(error)
    return number


def auto_id(last_id: StreamID, wanted: AutoSeq) -> StreamID | None:
    """The ID that `ms-*` stands for after `last_id`; None when its millisecond has no sequence number left."""
    if last_id >> 64 == wanted.ms:
        return StreamID(last_id + 1) if last_id & MAX_HALF < MAX_HALF else None
    return make_id(wanted.ms, 0)
