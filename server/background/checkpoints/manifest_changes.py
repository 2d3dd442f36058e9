"""Replaces the manifest of the log while clients are served: one at a time, in the thread of checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverbed.server.background.checkpoints.checkpoints import Checkpoints
    from riverbed.store.engine import Engine
    from riverbed.store.log.appending.replacement import Replacement


class ManifestChanges:
    """The changes of one log's manifest that are no checkpoint's; a checkpoint lists the next file of the log."""

    def __init__(self, engine: Engine, checkpoints: Checkpoints) -> None:
        self._engine = engine
        self._checkpoints = checkpoints
        self._changing = asyncio.Lock()  # held by the task that has the manifest replaced

    async def wait(self) -> None:
        """Wait while the manifest is being replaced: what changes it then waits in the loop."""
        async with self._changing:
            await self._wait_for_next_file()

    async def _wait_for_next_file(self) -> None:
        """Wait while a checkpoint lists the next file of the log."""
        while self._engine.log.listing.is_replacing:
            await self._checkpoints.wait_for_disk()

    async def make(self, begin: Callable[[], Replacement | None]) -> None:
        """Have the replacement that `begin` begins, if any, done while clients are served.

        Raises LogWriteError, and what `begin` raises.
        """
        async with self._changing:
            await self._wait_for_next_file()
            listing = self._engine.log.listing
            replacement = begin()
            if replacement is None:
                return
            try:
                await self._checkpoints.in_disk_thread("replacing the manifest of the log", replacement.run)
            finally:
                listing.complete(replacement)
