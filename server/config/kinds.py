"""Kinds of settings: how each is read from words, bounded, and written back.

A setting is a descriptor on `server.config.settings.Settings`: the class body there is the one list of settings, and
the type of each attribute follows from its kind.  Values live in the dictionary of a `Config`, so that reading one
costs no more than any attribute.  The error texts are Redis's, because CONFIG SET passes them on.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, overload

from riverbed.server.numbers import parse_digits

INT_MAX: Final = (1 << 31) - 1
UINT_MAX: Final = (1 << 32) - 1
LLONG_MAX: Final = (1 << 63) - 1
_ULLONG_MAX: Final = (1 << 64) - 1

# As in redis.conf: a k is a thousand, a kb 1024.
_MEMORY_UNITS: Final = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1 << 10,
    "m": 1000**2,
    "mb": 1 << 20,
    "g": 1000**3,
    "gb": 1 << 30,
}
# The digits are not given back one by one, which would take long when there are millions and then something else.
_MEMORY = re.compile(r"([0-9]++)([a-z]{0,2})", re.ASCII | re.IGNORECASE)
_PERCENT = re.compile(r"([0-9]{1,18})%", re.ASCII)
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
_OCTAL = re.compile(r"[0-7]{1,22}", re.ASCII)

T = TypeVar("T")


class BadValueError(ValueError):
    """The words are no value of this setting; the text is the reason alone."""


class BadMemoryError(BadValueError):
    """The words are no size."""


class Section(enum.Enum):
    """How `--help` groups the settings."""

    NETWORK = "Network"
    TLS = "TLS"
    CLIENTS = "Clients"
    DATA = "Data and durability"
    STREAMS = "Streams"
    REPLICATION = "Replication"
    DIAGNOSTICS = "Diagnostics"
    FIXED = "Fixed: here for clients that ask, any other value is refused"


class Setting(Generic[T]):
    """One setting: name, default, what it is for.

    `unit` is for people.  `at_start` settings cannot change while the server runs.
    """

    takes_list = False  # several words, also when CONFIG SET passes them as one
    is_secret = False  # only CONFIG GET shows its value
    is_reread = False  # CONFIG SET of the same value is a change: the file behind it may be another
    is_absent_by_default = False  # at its default, a rewritten file has no line for it

    def __init__(self, section: Section, default: T, summary: str, *, unit: str = "", at_start: bool = False) -> None:
        self.section = section
        self.default = default
        self.summary = summary
        self.unit = unit
        self.at_start = at_start
        self.attribute = ""
        self.name = ""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.name = attribute.replace("_", "-")

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        # Only reached through the class: an instance's own dictionary comes before a descriptor without __set__.
        return self if instance is None else self.default

    def parse(self, words: list[str], current: T) -> T:
        """The value that `words` give; a kind may keep a part of `current`.  Raises BadValueError."""
        if len(words) != 1:
            raise BadValueError("wrong number of arguments")
        return self.parse_word(words[0])

    def parse_word(self, word: str) -> T:
        raise AssertionError("a kind of setting reads a word, or several")

    def render(self, value: T) -> str:
        """The text that CONFIG GET answers."""
        return str(value)

    def file_words(self, value: T) -> list[str]:
        """The words after the name in a configuration file."""
        return [self.render(value)]


AnySetting = Setting[Any]


class Integer(Setting[int]):
    usual_maximum = INT_MAX
    usual_unit = ""
    noun = "number"

    def __init__(
        self,
        section: Section,
        default: int,
        summary: str,
        *,
        minimum: int = 0,
        maximum: int | None = None,
        unit: str = "",
        at_start: bool = False,
    ) -> None:
        super().__init__(section, default, summary, unit=unit or self.usual_unit, at_start=at_start)
        self.minimum = minimum
        self.maximum = self.usual_maximum if maximum is None else maximum

    def parse_word(self, word: str) -> int:
        if not _INTEGER.fullmatch(word) or abs(int(word)) > LLONG_MAX:
            raise BadValueError("argument couldn't be parsed into an integer")
        return self.check_bounds(int(word))

    def check_bounds(self, value: int) -> int:
        if not self.minimum <= value <= self.maximum:
            raise BadValueError(
                f"argument must be between {self.render(self.minimum)} and {self.render(self.maximum)} inclusive"
            )
        return value

    def bounds_missed(self, word: str) -> str:
        """What is wrong with a word that has been refused, for a person; CONFIG SET has Redis's words."""
        least, most = self.render(self.minimum), self.render(self.maximum)
        return f"{word!r} is no {self.noun} between {least} and {most}" if least != most else f"{word!r} is not {least}"


