"""Decimal numbers from outside, of any length.

`int` raises an exception of its own for more than 4,300 digits, and the time it takes grows with their square.
"""

from __future__ import annotations

from typing import Final

_MAX_DIGITS: Final = 40
# Stands for all numbers of more digits.  It is above every bound.
TOO_LARGE: Final = 10**_MAX_DIGITS


def parse_digits(digits: str | bytes) -> int:
    """The number that `digits` spell, which must be decimal digits and no sign; TOO_LARGE for a larger one."""
    if len(digits) > _MAX_DIGITS:
        digits = digits.lstrip("0") if isinstance(digits, str) else digits.lstrip(b"0")
    return int(digits or 0) if len(digits) <= _MAX_DIGITS else TOO_LARGE
