"""The users of one server, and the lines of files that make them.

`default` is the user of clients that have not logged in, if it needs no password.  `requirepass` is its password, and
nothing else: changing the one changes the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from riverbed.server.commands import load_commands
from riverbed.server.commands.access.rules import RuleError, UnmatchedParenthesisError, hash_of, joined
from riverbed.server.commands.access.user import User
from riverbed.server.commands.redaction import REDACTED
from riverbed.store.disk import real_files
from riverbed.store.errors import UnsafeFileError

if TYPE_CHECKING:
    from riverbed.server.config.config import Config

DEFAULT_USER: Final = b"default"
# An aclfile is read while clients wait.
MAX_FILE_BYTES: Final = 16 << 20
_BLANKS: Final = b" \t\n\r\v\f\0"


NO_NAME: Final = "a line should begin with user and a name"
DUPLICATE: Final = "Duplicate user found. A user can only be defined once in config files"
UNMATCHED: Final = "Unmatched parenthesis in selector definition"
# Of a file in which every line is wrong.
_MOST_SHOWN: Final = 100
_SHOWN_BYTES: Final = 128  # of a rule or a name in an error text


@dataclass(frozen=True, slots=True)
class WrongLine:
    """A line that makes no user: where, why, and the user's name and the rule as they may be shown."""

    place: str
    reason: str
    name: str = ""
    rule: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.place, self.rule, self.reason)))


class UserFileError(ValueError):
    """Users that cannot be made; the text says why, and `lines` which lines of the file are wrong, if any are."""

    def __init__(self, reason: str | list[WrongLine]) -> None:
        self.lines = [] if isinstance(reason, str) else reason
        super().__init__(reason if isinstance(reason, str) else "\n".join(map(str, reason)))


class Users:
    """Always has the default user."""

    def __init__(self, *, sees_all_channels: bool = False) -> None:
        """`sees_all_channels`: new users may use all channels (acl-pubsub-default)."""
        self.sees_all_channels = sees_all_channels
        self.default = User(DEFAULT_USER)
        for rule in (b"on", b"nopass", b"~*", b"&*", b"+@all"):
            self.default.apply(rule)
        self._by_name = {DEFAULT_USER: self.default}

    def get(self, name: bytes) -> User | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[User]:
        """In the order of their names."""
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def lines(self) -> list[bytes]:
        """The lines of a file that makes all users."""
        return list(map(bytes, self))

    def lines_beyond(self, password: bytes) -> list[bytes]:
        """The lines of a configuration file that make all users; none when `requirepass` with this password does."""
        plain = Users()
        plain.require_password(password)
        lines = self.lines()
        return [] if lines == plain.lines() else lines

    def require_password(self, password: bytes) -> None:
        """Set the only password of the default user; empty for none."""
        self.default.passwords = [hash_of(password)] if password else []
        self.default.needs_no_password = not password

    def log_in(self, name: bytes, password: bytes) -> User | None:
        """The user with that name and password; None when there is none, or when it is off."""
        user = self.get(name)
        if user is None:
            user = User(name)  # off: an unknown name takes as long as a wrong password
            user.accepts(password)
            return None
        return user if user.accepts(password) else None

    def changed(self, name: bytes, rules: Iterable[bytes]) -> User:
        """A user as `name` would be after `rules`, or a new one; nothing is changed yet.

        Raises RuleError, whose `rule` says which one it was.
        """
        known = self.get(name)
        user = self.new(name) if known is None else known.copy()
        for rule in rules:
            try:
                user.apply(rule, sees_all_channels=self.sees_all_channels)
            except RuleError as error:
                error.rule = rule
                raise
        return user

    def new(self, name: bytes) -> User:
        user = User(name)
        user.root.all_channels = self.sees_all_channels
        return user

    def put(self, user: User) -> User:
        """Have `user` in the place of the one with its name; -> the user that stays, so that its clients keep it."""
        known = self._by_name.setdefault(user.name, user)
        if known is not user:
            known.take_over(user)
        return known

    def remove(self, name: bytes) -> User | None:
        """Remove a user other than `default`; -> the user."""
        return self._by_name.pop(name, None)

    def add_lines(self, lines: Iterable[tuple[str, list[bytes]]]) -> None:
        """Add the users that lines of a file make: for each its place, the user's name and the rules.

        Raises UserFileError, which has the first hundred lines that are wrong.
        """
        seen: set[bytes] = set()
        wrong: list[WrongLine] = []
        for place, words in lines:
            try:
                if not words or not is_name(words[0]):
                    wrong.append(WrongLine(place, NO_NAME))
                elif words[0] in seen:
                    wrong.append(WrongLine(place, DUPLICATE, name=_cut(words[0])))
                else:
                    seen.add(words[0])
                    self.put(_user_of(self, words))
            except UnmatchedParenthesisError:
                wrong.append(WrongLine(place, UNMATCHED))
            except RuleError as error:
                wrong.append(WrongLine(place, str(error), rule=_shown(error.rule)))
            if len(wrong) == _MOST_SHOWN:
                break
        if wrong:
            raise UserFileError(wrong)


def configured(config: Config) -> Users:
    """The users that the settings ask for.  Raises UserFileError, OSError."""
    load_commands()  # their rules name commands
    users = without_lines(config)
    if config.aclfile and config.users:
        raise UserFileError("users are either lines `user` of the configuration or lines of an aclfile, not both")
    users.add_lines(
        read_file(Path(config.aclfile))
        if config.aclfile
        else ((place, [os.fsencode(word) for word in words]) for place, words in config.users)
    )
    return users


def without_lines(config: Config) -> Users:
    """What the lines of a file are added to: `default`, with the password of `requirepass` until a line changes it."""
    users = Users(sees_all_channels=config.acl_pubsub_default == "allchannels")
    users.require_password(config.requirepass)
    return users


def read_file(path: Path) -> list[tuple[str, list[bytes]]]:
    """The lines of an aclfile, for `Users.add_lines`; it may be named by a link.  Raises UserFileError, OSError.

    One that does not begin with `user` has no words.
    """
    found = []
    try:
        data = real_files.read_named_file(path, MAX_FILE_BYTES + 1)
    except UnsafeFileError as error:  # a pipe would keep all clients waiting
        raise UserFileError(str(error)) from None
    if len(data) > MAX_FILE_BYTES:
        raise UserFileError(f"{path} has more than {MAX_FILE_BYTES:,} bytes")
    for number, line in enumerate(data.split(b"\n"), 1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        found.append((f"{path}:{number}", words[1:] if words[0].lower() == b"user" else []))
    return found


def _user_of(users: Users, words: list[bytes]) -> User:
    """The user with this name and these rules.  Raises RuleError, UnmatchedParenthesisError."""
    user = users.new(words[0])
    for rule in joined(words[1:]):
        try:
            user.apply(rule, sees_all_channels=users.sees_all_channels)
        except RuleError as error:
            error.rule = rule
            raise
    return user


def _shown(rule: bytes) -> str:
    """A rule as the log may have it: any other than these may be a password, or a mistyped one."""
    return _cut(rule if rule[:1] in b"+-~%&" else REDACTED)


def _cut(word: bytes) -> str:
    """A word as the log may have it: a part of a long one."""
    return word[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")


def is_name(name: bytes) -> bool:
    """Whether a user may be called so: a line of a file can name it."""
    return bool(name) and not any(byte in _BLANKS for byte in name)
