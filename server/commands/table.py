"""The table of commands: the one list that arity checks, refusals, COMMAND, help and tests all read.

A command is declared where its handler stands, by its name and syntax as on the public command pages:

    @command("XLEN key", Flag.READONLY | Flag.FAST, summary="...")
    def xlen(request: Request) -> int: ...

Word counts and keys follow from the syntax, the group from the folder, ACL categories from flags and group, the version
from the group; only what deviates is declared.  A subcommand's name has two words, `"XINFO STREAM key"`; its
`container` is declared before it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from riverbed.server import errors
from riverbed.server.commands.redaction import hidden
from riverbed.server.commands.syntax import key_words, word_count

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply

    Handler = Callable[[Request], Reply]
    Redaction = Callable[[list[bytes]], list[bytes]]


class Flag(enum.Flag):
    """What a command is, in the words of COMMAND INFO."""

    NONE = 0
    WRITE = enum.auto()
    READONLY = enum.auto()
    DENYOOM = enum.auto()  # needs space: refused when the disk is nearly full
    ADMIN = enum.auto()
    PUBSUB = enum.auto()
    NOSCRIPT = enum.auto()
    BLOCKING = enum.auto()
    LOADING = enum.auto()
    STALE = enum.auto()
    SKIP_MONITOR = enum.auto()
    SKIP_SLOWLOG = enum.auto()
    FAST = enum.auto()
    NO_AUTH = enum.auto()  # may be called before AUTH
    NO_MULTI = enum.auto()  # refused inside MULTI
    MOVABLEKEYS = enum.auto()
    IMMEDIATE = enum.auto()  # ours: run at once inside MULTI instead of queued (EXEC, DISCARD, WATCH, ...)
    LOG_ONLY = enum.auto()  # ours: an unknown command to every client
    SUBSCRIBER = enum.auto()  # ours: all that a subscriber may call in RESP2
    GUARDED = enum.auto()  # ours: refused unless the settings allow it
    SHOWS_TABLES = enum.auto()  # ours: its reply shows keys or the log, although it is not READONLY


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Where the keys stand: first word, last word (negative counts from the end), step; (0, 0, 0) is none."""

    first: int = 0
    last: int = 0
    step: int = 0


NO_KEYS = KeySpec()

# The ACL categories that follow from each flag, and those of the groups that have one.  What is not fast is slow.
_FLAG_CATEGORIES = {
    Flag.WRITE: ("write",),
    Flag.READONLY: ("read",),
    Flag.PUBSUB: ("pubsub",),
    Flag.ADMIN: ("admin", "dangerous"),
    Flag.BLOCKING: ("blocking",),
}
_GROUP_CATEGORIES = {
    "generic": ("keyspace",),
    "stream": ("stream",),
    "connection": ("connection",),
    "transactions": ("transaction",),
}

# The last words of commands of administration that change nothing.
_ONLY_SHOWING = {
    *(b"DRYRUN", b"GENPASS", b"GETUSER", b"LIST", b"LOG", b"USERS", b"GET", b"HELP", b"LEN"),
    *(b"DOCTOR", b"GRAPH", b"HISTOGRAM", b"HISTORY", b"LATEST"),
}

# The group of a command, by the folder or the file of its handler, and the version of Redis that brought the group.
_GROUPS = {
    "keys": "generic",
    "streams": "stream",
    "groups": "stream",
    "clients": "connection",
    "clients.pubsub": "pubsub",
    "clients.transactions": "transactions",
    "access": "server",
    "admin": "server",
}
_GROUP_SINCE = {"stream": "5.0.0", "pubsub": "2.0.0"}


@dataclass(slots=True)
class Command:
    """One row of the table.

    `arity` counts the words, name included; negative means at least that many.  `name` is upper-case, two words for
    a subcommand; `syntax` is what follows it.  `own_categories` are the ACL categories that its flags do not say.
    """

    name: bytes
    syntax: str
    handler: Handler
    arity: int
    flags: Flag
    keys: KeySpec
    own_categories: tuple[str, ...]
    group: str
    since: str
    summary: str
    tips: tuple[str, ...] = ()
    redact: Redaction | None = None
    inner_at: int = 0  # where the words of another command begin, which are shown as that one says
    subcommands: dict[bytes, Command] = field(default_factory=dict)
    bare: Command | None = None  # without its optional words, if it only reads then
    full_name: bytes = field(init=False)  # `xadd`, `xgroup|create`: how error texts and statistics spell it
    # To look at a flag costs half a microsecond.
    is_for_clients: bool = field(init=False)
    is_immediate: bool = field(init=False)
    is_guarded: bool = field(init=False)
    allows_multi: bool = field(init=False)
    rests_on_tables: bool = field(init=False)  # a failed commit takes back what its reply says
    only_reads: bool = field(init=False)
    administers: bool = field(init=False)  # changes who may do what, or how the server runs

    def __post_init__(self) -> None:
        self.full_name = self.name.lower().replace(b" ", b"|")
        self.is_for_clients = Flag.LOG_ONLY not in self.flags
        self.is_immediate = Flag.IMMEDIATE in self.flags
        self.is_guarded = Flag.GUARDED in self.flags
        self.allows_multi = Flag.NO_MULTI not in self.flags
        self.only_reads = Flag.READONLY in self.flags
        self.administers = Flag.ADMIN in self.flags and self.name.split()[-1] not in _ONLY_SHOWING
        self.rests_on_tables = bool(self.flags & (Flag.WRITE | Flag.READONLY | Flag.SHOWS_TABLES))

    @property
    def categories(self) -> frozenset[str]:
        """Its ACL categories, without `@`."""
        speed = "fast" if Flag.FAST in self.flags else "slow"
        of_flags = (name for flag, names in _FLAG_CATEGORIES.items() if flag in self.flags for name in names)
        return frozenset((speed, *of_flags, *self.own_categories))

    def shown(self, words: list[bytes]) -> list[bytes]:
        """The words of a call as MONITOR and SLOWLOG may show them, see `redaction.py`.

        A command inside of it may have one inside as well, to any depth.  All words of an unknown one are hidden.
        """
        row: Command | None = self
        at = 0
        while row is not None and row.inner_at and len(words) > at + row.inner_at:
            at += row.inner_at
            row = named(words[at : at + 2])
        if row is None:
            return [*words[:at], *hidden(words[at:])]
        return words if row.redact is None else [*words[:at], *row.redact(words[at:])]

    def accepts(self, word_count: int) -> bool:
        return word_count == self.arity if self.arity >= 0 else word_count >= -self.arity


