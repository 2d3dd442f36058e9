"""The list of pending entries of one group: its rows, what changes them, and what is no row yet.

This package knows entries by their IDs and consumers by their numbers, and nothing else of streams and groups.  Read
`pel` first, then `runs`.
"""

from __future__ import annotations
