"""XDELEX and XACKDEL: deletion that heeds, or clears, what consumer groups still have pending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from server import errors
from server.args import Args, parse_entry_id
from server.commands.groups import find_group
from server.commands.table import FIRST_KEY, Flag, command
from server.errors import CommandError
from server.replies import OK
from store.groups import groups_of
from store.ids import StreamID, pack_id
from store.model import References

if TYPE_CHECKING:
    from server.replies import Reply
    from server.session import Request
    from store.streams import Stream

NUMIDS_NOT_POSITIVE: Final = "ERR Number of IDs must be a positive integer"
NUMIDS_MISMATCH: Final = "ERR The `numids` parameter must match the number of arguments"
IDS_MISSING: Final = "ERR IDS option is required"

ABSENT: Final = -1
DELETED: Final = 1
STILL_REFERENCED: Final = 2


def _take_ids_block(args: Args) -> tuple[References, list[bytes]]:
    """`[KEEPREF|DELREF|ACKED] IDS numids id ...`, in any order; the IDs are not parsed yet."""
    references: References | None = None
    words: list[bytes] | None = None
    while len(args):
        option = args.take_option()
        if option in (b"KEEPREF", b"DELREF", b"ACKED") and references is None:
            references = References(option)
        elif option == b"IDS" and len(args):
            numids = args.take_int(NUMIDS_NOT_POSITIVE)
            if numids <= 0:
                raise CommandError(NUMIDS_NOT_POSITIVE)
            if numids > len(args):
                raise CommandError(NUMIDS_MISMATCH)
            words = [args.take() for _ in range(numids)]
        else:
            raise CommandError(errors.SYNTAX)
    if words is None:
        raise CommandError(IDS_MISSING)
    return references or References.KEEPREF, words


@command(
    b"XDELEX",
    arity=-5,
    flags=Flag.WRITE | Flag.FAST,
    keys=FIRST_KEY,
    categories=("write", "stream", "fast"),
    group="stream",
    since="8.2.0",
    summary="Deletes entries, with what groups have pending of them, or only those that no group needs.",
    syntax="key [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
)
def xdelex(request: Request) -> Reply:
    """XDELEX key [KEEPREF|DELREF|ACKED] IDS numids id ... -> for each 1 deleted, -1 absent, 2 still referenced.

    References are looked at before existence, as in Redis: an ID that no group has come to yet is referenced.
    """
    references, words = _take_ids_block(Args(request.argv, 2))
    stream = request.db.stream(request.argv[1], request.now_ms)
    if stream is None:
        return [ABSENT] * len(words)
    entry_ids = [parse_entry_id(word) for word in words]
    if references is References.DELREF:
        groups_of(stream).forget(entry_ids)
    return _delete(stream, entry_ids, only_unreferenced=references is References.ACKED)


def _delete(stream: Stream, entry_ids: list[StreamID], *, only_unreferenced: bool) -> list[int]:
    """Delete; -> the answer for each ID."""
    kept: set[StreamID] = set()
    if only_unreferenced and stream.group_count:
        groups = groups_of(stream)
        kept = {entry_id for entry_id in dict.fromkeys(entry_ids) if groups.is_referenced(entry_id)}
    free = [entry_id for entry_id in entry_ids if entry_id not in kept]
    hits = iter(stream.delete_entries(free))
    return [STILL_REFERENCED if entry_id in kept else DELETED if next(hits) else ABSENT for entry_id in entry_ids]


@command(
    b"XACKDEL",
    arity=-6,
    flags=Flag.WRITE | Flag.FAST,
    keys=FIRST_KEY,
    categories=("write", "stream", "fast"),
    group="stream",
    since="8.2.0",
    summary="Acknowledges entries and deletes them, if need be only when no other group needs them.",
    syntax="key group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
)
def xackdel(request: Request) -> Reply:
    """XACKDEL key group [KEEPREF|DELREF|ACKED] IDS numids id ... -> for each 1 acknowledged and gone, 2 acknowledged
    and kept for others, -1 not pending in this group: then nothing happens to it.
    """
    argv = request.argv
    references, words = _take_ids_block(Args(argv, 3))
    found = find_group(request, argv[1], argv[2])
    if found is None:
        return [ABSENT] * len(words)
    stream, group = found
    entry_ids = [parse_entry_id(word) for word in words]
    acked = [entry_id for entry_id in dict.fromkeys(entry_ids) if group.find(entry_id) is not None]
    group.ack([pack_id(entry_id) for entry_id in acked])
    if references is References.DELREF:
        groups_of(stream).forget(acked)
    answers = dict(zip(acked, _delete(stream, acked, only_unreferenced=references is References.ACKED), strict=True))
    # it counts as deleted as well when the entry was gone before; and an ID given again is not pending any more
    return [
        ABSENT if answer is None else STILL_REFERENCED if answer == STILL_REFERENCED else DELETED
        for answer in (answers.pop(entry_id, None) for entry_id in entry_ids)
    ]


# -- the log's own -----------------------------------------------------------------------------------------------------


@command(
    b"XMAXDELETED",
    arity=3,
    flags=Flag.WRITE | Flag.FAST | Flag.LOG_ONLY,
    keys=FIRST_KEY,
    categories=("write", "stream", "fast"),
    group="stream",
    since="8.2.0",
    summary="Sets the highest deleted ID; only a log does.",
    syntax="key id",
)
def xmaxdeleted(request: Request) -> Reply:
    """XMAXDELETED key id: what stands before it as XDEL was a trim.  Read from a log, never from a client."""
    stream = request.db.stream(request.argv[1], request.now_ms)
    if stream is None:
        raise CommandError(errors.NO_SUCH_KEY)
    stream.max_deleted_id = parse_entry_id(request.argv[2])
    stream.touch()
    return OK
