"""Whether the log takes appends, and why not: one answer for all that write the log or its manifest."""

from __future__ import annotations

from typing import Final

from riverbed.store.errors import LogWriteError

UNREAD: Final = "the log was not read to its end yet"
UNCUT: Final = "the log has a torn tail that was not cut off yet"
CLOSED: Final = "the log is closed"


class Condition:
    """The condition of one log: unread at first, then sound until it is closed or breaks."""

    def __init__(self) -> None:
        self.refusal: str | None = UNREAD  # why nothing may be appended now; None when it may
        self.broken = False

    def break_log(self, reason: str, cause: Exception | None = None) -> LogWriteError:
        """Have nothing written any more until the server starts again; -> the error to raise."""
        self.broken = True
        self.refusal = reason
        return caused(LogWriteError(reason), cause)


def caused(error: LogWriteError, cause: Exception | None) -> LogWriteError:
    """The error as `raise error from cause` raises it: compiled modules would lose the cause."""
    error.__cause__ = cause
    return error
