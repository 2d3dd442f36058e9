"""The output of every subcommand: exit statuses, errors, progress bars, text without terminal escapes."""

from __future__ import annotations
