"""The words of rules: `on`, `>password`, `~orders:*`, `%R~audit:*`, `&news`, `+@stream`, `-xtrim`, `(~dead +xadd)`.

Here are those that change a selector; `user.py` has those of a user.  What a word means, and the error for one that
means nothing, is as in Redis, so that its files and commands can be used.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from riverbed.server.commands.access.selector import READ, WRITE, KeyPattern, Selector, commands_of
from riverbed.server.commands.table import COMMANDS, Command
from riverbed.server.glob import Glob

SYNTAX: Final = "Syntax error"
UNKNOWN_COMMAND: Final = "Unknown command or category name in ACL"
HAS_ALL_KEYS: Final = (
    "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. "
    "Try 'resetkeys' to start with an empty list of patterns"
)
HAS_ALL_CHANNELS: Final = (
    "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. "
    "Try 'resetchannels' to start with an empty list of channels"
)
OF_SUBCOMMAND: Final = "Allowing first-arg of a subcommand is not supported"
NO_SUCH_PASSWORD: Final = "The password you are trying to remove from the user does not exist"
NOT_A_HASH: Final = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
_BLANKS: Final = re.compile(rb"[\0\t\n\v\f\r ]")


class RuleError(ValueError):
    """A rule that means nothing, or nothing here; the text is the reason alone, `rule` the word."""

    rule = b""


class UnmatchedParenthesisError(ValueError):
    """A selector that does not end; the text is the last word that might begin one, as in Redis."""


def hash_of(password: bytes) -> bytes:
    """SHA-256 in lower-case hexadecimal digits: how passwords are kept."""
    return hashlib.sha256(password).hexdigest().encode()


def joined(words: list[bytes]) -> list[bytes]:
    """The rules in `words`, those of a selector in parentheses as one.  Raises UnmatchedParenthesisError."""
    rules: list[bytes] = []
    begun: list[bytes] = []
    last_begun = b""
    for word in words:
        if begun or (word.startswith(b"(") and not word.endswith(b")")):
            begun.append(word)
            if word.startswith(b"("):
                last_begun = word
            if word.endswith(b")"):
                rules.append(b" ".join(begun))
                begun = []
        else:
            rules.append(word)
    if begun:
        raise UnmatchedParenthesisError(last_begun.decode("utf-8", "backslashreplace"))
    return rules


def change(selector: Selector, rule: bytes) -> None:
    """Change a selector by one rule.  Raises RuleError."""
    word = rule.lower()
    sign = rule[:1]
    if word in (b"allkeys", b"~*"):
        selector.all_keys = True
        selector.keys.clear()
    elif word == b"resetkeys":
        selector.all_keys = False
        selector.keys.clear()
    elif word in (b"allchannels", b"&*"):
        selector.all_channels = True
        selector.channels.clear()
    elif word == b"resetchannels":
        selector.all_channels = False
        selector.channels.clear()
    elif word in (b"allcommands", b"+@all", b"nocommands", b"-@all"):
        selector.set_base(all_commands=word in (b"allcommands", b"+@all"))
    elif sign in (b"~", b"%"):
        _add_keys(selector, rule)
    elif sign == b"&":
        _add_channel(selector, rule[1:])
    elif sign in (b"+", b"-") and rule[1:2] == b"@":
        _change_category(selector, sign, rule[1:])
    elif sign == b"+" and b"|" in rule:
        _allow_part(selector, rule[1:])
    elif sign in (b"+", b"-"):
        command = find(rule[1:])
        selector.change(command, allow=sign == b"+")
        selector.note_rule(sign, command.full_name)
    else:
        raise RuleError(SYNTAX)


def _add_keys(selector: Selector, rule: bytes) -> None:
    if selector.all_keys:
        raise RuleError(HAS_ALL_KEYS)
    access, pattern = READ | WRITE, rule[1:]
    if rule.startswith(b"%"):
        letters, _, pattern = rule[1:].partition(b"~")
        if letters.upper() not in (b"R", b"W", b"RW", b"WR"):
            raise RuleError(SYNTAX)
        access = READ * (b"R" in letters.upper()) | WRITE * (b"W" in letters.upper())
    if _BLANKS.search(pattern):
        raise RuleError(SYNTAX)
    selector.keys.setdefault(pattern, KeyPattern(Glob(pattern), 0)).access |= access


def _add_channel(selector: Selector, pattern: bytes) -> None:
    if selector.all_channels:
        raise RuleError(HAS_ALL_CHANNELS)
    if _BLANKS.search(pattern):
        raise RuleError(SYNTAX)
    selector.channels.setdefault(pattern, Glob(pattern))


def _change_category(selector: Selector, sign: bytes, category: bytes) -> None:
    commands = commands_of(category[1:])
    if commands is None:
        raise RuleError(UNKNOWN_COMMAND)
    for command in commands:
        selector.change(command, allow=sign == b"+")
    selector.note_rule(sign, category)


def _allow_part(selector: Selector, name: bytes) -> None:
    """Allow a subcommand, or a command with this first argument."""
    container, _, word = name.rpartition(b"|")
    command = find(container)
    if b"|" in container:
        raise RuleError(OF_SUBCOMMAND)
    if not word or _BLANKS.search(word):  # Redis takes a line break, which makes another line of a file
        raise RuleError(SYNTAX)
    if command.subcommands:
        selector.change(find(name), allow=True)
    else:
        selector.allow_first_word(command, word)
    selector.note_rule(b"+", name)


def find(name: bytes) -> Command:
    """The command, or with `|` the subcommand, of that name in any case.  Raises RuleError."""
    container, bar, word = name.partition(b"|")
    row = COMMANDS.get(container.upper())
    if row is not None and bar:
        row = row.subcommands.get(word.upper())
    if row is None or not row.is_for_clients:
        raise RuleError(UNKNOWN_COMMAND)
    return row
