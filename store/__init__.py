"""The stream store: tables, log, recovery.  This package knows no server, no event loop and no Spark."""

from __future__ import annotations