class Octal(Integer):
    """Permission bits."""

    noun = "octal number"

    def parse_word(self, word: str) -> int:
        if not _OCTAL.fullmatch(word):
            raise BadValueError("argument couldn't be parsed into an octal")
        return self.check_bounds(int(word, 8))

    def render(self, value: int) -> str:
        return f"{value:o}"


class Memory(Integer):
    """Bytes, with the units of redis.conf."""

    usual_maximum = LLONG_MAX
    usual_unit = "bytes"
    noun = "number of bytes"

    def parse_word(self, word: str) -> int:
        return self.check_bounds(parse_memory(word))

    def file_words(self, value: int) -> list[str]:
        return [memory_text(value)]


class MemoryOrPercent(Memory):
    """Bytes, or a share of the machine's memory: -5 is 5%, as in Redis."""

    noun = "percentage up to 100, and no number of bytes"

    def parse_word(self, word: str) -> int:
        percent = _PERCENT.fullmatch(word)
        if percent is not None:
            if int(percent[1]) > 100:
                raise BadValueError("percentage argument must be less or equal to 100")
            return -int(percent[1])
        try:
            return super().parse_word(word)
        except BadMemoryError:
            raise BadValueError("argument must be a memory or percent value") from None

    def render(self, value: int) -> str:
        return f"{-value}%" if value < 0 else str(value)

    def file_words(self, value: int) -> list[str]:
        return [self.render(value)] if value < 0 else super().file_words(value)


class Boolean(Setting[bool]):
    def parse_word(self, word: str) -> bool:
        lowered = word.lower()
        if lowered not in ("yes", "no"):
            raise BadValueError("argument must be 'yes' or 'no'")
        return lowered == "yes"

    def render(self, value: bool) -> str:
        return "yes" if value else "no"


class Choice(Setting[str]):
    """One of a few words; the value is in lower case."""

    def __init__(
        self, section: Section, choices: tuple[str, ...], default: str, summary: str, *, at_start: bool = False
    ) -> None:
        super().__init__(section, default, summary, at_start=at_start)
        self.choices = choices

    def parse_word(self, word: str) -> str:
        lowered = word.lower()
        if lowered not in self.choices:
            raise BadValueError(f"argument(s) must be one of the following: {', '.join(self.choices)}")
        return lowered


class Text(Setting[str]):
    def parse_word(self, word: str) -> str:
        return word


class ReadFile(Text):
    """Path of a file or folder whose content matters."""

    is_reread = True


class Empty(Text):
    """A setting of Redis that narrows what is allowed, and that cannot be kept here: a value stops the start."""

    def parse_word(self, word: str) -> str:
        if word:
            raise BadValueError(self.summary)
        return word


class UserName(Text):
    """Secret as in Redis: a name is half of a login."""

    is_secret = True


class Secret(Setting[bytes]):
    """A password: bytes, as clients send it."""

    is_secret = True

    def parse_word(self, word: str) -> bytes:
        return word.encode(errors="surrogateescape")

    def render(self, value: bytes) -> str:
        return value.decode(errors="surrogateescape")


class Directory(Setting[Path]):
    """An absolute path; a relative one starts at the directory where the server was started."""

    def parse_word(self, word: str) -> Path:
        if not word:
            raise BadValueError("argument must name a directory")
        return Path(word).absolute()


