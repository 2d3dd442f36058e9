"""What every subcommand shows: exit statuses, errors, bars for long work, text that no terminal obeys."""

from __future__ import annotations
