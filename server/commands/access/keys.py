"""Which words of a request are keys, and how the command uses them: for COMMAND and for the rules of users."""

from __future__ import annotations

from typing import Final

from riverbed.server.commands.table import Command, Flag
from riverbed.server.errors import CommandError

INVALID_ARGUMENTS: Final = "ERR Invalid arguments specified for command"

# How a command uses its keys, where that does not follow from WRITE (it updates) or READONLY (it reads the value).
# One tuple for each key specification.
_KEY_ACCESS: Final[dict[bytes, tuple[tuple[bytes, ...], ...]]] = {
    b"copy": ((b"RO", b"access"), (b"OW", b"update")),
    b"del": ((b"RM", b"delete"),),
    b"exists": ((b"RO",),),
    b"memory|usage": ((b"RO",),),
    b"move": ((b"RW", b"access", b"update"),),
    b"object|encoding": ((b"RO",),),
    b"object|freq": ((b"RO",),),
    b"object|idletime": ((b"RO",),),
    b"object|refcount": ((b"RO",),),
    b"rename": ((b"RW", b"access", b"delete"), (b"OW", b"update")),
    b"renamenx": ((b"RW", b"access", b"delete"), (b"OW", b"insert")),
    b"spublish": ((b"not_key",),),
    b"ssubscribe": ((b"not_key",),),
    b"sunsubscribe": ((b"not_key",),),
    b"touch": ((b"RO",),),
    b"type": ((b"RO",),),
    b"unlink": ((b"RM", b"delete"),),
    b"watch": ((b"RO",),),
    b"xackdel": ((b"RW", b"delete"),),
    b"xautoclaim": ((b"RW", b"delete"),),
    b"xdel": ((b"RW", b"delete"),),
    b"xdelex": ((b"RW", b"delete"),),
    b"xgroup|create": ((b"RW", b"insert"),),
    b"xgroup|createconsumer": ((b"RW", b"insert"),),
    b"xgroup|delconsumer": ((b"RW", b"delete"),),
    b"xgroup|destroy": ((b"RW", b"delete"),),
    b"xlen": ((b"RO",),),
    b"xreadgroup": ((b"RO", b"access"),),
    b"xtrim": ((b"RW", b"delete"),),
}


def keyword_of(row: Command) -> tuple[bytes, int] | None:
    """The token before the keys of a command with movable keys, and the first word that it may be.

    It is the first token that keys follow in the syntax, after the fixed words and perhaps optional ones.
    """
    if Flag.MOVABLEKEYS not in row.flags:
        return None
    words = row.syntax.split()
    fixed = 0
    while not words[fixed].startswith("[") and words[fixed + 1] != "key":
        fixed += 1
    return words[words.index("key") - 1].encode(), fixed + 1


def key_accesses(row: Command) -> tuple[tuple[bytes, ...], ...]:
    """How each of a command's key specifications uses the keys."""
    usual = (b"RW", b"update") if Flag.WRITE in row.flags else (b"RO", b"access")
    return _KEY_ACCESS.get(row.full_name, (usual,))


def has_keys(row: Command) -> bool:
    """Whether the command has keys.  Shard channels are none, although a cluster finds its node by them."""
    return (row.keys.first > 0 and (b"not_key",) not in key_accesses(row)) or Flag.MOVABLEKEYS in row.flags


def key_positions(row: Command, words: list[bytes]) -> slice:
    """Where in `words` the keys are.  CommandError when there is none."""
    keyword = keyword_of(row)
    if keyword is not None:
        position = _place_of(*keyword, row, words)
        if position is None:
            raise CommandError(INVALID_ARGUMENTS)
        # Half of what follows are keys, the other half are IDs.
        return slice(position + 1, position + 1 + (len(words) - position - 1) // 2)
    spec = row.keys
    last = spec.last if spec.last >= 0 else len(words) + spec.last
    return slice(spec.first, last + 1, spec.step)


def _place_of(token: bytes, first: int, row: Command, words: list[bytes]) -> int | None:
    """Where a request has its token, as Redis looks for it: at any word from `first` on that two others follow.

    Before the token of a request that runs, only the names behind GROUP may be spelled like it.  Redis takes them for
    it if there are options before them, and does not look at the keys then.
    """
    names = 2 if row.full_name == b"xreadgroup" else 0
    position = 1
    while position < len(words) - 2:
        word = words[position].upper()
        if word == token and position >= first:
            return position
        position += 1 + (names if word == b"GROUP" else 0)
    return None


def further_keys(row: Command, words: list[bytes]) -> list[int]:
    """Words that name streams which the command writes to, or has the server write to, besides its keys.

    COMMAND does not show them, as no cluster need know them.
    """
    if row.full_name != b"xgroup|policy":
        return []
    return [at + 1 for at in range(4, len(words) - 1, 2) if words[at].upper() == b"DEADLETTER"]
