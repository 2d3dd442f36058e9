"""LMDB's data file, looked at without LMDB: which of its commits counts, and whether its pages can be read at all.

This package knows nothing of tables and rows.  Read `power_loss` first.
"""

from __future__ import annotations