COMMANDS: dict[bytes, Command] = {}


def named(words: list[bytes]) -> Command | None:
    """The row that would run a client's `words`; None for an unknown command or subcommand."""
    row = COMMANDS.get(words[0].upper())
    if row is None or not row.is_for_clients:
        return None
    return row if not row.subcommands or len(words) == 1 else row.subcommands.get(words[1].upper())


def command(
    line: str,
    flags: Flag = Flag.NONE,
    *,
    group: str = "",
    since: str = "",
    summary: str = "",
    arity: int | None = None,
    keys: KeySpec | None = None,
    categories: tuple[str, ...] | None = None,
    tips: tuple[str, ...] = (),
    redact: Redaction | None = None,
    inner_at: int = 0,
    reads_when_bare: bool = False,
) -> Callable[[Handler], Handler]:
    """Declare the decorated handler as the command with the name and syntax in `line`.

    `arity` and `keys` are for a command that Redis describes differently from its syntax; `categories` replace those of
    its group.  A subcommand inherits group, version and categories of its container.  `redact` replaces secrets among
    the words; those of another command begin at `inner_at`.  With `reads_when_bare` it only reads when its optional
    words are missing, also where writes are refused.
    """

    def declare(handler: Handler) -> Handler:
        name, _, syntax = line.partition(" ")
        above = COMMANDS.get(name.encode())
        rows = COMMANDS if above is None else above.subcommands
        word = name
        if above is not None:
            word, _, syntax = syntax.partition(" ")
            name = f"{name} {word}"
        assert word.isupper() and word.encode() not in rows, line
        own_group = group or (above.group if above else _group_of(handler.__module__))
        row = rows[word.encode()] = Command(
            name.encode(),
            syntax,
            handler,
            _arity(name, syntax) if arity is None else arity,
            flags,
            _keys(name, syntax) if keys is None else keys,
            _own_categories(above, own_group) if categories is None else categories,
            own_group,
            since or (above.since if above else _GROUP_SINCE.get(own_group, "1.0.0")),
            summary,
            tips,
            redact,
            inner_at,
        )
        if reads_when_bare:
            row.bare = replace(row, flags=flags & ~Flag.WRITE | Flag.READONLY)
        return handler

    return declare


def _group_of(module: str) -> str:
    folder, file = module.split(".")[-2:]
    return _GROUPS.get(f"{folder}.{file}") or _GROUPS[folder]


def _arity(name: str, syntax: str) -> int:
    least, is_exact = word_count(f"{name} {syntax}")
    return least if is_exact else -least


def _keys(name: str, syntax: str) -> KeySpec:
    """Keys, or shard channels, are the first words of the syntax; behind a keyword they are movable."""
    count, is_repeated = key_words(syntax)
    if not count:
        return NO_KEYS
    first = len(name.split())
    return KeySpec(first, -1 if is_repeated else first + count - 1, 1)


def _own_categories(above: Command | None, group: str) -> tuple[str, ...]:
    if above is None:
        return _GROUP_CATEGORIES.get(group, ())
    return above.own_categories or _GROUP_CATEGORIES.get(above.group, ())


def container(name: str, *, group: str, since: str, summary: str) -> None:
    """Declare a command that is nothing but its subcommands."""
    declare = command(name, group=group, since=since, summary=summary, arity=-2, categories=())
    declare(_no_such_subcommand)


def _no_such_subcommand(request: Request) -> Reply:
    raise errors.unknown_subcommand(request.argv)


def declare_help(name: str, *lines: str, since: str) -> None:
    """Declare the subcommand HELP of container `name`; `lines` are in the words of Redis where we do the same.

    Without `lines` they are syntax and summaries.
    """
    summary = f"Explains the subcommands of {name}."
    command(f"{name} HELP", Flag.LOADING | Flag.STALE, since=since, summary=summary)(
        lambda _: help_text(name, *(lines or _syntax_and_summaries(name)))
    )


def _syntax_and_summaries(name: str) -> Iterator[str]:
    for word, row in sorted(COMMANDS[name.encode()].subcommands.items()):
        if word != b"HELP":
            yield f"{word.decode()} {row.syntax}".rstrip()
            yield f"    {row.summary}"


def help_text(name: str, *lines: str) -> list[Reply]:
    """`lines` about the subcommands of `name`, between the lines that every help has."""
    return [
        f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        *lines,
        "HELP",
        "    Print this help.",
    ]
