"""XGROUP: creates, moves and removes groups and their consumers; also how every family finds a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_entry_id, parse_int
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK
from riverbed.store.groups.group import Group
from riverbed.store.groups.known_consumers import NEVER
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.streams.stream import Stream

KEY_REQUIRED: Final = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM "
    "option to create an empty stream automatically."
)
BAD_TIME: Final = "ERR a time is in unix milliseconds, and -1 is never for the active time"
GROUP_EXISTS: Final = "BUSYGROUP Consumer Group name already exists"
ENTRIES_READ_NEGATIVE: Final = "ERR value for ENTRIESREAD must be positive or -1"


# -- finding groups ----------------------------------------------------------------------------------------------------


def find_group(request: Request, key: bytes, name: bytes) -> tuple[Stream, Group] | None:
    """The stream and its group, None when one of them is missing."""
    stream = request.db.stream(key, request.now_ms)
    group = None if stream is None else request.db.groups(stream).get(name)
    return None if stream is None or group is None else (stream, group)


def group_again(request: Request, key: bytes, name: bytes, group_no: int) -> tuple[Stream, Group] | None:
    """As `find_group`, behind a yield: None as well when the names are another group's by then.

    The number says which stream it is, too: a group never leaves its own.
    """
    found = find_group(request, key, name)
    return found if found is not None and found[1].group_no == group_no else None


def need_group(request: Request, key: bytes, name: bytes, where: bytes = b"") -> tuple[Stream, Group]:
    """As `find_group`; CommandError when there is none."""
    found = find_group(request, key, name)
    if found is None:
        raise no_such_group(key, name, where)
    return found


def look_up_group(request: Request, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """As `need_group`, counted as a hit or a miss of the key."""
    found = find_group(request, key, name)
    if found is None:
        request.lookup(key)
        raise no_such_group(key, name)
    request.count_lookup(True)
    return found


def no_such_group(key: bytes, name: bytes, where: bytes = b"") -> CommandError:
    return CommandError(b"NOGROUP No such key '%b' or consumer group '%b'%b" % (_shown(key), _shown(name), where))


def no_group_of_key(key: bytes, name: bytes) -> CommandError:
    """The error in XGROUP's and XINFO's wording."""
    return CommandError(b"NOGROUP No such consumer group '%b' for key name '%b'" % (_shown(name), _shown(key)))


def _shown(name: bytes) -> bytes:
    """A name as an error text shows it: up to a NUL, as in Redis."""
    return name.partition(b"\0")[0]


def _need_stream(request: Request) -> Stream:
    """The stream that an XGROUP names."""
    stream = request.db.stream(request.argv[2], request.now_ms)
    if stream is None:
        raise CommandError(KEY_REQUIRED)
    return stream


def named_group(request: Request) -> tuple[Stream, Group]:
    """The stream and the group that an XGROUP names."""
    stream = _need_stream(request)
    group = request.db.groups(stream).get(request.argv[3])
    if group is None:
        raise no_group_of_key(request.argv[2], request.argv[3])
    return stream, group


# -- XGROUP ------------------------------------------------------------------------------------------------------------


container("XGROUP", group="stream", since="5.0.0", summary="Container of the commands that manage consumer groups.")


def _take_options(argv: list[bytes], *, may_make: bool) -> tuple[bool, int | None]:
    """-> (MKSTREAM, entries_read or None), from the sixth word on."""
    make_stream = False
    entries_read: int | None = None
    position = 5
    while position < len(argv):
        option = argv[position].upper()
        if option == b"MKSTREAM" and may_make:
            make_stream = True
            position += 1
        elif option == b"ENTRIESREAD" and position + 1 < len(argv):
            number = parse_int(argv[position + 1])
            if number < -1:
                raise CommandError(ENTRIES_READ_NEGATIVE)
            entries_read = None if number == -1 else number
            position += 2
        else:
            raise errors.subcommand_syntax(argv)
    return make_stream, entries_read


def _within(entries_read: int | None, stream: Stream | None, request: Request) -> int | None:
    """Limit `entries_read` to the number of entries ever added.  A log's number is taken as it is."""
    if entries_read is None or request.from_log:
        return entries_read
    return min(entries_read, 0 if stream is None else stream.entries_added)


@command(
    "XGROUP CREATE key group <id | $> [MKSTREAM] [ENTRIESREAD entries-read]",
    Flag.WRITE | Flag.DENYOOM,
    summary="Creates a consumer group.",
)
def xgroup_create(request: Request) -> Reply:
    """XGROUP CREATE key group id|$ [MKSTREAM] [ENTRIESREAD n] -> OK.  A refused command leaves no stream behind."""
    argv = request.argv
    make_stream, entries_read = _take_options(argv, may_make=True)
    stream = request.db.stream(argv[2], request.now_ms) if make_stream else _need_stream(request)
    if len(argv) > 8:
        raise errors.subcommand_syntax(argv)
    if argv[4] == b"$":
        last_id = MIN_ID if stream is None else stream.last_id
    else:
        last_id = parse_entry_id(argv[4])
    if stream is not None and request.db.groups(stream).get(argv[3]) is not None:
        raise CommandError(GROUP_EXISTS)
    entries_read = _within(entries_read, stream, request)
    if stream is None:
        request.db.groups(request.db.create(argv[2])).create(argv[3], last_id, entries_read, is_first=True)
    else:
        request.db.groups(stream).create(argv[3], last_id, entries_read, is_first=False)
    request.txn.changes += 1
    return OK


