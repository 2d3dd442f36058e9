"""From words to values: reads the words of a command line, a file or CONFIG SET into values of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from riverbed.server.config.file import Directive
from riverbed.server.config.kinds import AnySetting, BadValueError
from riverbed.server.config.settings import SETTINGS, WITHOUT_MEANING, find_setting
from riverbed.store.format.text import split_text


class ConfigError(Exception):
    """A setting cannot have the requested value.  The text is complete; the parts are for CONFIG SET."""

    def __init__(self, setting: str, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {setting}: {reason}" if place else f"{setting}: {reason}")
        self.setting = setting
        self.reason = reason


class UnknownSettingError(ConfigError):
    """There is no such setting."""

    def __init__(self, setting: str, place: str = "") -> None:
        super().__init__(setting, "there is no such setting", place)


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
            raise ConfigError(flag, "expected --name value", "command line")
        name, equals, value = flag[2:].partition("=")
        values = [value] if equals else []
        position += 1
        while position < len(words) and not words[position].startswith("--"):
            values.append(words[position])
            position += 1
        yield Directive("command line", name.lower(), values)


def collect(said: Iterable[Directive]) -> tuple[dict[str, Any], list[Directive]]:
    """Apply `said` to the defaults; -> the values, and the lines without meaning.  Raises ConfigError."""
    values = defaults()
    passed_over = []
    for line in said:
        setting = find_setting(line.name)
        if setting is not None:
            values[setting.attribute] = parse(setting, line.words, values[setting.attribute], line.place)
        elif line.name in WITHOUT_MEANING:
            passed_over.append(line)
        else:
            raise UnknownSettingError(line.name, line.place)
    return values, passed_over


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
        raise ConfigError(setting.name, str(error), place) from None
