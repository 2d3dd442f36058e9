"""Writes data frames to a running server, each row once, or into a new data directory."""

from __future__ import annotations
