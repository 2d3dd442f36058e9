"""The offline tools, one file for each subcommand of `riverbed`."""

from __future__ import annotations
