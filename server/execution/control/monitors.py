"""MONITOR: clients that are shown every command of all clients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from riverbed.server.commands.table import Command, Flag
from riverbed.server.protocol.replies import Push
from riverbed.store.format.text import quoted

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.gate import Gate


class Monitors:
    """The monitors of one server."""

    def __init__(self, core: Core, gate: Gate, push: Callable[[Session, Push], None]) -> None:
        self._clock = core.clock
        self._gate = gate
        self._push = push
        self._sessions: list[Session] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session) -> None:
        if session not in self._sessions:
            self._sessions.append(session)
            self._changed(session, True)

    def forget(self, session: Session) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            self._changed(session, False)

    def _changed(self, session: Session, on: bool) -> None:
        session.is_monitor = on
        session.refresh()
        self._gate.is_monitored = bool(self._sessions)
        self._gate.refresh()

    def feed(self, session: Session, command: Command, argv: list[bytes]) -> None:
        """Show a command that has run to every monitor, without its secrets.  Redis hides administration as well."""
        if command.flags & (Flag.SKIP_MONITOR | Flag.ADMIN):
            return
        words = " ".join(map(quoted, command.shown(argv))).encode()
        now, place = self._clock.time(), os.fsencode(session.peer.address)
        line = Push(b"+%.6f [%d %b] %b\r\n" % (now, session.db.number, place, words))
        for monitor in self._sessions:
            self._push(monitor, line)
