"""Snapshots: frozen, compact copies of the tables with a manifest, written, opened, verified and restored.

Read `reader` first.
"""

from __future__ import annotations
