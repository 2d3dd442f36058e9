"""What XADD IDMP uses: XCFGSET, XIDMPRECORD, and two commands that only a log contains, XIDMPHIT and XIDMPCOUNTS.

Source: the XCFGSET and XIDMPRECORD command pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.server import errors
from riverbed.server.commands.arguments import Args, parse_entry_id
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK
from riverbed.store.streams.idempotence import Idempotence

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply


@command(
    "XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE count]",
    Flag.WRITE | Flag.FAST,
    since="8.6.0",
    summary="Sets a stream's idempotence settings.",
)
def xcfgset(request: Request) -> Reply:
    """XCFGSET key [IDMP-DURATION s] [IDMP-MAXSIZE n] -> OK.  A changed setting forgets the stream's records."""
    args = Args(request.argv)
    stream = request.existing_stream(args.take())
    duration_s: int | None = None
    max_records: int | None = None
    while len(args):
        option = args.take_option()
        if option == b"IDMP-DURATION" and len(args):
            if duration_s is not None:
                raise CommandError("ERR IDMP-DURATION specified multiple times")
            duration_s = args.take_int()
            if not 1 <= duration_s <= 86400:
                raise CommandError("ERR IDMP-DURATION must be between 1 and 86400 seconds")
        elif option == b"IDMP-MAXSIZE" and len(args):
            if max_records is not None:
                raise CommandError("ERR IDMP-MAXSIZE specified multiple times")
            max_records = args.take_int()
            if not 1 <= max_records <= 10000:
                raise CommandError("ERR IDMP-MAXSIZE must be between 1 and 10000 entries")
        else:
            raise CommandError(errors.SYNTAX)
    if duration_s is None and max_records is None:
        raise CommandError("ERR At least one parameter must be specified")
    request.txn.changes += Idempotence(stream).configure(duration_s, max_records)
    return OK


@command(
    "XIDMPRECORD key pid iid id",
    Flag.WRITE | Flag.DENYOOM | Flag.FAST,
    since="8.6.2",
    summary="Records which entry a producer's idempotent id became; for replication and recovery.",
)
def xidmprecord(request: Request) -> Reply:
    """XIDMPRECORD key pid iid id -> OK."""
    key, pid, iid = request.argv[1:4]
    entry_id = parse_entry_id(request.argv[4])
    if not pid:
        raise CommandError("ERR producer ID must be non-empty")
    if not iid:
        raise CommandError("ERR idempotent ID must be non-empty")
    stream = request.existing_stream(key)
    # a trim of the same XADD may have taken the entry before its record is replayed
    if not stream.has(entry_id) and not request.from_log:
        raise CommandError("ERR No such message in stream")
    idempotence = Idempotence(stream)
    known = idempotence.find(pid, iid)
    if known is None:
        idempotence.record(pid, iid, entry_id)
        request.txn.changes += 1
    elif known != entry_id:
        if not request.from_log:
            raise CommandError("ERR IID already exists for this producer with a different stream ID")
        idempotence.replace(pid, iid, entry_id)
    return OK


@command(
    "XIDMPHIT key",
    Flag.WRITE | Flag.FAST | Flag.LOG_ONLY,
    since="8.6.0",
    summary="Counts a duplicate; only a log says so.",
)
def xidmphit(request: Request) -> Reply:
    """XIDMPHIT key: a duplicate was refused.  Read from a log, never from a client."""
    stream = request.existing_stream(request.argv[1])
    Idempotence(stream).count_duplicate()
    return OK


@command(
    "XIDMPCOUNTS key records-added duplicates",
    Flag.WRITE | Flag.FAST | Flag.LOG_ONLY,
    since="8.6.0",
    summary="Says how many records and duplicates a stream has had; only a rewritten log does.",
)
def xidmpcounts(request: Request) -> Reply:
    """XIDMPCOUNTS key added duplicates.  Read from a log, never from a client."""
    args = Args(request.argv)
    stream = request.existing_stream(args.take())
    Idempotence(stream).set_counts(args.take_int(), args.take_int())
    return OK
