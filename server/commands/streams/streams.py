"""Commands that change a stream's entries and counters: XADD, XDEL, XTRIM, XSETID; and XLEN.

Decides; `store.streams.stream` applies.  Source: the public command pages and `XADD`'s idempotence rules.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import Args, parse_entry_id
from riverbed.server.commands.slices import SLICE_IDS, first_ids, in_slices, parse_in_slices, stream_again
from riverbed.server.commands.streams.options import (
    AutoSeq,
    Producer,
    auto_id,
    parse_append,
    parse_trim,
)
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError, wrong_arity
from riverbed.server.protocol.replies import OK, FirstReplies
from riverbed.store.groups.sliced_trim import SlicedTrim, needs_slices, nodes_a_slice
from riverbed.store.ids import MAX_ID, MIN_ID, SEQ_BITS, StreamID, id_text, parse_id, unpack_id
from riverbed.store.model import References
from riverbed.store.streams import trimming
from riverbed.store.streams.idempotence import Idempotence, content_iid
from riverbed.store.streams.runs import append_one
from riverbed.store.streams.stream import Stream
from riverbed.store.tables.purge import Clearing
from riverbed.store.wire import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply

ID_IS_ZERO: Final = "ERR The ID specified in XADD must be greater than 0-0"
ID_TOO_SMALL: Final = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
EXHAUSTED: Final = "ERR The stream has exhausted the last possible ID, unable to add more items"
TOO_LARGE: Final = "ERR Elements are too large to be stored"
ENTRIES_ADDED_NEGATIVE: Final = "ERR entries_added must be positive"
SETID_BELOW_GIVEN_MAX_DELETED: Final = (
    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
)
SETID_BELOW_MAX_DELETED: Final = "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
SETID_BELOW_TOP: Final = "ERR The ID specified in XSETID is smaller than the target stream top item"
ENTRIES_ADDED_BELOW_LENGTH: Final = "ERR The entries_added specified in XSETID is smaller than the target stream length"

# Fields and values of one entry together; more than a request can carry under the default query-buffer limit.  Redis
# takes 1 << 30.  Native code reads lengths of nine digits.
MAX_ENTRY_BYTES = 999_999_999

_XADD: Final = b"xadd"


@command(
    "XADD key [NOMKSTREAM] [KEEPREF | DELREF | ACKED] [IDMPAUTO pid | IDMP pid iid] "
    "[<MAXLEN | MINID> [= | ~] threshold [LIMIT count]] <* | id> field value [field value ...]",
    Flag.WRITE | Flag.DENYOOM | Flag.FAST,
    summary="Appends an entry to a stream, which is created if need be.",
    tips=("nondeterministic_output",),
)
def xadd(request: Request) -> Reply:
    """XADD key [options] <*|id> field value ... -> the entry's ID; null with NOMKSTREAM and no stream."""
    argv = request.argv
    if argv[2] != b"*" or not len(argv) & 1:
        return _xadd_logged(request) if request.from_log else _xadd_with_options(request)
    # the common form, `XADD key * field value ...`, is worth its own path: it is half of a busy server's work
    if sum(map(len, argv)) > MAX_ENTRY_BYTES:
        return _xadd_with_options(request)  # which refuses it, unless the key is that long
    key = argv[1]
    db = request.db
    stream = db.cached.get(key)
    if stream is None or stream.expire_ms:
        stream = db.stream(key, request.now_ms) or db.create(key)
    entry_id = request.now_ms << SEQ_BITS
    if entry_id <= stream.last_id:
        if stream.last_id == MAX_ID:
            raise CommandError(EXHAUSTED)
        entry_id = stream.last_id + 1
    return (stream.append_entry(StreamID(entry_id), argv[3:]),)


def xadd_run(request: Request) -> tuple[bytes] | FirstReplies:
    """Append a run of XADDs, in place of a request's words; -> the entries' IDs as bulk strings."""
    run = request.run
    assert isinstance(run, Run)
    db = request.db
    if len(run) == 1 and run.is_plain:
        # a client that waits for each reply: lending the stream would cost more than the entry
        key = run.key
        stream = db.cached.get(key)
        if stream is not None and not stream.expire_ms and key not in db.interest:
            entry_id = request.now_ms << SEQ_BITS
            if entry_id > stream.last_id:
                return (append_one(stream, run, StreamID(entry_id)),)
            if stream.last_id < MAX_ID:
                return (append_one(stream, run, StreamID(stream.last_id + 1)),)
    done, ids = db.append_run(run, request.now_ms)
    return (ids,) if done == len(run) else FirstReplies(ids, done)


