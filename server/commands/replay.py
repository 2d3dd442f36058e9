"""Runs logged commands through the handlers that clients use, for recovery and offline tools."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from riverbed.server.commands import load_commands
from riverbed.server.commands.dispatch import find_command
from riverbed.server.commands.request import Request
from riverbed.server.commands.session import Session
from riverbed.server.commands.table import COMMANDS, Command, Flag
from riverbed.server.errors import CommandError
from riverbed.server.limits.accounts import Account, Accounts
from riverbed.store.errors import ReplayError

if TYPE_CHECKING:
    from riverbed.store.databases.database import Database
    from riverbed.store.databases.transaction import WriteTxn


class _NoPeer:
    """The peer of a log: it is never answered."""

    address = "log"
    local_address = "log"
    fd = -1

    def close_soon(self) -> None: ...

    def attend(self) -> None: ...

    def set_reading(self, on: bool) -> None: ...

    def read_small_pieces(self, on: bool) -> None: ...

    def abort(self) -> None: ...

    def has_hung_up(self) -> bool:
        return False

    def output_bytes(self) -> int:
        return 0


NO_PEER = _NoPeer()


def unconnected_session(db: Database) -> Session:
    """The session of a log, or of requests that no client has sent yet."""
    return Session(0, NO_PEER, Account(Accounts(), 0, NO_PEER, is_trusted=True), db, 0)


@cache
def _plain_writes() -> dict[bytes, Command]:
    """Commands that write and have no subcommands: this table, asked first, takes 0.8 us off a command."""
    return {
        name: command for name, command in COMMANDS.items() if command.flags & Flag.WRITE and not command.subcommands
    }


class Replayer:
    """Executes logged commands, for `store.recovery.replay` and offline tools.

    Our own log has the time of everything; in logs that Redis wrote, consumers have been seen at `now_ms`.
    """

    def __init__(self, now_ms: int = 0) -> None:
        load_commands()
        self._now_ms = now_ms
        self._request: Request | None = None
        self._commands = _plain_writes()

    def knows(self, words: list[bytes]) -> bool:
        """Whether this is a command that changes streams; a log of Redis may have others."""
        return self._find(words) is not None

    def _find(self, words: list[bytes]) -> Command | None:
        command = self._commands.get(words[0])
        if command is None:
            command = find_command(words)
            if command is not None and not command.flags & Flag.WRITE:
                return None
        return command

    def execute(self, txn: WriteTxn, db: Database, words: list[bytes]) -> None:
        """Run one command of the log on `db`.  Raises ReplayError when it does not fit the state."""
        request = self._request
        if request is None:
            session = unconnected_session(db)
            request = self._request = Request(session, txn)
            request.from_log = True
            request.now_ms = self._now_ms
            request.may_block = False
            request.room = None
        request.session.db = request.db = db
        request.argv = words
        command = self._find(words)
        if command is None or not command.accepts(len(words)):
            raise ReplayError(f"not a command that a log may hold: {words[0][:64]!r}")
        try:
            command.handler(request)
            txn.end_command()
        except CommandError as error:
            raise ReplayError(f"{command.full_name.decode()}: {error.text.decode(errors='replace')}") from error
