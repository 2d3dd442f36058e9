"""Views of the tables for long replies: a bounded number, shared by all replies that begin between two changes.

A view keeps freed pages of the tables from being used again and takes slots of LMDB's, so there are at most MAX_VIEWS.
As long as there are few, a new one is made at once.  With more of them the commands that wait are gathered for a second
and share the next view, so that only clients that read slowly and for long meet the bound.

        XRANGE (long) ──> wait ──> [ nothing changed, a view is open ]  share it
                                   [ changed ]  commit the tables, the disk catches up later; open one
                                   [ the disk is busy, or there are too many ]  wait on
                                   [ no checkpoint can be made ]  one of the open transaction, for this turn alone

`execution/sliced_commands.py` keeps the commands that wait.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.store.tables.view import OpenView, View

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.store.engine import Engine

log = logging.getLogger("riverbed")

MAX_VIEWS: Final = 64
# With so many open the next one is not made before GATHER_S have passed.
FEW_VIEWS: Final = 16
GATHER_S: Final = 1.0


class Views:
    """The views of one server."""

    # Begins a checkpoint, or has one begin when the disk has the one before; -> whether it was tried now.
    checkpoint_soon: Callable[[], bool]  # set by the assembly

    def __init__(self, engine: Engine, monotonic: Callable[[], float], changed: Callable[[], None]) -> None:
        """`changed` is called when there may be a view although there was none before."""
        self.open_count = 0
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._monotonic = monotonic
        self._changed = changed
        self._latest: View | None = None
        self._latest_s = 0.0
        self._is_gathering = False

    @property
    def is_full(self) -> bool:
        """Whether there are as many views as there may be."""
        return self.open_count >= MAX_VIEWS

    def take(self) -> View | None:
        """A view of the tables as they are now, which the caller releases, or None when there is none yet.

        To be called between ticks.  Raises lmdb.Error when none can be made.
        """
        return self._share() or self._make()

    def _share(self) -> View | None:
        view, engine = self._latest, self._engine
        if view is None or view.tables is not engine.tables or engine.has_changes or not view.is_latest:
            return None
        return view.hold()

    def _make(self) -> View | None:
        engine = self._engine
        if self.is_full or self._must_gather():
            return None
        # a checkpoint that has failed is tried again every second, whether there are long replies or none
        if engine.has_changes and engine.checkpoints.last_ok and not self.checkpoint_soon():
            return None
        try:
            if engine.has_changes:
                return OpenView(engine.tables, engine.txn.lmdb)
            view = View(engine.tables, self._closed)
        except lmdb.Error as error:
            log.warning("no view of the tables for long replies: %s", error)
            raise
        self.open_count += 1
        self._latest, self._latest_s = view, self._monotonic()
        return view

    def _must_gather(self) -> bool:
        wait_s = self._latest_s + GATHER_S - self._monotonic()
        if self.open_count < FEW_VIEWS or wait_s <= 0:
            return False
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_later(wait_s, self._gathered)
        return True

    def _gathered(self) -> None:
        self._is_gathering = False
        self._changed()

    def _closed(self, view: View) -> None:
        self.open_count -= 1
        if view is self._latest:
            self._latest = None
        self._changed()
