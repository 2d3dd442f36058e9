"""The parts of the log that is appended to, which `append_log.py` puts together.

Knows no damage: what is read, and when it is sound, is the readers' affair.  Read `writer` first; `condition` is what
all of them share.
"""

from __future__ import annotations
