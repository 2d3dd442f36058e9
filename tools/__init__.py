"""The command-line tool `riverbed`; `subcommands` has one file for each subcommand."""

from __future__ import annotations
