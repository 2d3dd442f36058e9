"""Lines of the server's log about what clients do or meet: at most one a minute, however often that is."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger("riverbed")

_REPORT_SECONDS: Final = 60


class RareLine:
    """One kind of line; `text` has a %d, how often it happened since the last line, and a %s, details of the last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._unreported = 0
        self._reported_s: float | None = None

    def note(self, details: str, now_s: float) -> None:
        """Note that it has happened."""
        self._unreported += 1
        if self._reported_s is None or now_s - self._reported_s >= _REPORT_SECONDS:
            log.warning(self._text, self._unreported, details)
            self._unreported, self._reported_s = 0, now_s
