"""Every byte on the disk: pure functions that convert values to rows, keys and lines of the log, and back.

This folder opens no file.  `FORMAT.md` describes the same bytes; a test ties the two.  Read `rows` first.
"""

from __future__ import annotations
