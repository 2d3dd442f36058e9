"""Turns of those that read in slices: a few slices in a turn of the loop for all of them, and then the clients'."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from riverbed.server.background.tasks import Tasks

# Of a quarter of a megabyte each, for all readers together.
SLICES_A_TURN: Final = 4


class Reader(Protocol):
    """One of those that take turns, such as the sender of one replica."""

    def take_turn(self) -> None: ...

    def give_up(self, error: Exception) -> None: ...


class SharedTurns:
    """The readers of one kind that something is to be read for."""

    def __init__(self, what: str, tasks: Tasks) -> None:
        """`what` they do, for the log."""
        self._what = what
        self._tasks = tasks
        self._waiting: deque[Reader] = deque()
        self._present: Reader | None = None  # whose turn is, or was last; None when nothing is to come

    def ask(self, reader: Reader) -> None:
        """Give `reader` a turn behind those that wait."""
        self._waiting.append(reader)
        if self._present is None:
            self._present = reader
            self._soon()

    def _soon(self) -> None:
        self._tasks.soon(self._what, self._take, failed=self._failed)

    def _take(self) -> None:
        for _ in range(SLICES_A_TURN):
            if not self._waiting:
                break
            self._present = self._waiting.popleft()
            self._present.take_turn()
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._soon()
        else:
            self._present = None

    def _failed(self, error: Exception) -> None:
        assert self._present is not None
        self._present.give_up(error)
        self._go_on()
