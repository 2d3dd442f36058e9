"""Why a store takes no writes."""

from __future__ import annotations

import enum
from typing import Final


class Refusal(enum.Enum):
    """Why writes are refused."""

    DISK_NEARLY_FULL = "the disk is nearly full"
    DISK_FULL = "the disk is full"
    LOG_FAILED = "the log could not be written or synced"
    TABLES_FAILED = "the tables could not be synced"


# The disk has failed, and what it holds of what was written last is not known.
UNTIL_A_RESTART: Final = frozenset((Refusal.LOG_FAILED, Refusal.TABLES_FAILED))
