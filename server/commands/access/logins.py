"""What a change of users means for the clients that are connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from riverbed.server.commands.access.interface import Reason
from riverbed.server.commands.access.selector import WRITE, Denial
from riverbed.server.commands.clients.client_line import describe
from riverbed.server.commands.dispatch import find_command
from riverbed.server.commands.table import COMMANDS
from riverbed.server.errors import CommandError

if TYPE_CHECKING:
    from riverbed.server.commands.access.user import User
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.table import Command

NO_COMMAND: Final = b"NOPERM this user has no permissions to run the '%b' command"
NO_KEY: Final = b"NOPERM this user has no permissions to access one of the keys used as arguments"
NO_CHANNEL: Final = b"NOPERM this user has no permissions to access one of the channels used as arguments"


def denial_of(
    core: Core, session: Session, command: Command, argv: list[bytes], *, in_transaction: bool, is_noted: bool = False
) -> Denial | None:
    """Why the client's user may not send this request, noted for ACL LOG unless it is by now; None when it may."""
    if session.may_do_all:
        return None
    denial = cast("User", session.user).denies(command, argv)
    if denial is not None and not is_noted:
        note(core, session, denial, session.user.name, command, argv, in_transaction=in_transaction)
    return denial


def require_writing(request: Request, key: bytes) -> None:
    """Refuse a request that would have the server write to `key`, which no word of it names.

    Raises CommandError, noted for ACL LOG, when the client's user may not.
    """
    session = request.session
    if session.may_do_all or request.from_log:  # the log's session is of no user
        return
    user = cast("User", session.user)
    if user.allows_key(key, WRITE):
        return
    denial, command = Denial(Reason.KEY, key), find_command(request.argv)
    assert command is not None, "it runs"
    note(request.context, session, denial, user.name, command, request.argv)
    raise CommandError(NO_KEY)


def text_of(denial: Denial) -> bytes:
    if denial.reason is Reason.COMMAND:
        return NO_COMMAND % denial.what
    return NO_KEY if denial.reason is Reason.KEY else NO_CHANNEL


def note(
    core: Core,
    session: Session,
    denial: Denial,
    user: bytes,
    command: Command,
    argv: list[bytes],
    *,
    in_transaction: bool = False,
) -> None:
    """Note a refusal for ACL LOG."""
    now_ms = core.now_ms()
    client = describe(session, now_ms, argv, command.full_name, in_transaction=in_transaction).rstrip(b"\n")
    most = core.config.acllog_max_len
    core.denials.note(denial.reason, denial.what, user, client, now_ms, in_transaction=in_transaction, most=most)


def apply_user(request: Request, user: User) -> None:
    """Apply what `user` may do by now to its clients: to their next request, their wait, their subscriptions."""
    context = request.context
    for session in list(context.sessions.values()):
        if session.user is not user:
            continue
        session.be(user)
        if user.lets_everybody_in and not session.authenticated:  # as Redis does by checking at each command
            session.authenticate(True)
        if not _may_listen(session):
            request.kill(session)
        elif session.blocked is not None and (command := find_command(session.blocked.argv)) is not None:
            denial = denial_of(context, session, command, session.blocked.argv, in_transaction=False)
            if denial is not None:
                context.control.refuse(session, CommandError(text_of(denial)))


def _may_listen(session: Session) -> bool:
    """Whether its user may receive what it is subscribed to, and as a monitor what all clients send."""
    subscriptions, user = session.subscriptions, cast("User", session.user)
    if session.is_monitor and user.denies(COMMANDS[b"MONITOR"], [b"MONITOR"]) is not None:
        return False
    return (
        all(map(user.allows_channel, subscriptions.channels))
        and all(map(user.allows_channel, subscriptions.shard_channels))
        and all(user.allows_channel(each, is_pattern=True) for each in subscriptions.patterns)
    )


def cut_off(request: Request, user: User) -> None:
    """Close the connections of a user that exists no more."""
    for session in list(request.context.sessions.values()):
        if session.user is user:
            request.kill(session)
