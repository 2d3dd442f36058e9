"""ACL: the users of the server and what they may do."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from riverbed.server.commands.access.denials import NAMES
from riverbed.server.commands.access.interface import Reason
from riverbed.server.commands.access.logins import apply_user, cut_off
from riverbed.server.commands.access.rules import UNKNOWN_COMMAND, RuleError, UnmatchedParenthesisError, joined
from riverbed.server.commands.access.selector import CATEGORIES, Selector, commands_of
from riverbed.server.commands.access.users import (
    DEFAULT_USER,
    DUPLICATE,
    NO_NAME,
    UserFileError,
    Users,
    WrongLine,
    is_name,
    read_file,
    without_lines,
)
from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.dispatch import find_command
from riverbed.server.commands.redaction import all_but_the_name
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.config.file import replace_file
from riverbed.server.errors import CommandError, subcommand_syntax, wrong_arity
from riverbed.server.protocol.replies import OK

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply

log = logging.getLogger("riverbed")

_ADMIN: Final = Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE
_ANY: Final = Flag.NOSCRIPT | Flag.LOADING | Flag.STALE
_MAX_BITS: Final = 4096
_SHOWN: Final = 10  # entries of ACL LOG

NO_FILE: Final = (
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER "
    "command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store "
    "users in the Redis configuration."
)
BAD_NAME: Final = "ERR Usernames can't contain spaces or null characters"
BAD_BITS: Final = (
    f"ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to {_MAX_BITS}"
)
DEFAULT_STAYS: Final = "ERR The 'default' user cannot be removed"
NOT_LOADED: Final = "WARNING: ACL errors detected, no change to the previously active ACL rules was performed"
NOT_SAVED: Final = "ERR There was an error trying to save the ACLs. Please check the server logs for more information"

container("ACL", group="server", since="6.0.0", summary="Who may do what.")


def _users(request: Request) -> Users:
    return cast("Users", request.context.users)


@command("ACL WHOAMI", _ANY, summary="Says as which user the connection is logged in.")
def acl_whoami(request: Request) -> bytes:
    """ACL WHOAMI -> a name."""
    return request.session.user.name


@command("ACL USERS", _ADMIN, summary="Lists the names of the users.")
def acl_users(request: Request) -> Reply:
    """ACL USERS -> names, in their order."""
    return [user.name for user in _users(request)]


@command("ACL LIST", _ADMIN, summary="Lists the users as lines of a file.")
def acl_list(request: Request) -> Reply:
    """ACL LIST -> `user NAME rules` for each user."""
    return list(_users(request).lines())


@command("ACL GETUSER username", _ADMIN, summary="Describes a user.")
def acl_getuser(request: Request) -> Reply:
    """ACL GETUSER username -> flags, passwords, commands, keys, channels, selectors; null for no such user."""
    user = _users(request).get(request.argv[2])
    if user is None:
        return None
    return {
        b"flags": list(user.flags) if request.session.resp == 2 else frozenset(user.flags),
        b"passwords": list(user.passwords),
        **_described(user.root),
        b"selectors": [_described(selector) for selector in user.selectors],
    }


def _described(selector: Selector) -> dict[bytes, Reply]:
    return {b"commands": selector.commands_text, b"keys": selector.keys_text, b"channels": selector.channels_text}


@command(
    "ACL SETUSER username [rule [rule ...]]", _ADMIN, summary="Creates or changes a user.", redact=all_but_the_name
)
def acl_setuser(request: Request) -> Reply:
    """ACL SETUSER username [rule ...] -> OK.  All rules are applied, or none; connected clients obey them at once."""
    name = request.argv[2]
    users = _users(request)
    if not is_name(name):
        raise CommandError(BAD_NAME)
    try:
        user = users.changed(name, joined(request.argv[3:]))
    except UnmatchedParenthesisError as error:
        raise CommandError(f"ERR Unmatched parenthesis in acl selector starting at '{_shown(str(error))}'.") from None
    except RuleError as error:
        rule = error.rule.decode("utf-8", "backslashreplace")
        raise CommandError(f"ERR Error in ACL SETUSER modifier '{_shown(rule)}': {error}") from None
    apply_user(request, users.put(user))
    return OK


def _shown(text: str) -> str:
    """A word of a client as an error line may have it."""
    return _in_one_line(text)[:128]


def _in_one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


@command("ACL DELUSER username [username ...]", _ADMIN, summary="Deletes users and cuts off their clients.")
def acl_deluser(request: Request) -> int:
    """ACL DELUSER username [username ...] -> how many there were."""
    names = request.argv[2:]
    users = _users(request)
    if DEFAULT_USER in names:
        raise CommandError(DEFAULT_STAYS)
    removed = [user for user in map(users.remove, names) if user is not None]
    for user in removed:
        cut_off(request, user)
    return len(removed)


@command("ACL CAT [category]", _ANY, summary="Lists the categories, or the commands of one.")
def acl_cat(request: Request) -> Reply:
    """ACL CAT [category] -> names."""
    if len(request.argv) > 3:
        raise subcommand_syntax(request.argv)
    if len(request.argv) == 2:
        return [name.encode() for name in CATEGORIES]
    commands = commands_of(request.argv[2])
    if commands is None:
        raise CommandError(b"ERR Unknown category '%b'" % request.argv[2][:128])
    return [row.full_name for row in commands]


@command("ACL GENPASS [bits]", _ANY, summary="Makes a password.")
def acl_genpass(request: Request) -> bytes:
    """ACL GENPASS [bits] -> random hexadecimal digits, 64 without `bits`."""
    if len(request.argv) > 3:
        raise subcommand_syntax(request.argv)
    bits = 256 if len(request.argv) == 2 else parse_int(request.argv[2])
    if not 0 < bits <= _MAX_BITS:
        raise CommandError(BAD_BITS)
    return secrets.token_hex((bits + 7) // 8)[: (bits + 3) // 4].encode()


@command(
    "ACL DRYRUN username command [arg [arg ...]]",
    _ADMIN,
    since="7.0.0",
    summary="Says what a user may do.",
    inner_at=3,
)
def acl_dryrun(request: Request) -> Reply:
    """ACL DRYRUN username command [arg ...] -> OK, or why the user may not."""
    name, words = request.argv[2], request.argv[3:]
    user = _users(request).get(name)
    if user is None:
        raise CommandError(b"ERR User '%b' not found" % name[:128])
    row = find_command(words)
    if row is None or not row.is_for_clients or (row.subcommands and len(words) > 1):
        raise CommandError(b"ERR Command '%b' not found" % words[0][:128])
    if not row.accepts(len(words)):
        raise wrong_arity(row.full_name)
    denial = user.denies(row, words)
    if denial is None:
        return OK
    if denial.reason is Reason.COMMAND:
        return b"This user has no permissions to run the '%b' command" % denial.what
    return b"This user has no permissions to access the '%b' %b" % (denial.what, NAMES[denial.reason])


@command("ACL LOG [count | RESET]", _ADMIN, summary="Shows what was refused lately.")
def acl_log(request: Request) -> Reply:
    """ACL LOG [count | RESET] -> the newest refusals, ten without `count`; or OK."""
    denials = request.context.denials
    if len(request.argv) > 3:
        raise subcommand_syntax(request.argv)
    if len(request.argv) == 3 and request.argv[2].upper() == b"RESET":
        denials.entries.clear()
        return OK
    count = _SHOWN if len(request.argv) == 2 else max(parse_int(request.argv[2]), 0)
    return [
        {
            b"count": entry.count,
            b"reason": NAMES[entry.reason],
            b"context": b"multi" if entry.in_transaction else b"toplevel",
            b"object": entry.what,
            b"username": entry.user,
            b"age-seconds": (request.now_ms - entry.last_ms) / 1000,
            b"client-info": entry.client,
            b"entry-id": entry.number,
            b"timestamp-created": entry.begun_ms,
            b"timestamp-last-updated": entry.last_ms,
        }
        for entry in denials.entries[:count]
    ]


@command("ACL LOAD", _ADMIN, summary="Takes the users from the file aclfile.")
def acl_load(request: Request) -> Reply:
    """ACL LOAD -> OK.  All users of the file, or none; clients of users that changed or are gone are cut off.

    The users are those of a start with this file, so where it has no line for `default`, `requirepass` protects it:
    Redis lets everybody in then.
    """
    path = _file(request)
    try:
        made = without_lines(request.context.config)
        made.add_lines(read_file(path))
    except OSError as error:
        raise CommandError(f"ERR Error loading ACLs, opening file '{path}': {error.strerror}") from None
    except UserFileError as error:
        raise CommandError(f"ERR {_load_error(error)}") from None
    users = _users(request)
    for user in list(users):
        new = made.get(user.name)
        if user is users.default or (new is not None and bytes(new) == bytes(user)):
            continue
        users.remove(user.name)
        cut_off(request, user)
    for user in made:
        apply_user(request, users.put(user))
    return OK


def _load_error(error: UserFileError) -> str:
    """Why there are no new users, in Redis's words where the lines of the file are wrong."""
    if not error.lines:
        return _shown(str(error))
    return _in_one_line(" ".join([*map(_line_error, error.lines), NOT_LOADED]))


