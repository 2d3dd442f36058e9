"""Ticks: requests run in order against one transaction, commit once, and release their replies.

Knows commands by their table, sessions by their state, and no socket.  Read `executor` first.
"""

from __future__ import annotations
