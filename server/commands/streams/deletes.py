"""XDELEX and XACKDEL: deletion that respects, or clears, what consumer groups still have pending.

XMAXDELETED, which only a log contains, is here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import Args, parse_entry_id
from riverbed.server.commands.groups.groups import find_group, group_again
from riverbed.server.commands.slices import SLICE_IDS, first_ids, in_slices, parse_in_slices, stream_again
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK
from riverbed.store.format.resp import array_head
from riverbed.store.groups.groups import RECORDS_A_SLICE
from riverbed.store.ids import unpack_id
from riverbed.store.model import References

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.groups.group import Group
    from riverbed.store.groups.groups import Groups

NUMIDS_NOT_POSITIVE: Final = "ERR Number of IDs must be a positive integer"
NUMIDS_MISMATCH: Final = "ERR The `numids` parameter must match the number of arguments"
IDS_MISSING: Final = "ERR IDS option is required"

ABSENT: Final = -1
DELETED: Final = 1
STILL_REFERENCED: Final = 2
_WIRE: Final = {answer: b":%d\r\n" % answer for answer in (ABSENT, DELETED, STILL_REFERENCED)}


def _take_ids_block(args: Args) -> tuple[References, list[bytes]]:
    """`[KEEPREF|DELREF|ACKED] IDS numids id ...`, in any order; the IDs are not parsed yet."""
    references: References | None = None
    words: list[bytes] | None = None
    while len(args):
        option = args.take_option()
        if option in (b"KEEPREF", b"DELREF", b"ACKED") and references is None:
            references = References(option)
        elif option == b"IDS" and len(args):
            words = args.take_counted(NUMIDS_NOT_POSITIVE, NUMIDS_MISMATCH)
        else:
            raise CommandError(errors.SYNTAX)
    if words is None:
        raise CommandError(IDS_MISSING)
    return references or References.KEEPREF, words


@command(
    "XDELEX key [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
    Flag.WRITE | Flag.FAST,
    since="8.2.0",
    summary="Deletes entries, and their pending records or only entries that no group needs.",
)
def xdelex(request: Request) -> Reply:
    """XDELEX key [KEEPREF|DELREF|ACKED] IDS numids id ... -> for each 1 deleted, -1 absent, 2 still referenced.

    References are checked before existence, as in Redis: an ID that no group has reached yet is referenced.
    """
    return in_slices(request, _delete_some, is_short=_is_short(request))


def _is_short(request: Request) -> bool:
    """Whether all can be done in one slice, however many entries the stream's groups have pending."""
    words = len(request.argv)
    if words > SLICE_IDS:
        return False
    stream = request.db.stream(request.argv[1], request.now_ms)
    return stream is None or words * stream.group_count <= RECORDS_A_SLICE


def _next_slice(groups: Groups, packed_ids: list[bytes], at: int, references: References) -> list[bytes]:
    most = min(len(packed_ids) - at, SLICE_IDS)
    return packed_ids[at : at + (most if references is References.KEEPREF else groups.entries_a_slice(most))]


def _delete_some(request: Request) -> Work:
    references, words = _take_ids_block(Args(request.argv, 2))
    begun_on = request.db.stream(request.argv[1], request.now_ms)
    if begun_on is None:
        return _answers([ABSENT] * len(words))
    stream_no = begun_on.stream_no
    packed_ids = yield from parse_in_slices(words)
    answers: list[int] = []
    while (at := len(answers)) < len(packed_ids):
        if at:
            yield first_ids(at, len(packed_ids))
        stream = stream_again(request, request.argv[1], stream_no)
        if stream is None:
            answers += [ABSENT] * (len(packed_ids) - at)
            break
        groups = request.db.groups(stream)
        deleted = _delete(groups, _next_slice(groups, packed_ids, at, references), references)
        request.txn.changes += deleted.count(DELETED)
        answers += deleted
    return _answers(answers)


def _delete(groups: Groups, packed_ids: list[bytes], references: References) -> list[int]:
    """Delete from the stream with these groups; -> the answer for each ID."""
    kept: set[bytes] = set()
    if references is References.DELREF:
        groups.forget(packed_ids)
    elif references is References.ACKED:
        kept = groups.referenced(sorted(set(packed_ids)))
    free = [unpack_id(packed) for packed in packed_ids if packed not in kept]
    hits = iter(groups.stream.delete_entries(free))
    return [STILL_REFERENCED if packed in kept else DELETED if next(hits) else ABSENT for packed in packed_ids]


def _answers(answers: list[int]) -> Reply:
    """The array of answers, joined from ready-made items: a tenth of the time it takes to encode each."""
    return (array_head(len(answers)) + b"".join([_WIRE[answer] for answer in answers]),)


@command(
    "XACKDEL key group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
    Flag.WRITE | Flag.FAST,
    since="8.2.0",
    summary="Acknowledges entries and deletes them, if need be only when no other group needs them.",
)
def xackdel(request: Request) -> Reply:
    """XACKDEL key group [KEEPREF|DELREF|ACKED] IDS numids id ... -> for each 1 acknowledged and gone, 2 acknowledged
    and kept for others, -1 not pending in this group: then nothing happens to it.
    """
    return in_slices(request, _acknowledge_some, is_short=_is_short(request))


def _acknowledge_some(request: Request) -> Work:
    argv = request.argv
    references, words = _take_ids_block(Args(argv, 3))
    begun_on = find_group(request, argv[1], argv[2])
    if begun_on is None:
        return _answers([ABSENT] * len(words))
    group_no = begun_on[1].group_no
    packed_ids = yield from parse_in_slices(words)
    answers: list[int] = []
    while (at := len(answers)) < len(packed_ids):
        if at:
            yield first_ids(at, len(packed_ids))
        found = group_again(request, argv[1], argv[2], group_no)
        if found is None:
            answers += [ABSENT] * (len(packed_ids) - at)
            break
        stream, group = found
        groups = request.db.groups(stream)
        answers += _acknowledge(groups, group, _next_slice(groups, packed_ids, at, references), references)
    return _answers(answers)


def _acknowledge(groups: Groups, group: Group, packed_ids: list[bytes], references: References) -> list[int]:
    """Acknowledge and delete; -> the answer for each ID."""
    pending = group.find_many(sorted(set(packed_ids)))
    acked = [packed for packed in dict.fromkeys(packed_ids) if packed in pending]
    group.ack(acked)
    answers = dict(zip(acked, _delete(groups, acked, references), strict=True))
    # an entry that was gone before counts as deleted too; an ID given again is not pending any more
    return [
        ABSENT if answer is None else STILL_REFERENCED if answer == STILL_REFERENCED else DELETED
        for answer in (answers.pop(packed, None) for packed in packed_ids)
    ]


# -- the log's own -----------------------------------------------------------------------------------------------------


@command(
    "XMAXDELETED key id",
    Flag.WRITE | Flag.FAST | Flag.LOG_ONLY,
    since="8.2.0",
    summary="Sets the highest deleted ID; only a log does.",
)
def xmaxdeleted(request: Request) -> Reply:
    """XMAXDELETED key id -> OK.  The XDEL before it in the log was a trim.  Read from a log, never from a client."""
    stream = request.existing_stream(request.argv[1])
    stream.max_deleted_id = parse_entry_id(request.argv[2])
    stream.touch()
    return OK