def _line_error(line: WrongLine) -> str:
    if line.reason == NO_NAME:
        return f"{line.place} should start with user keyword followed by the username."
    if line.reason == DUPLICATE:
        return f"WARNING: Duplicate user '{line.name}' found on line {line.place.rpartition(':')[2]}."
    if line.reason == UNKNOWN_COMMAND:
        return f"{line.place}: Error in applying operation '{line.rule}': {line.reason}."
    return f"{line.place}: {line.reason}."


@command("ACL SAVE", _ADMIN, summary="Writes the users to the file aclfile.")
def acl_save(request: Request) -> Reply:
    """ACL SAVE -> OK.  A crash leaves the old file or the new one."""
    path = _file(request)
    try:
        replace_file(path, [*map(os.fsdecode, _users(request).lines()), ""])
    except OSError as error:
        log.warning("the users were not saved: %s", error)
        raise CommandError(NOT_SAVED) from None
    return OK


def _file(request: Request) -> Path:
    name = request.context.config.aclfile
    if not name:
        raise CommandError(NO_FILE)
    return Path(name)


declare_help(
    "ACL",
    "CAT [<category>]",
    "    List all commands that belong to <category>, or all command categories",
    "    when no category is specified.",
    "DELUSER <username> [<username> ...]",
    "    Delete a list of users.",
    "DRYRUN <username> <command> [<arg> ...]",
    "    Returns whether the user can execute the given command without executing the command.",
    "GETUSER <username>",
    "    Get the user's details.",
    "GENPASS [<bits>]",
    "    Generate a secure 256-bit user password. The optional `bits` argument can",
    "    be used to specify a different size.",
    "LIST",
    "    Show users details in config file format.",
    "LOAD",
    "    Reload users from the ACL file.",
    "LOG [<count> | RESET]",
    "    Show the ACL log entries.",
    "SAVE",
    "    Save the current config to the ACL file.",
    "SETUSER <username> <attribute> [<attribute> ...]",
    "    Create or modify a user with the specified attributes.",
    "USERS",
    "    List all the registered usernames.",
    "WHOAMI",
    "    Return the current connection username.",
    since="6.0.0",
)
