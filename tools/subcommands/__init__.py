"""One file for each subcommand of `riverbed`: arguments and report, nothing else."""

from __future__ import annotations
