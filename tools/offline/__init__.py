"""Files on this disk: logs, data directories and snapshots without a server."""

from __future__ import annotations
