"""One file for each subcommand of `riverbed`: its arguments and its report, nothing else."""

from __future__ import annotations