def _xadd_logged(request: Request) -> Reply:
    """`XADD key id field value ...`, which is nearly all of a log: 3.0 us faster than with a check for options."""
    argv = request.argv
    entry_id = parse_id(argv[2])
    if entry_id and len(argv) & 1:
        stream = request.db.stream(argv[1], request.now_ms)
        if stream is None:
            return (request.db.create(argv[1]).append_entry(entry_id, argv[3:]),)
        if entry_id > stream.last_id:
            return (stream.append_entry(entry_id, argv[3:]),)
    return _xadd_with_options(request)


def _xadd_with_options(request: Request) -> Reply:
    argv = request.argv
    options = parse_append(argv, request.txn.node_max_entries, from_log=request.from_log)
    words = argv[options.first_field :]
    if len(words) < 2 or len(words) % 2:
        raise wrong_arity(_XADD)
    if options.entry_id == MIN_ID:
        raise CommandError(ID_IS_ZERO)
    key = argv[1]
    stream = request.db.stream(key, request.now_ms)
    if stream is None and not options.make_stream:
        return None
    producer = options.producer
    if producer is not None and producer.iid is None:
        producer = Producer(producer.pid, content_iid(words))
    known: StreamID | None = None
    if producer is not None and producer.iid is not None:
        known = None if stream is None else Idempotence(stream).find(producer.pid, producer.iid)
        # Redis logs an entry with its ID, and a duplicate with `*`; that a record has expired it does not log
        is_duplicate = options.entry_id in (None, known) if request.from_log else known is not None
        if is_duplicate:
            if stream is not None:
                Idempotence(stream).count_duplicate()
            return None if known is None else id_text(known)
    entry_id = _choose_id(options.entry_id, stream, request.now_ms)
    if sum(map(len, words)) > MAX_ENTRY_BYTES and not request.from_log:
        raise CommandError(TOO_LARGE)
    if stream is None:
        stream = request.db.create(key)
    trim = options.trim
    left = trim
    if trim is None or (trim.references is not References.KEEPREF and needs_slices(stream, trim)):
        bulk = stream.append_entry(entry_id, words)
    else:
        bulk, left = trimming.append_and_trim(stream, entry_id, words, trim, nodes_a_slice(trim))
    reply = (bulk,)
    if producer is not None and producer.iid is not None:
        if known is None:
            Idempotence(stream).record(producer.pid, producer.iid, entry_id)
        else:
            Idempotence(stream).replace(producer.pid, producer.iid, entry_id)
    if left is not None:
        return in_slices(request, partial(_trim_after, reply, SlicedTrim(left)))
    return reply


def _trim_after(reply: tuple[bytes], work: SlicedTrim, request: Request) -> Work:
    """Trim behind an append, which is in the log and answered with `reply` when the trim is over."""
    for removed in _trim(work, request):
        yield f"the entry added, {removed}"
    return reply


def _choose_id(wanted: StreamID | AutoSeq | None, stream: Stream | None, now_ms: int) -> StreamID:
    """The ID of the new entry; it is above everything the stream has had."""
    last_id = MIN_ID if stream is None else stream.last_id
    if last_id == MAX_ID:
        raise CommandError(EXHAUSTED)
    if wanted is None:
        return StreamID(max(now_ms << SEQ_BITS, last_id + 1))
    entry_id = auto_id(last_id, wanted) if isinstance(wanted, AutoSeq) else wanted
    if entry_id is None or entry_id <= last_id:
        raise CommandError(ID_TOO_SMALL)
    return entry_id


@command("XLEN key", Flag.READONLY | Flag.FAST, summary="Counts a stream's entries.")
def xlen(request: Request) -> int:
    """XLEN key -> how many entries; 0 for a missing key."""
    stream = request.db.readable(request.argv[1], request.now_ms)
    request.count_lookup(stream is not None)
    return 0 if stream is None else stream.length


