"""Puts the store of a full sync in the place of ours, in one turn of the loop and between two ticks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from riverbed.store.exchange import adopt, exchange_tables

if TYPE_CHECKING:
    from riverbed.server.background.log_rewrite import Rewriting
    from riverbed.server.commands.core import Core
    from riverbed.server.execution.blocking import Blocking
    from riverbed.server.execution.sliced_commands import SlicedCommands


class Replacement:
    """Replaces the store of one server, also for the parts that work with rows of its tables."""

    def __init__(self, core: Core, sliced_commands: SlicedCommands, blocking: Blocking, rewriting: Rewriting) -> None:
        self._core = core
        self._sliced_commands = sliced_commands
        self._blocking = blocking
        self._rewriting = rewriting

    def adopt(self, directory: Path) -> None:
        """Use the log and the tables in `directory` from now on.  Raises StateLostError, LogWriteError."""
        self._rewriting.abandon()
        self._cut_off_readers()
        adopt(self._core.engine, directory)
        self._change_all_keys()
        self._bound_written_offsets()

    def exchange_tables(self, made: Path, put_aside: Path) -> None:
        """Use the tables in `made`, which hold the same, in the place of ours.  Raises StateLostError."""
        self._cut_off_readers()
        exchange_tables(self._core.engine, made, put_aside)

    def _cut_off_readers(self) -> None:
        """Cut off clients that are reading the old store: they cannot go on."""
        for session in list(self._core.sessions.values()):
            if session.long_reply is not None or session.is_sliced:
                session.end_long_reply()
                self._sliced_commands.drop(session)
                session.abort()

    def _change_all_keys(self) -> None:
        """Treat every key as changed, for clients that watch it or wait for it."""
        for session in self._core.sessions.values():
            session.transaction.watch_broken = bool(session.transaction.watched) or session.transaction.watch_broken
            if session.blocked is not None:
                self._blocking.signals += [(session.db, key) for key in session.blocked.keys]
        self._blocking.serve_soon()

    def _bound_written_offsets(self) -> None:
        """Have no client wait until a shorter log is as long as the old one was when the client wrote to that."""
        end = self._core.engine.log.end.offset
        for session in self._core.sessions.values():
            session.written_offset = min(session.written_offset, end)

    def clear_up(self) -> None:
        """Delete the files that the log needs no more."""
        self._rewriting.remove_leftovers()
