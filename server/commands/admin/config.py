"""CONFIG: shows settings, changes them, writes them to the file they came from, and resets the counters.

`server.config.settings` defines the settings, `server.config.config` has their values.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.redaction import REDACTED, hidden
from riverbed.server.commands.slices import in_slices
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.config.file import ConfigFileError
from riverbed.server.config.rewrite import rewrite
from riverbed.server.config.settings import find_setting
from riverbed.server.config.values import ConfigError, UnknownSettingError
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply

NO_FILE: Final = "ERR The server is running without a config file"

_FLAGS: Final = Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE


container("CONFIG", group="server", since="2.0.0", summary="Container of the commands about settings.")


@command("CONFIG GET parameter [parameter ...]", _FLAGS, summary="Returns the values of settings.")
def config_get(request: Request) -> Reply:
    """CONFIG GET pattern [pattern ...] -> name and value of every setting that matches one of them."""
    return in_slices(request, _get)


def _get(request: Request) -> Work:
    found = yield from request.context.config.get_in_steps(request.argv[2:])
    return {name.encode(): os.fsencode(value) for name, value in found.items()}


def _set_without_secrets(words: list[bytes]) -> list[bytes]:
    """The words of a CONFIG SET without secret values; all words from the first unknown setting on are hidden."""
    shown = words[:2]
    while (at := len(shown)) < len(words):
        setting = find_setting(os.fsdecode(words[at]))
        if setting is None:
            break
        shown += words[at : at + 1] + [REDACTED if setting.is_secret else word for word in words[at + 1 : at + 2]]
    return shown + hidden(words[len(shown) :])


@command(
    "CONFIG SET parameter value [parameter value ...]",
    _FLAGS,
    summary="Changes settings, all of them or none.",
    tips=("request_policy:all_nodes", "response_policy:all_succeeded"),
    redact=_set_without_secrets,
)
def config_set(request: Request) -> Reply:
    """CONFIG SET name value [name value ...] -> OK."""
    words = request.argv[2:]
    if len(words) % 2:
        raise CommandError(errors.SYNTAX)
    try:  # one after the other, up to the first that is wrong or repeated
        request.context.config.set(zip(map(os.fsdecode, words[::2]), map(os.fsdecode, words[1::2]), strict=True))
    except UnknownSettingError as error:
        raise CommandError(
            os.fsencode(f"ERR Unknown option or number of arguments for CONFIG SET - '{error.setting}'")
        ) from None
    except ConfigError as error:
        raise CommandError(
            os.fsencode(f"ERR CONFIG SET failed (possibly related to argument '{error.setting}') - {error.reason}")
        ) from None
    return OK


@command("CONFIG REWRITE", _FLAGS, since="2.8.0", summary="Writes the settings in force to the configuration file.")
def config_rewrite(request: Request) -> Reply:
    """CONFIG REWRITE -> OK once the file is safely on disk."""
    config = request.context.config
    if config.file is None:
        raise CommandError(NO_FILE)
    try:
        rewrite(config, () if config.aclfile else _user_lines(request))
    except OSError as error:
        raise CommandError(os.fsencode(f"ERR Rewriting config file: {error.strerror}")) from None
    except (ConfigError, ConfigFileError) as error:  # an edit made it unreadable
        raise CommandError(os.fsencode(f"ERR Rewriting config file: {error}")) from None
    return OK


def _user_lines(request: Request) -> list[list[str]]:
    """Name and rules of each user as it is now; none when `requirepass` alone makes them."""
    context = request.context
    lines = context.users.lines_beyond(context.config.requirepass)
    return [os.fsdecode(line).split(" ")[1:] for line in lines]


@command(
    "CONFIG RESETSTAT",
    _FLAGS,
    summary="Sets the counters of INFO back to zero.",
    tips=("request_policy:all_nodes", "response_policy:all_succeeded"),
)
def config_resetstat(request: Request) -> Reply:
    """CONFIG RESETSTAT -> OK."""
    request.context.stats.reset()
    request.txn.expired_keys = 0  # since the last checkpoint
    request.txn.expired_at.clear()
    return OK


declare_help(
    "CONFIG",
    "GET <pattern>",
    "    Return parameters matching the glob-like <pattern> and their values.",
    "SET <directive> <value>",
    "    Set the configuration <directive> to <value>.",
    "RESETSTAT",
    "    Reset statistics reported by the INFO command.",
    "REWRITE",
    "    Rewrite the configuration file.",
    since="5.0.0",
)
