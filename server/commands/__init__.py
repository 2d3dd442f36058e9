"""One module for each family of commands; every one of them declares rows of `table.COMMANDS`."""

from __future__ import annotations
