"""CONFIG REWRITE: writes the current settings to the file, and changes no more of it than necessary.

Comments, order and correct lines stay.  A setting with wrong lines gets one line, in the place of the first of them; a
setting without a line, or overruled by an included file, gets its line at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from riverbed.server.config import file as configfile
from riverbed.server.config.file import Directive
from riverbed.server.config.kinds import AnySetting
from riverbed.server.config.settings import OLD_NAMES, SETTINGS, USER_LINE
from riverbed.server.config.values import COMMAND_LINE, ConfigError, collect
from riverbed.store.disk.real_files import is_there

if TYPE_CHECKING:
    from riverbed.server.config.config import Config

_REWRITE_MARK: Final = "# Written by CONFIG REWRITE"


def rewrite(config: Config, users: Iterable[list[str]]) -> None:
    """Write the current settings to `config.file`, and a line for each of `users`: its name and rules.

    Raises ConfigError, ConfigFileError, OSError: nothing changed.
    """
    assert config.file is not None
    # One that was deleted is made again, as by Redis: the next start is to find the password, and whom to follow.
    lines = configfile.read_lines(config.file) if is_there(config.file) else []
    own = [_renamed(configfile.directive(line, f"{config.file}:{number}")) for number, line in enumerate(lines, 1)]
    named = [said for said in own if said is not None and said.name in SETTINGS]
    values, _ = collect(named)
    wrong = {setting.name for setting in _other_than(values, config)} & {said.name for said in named}
    written: set[str] = set()
    kept: list[str] = []
    for line, said in zip(lines, own, strict=True):
        if said is not None and said.name == USER_LINE:
            continue
        if said is None or said.name not in wrong:
            kept.append(line)
        elif said.name not in written:
            written.add(said.name)
            if not _needs_no_line(SETTINGS[said.name], config):
                kept.append(_line(SETTINGS[said.name], config))
    said_then = list(configfile.directives(kept, config.file))
    _refuse_users_elsewhere([line.place for line in said_then if line.name == USER_LINE], config)
    values, _ = collect(said_then)
    missing = [_line(setting, config) for setting in _other_than(values, config)]
    missing += [configfile.render_line(USER_LINE, words) for words in users]
    if missing:
        while kept and not kept[-1].strip():
            kept.pop()
        if _REWRITE_MARK not in kept:
            kept += ["", _REWRITE_MARK]
        kept += [*missing, ""]
    configfile.replace_file(config.file, kept)


def _refuse_users_elsewhere(included: list[str], config: Config) -> None:
    """Raise ConfigError if a line outside of the file makes a user: beside new lines for all, no server could start."""
    places = included + [place for place, _ in config.users if place == COMMAND_LINE]
    if places:
        advice = f"users are written to {config.file}, or to an aclfile: move this one there"
        raise ConfigError(USER_LINE, advice, places[0])


def _other_than(values: dict[str, Any], config: Config) -> Iterator[AnySetting]:
    """The settings that have another value in `config` than in `values`."""
    for setting in SETTINGS.values():
        if values[setting.attribute] != getattr(config, setting.attribute):
            yield setting


def _needs_no_line(setting: AnySetting, config: Config) -> bool:
    return setting.is_absent_by_default and bool(getattr(config, setting.attribute) == setting.default)


def _line(setting: AnySetting, config: Config) -> str:
    return configfile.render_line(setting.name, setting.file_words(getattr(config, setting.attribute)))


def _renamed(said: Directive | None) -> Directive | None:
    """The line under the setting's present name."""
    return said and Directive(said.place, OLD_NAMES.get(said.name, said.name), said.words)
