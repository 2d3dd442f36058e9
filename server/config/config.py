"""The current values of the settings, and the three places they come from.

    defaults  <  configuration file  <  flags        later ones win; CONFIG SET changes them while the server runs

Error texts are those of Redis.  The parts of the server read the settings, or `observe` one to be called when it
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path

from riverbed.server.config import file as configfile
from riverbed.server.config.file import Directive
from riverbed.server.config.kinds import AnySetting, BadValueError
from riverbed.server.config.settings import OLD_NAMES, SETTINGS, USER_LINE, Settings, find_setting
from riverbed.server.config.values import ConfigError, Ignored, collect, defaults, flags, parse, unknown
from riverbed.server.glob import Glob

Apply = Callable[[], None]
Prepare = Callable[[], Apply | None]


class Config(Settings):
    """The settings of one server."""

    def __init__(self) -> None:
        """Everything at its default."""
        self.file: Path | None = None
        self.ignored: list[Ignored] = []  # lines of the file
        self.users: list[tuple[str, list[str]]] = []  # the lines `user`: place, name and rules
        self._observers: dict[str, list[Callable[[], None]]] = {}
        self._preparations: dict[str, Prepare] = {}
        self.__dict__.update(defaults())

    # -- reading -------------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, arguments: Sequence[str]) -> Config:
        """The settings of a command line: `[FILE] [--name value ...]`.

        Raises ConfigError or ConfigFileError, whose text says where and what.
        """
        config = cls()
        words = list(arguments)
        said: list[Directive] = []
        if words and not words[0].startswith("-"):
            config.file = Path(words.pop(0)).absolute()
            said += configfile.directives(configfile.read_lines_at_start(config.file), config.file)
        said += flags(words)
        config.users = [(line.place, line.words) for line in said if line.name == USER_LINE]
        values, config.ignored = collect(said)
        config.__dict__.update(values)
        return config

    def get(self, patterns: Iterable[bytes]) -> dict[str, str]:
        """Names and values of the settings that match any of `patterns`, in the order of the list."""
        steps = self.get_in_steps(patterns)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: dict[str, str] = done.value
                return found

    def get_in_steps(self, patterns: Iterable[bytes]) -> Generator[None, None, dict[str, str]]:
        """As `get`; yields between patterns, because there may be many long ones."""
        settings = SETTINGS | {old: SETTINGS[name] for old, name in OLD_NAMES.items()}
        names = [name.encode() for name in settings]
        wanted: set[bytes] = set()
        for number, pattern in enumerate(patterns):
            if number:
                yield
            wanted.update((yield from Glob(pattern, ignore_case=True).select(names)))
        return {
            name: setting.render(self.__dict__[setting.attribute])
            for name, setting in settings.items()
            if name.encode() in wanted
        }

    # -- changing ------------------------------------------------------------------------------------------------------

    def set(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Change settings while the server runs, all of them or none.  Raises ConfigError."""
        asked: dict[str, tuple[AnySetting, str]] = {}
        for name, text in pairs:
            setting = find_setting(name)
            if setting is None:
                raise unknown(name)
            if setting.at_start:
                raise ConfigError(setting.name, "can't set immutable config")
            if setting.name in asked:
                raise ConfigError(setting.name, "duplicate parameter")
            asked[setting.name] = setting, text
        values = {
            setting.attribute: parse(setting, [text], self.__dict__[setting.attribute])
            for setting, text in asked.values()
        }
        before = {attribute: self.__dict__[attribute] for attribute in values}
        self.__dict__.update(values)
        changed = [
            setting
            for setting, _ in asked.values()
            if setting.is_reread or values[setting.attribute] != before[setting.attribute]
        ]
        prepared: dict[Prepare, Apply | None] = {}
        for setting in changed:
            prepare = self._preparations.get(setting.name)
            if prepare is None or prepare in prepared:
                continue
            try:
                prepared[prepare] = prepare()
            except BaseException as error:
                self.__dict__.update(before)
                if isinstance(error, BadValueError):
                    raise ConfigError(setting.name, str(error)) from None
                raise
        # Nothing is refused from here on: a password that was taken back would have let strangers in.
        for apply in prepared.values():
            if apply is not None:
                apply()
        for setting in changed:
            for callback in self._observers.get(setting.name, ()):
                callback()

    def observe(self, name: str, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of setting `name`, which it cannot refuse.

        `callback` reads the new value from here.
        """
        assert name in SETTINGS, name
        self._observers.setdefault(name, []).append(callback)

    def prepare(self, names: Iterable[str], prepare: Prepare) -> None:
        """Call `prepare` once for each change of these settings; it returns what makes the change, if it makes one.

        For what may refuse a change.  `prepare` reads the new values from here.  If it raises BadValueError, nothing
        changes; what it returned is called when nothing can fail any more.
        """
        for name in names:
            assert name in SETTINGS, name
            self._preparations[name] = prepare
