"""From words to values: reads the words of a command line, a file or CONFIG SET into values of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from riverbed.server.config.file import Directive
from riverbed.server.config.kinds import AnySetting, BadValueError, Integer, Section
from riverbed.server.config.settings import GUARDS, SETTINGS, USER_LINE, WITHOUT_MEANING, find_setting
from riverbed.store.format.text import split_text

COMMAND_LINE: Final = "command line"  # the place of flags
NO_MEANING: Final = "it has no meaning here"


class ConfigError(Exception):
    """A setting cannot have the requested value.  The text is complete; the parts are for CONFIG SET."""

    def __init__(self, setting: str, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {setting}: {reason}" if place else f"{setting}: {reason}")
        self.setting = setting
        self.reason = reason


class UnknownSettingError(ConfigError):
    """There is no such setting, or one of Redis that guards a server, which is missing here."""

    def __init__(self, setting: str, place: str = "") -> None:
        super().__init__(setting, GUARDS.get(setting.lower(), "there is no such setting"), place)


def unknown(name: str) -> ConfigError:
    """The error of a CONFIG SET of `name`, which is no setting here."""
    if name.lower() in WITHOUT_MEANING:
        return ConfigError(name, f"{NO_MEANING}, and is ignored in a file")
    return UnknownSettingError(name)


class ConfigErrors(ConfigError):
    """Several settings cannot have the requested values: a line of text for each."""

    def __init__(self, errors: list[ConfigError]) -> None:
        super().__init__(errors[0].setting, errors[0].reason)
        self.args = ("\n".join(map(str, errors)),)


class Ignored(NamedTuple):
    """A line of a file that has no effect, and the reason."""

    place: str
    name: str
    reason: str


def defaults() -> dict[str, Any]:
    """The default of each attribute."""
    values = {setting.attribute: setting.default for setting in SETTINGS.values()}
    values["dir"] = Path.cwd()
    return values


def flags(words: list[str]) -> Iterator[Directive]:
    """Settings from a command line; values go on until the next `--name`."""
    position = 0
    while position < len(words):
        flag = words[position]
        if not flag.startswith("--"):
            raise ConfigError(flag, "expected --name value, such as --port 6379; --help lists them", COMMAND_LINE)
        name, equals, value = flag[2:].partition("=")
        values = [value] if equals else []
        position += 1
        while position < len(words) and not words[position].startswith("--"):
            values.append(words[position])
            position += 1
        yield Directive(COMMAND_LINE, name.lower(), values)


def collect(said: Iterable[Directive]) -> tuple[dict[str, Any], list[Ignored]]:
    """Apply `said` to the defaults; -> the values, and the lines without effect.

    A file may have another value than the only one of a fixed setting, so that a redis.conf can be tried: neither data
    nor safety depends on these.  A flag may not.  Raises ConfigError, or ConfigErrors for more than one.
    """
    values = defaults()
    ignored = []
    errors: list[ConfigError] = []
    for line in said:
        if line.name == USER_LINE:
            continue
        setting = find_setting(line.name)
        if setting is None:
            if line.name in WITHOUT_MEANING:
                ignored.append(Ignored(line.place, line.name, NO_MEANING))
            else:
                errors.append(UnknownSettingError(line.name, line.place))
            continue
        try:
            values[setting.attribute] = parse(setting, line.words, values[setting.attribute], line.place)
        except ConfigError as error:
            if setting.section is Section.FIXED and line.place != COMMAND_LINE:
                ignored.append(Ignored(line.place, line.name, error.reason))
            else:
                errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
    return values, ignored


def parse(setting: AnySetting, words: list[str], current: Any, place: str = "") -> Any:
    """The value that `words` give `setting`; `current` is its present one.  Raises ConfigError."""
    if setting.takes_list and len(words) == 1:
        # `CONFIG SET save "1 2"` and `--save "1 2"` have the list in one word
        try:
            words = split_text(words[0])
        except ValueError:
            raise ConfigError(setting.name, "unbalanced quotes", place) from None
    try:
        return setting.parse(words, current)
    except BadValueError as error:
        reason = setting.bounds_missed(words[0]) if place and isinstance(setting, Integer) and len(words) == 1 else ""
        raise ConfigError(setting.name, reason or str(error), place) from None
