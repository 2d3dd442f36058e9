"""Puts the rows that have changed into the tables, in turns, so that a checkpoint's commit finds few to write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverbed.store.engine import Engine

# Rows are put into the tables in turns of this length.
_TURN_S = 0.003


class RowsAhead:
    """The rows of one server's tables, ahead of the checkpoint that commits them.

    Rows may change as fast as they are written.  So between two turns a tick leaves fewer than there were before the
    first of them, and writes the others itself (`keep_pace`): there is an end to it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._most_parts: int | None = None  # that a tick may leave unwritten

    @property
    def is_under_way(self) -> bool:
        """Whether rows are being put into the tables, in turns that have not ended."""
        return self._most_parts is not None

    def begin(self) -> bool:
        """Begin, unless there are few rows; -> whether there are more."""
        parts = self._engine.txn.unwritten_parts
        if parts:
            self._most_parts = parts
        return bool(parts)

    def end(self) -> None:
        """Ask no more of the ticks, whatever is left."""
        self._most_parts = None

    def take_turn(self) -> bool:
        """Put rows into the tables for a while; -> whether there were only few, for the commit.

        Raises DamagedRowError, lmdb.Error.
        """
        engine, end = self._engine, self._loop.time() + _TURN_S
        found = engine.txn.unwritten_parts
        if not found:
            return True
        self._most_parts = found - 1
        while engine.txn.unwritten_parts:
            engine.write_part()
            if self._loop.time() >= end:
                break
        return False

    async def take_all(self) -> None:
        """Take turns, until a checkpoint that begins now has few rows to write.  Raises as `take_turn`."""
        try:
            while True:
                if self.take_turn():
                    return
                await asyncio.sleep(0)
        finally:
            self.end()

    def keep_pace(self) -> None:
        """Put rows into the tables as far as this tick has left too many of them.  Raises as `take_turn`."""
        assert self._most_parts is not None
        while self._engine.txn.unwritten_parts > self._most_parts:
            self._engine.write_part()
