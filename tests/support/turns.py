"""Turns of the loop that do not depend on how fast the machine is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from riverbed.server import glob
from riverbed.server.execution.control import transactions


@contextlib.contextmanager
def turns_of_any_length() -> Iterator[None]:
    """No turn ends because the processor is slow: what runs again with the same seed has the same ticks then."""
    with patch.object(transactions, "TURN_NS", 1 << 62), patch.object(glob, "_STEP_S", float("inf")):
        yield