@command("XDEL key id [id ...]", Flag.WRITE | Flag.FAST, summary="Deletes entries from a stream.")
def xdel(request: Request) -> Reply:
    """XDEL key id [id ...] -> how many entries went.  With a missing key the answer is 0 before the IDs are parsed."""
    argv = request.argv
    if len(argv) > SLICE_IDS:
        return in_slices(request, _delete_in_slices)
    stream = request.db.stream(argv[1], request.now_ms)
    return 0 if stream is None else _delete(request, stream, [parse_entry_id(word) for word in argv[2:]])


def _delete_in_slices(request: Request) -> Work:
    argv = request.argv
    begun_on = request.db.stream(argv[1], request.now_ms)
    if begun_on is None:
        return 0
    stream_no = begun_on.stream_no
    packed_ids = yield from parse_in_slices(argv[2:])
    total = 0
    for at in range(0, len(packed_ids), SLICE_IDS):
        if at:
            yield first_ids(at, len(packed_ids))
        stream = stream_again(request, argv[1], stream_no)
        if stream is None:
            break
        total += _delete(request, stream, [unpack_id(packed) for packed in packed_ids[at : at + SLICE_IDS]])
    return total


def _delete(request: Request, stream: Stream, entry_ids: list[StreamID]) -> int:
    deleted = sum(stream.delete_entries(entry_ids))
    request.txn.changes += deleted
    return deleted


@command(
    "XTRIM key <MAXLEN | MINID> [= | ~] threshold [LIMIT count] [KEEPREF | DELREF | ACKED]",
    Flag.WRITE,
    summary="Removes the oldest entries of a stream.",
    tips=("nondeterministic_output",),
)
def xtrim(request: Request) -> Reply:
    """XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT n] [KEEPREF|DELREF|ACKED] -> how many entries went."""
    trim = parse_trim(request.argv, request.txn.node_max_entries, from_log=request.from_log)
    stream = request.db.stream(request.argv[1], request.now_ms)
    if stream is None:
        return 0
    if needs_slices(stream, trim):
        return in_slices(request, partial(_trim_in_slices, SlicedTrim(trim)))
    removed = trimming.trim(stream, trim)
    request.txn.changes += removed
    return removed


def _trim(work: SlicedTrim, request: Request) -> Iterator[str]:
    db, key = request.db, request.argv[1]
    while (stream := db.stream(key, request.now_ms)) is not None and not work.step(db.groups(stream)):
        yield f"{work.removed} entries removed"


def _trim_in_slices(work: SlicedTrim, request: Request) -> Work:
    counted = 0
    for done in _trim(work, request):
        request.txn.changes += work.removed - counted
        counted = work.removed
        yield done
    request.txn.changes += work.removed - counted
    return work.removed


@command(
    "XSETID key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
    Flag.WRITE | Flag.DENYOOM | Flag.FAST,
    summary="Sets a stream's counters; for replication and repair.",
)
def xsetid(request: Request) -> Reply:
    """XSETID key last-id [ENTRIESADDED n] [MAXDELETEDID id] -> OK."""
    args = Args(request.argv)
    key, last_id = args.take(), args.take_id()
    entries_added: int | None = None
    max_deleted_id: StreamID | None = None
    while len(args):
        option = args.take_option()
        if option == b"ENTRIESADDED" and len(args):
            entries_added = args.take_int()
            if entries_added < 0:
                raise CommandError(ENTRIES_ADDED_NEGATIVE)
        elif option == b"MAXDELETEDID" and len(args):
            max_deleted_id = args.take_id()
            if last_id < max_deleted_id:
                raise CommandError(SETID_BELOW_GIVEN_MAX_DELETED)
        else:
            raise CommandError(errors.SYNTAX)
    return in_slices(request, partial(_set_id, key, last_id, entries_added, max_deleted_id))


def _set_id(
    key: bytes, last_id: StreamID, entries_added: int | None, max_deleted_id: StreamID | None, request: Request
) -> Work:
    clearing = Clearing()
    while True:
        stream = request.existing_stream(key)
        if last_id < stream.max_deleted_id and not request.from_log:
            raise CommandError(SETID_BELOW_MAX_DELETED)
        if stream.length:
            if last_id < stream.last_live_id:
                raise CommandError(SETID_BELOW_TOP)
            if entries_added is not None and entries_added < stream.length:
                raise CommandError(ENTRIES_ADDED_BELOW_LENGTH)
        if stream.make_room(last_id, clearing):
            break
        yield
    stream.set_id(last_id, entries_added, max_deleted_id)
    request.txn.changes += 1
    return OK
