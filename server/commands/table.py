"""The table of commands: the one list that arity checks, refusals, COMMAND, help and tests all read.

A command is declared where its handler stands:

    @command(b"XLEN", arity=2, flags=READONLY | FAST, group="stream", since="5.0.0", summary="...")
    def xlen(request: Request) -> int: ...

A subcommand's name has two words, `b"XINFO STREAM"`; its `container` is declared before it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverbed.server import errors

if TYPE_CHECKING:
    from riverbed.server.commands.session import Request
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


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Where the keys stand: first word, last word (negative counts from the end), step; (0, 0, 0) is none."""

    first: int = 0
    last: int = 0
    step: int = 0


NO_KEYS = KeySpec()
FIRST_KEY = KeySpec(1, 1, 1)
SECOND_WORD = KeySpec(2, 2, 1)  # the key of most subcommands
ALL_KEYS = KeySpec(1, -1, 1)


@dataclass(slots=True)
class Command:
    """One row of the table.

    `arity` counts the words, name included; negative means at least that many.  `name` is upper-case, two words for
    a subcommand.
    """

    name: bytes
    handler: Handler
    arity: int
    flags: Flag
    keys: KeySpec
    categories: tuple[str, ...]
    group: str
    since: str
    summary: str
    syntax: str
    tips: tuple[str, ...] = ()
    find_keys: Callable[[list[bytes]], list[bytes]] | None = None
    redact: Redaction | None = None
    subcommands: dict[bytes, Command] = field(default_factory=dict)
    full_name: bytes = field(init=False)  # `xadd`, `xgroup|create`: how error texts and statistics spell it
    is_for_clients: bool = field(init=False)  # the flag costs a microsecond to look at

    def __post_init__(self) -> None:
        self.full_name = self.name.lower().replace(b" ", b"|")
        self.is_for_clients = Flag.LOG_ONLY not in self.flags

    def shown(self, words: list[bytes]) -> list[bytes]:
        """The words of a call as MONITOR and SLOWLOG may show them, see `redaction.py`."""
        return words if self.redact is None else self.redact(words)

    def accepts(self, word_count: int) -> bool:
        return word_count == self.arity if self.arity >= 0 else word_count >= -self.arity


COMMANDS: dict[bytes, Command] = {}


def command(
    name: bytes,
    *,
    arity: int,
    flags: Flag,
    keys: KeySpec = NO_KEYS,
    categories: tuple[str, ...] = (),
    group: str,
    since: str = "1.0.0",
    summary: str = "",
    syntax: str = "",
    tips: tuple[str, ...] = (),
    find_keys: Callable[[list[bytes]], list[bytes]] | None = None,
    redact: Redaction | None = None,
) -> Callable[[Handler], Handler]:
    """Declare the decorated handler as command `name`.

    `syntax` is what follows the name, as in the public command pages; `categories` are ACL categories without `@`;
    `redact` replaces secrets among the words.
    A subcommand is hung below its container, which must have been declared before.
    """

    def declare(handler: Handler) -> Handler:
        row = Command(
            name, handler, arity, flags, keys, categories, group, since, summary, syntax, tips, find_keys, redact
        )
        container_name, _, subcommand = name.partition(b" ")
        rows = COMMANDS[container_name].subcommands if subcommand else COMMANDS
        assert (subcommand or name) not in rows, name
        rows[subcommand or name] = row
        return handler

    return declare


def container(name: bytes, *, group: str, since: str, summary: str) -> None:
    """Declare a command that is nothing but its subcommands."""
    declare = command(name, arity=-2, flags=Flag.NONE, categories=("slow",), group=group, since=since, summary=summary)
    declare(_no_such_subcommand)


def _no_such_subcommand(request: Request) -> Reply:
    raise errors.unknown_subcommand(request.argv)
