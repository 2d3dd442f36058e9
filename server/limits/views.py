"""Views of the tables for long replies: so many at a time, shared by all replies that begin between two changes.

A view keeps freed pages of the tables from being used again and takes slots of LMDB's, so there are at most MAX_VIEWS.
As long as there are few, a new one is made at once.  With more of them the commands that wait are gathered for a second
and share the next view, so that only clients that read slowly and for long meet the bound.  Commands get their views in
the order in which they asked.

        XRANGE (long) ──> wait ──> [ nothing changed, a view is open ]  share it
                                   [ changed ]  commit the tables, the disk catches up later; open one
                                   [ the disk is busy, or there are too many ]  wait on
                                   [ no checkpoint can be made ]  one of the open transaction, for this turn alone
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.store.tables.view import OpenView, View

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverbed.server.commands.session import Session
    from riverbed.server.execution.executor import Executor

log = logging.getLogger("riverbed")

MAX_VIEWS: Final = 64
# With so many open the next one is not made before GATHER_S have passed.
FEW_VIEWS: Final = 16
GATHER_S: Final = 1.0
NO_SLOT: Final = "ERR this reply needs a reader of the tables, and all of them are taken; try again later"


class Views:
    """The views of one executor, and the commands that wait for one."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._waiting: dict[Session, None] = {}
        self._open = 0
        self._latest: View | None = None
        self._latest_s = 0.0
        self._is_gathering = False

    def __bool__(self) -> bool:
        """A command waits for a view."""
        return bool(self._waiting)

    @property
    def waiting(self) -> Iterable[Session]:
        """Those whose commands wait, in order."""
        return self._waiting

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def open_count(self) -> int:
        return self._open

    @property
    def is_full(self) -> bool:
        """A command waits because there are as many views as there may be."""
        return bool(self._waiting) and self._open >= MAX_VIEWS

    def wait(self, session: Session) -> None:
        """The session's command under way goes on with a view."""
        self._waiting[session] = None
        self._executor.want_tick()

    def forget(self, session: Session) -> None:
        """It waits no longer."""
        self._waiting.pop(session, None)

    def take(self) -> tuple[View | None, list[Session]]:
        """-> (a view of the tables as they are now, the sessions that waited for it, in order), or (None, []).

        To be called between ticks.  The caller releases the view, and puts back the sessions that it had no time for.
        """
        view = self._share() or self._make()
        if view is None:
            return None, []
        waiting, self._waiting = list(self._waiting), {}
        return view, waiting

    def put_back(self, waiting: list[Session]) -> None:
        """There was no time for these; they are next."""
        if waiting:
            self._waiting = dict.fromkeys(waiting) | self._waiting
            self._executor.want_tick()

    def checkpointed(self) -> None:
        """The disk has caught up, or has failed to: what waited for that may go on."""
        if self._waiting:
            self._executor.want_tick()

    # -- where they come from ------------------------------------------------------------------------------------------

    def _share(self) -> View | None:
        view, engine = self._latest, self._executor.engine
        if view is None or view.tables is not engine.tables or engine.has_changes or not view.is_latest:
            return None
        return view.hold()

    def _make(self) -> View | None:
        executor = self._executor
        engine = executor.engine
        if self._open >= MAX_VIEWS or self._must_gather():
            return None
        # one that has failed is tried again every second, whether there are long replies or none
        if engine.has_changes and engine.last_checkpoint_ok and not executor.upkeep.checkpoint_soon():
            return None
        try:
            if engine.has_changes:
                return OpenView(engine.tables, engine.txn.lmdb)
            view = View(engine.tables, self._closed)
        except lmdb.Error as error:
            log.warning("no view of the tables for long replies: %s", error)
            self._refuse(NO_SLOT)
            return None
        self._open += 1
        self._latest, self._latest_s = view, executor.clock.monotonic()
        return view

    def _must_gather(self) -> bool:
        executor = self._executor
        wait_s = self._latest_s + GATHER_S - executor.clock.monotonic()
        if self._open < FEW_VIEWS or wait_s <= 0:
            return False
        if not self._is_gathering:
            self._is_gathering = True
            executor.loop.call_later(wait_s, self._gathered)
        return True

    def _gathered(self) -> None:
        self._is_gathering = False
        self.checkpointed()

    def _refuse(self, text: str) -> None:
        waiting, self._waiting = self._waiting, {}
        self._executor.slicing.refuse_views(waiting, text)

    def _closed(self, view: View) -> None:
        self._open -= 1
        if view is self._latest:
            self._latest = None
        self.checkpointed()
