"""Entries on their way into a store or a server."""

from __future__ import annotations
