"""One module for each family of commands; every one of them declares rows of `table.COMMANDS`."""

from __future__ import annotations

import importlib
import pkgutil


def load_commands() -> None:
    """Import every family, so that the table is complete."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
