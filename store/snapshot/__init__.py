"""Writes, opens, verifies and restores snapshots: compact copies of the tables that never change, with a manifest.

Read `reader` first.
"""

from __future__ import annotations
