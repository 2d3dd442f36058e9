"""Has writes wait for a slow disk, and logs how long they waited.  `checkpoints.py` knows when that is so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from riverbed.server.execution.control.pauses import Hold

if TYPE_CHECKING:
    from riverbed.server.execution.control.pauses import Pauses
    from riverbed.server.stats.stats import Stats

log = logging.getLogger("riverbed")

# A longer wait is logged.
LONG_S: Final = 1.0


class DiskHold:
    """The wait of one server's writes for its disk; `monotonic` gives seconds."""

    def __init__(self, stats: Stats, pauses: Pauses, monotonic: Callable[[], float]) -> None:
        self._stats = stats
        self._pauses = pauses
        self._monotonic = monotonic
        self._since_s: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether writes wait."""
        return self._since_s is not None

    def begin(self) -> None:
        """Have writes wait, until `end`."""
        if self._since_s is None:
            self._since_s = self._monotonic()
            self._stats.waits_for_disk += 1
            self._pauses.hold_writes(Hold.DISK)

    def end(self) -> None:
        """Let writes go on, if they wait."""
        if self._since_s is None:
            return
        waited_s, self._since_s = self._monotonic() - self._since_s, None
        if waited_s >= LONG_S:
            log.warning("the disk is slow: writes have waited %.1f s for it", waited_s)
        self._pauses.release_writes(Hold.DISK)
