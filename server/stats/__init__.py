"""Counters, and what the operating system says of this process.  Decides nothing.

Read `stats` first.
"""

from __future__ import annotations
