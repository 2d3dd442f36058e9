"""One stream: its entries, counters, trims and the records of idempotent producers.

This package knows no consumer groups.  Read `stream` first.
"""

from __future__ import annotations
