"""`riverbed top`: samples of a server, rates between them, and their display."""

from __future__ import annotations
