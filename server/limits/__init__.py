"""Counts and bounds what clients hold: bytes read and not answered, and views of the tables.

Knows no command and no socket.  Read `accounts` first.
"""

from __future__ import annotations
