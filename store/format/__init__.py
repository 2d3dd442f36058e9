"""Every byte on the disk: pure functions between values and rows, keys and lines of the log.

No file is opened here.  `FORMAT.md` describes the same bytes; a test ties the two.  Read `rows` first.
"""

from __future__ import annotations
