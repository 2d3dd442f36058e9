"""One stream: its entries, counters, trims and the records of idempotent producers.

Knows nothing of consumer groups.  Read `stream` first.
"""

from __future__ import annotations
