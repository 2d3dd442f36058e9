"""The moment at which a replay stops, as users write it: a time or a replication offset.

The forms are easy to distinguish: a bare number is an offset, a number after `@` a unix time, all else ISO 8601.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Final

# Twelve digits are milliseconds from 1973 on, and seconds from the year 5138 on.
_MILLISECOND_DIGITS: Final = 12
_OFFSET = re.compile(r"\d{1,20}", re.ASCII)
_UNIX_TIME = re.compile(r"@(\d{1,18})(?:\.(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything up to and including `time_ms`, or `offset`; exactly one of the two is set."""

    time_ms: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        if self.time_ms is None:
            return f"replication offset {self.offset}"
        return time_text(self.time_ms)


def parse_moment(text: str) -> Moment:
    """`900100`, `@1795257000`, `@1795257000123`, `2026-11-21T14:30:00Z`.  Raises ValueError with what is wrong.

    ISO 8601 without an offset from UTC is local time; a date alone is the start of that day.
    """
    text = text.strip()
    if _OFFSET.fullmatch(text):
        return Moment(offset=int(text))
    if text.startswith("@"):
        unix = _UNIX_TIME.fullmatch(text)
        if unix is None:
            raise ValueError(f"{text} is not @ and a unix time")
        whole, fraction = unix[1], unix[2] or ""
        if len(whole) >= _MILLISECOND_DIGITS:
            if fraction:
                raise ValueError(f"{text}: {_MILLISECOND_DIGITS} digits and more are milliseconds, without a fraction")
            return Moment(time_ms=int(whole))
        return Moment(time_ms=int(whole) * 1000 + int(fraction.ljust(3, "0")[:3]))
    try:
        parsed = dt.datetime.fromisoformat(text)
        # Whole milliseconds, by integers: a float would miss one now and then.
        seconds = int(parsed.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(
            f"{text} is neither a time (2026-11-21T14:30:00Z, @1795257000) nor a replication offset (900100)"
        ) from error
    time_ms = seconds * 1000 + parsed.microsecond // 1000
    if time_ms < 0:
        raise ValueError(f"{text} is before 1970")
    return Moment(time_ms=time_ms)


def time_text(time_ms: int) -> str:
    """`2026-11-21T14:30:00.123Z`, a form that `parse_moment` takes."""
    try:
        moment = dt.datetime.fromtimestamp(time_ms // 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return f"@{time_ms}"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