class Addresses(Setting[tuple[str, ...]]):
    takes_list = True

    def parse(self, words: list[str], current: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(address for address in words if address)

    def render(self, value: tuple[str, ...]) -> str:
        return " ".join(value)

    def file_words(self, value: tuple[str, ...]) -> list[str]:
        return list(value) or [""]


class OutputLimit(NamedTuple):
    """A client is cut off beyond `hard` bytes of unread replies, or beyond `soft` bytes for `seconds`; 0 is never."""

    hard: int
    soft: int
    seconds: int


class OutputLimits(Setting[Mapping[str, OutputLimit]]):
    """By class of client: normal, replica, pubsub.  Words name one class or several, four for each."""

    takes_list = True
    # Redis answers with the old word for replica, and clients parse it.
    _SHOWN: Final = {"normal": "normal", "replica": "slave", "pubsub": "pubsub"}

    def parse(self, words: list[str], current: Mapping[str, OutputLimit]) -> Mapping[str, OutputLimit]:
        if not words or len(words) % 4:
            raise BadValueError("Wrong number of arguments in buffer limit configuration.")
        limits = dict(current)
        for position in range(0, len(words), 4):
            name, hard, soft, seconds = words[position : position + 4]
            name = name.lower()
            name = "replica" if name == "slave" else name
            if name not in limits:
                raise BadValueError("Invalid client class specified in buffer limit configuration.")
            if not _INTEGER.fullmatch(seconds) or int(seconds) < 0:
                raise BadValueError("Error in hard, soft or soft_seconds setting in buffer limit configuration.")
            try:
                limits[name] = OutputLimit(parse_memory(hard), parse_memory(soft), int(seconds))
            except BadValueError:
                raise BadValueError(
                    "Error in hard, soft or soft_seconds setting in buffer limit configuration."
                ) from None
        return MappingProxyType(limits)

    def render(self, value: Mapping[str, OutputLimit]) -> str:
        return " ".join(
            f"{self._SHOWN[name]} {limit.hard} {limit.soft} {limit.seconds}" for name, limit in value.items()
        )

    def file_words(self, value: Mapping[str, OutputLimit]) -> list[str]:
        words = []
        for name, limit in value.items():
            words += [name, memory_text(limit.hard), memory_text(limit.soft), str(limit.seconds)]
        return words


class Primary(Setting[tuple[str, int] | None]):
    """Host and port of the server to follow; `no one`, or nothing, for none."""

    takes_list = True
    is_absent_by_default = True

    def parse(self, words: list[str], current: tuple[str, int] | None) -> tuple[str, int] | None:
        if not any(words) or [word.lower() for word in words] == ["no", "one"]:
            return None
        if len(words) != 2:
            raise BadValueError("wrong number of arguments")
        host, port = words
        if not is_host(host):
            raise BadValueError("Invalid master host")
        if not _INTEGER.fullmatch(port) or not 0 <= int(port) < 65536:
            raise BadValueError("Invalid master port")
        return host, int(port)

    def render(self, value: tuple[str, int] | None) -> str:
        return "" if value is None else f"{value[0]} {value[1]}"

    def file_words(self, value: tuple[str, int] | None) -> list[str]:
        return ["no", "one"] if value is None else [value[0], str(value[1])]


class Fixed(Setting[str]):
    """A setting of Redis that has one value here.  That value is accepted, so that existing files load."""

    takes_list = True

    def __init__(self, value: str, reason: str, *, at_start: bool = False) -> None:
        super().__init__(Section.FIXED, value, reason, at_start=at_start)

    def parse(self, words: list[str], current: str) -> str:
        if " ".join(words).lower() != self.default:
            raise BadValueError(f"only '{self.default}' is supported: {self.summary}")
        return self.default


def is_host(word: str) -> bool:
    """Whether `word` may be the name or address of a server: INFO, ROLE and a file can show it unchanged."""
    return bool(word) and word.isprintable()


def parse_memory(word: str) -> int:
    """Bytes from `100mb` and the like.  Raises BadValueError."""
    match = _MEMORY.fullmatch(word)
    if match is None or match[2].lower() not in _MEMORY_UNITS:
        raise BadMemoryError("argument must be a memory value")
    size = parse_digits(match[1]) * _MEMORY_UNITS[match[2].lower()]
    if size > _ULLONG_MAX:
        raise BadMemoryError("argument must be a memory value")
    return size


def memory_text(size: int) -> str:
    """`size` in the largest unit that divides it, for people and files."""
    for unit in ("gb", "mb", "kb"):
        if size and size % _MEMORY_UNITS[unit] == 0:
            return f"{size // _MEMORY_UNITS[unit]}{unit}"
    return str(size)
