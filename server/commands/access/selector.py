"""A selector: a set of commands, of keys and of channels that a user may use together.

Commands are a base (all or none) and the rules that change it, in the order in which they were given.  Read `rules.py`
for the words of rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from riverbed.server.commands.access.interface import Reason
from riverbed.server.commands.access.keys import further_keys, has_keys, key_accesses, key_positions
from riverbed.server.commands.table import COMMANDS, Command, Flag
from riverbed.server.errors import CommandError
from riverbed.server.glob import Glob

# In the order in which Redis prints them.  Those without commands here keep rules for Redis valid.
CATEGORIES: Final = (
    *("keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap", "hyperloglog", "geo"),
    *("stream", "pubsub", "admin", "fast", "slow", "blocking", "dangerous", "connection", "transaction", "scripting"),
)

READ: Final = 1
WRITE: Final = 2
# What an access flag of a key specification needs; flags that are not here need nothing.
_NEEDS: Final = {b"access": READ, b"insert": WRITE, b"update": WRITE, b"delete": WRITE}
# Which words of these commands name channels, and whether they are patterns.
_CHANNELS: Final = {
    b"publish": (slice(1, 2), False),
    b"spublish": (slice(1, 2), False),
    b"subscribe": (slice(1, None), False),
    b"ssubscribe": (slice(1, None), False),
    b"psubscribe": (slice(1, None), True),
}


@dataclass(frozen=True, slots=True)
class Denial:
    """A refusal: `what` is the command, the key or the channel, `position` its word."""

    reason: Reason
    what: bytes
    position: int = 0


class KeyPattern:
    """Keys that may be read, written, or both."""

    __slots__ = ("access", "glob", "matches")

    def __init__(self, glob: Glob, access: int) -> None:
        self.glob = glob
        self.access = access
        # A single star asks for all keys; as a pattern, such as `%R~*`, it matches no empty key, as no other does.
        self.matches = bool if glob.pattern == b"*" else glob.test()

    def __bytes__(self) -> bytes:
        name = {READ: b"%R~", WRITE: b"%W~", READ | WRITE: b"~"}[self.access]
        return name + self.glob.pattern


class Selector:
    """Without commands, keys and channels at first."""

    def __init__(self) -> None:
        self.all_commands = False  # those that a later version has, too
        self.all_keys = False
        self.all_channels = False
        # By pattern, and the rules about commands, such as `xadd`, `@dangerous` or `config|get`, with their signs.
        self.keys: dict[bytes, KeyPattern] = {}
        self.channels: dict[bytes, Glob] = {}
        self.rules: dict[bytes, bytes] = {}
        self._denied: set[bytes] = set()  # full names, when the base is all
        self._allowed: set[bytes] = set()  # full names, when the base is none
        self._first_words: dict[bytes, list[bytes]] = {}  # by full name: the arguments with which it is allowed

    def copy(self) -> Selector:
        new = Selector()
        new.all_commands, new.all_keys, new.all_channels = self.all_commands, self.all_keys, self.all_channels
        new.keys = {pattern: KeyPattern(each.glob, each.access) for pattern, each in self.keys.items()}
        new.channels = dict(self.channels)
        new.rules = dict(self.rules)
        new._denied, new._allowed = set(self._denied), set(self._allowed)
        new._first_words = {name: list(words) for name, words in self._first_words.items()}
        return new

    @property
    def is_unlimited(self) -> bool:
        """Whether it allows everything, so that no request need be looked at."""
        return self.all_commands and not self._denied and self.all_keys and self.all_channels

    # -- changing ------------------------------------------------------------------------------------------------------

    def set_base(self, *, all_commands: bool) -> None:
        """Allow all commands, or none, and forget the rules."""
        self.all_commands = all_commands
        self.rules.clear()
        self._denied.clear()
        self._allowed.clear()
        self._first_words.clear()

    def change(self, command: Command, *, allow: bool) -> None:
        """Allow or deny a command, with all its subcommands."""
        for row in (command, *command.subcommands.values()):
            self._first_words.pop(row.full_name, None)
            self._set(row.full_name, allow=allow)

    def _set(self, name: bytes, *, allow: bool) -> None:
        if self.all_commands:
            (self._denied.discard if allow else self._denied.add)(name)
        else:
            (self._allowed.add if allow else self._allowed.discard)(name)

    def allow_first_word(self, command: Command, word: bytes) -> None:
        """Allow a command with `word` as its first argument."""
        self._first_words.setdefault(command.full_name, []).append(word.upper())

    def note_rule(self, sign: bytes, name: bytes) -> None:
        """Append a rule about commands, and drop those about the same, or about its subcommands, that it overrules."""
        name = name.lower()
        self.rules.pop(name, None)
        if b"|" not in name:
            self.rules = {each: was for each, was in self.rules.items() if not each.startswith(name + b"|")}
        self.rules[name] = sign

    # -- asking --------------------------------------------------------------------------------------------------------

    def denies(self, command: Command, words: list[bytes]) -> Denial | None:
        """What keeps the request from running; None when it may run."""
        if not self._allows_command(command, words):
            return Denial(Reason.COMMAND, command.full_name)
        return self._denies_keys(command, words) or self._denies_channels(command, words)

    def _allows_command(self, command: Command, words: list[bytes]) -> bool:
        name = command.full_name
        if Flag.NO_AUTH in command.flags:
            return True
        if name not in self._denied if self.all_commands else name in self._allowed:
            return True
        return len(words) > 1 and words[1].upper() in self._first_words.get(name, ())

    def _denies_keys(self, command: Command, words: list[bytes]) -> Denial | None:
        if self.all_keys:
            return None
        for places, needed in _used_keys(command, words):
            tests = [each.matches for each in self.keys.values() if each.access & needed == needed]
            for place in places:
                key = words[place]
                for matches in tests:
                    if matches(key):
                        break
                else:
                    return Denial(Reason.KEY, key, place)
        return None

    def allows_key(self, key: bytes, needed: int) -> bool:
        return self.all_keys or any(each.access & needed == needed and each.matches(key) for each in self.keys.values())

    def _denies_channels(self, command: Command, words: list[bytes]) -> Denial | None:
        if self.all_channels or command.full_name not in _CHANNELS:
            return None
        places, is_pattern = _CHANNELS[command.full_name]
        for position, channel in enumerate(words[places], places.start):
            if not self.allows_channel(channel, is_pattern=is_pattern):
                return Denial(Reason.CHANNEL, channel, position)
        return None

    def allows_channel(self, channel: bytes, *, is_pattern: bool = False) -> bool:
        """A pattern to subscribe to must be one of the selector's own."""
        if self.all_channels or is_pattern:
            return self.all_channels or channel in self.channels
        return any(each.matches(channel) for each in self.channels.values())

    # -- showing -------------------------------------------------------------------------------------------------------

    @property
    def commands_text(self) -> bytes:
        return b" ".join(
            (b"+@all" if self.all_commands else b"-@all", *(sign + name for name, sign in self.rules.items()))
        )

    @property
    def keys_text(self) -> bytes:
        if self.all_keys:
            return b"~*"
        texts = [bytes(pattern) for pattern in self.keys.values()]
        # no pattern may follow `~*`, by which all keys are meant: Redis refuses a file that it has written so
        return b" ".join([b"%RW~*" if text == b"~*" else text for text in texts[:-1]] + texts[-1:])

    @property
    def channels_text(self) -> bytes:
        return b"&*" if self.all_channels else b" ".join(b"&" + pattern for pattern in self.channels)

    def __bytes__(self) -> bytes:
        """The rules that make it, as ACL LIST and files have them."""
        channels = (
            self.channels_text if self.all_channels else b" ".join((b"resetchannels", self.channels_text)).strip()
        )
        return b" ".join(part for part in (self.keys_text, channels, self.commands_text) if part)


def _used_keys(command: Command, words: list[bytes]) -> Iterator[tuple[Sequence[int], int]]:
    """-> the places of a request's keys in their order, by the access that they need.

    A request whose keys cannot be found has none: the command itself refuses it.
    """
    if has_keys(command):
        accesses = [sum({_NEEDS.get(flag, 0) for flag in flags}) for flags in key_accesses(command)]
        try:
            places = range(*key_positions(command, words).indices(len(words)))
        except CommandError:
            return
        # The last access is that of all further keys.
        last = len(accesses) - 1
        for number, access in enumerate(accesses):
            yield places[number : number + 1] if number < last else places[number:], access
    yield further_keys(command, words), WRITE


def commands_of(category: bytes) -> list[Command] | None:
    """The commands of an ACL category, a container before its subcommands; None when there is no such category."""
    name = category.lower().decode("latin-1")
    if name not in CATEGORIES:
        return None
    rows = (one for row in COMMANDS.values() if row.is_for_clients for one in (row, *row.subcommands.values()))
    return [row for row in rows if name in row.categories]
