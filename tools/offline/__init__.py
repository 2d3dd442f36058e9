"""Logs, data directories and snapshots on this disk, used without a server."""

from __future__ import annotations
