"""One user: whether it may log in, with which passwords, and what it may do then."""

from __future__ import annotations

import hmac
import re
from typing import Final

from riverbed.server.commands.access.rules import NO_SUCH_PASSWORD, NOT_A_HASH, SYNTAX, RuleError, change, hash_of
from riverbed.server.commands.access.selector import Denial, Selector
from riverbed.server.commands.table import Command

_RESET: Final = (b"resetpass", b"resetkeys", b"resetchannels", b"off", b"sanitize-payload", b"clearselectors", b"-@all")
_HASH: Final = re.compile(rb"[0-9a-f]{64}")


class User:
    """A new one is off and may do nothing."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.is_on = False
        self.needs_no_password = False
        self.payloads = b""  # `sanitize-payload` or `skip-sanitize-payload`: kept for Redis, which has RESTORE
        self.passwords: list[bytes] = []  # hashes, in the order in which they were added
        self.root = Selector()
        self.selectors: list[Selector] = []

    def copy(self) -> User:
        new = User(self.name)
        new.take_over(self)
        new.passwords = list(self.passwords)
        new.root = self.root.copy()
        new.selectors = [each.copy() for each in self.selectors]
        return new

    def take_over(self, other: User) -> None:
        """Be as `other`, with which nothing else is done from now on."""
        self.is_on, self.needs_no_password, self.payloads = other.is_on, other.needs_no_password, other.payloads
        self.passwords, self.root, self.selectors = other.passwords, other.root, other.selectors

    def apply(self, rule: bytes, *, sees_all_channels: bool = False) -> None:
        """Change the user by one rule.  `sees_all_channels`: acl-pubsub-default gives a reset user all channels.

        Raises RuleError; the user may be changed in part by then.
        """
        word = rule.lower()
        if not rule:
            pass  # as in Redis
        elif word == b"on":
            self.is_on = True
        elif word == b"off":
            self.is_on = False
        elif word in (b"sanitize-payload", b"skip-sanitize-payload"):
            self.payloads = word
        elif word in (b"nopass", b"resetpass"):
            self.needs_no_password = word == b"nopass"
            self.passwords.clear()
        elif word == b"clearselectors":
            self.selectors.clear()
        elif word == b"reset":
            for each in _RESET:
                self.apply(each)
            self.root.all_channels = sees_all_channels
        elif rule[:1] in (b">", b"#"):
            self._add_password(hash_of(rule[1:]) if rule[:1] == b">" else _checked_hash(rule[1:]))
        elif rule[:1] in (b"<", b"!"):
            password = hash_of(rule[1:]) if rule[:1] == b"<" else _checked_hash(rule[1:])
            if password not in self.passwords:
                raise RuleError(NO_SUCH_PASSWORD)
            self.passwords.remove(password)
        elif rule.startswith(b"(") and rule.endswith(b")"):
            selector = Selector()
            selector.all_channels = sees_all_channels
            for each in rule[1:-1].split():
                if each.endswith(b")"):  # Redis takes it, and cannot read the line that it shows
                    raise RuleError(SYNTAX)
                change(selector, each)
            self.selectors.append(selector)
        else:
            change(self.root, rule)

    def _add_password(self, password: bytes) -> None:
        self.needs_no_password = False
        if password not in self.passwords:
            self.passwords.append(password)

    @property
    def is_unlimited(self) -> bool:
        return self.root.is_unlimited

    @property
    def lets_everybody_in(self) -> bool:
        """Whether clients are this user without a password, as `default` may be."""
        return self.is_on and self.needs_no_password

    def accepts(self, password: bytes) -> bool:
        """Whether the user may log in with that password.

        The time that it takes does not depend on how much of a password is right.
        """
        given = hash_of(password)
        fits = [hmac.compare_digest(each, given) for each in self.passwords]
        return self.is_on and (self.needs_no_password or any(fits))

    def denies(self, command: Command, words: list[bytes]) -> Denial | None:
        """What keeps the request from running; None when one of the selectors allows it.

        Of several refusals the one that came furthest is returned.
        """
        furthest: Denial | None = None
        for selector in (self.root, *self.selectors):
            denial = selector.denies(command, words)
            if denial is None:
                return None
            if furthest is None or (denial.reason.value, denial.position) > (furthest.reason.value, furthest.position):
                furthest = denial
        return furthest

    def allows_key(self, key: bytes, needed: int) -> bool:
        return any(each.allows_key(key, needed) for each in (self.root, *self.selectors))

    def allows_channel(self, channel: bytes, *, is_pattern: bool = False) -> bool:
        return any(each.allows_channel(channel, is_pattern=is_pattern) for each in (self.root, *self.selectors))

    @property
    def flags(self) -> list[bytes]:
        return [
            b"on" if self.is_on else b"off",
            *([b"nopass"] if self.needs_no_password else []),
            *([self.payloads] if self.payloads else []),
        ]

    def __bytes__(self) -> bytes:
        """The line of a file that makes this user."""
        rules = (
            *self.flags,
            *(b"#" + each for each in self.passwords),
            bytes(self.root),
            *(b"(%b)" % bytes(each) for each in self.selectors),
        )
        return b" ".join((b"user", self.name, *rules))


def _checked_hash(password: bytes) -> bytes:
    if not _HASH.fullmatch(password):
        raise RuleError(NOT_A_HASH)
    return password
