"""The commands: each is a function that takes a request and returns a reply, declared in one table.

Knows no event loop and no socket, so that a replay needs no server.  Read `table` first, then `streams/streams`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def load_commands() -> None:
    """Import every family, so that the table is complete."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
