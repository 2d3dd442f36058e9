"""The consumer groups of one stream: groups, consumers and the list of pending entries.

This package knows no database and no other stream.  Read `group` first, then `acks` and `pending`.
"""

from __future__ import annotations
