"""COMMAND: describes the commands, from the table of commands alone.

The shapes are those of Redis 7, which clients and cluster proxies read: flags, key positions, categories, key
specifications and the tree of arguments.  What the table does not say (arguments, access to keys) is derived from
what it does say; `access/keys.py` lists the few commands that use their keys in an unusual way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.access.keys import has_keys, key_accesses, key_positions, keyword_of
from riverbed.server.commands.access.selector import CATEGORIES
from riverbed.server.commands.arguments import Args
from riverbed.server.commands.slices import in_pieces, in_slices, joined
from riverbed.server.commands.syntax import Argument, parse_syntax
from riverbed.server.commands.table import COMMANDS, Command, Flag, command, declare_help, named
from riverbed.server.errors import CommandError
from riverbed.server.glob import Glob
from riverbed.server.protocol.encode import encode
from riverbed.store.format.resp import array_head, bulk

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply

INVALID_COMMAND: Final = "ERR Invalid command specified"
NO_KEY_ARGUMENTS: Final = "ERR The command has no key arguments"
INVALID_WORD_COUNT: Final = "ERR Invalid number of arguments specified for command"

# Names that are looked up before other clients have their turn.
_NAMES_A_SLICE: Final = 500
# What Redis notes about how a command uses its keys.
_NOTES: Final = {b"xadd": b"UPDATE instead of INSERT because of the optional trimming feature"}
_OURS: Final = Flag.IMMEDIATE | Flag.LOG_ONLY | Flag.SUBSCRIBER | Flag.GUARDED | Flag.SHOWS_TABLES

# -- the table, walked -------------------------------------------------------------------------------------------------


def _commands() -> list[Command]:
    """The rows that clients may call, without subcommands."""
    return [row for row in COMMANDS.values() if Flag.LOG_ONLY not in row.flags]


def _all_commands() -> Iterator[Command]:
    """The rows that clients may call, a container before its subcommands."""
    for row in _commands():
        yield row
        yield from row.subcommands.values()


def _find(name: bytes) -> Command | None:
    row = COMMANDS.get(name.upper())
    return None if row is None or Flag.LOG_ONLY in row.flags else row


def _by_full_name(name: bytes) -> Command | None:
    """The row that `xadd` or `xgroup|create` names, in any case."""
    container, bar, subcommand = name.partition(b"|")
    row = _find(container)
    if row is None or not bar:
        return row
    return row.subcommands.get(subcommand.upper())


# -- keys --------------------------------------------------------------------------------------------------------------


def _key_specs(row: Command, as_set: Callable[[Iterable[bytes]], Reply]) -> list[Reply]:
    """Where the keys are, as begin_search and find_keys."""
    accesses = key_accesses(row)
    keyword = keyword_of(row)
    if keyword is not None:
        search = {b"type": b"keyword", b"spec": {b"keyword": keyword[0], b"startfrom": keyword[1]}}
        return [_key_spec(as_set(accesses[0]), search, last=-1, step=1, limit=2)]
    if not row.keys.first:
        return []
    spec = row.keys
    # Several specifications have one key each, side by side (RENAME); a single one has the whole range.
    last = spec.last if spec.last < 0 else spec.last - spec.first
    if len(accesses) > 1:
        last = 0
    return [
        _key_spec(
            as_set(access),
            {b"type": b"index", b"spec": {b"index": spec.first + number * spec.step}},
            last=last,
            step=spec.step,
            limit=0,
            notes=_NOTES.get(row.full_name),
        )
        for number, access in enumerate(accesses)
    ]


def _key_spec(access: Reply, search: Reply, *, last: int, step: int, limit: int, notes: bytes | None = None) -> Reply:
    find = {b"type": b"range", b"spec": {b"lastkey": last, b"keystep": step, b"limit": limit}}
    spec: Reply = {b"flags": access, b"begin_search": search, b"find_keys": find}
    return spec if notes is None else {b"notes": notes, **spec}


# -- COMMAND INFO ------------------------------------------------------------------------------------------------------


def _set_maker(request: Request) -> Callable[[Iterable[bytes]], Reply]:
    """The type for what Redis sends as sets.  A RESP2 client gets an array, so that the order is fixed."""
    return list if request.session.resp == 2 else frozenset


def _flag_names(flags: Flag) -> list[bytes]:
    return [(flag.name or "").lower().encode() for flag in flags & ~_OURS]


def _info(row: Command, request: Request) -> list[Reply]:
    """The ten elements of COMMAND INFO."""
    as_set = _set_maker(request)
    categories = sorted(row.categories, key=CATEGORIES.index)
    flags = _flag_names(row.flags)
    return [
        row.full_name,
        row.arity,
        _statuses(flags, request),
        row.keys.first,
        row.keys.last,
        row.keys.step,
        _statuses([b"@" + category.encode() for category in categories], request),
        as_set(tip.encode() for tip in row.tips),
        _set_of(_key_specs(row, lambda access: _statuses(list(access), request)), request),
        [_info(subcommand, request) for subcommand in row.subcommands.values()] or _set_of([], request),
    ]


def _set_of(items: list[Reply], request: Request) -> Reply:
    """As `_set_maker`, for maps, of which Python has no sets."""
    resp = request.session.resp
    return items if resp == 2 else (b"~%d\r\n%b" % (len(items), b"".join(encode(item, resp) for item in items)),)


def _statuses(words: list[bytes], request: Request) -> Reply:
    """Words that Redis sends as simple strings."""
    texts = [word.decode() for word in words]
    return texts if request.session.resp == 2 else frozenset(texts)


@command(
    "COMMAND",
    Flag.LOADING | Flag.STALE,
    since="2.8.13",
    summary="Describes all commands.",
    arity=-1,
    categories=("connection",),
    tips=("nondeterministic_output_order",),
)
def command_(request: Request) -> Reply:
    """COMMAND -> as COMMAND INFO without names."""
    if len(request.argv) > 1:
        raise errors.unknown_subcommand(request.argv)
    return [_info(row, request) for row in _commands()]


@command("COMMAND COUNT", Flag.LOADING | Flag.STALE, summary="Counts the commands.")
def command_count(request: Request) -> int:
    """COMMAND COUNT -> how many; a container counts once."""
    return len(_commands())


@command(
    "COMMAND INFO [command-name [command-name ...]]",
    Flag.LOADING | Flag.STALE,
    summary="Describes the named commands, or all.",
    tips=("nondeterministic_output_order",),
)
def command_info(request: Request) -> Reply:
    """COMMAND INFO [name ...] -> a description for each name, null for an unknown one."""
    names = request.argv[2:]
    if not names:
        return [_info(row, request) for row in _commands()]
    return in_slices(request, _infos)


def _infos(request: Request) -> Work:
    """Descriptions by name.  A name may be given any number of times, so its description is encoded once."""
    names, resp = request.argv[2:], request.session.resp
    wires = {b"": encode(None, resp)}
    parts = [array_head(len(names))]
    for number, name in enumerate(names, 1):
        row = _by_full_name(name)
        known = b"" if row is None else row.full_name
        if row is not None and known not in wires:
            wires[known] = encode(_info(row, request), resp)
        parts.append(wires[known])
        if not number % _NAMES_A_SLICE:
            yield
    return in_pieces(request, parts)


@command(
    "COMMAND LIST [FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]",
    Flag.LOADING | Flag.STALE,
    since="7.0.0",
    summary="Lists the names of commands.",
    tips=("nondeterministic_output_order",),
)
def command_list(request: Request) -> Reply:
    """COMMAND LIST [FILTERBY MODULE m | ACLCAT c | PATTERN p] -> full names, subcommands included.

    An unknown module or category lists nothing.
    """
    args = Args(request.argv, 2)
    if not args:
        return [row.full_name for row in _all_commands()]
    if len(args) != 3 or args.take_option() != b"FILTERBY":
        raise CommandError(errors.SYNTAX)
    kind, wanted = args.take_option(), args.take()
    if kind == b"PATTERN":
        names = [row.full_name for row in _all_commands()]
        return in_slices(request, lambda _: Glob(wanted, ignore_case=True).select(names))
    wanted = wanted.lower()
    if kind == b"ACLCAT":
        return [row.full_name for row in _all_commands() if wanted.decode("latin-1") in row.categories]
    if kind == b"MODULE":
        return []
    raise CommandError(errors.SYNTAX)


# -- COMMAND DOCS ------------------------------------------------------------------------------------------------------


def _argument_docs(row: Command, request: Request) -> list[Reply]:
    last_spec = len(key_accesses(row)) - 1 if has_keys(row) else -1
    seen_keys = 0

    def describe(argument: Argument) -> Reply:
        nonlocal seen_keys
        docs: dict[bytes, Reply] = {b"name": argument.name.encode(), b"type": argument.kind.encode()}
        if argument.kind == "key" and last_spec >= 0:
            docs[b"key_spec_index"] = min(seen_keys, last_spec)
            seen_keys += 1
        if argument.token:
            docs[b"token"] = argument.token.encode()
        flags = [b"optional"] * argument.optional + [b"multiple"] * argument.multiple
        if flags:
            docs[b"flags"] = _statuses(flags, request)
        if argument.arguments:
            docs[b"arguments"] = list(map(describe, argument.arguments))
        return docs

    return list(map(describe, parse_syntax(row.syntax)))


def _docs(row: Command, request: Request) -> dict[bytes, Reply]:
    docs: dict[bytes, Reply] = {
        b"summary": row.summary.encode(),
        b"since": row.since.encode(),
        b"group": row.group.encode(),
    }
    if row.syntax:
        docs[b"arguments"] = _argument_docs(row, request)
    if row.subcommands:
        docs[b"subcommands"] = {
            subcommand.full_name: _docs(subcommand, request) for subcommand in row.subcommands.values()
        }
    return docs


@command(
    "COMMAND DOCS [command-name [command-name ...]]",
    Flag.LOADING | Flag.STALE,
    since="7.0.0",
    summary="Documents the named commands, or all.",
    tips=("nondeterministic_output_order",),
)
def command_docs(request: Request) -> Reply:
    """COMMAND DOCS [name ...] -> name to summary, since, group, arguments, subcommands.  Unknown names are left out."""
    return in_slices(request, _all_docs)


def _all_docs(request: Request) -> Work:
    names = request.argv[2:]
    found: dict[bytes, Reply] = {}
    for number, row in enumerate(map(_by_full_name, names) if names else _commands(), 1):
        is_new = row is not None and row.full_name not in found
        if row is not None and is_new:
            found[row.full_name] = _docs(row, request)
        if is_new or not number % _NAMES_A_SLICE:
            yield
    return found


# -- COMMAND GETKEYS ---------------------------------------------------------------------------------------------------


def _found_keys(request: Request) -> tuple[list[bytes], tuple[tuple[bytes, ...], ...]]:
    """The keys of the command behind the second word, and their access flags; the last flags are for all further keys.

    Raises CommandError.
    """
    words = request.argv[2:]
    row = named(words)
    if row is None:
        raise CommandError(INVALID_COMMAND)
    if not has_keys(row):
        raise CommandError(NO_KEY_ARGUMENTS)
    if not row.accepts(len(words)):
        raise CommandError(INVALID_WORD_COUNT)
    return words[key_positions(row, words)], key_accesses(row)


def _each_key(request: Request) -> Work:
    keys, _ = _found_keys(request)
    parts = [array_head(len(keys))]
    for at in range(0, len(keys), _NAMES_A_SLICE):
        if at:
            yield
        parts += joined(list(map(bulk, keys[at : at + _NAMES_A_SLICE])))
    return in_pieces(request, parts)


def _each_key_and_flags(request: Request) -> Work:
    keys, accesses = _found_keys(request)
    flags = [encode(_statuses(list(access), request), request.session.resp) for access in accesses]
    parts = [array_head(len(keys))]
    for at in range(0, len(keys), _NAMES_A_SLICE):
        if at:
            yield
        for number, key in enumerate(keys[at : at + _NAMES_A_SLICE], at):
            parts.append(b"*2\r\n" + bulk(key) + flags[min(number, len(flags) - 1)])
    return in_pieces(request, parts)


@command(
    "COMMAND GETKEYS command [arg [arg ...]]",
    Flag.LOADING | Flag.STALE,
    summary="Picks the keys out of a full command.",
    arity=-4,
    inner_at=2,
)
def command_getkeys(request: Request) -> Reply:
    """COMMAND GETKEYS command [arg ...] -> the keys."""
    return in_slices(request, _each_key, is_short=len(request.argv) <= _NAMES_A_SLICE)


@command(
    "COMMAND GETKEYSANDFLAGS command [arg [arg ...]]",
    Flag.LOADING | Flag.STALE,
    since="7.0.0",
    summary="Picks the keys out of a full command and says how they are used.",
    arity=-4,
    inner_at=2,
)
def command_getkeysandflags(request: Request) -> Reply:
    """COMMAND GETKEYSANDFLAGS command [arg ...] -> pairs of a key and its access flags."""
    return in_slices(request, _each_key_and_flags, is_short=len(request.argv) <= _NAMES_A_SLICE)


declare_help(
    "COMMAND",
    "(no subcommand)",
    "    Return details about all Riverbed commands.",
    "COUNT",
    "    Return the total number of commands in this Riverbed server.",
    "LIST",
    "    Return a list of all commands in this Riverbed server.",
    "INFO [<command-name> ...]",
    "    Return details about multiple Riverbed commands.",
    "    If no command names are given, documentation details for all",
    "    commands are returned.",
    "DOCS [<command-name> ...]",
    "    Return documentation details about multiple Riverbed commands.",
    "    If no command names are given, documentation details for all",
    "    commands are returned.",
    "GETKEYS <full-command>",
    "    Return the keys from a full Riverbed command.",
    "GETKEYSANDFLAGS <full-command>",
    "    Return the keys and the access flags from a full Riverbed command.",
    since="5.0.0",
)
