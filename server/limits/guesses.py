"""Wrong passwords: the server's log tells how many there were."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger("riverbed")

_REPORT_SECONDS: Final = 60


class WrongPasswords:
    """The wrong passwords that clients have given."""

    def __init__(self) -> None:
        self._unreported = 0
        self._reported_s: float | None = None

    def note(self, address: str, now_s: float) -> None:
        """Note one that came from `address`; at most one line a minute goes into the log."""
        self._unreported += 1
        if self._reported_s is None or now_s - self._reported_s >= _REPORT_SECONDS:
            log.warning("%d wrong passwords since the last such line; the last one from %s", self._unreported, address)
            self._unreported, self._reported_s = 0, now_s
