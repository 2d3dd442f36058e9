"""The stream store: tables, log, recovery.  Knows no server, no event loop and no Spark."""

from __future__ import annotations