@command(
    "XGROUP SETID key group <id | $> [ENTRIESREAD entries-read]",
    Flag.WRITE,
    summary="Sets the last-delivered ID of a consumer group.",
)
def xgroup_setid(request: Request) -> Reply:
    """XGROUP SETID key group id|$|-|+ [ENTRIESREAD n] -> OK.  Without ENTRIESREAD the counter becomes unknown."""
    argv = request.argv
    _, entries_read = _take_options(argv, may_make=False)
    stream, group = named_group(request)
    if len(argv) not in (5, 7):
        raise errors.subcommand_syntax(argv)
    special: dict[bytes, StreamID] = {b"$": stream.last_id, b"-": MIN_ID, b"+": MAX_ID}
    last_id = special.get(argv[4])
    if last_id is None:
        last_id = parse_entry_id(argv[4])
    group.set_position(last_id, _within(entries_read, stream, request))
    request.txn.changes += 1
    return OK


@command("XGROUP DESTROY key group", Flag.WRITE, summary="Destroys a consumer group.")
def xgroup_destroy(request: Request) -> int:
    """XGROUP DESTROY key group -> 1, or 0 when there was none.  Clients that wait in the group get an error."""
    groups = request.db.groups(_need_stream(request))
    group = groups.get(request.argv[3])
    if group is None:
        return 0
    groups.destroy(group)
    request.txn.changes += 1
    return 1


@command(
    "XGROUP CREATECONSUMER key group consumer",
    Flag.WRITE | Flag.DENYOOM,
    since="6.2.0",
    summary="Creates a consumer in a consumer group.",
)
def xgroup_createconsumer(request: Request) -> int:
    """XGROUP CREATECONSUMER key group consumer -> 1, or 0 when there was one."""
    _, group = named_group(request)
    if group.consumers.named(request.argv[4]) is not None:
        return 0
    group.get_or_create(request.argv[4], request.now_ms)
    return 1


@command("XGROUP DELCONSUMER key group consumer", Flag.WRITE, summary="Deletes a consumer from a consumer group.")
def xgroup_delconsumer(request: Request) -> int:
    """XGROUP DELCONSUMER key group consumer -> how many entries it had pending; no other consumer gets them."""
    _, group = named_group(request)
    consumer = group.consumers.named(request.argv[4])
    if consumer is None:
        return 0
    request.txn.changes += 1
    return group.delete_consumer(consumer)


@command(
    "XGROUP SEEN key group consumer seen-time active-time",
    Flag.WRITE | Flag.DENYOOM,
    since="8.8.0",
    summary="Sets when a consumer was last seen and last active, for copies of streams; Riverbed's own.",
)
def xgroup_seen(request: Request) -> int:
    """XGROUP SEEN key group consumer seen active, unix milliseconds, active -1 for never -> 1, or 0 without consumer.

    A time in the future counts as now: the clock of the server that it comes from may be ahead.
    """
    _, group = named_group(request)
    seen_ms, active_ms = (parse_int(word, BAD_TIME) for word in request.argv[5:])
    if seen_ms < 0 or active_ms < NEVER:
        raise CommandError(BAD_TIME)
    consumer = group.consumers.named(request.argv[4])
    if consumer is None:
        return 0
    if not request.from_log:
        seen_ms, active_ms = min(seen_ms, request.now_ms), min(active_ms, request.now_ms)
    group.set_times(consumer, seen_ms, active_ms)
    request.txn.changes += 1
    return 1


declare_help(
    "XGROUP",
    "CREATE <key> <groupname> <id|$> [option]",
    "    Create a new consumer group. Options are:",
    "    * MKSTREAM",
    "      Create the empty stream if it does not exist.",
    "    * ENTRIESREAD entries_read",
    "      Set the group's entries_read counter (internal use).",
    "CREATECONSUMER <key> <groupname> <consumer>",
    "    Create a new consumer in the specified group.",
    "DELCONSUMER <key> <groupname> <consumer>",
    "    Remove the specified consumer.",
    "DESTROY <key> <groupname>",
    "    Remove the specified group.",
    "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
    "    Set the current group ID and entries_read counter.",
    "POLICY <key> <groupname> [option]",
    "    Set or, without options, show the group's delivery policy (Riverbed only). Options are:",
    "    * MAXDELIVERIES count",
    "      How often an entry is delivered before it goes to the dead-letter stream; 0 or OFF: no limit.",
    "    * DEADLETTER key",
    "      The dead-letter stream, in the same database.",
    "    * CONSUMERTTL milliseconds",
    "      How long a consumer with nothing pending may stay away before it is deleted; 0 or OFF: for ever.",
    "SEEN <key> <groupname> <consumer> <seen-time> <active-time>",
    "    Set when the consumer was last seen and active, in unix milliseconds (Riverbed only).",
    since="5.0.0",
)
