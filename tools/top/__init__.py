"""`riverbed top`: samples of a server, rates between them, and how they are shown."""

from __future__ import annotations
