"""LMDB's data file below LMDB: which of its commits counts, whether its pages can be read, and what is read of it.

This package knows no table and no row.  Read `power_loss` first.
"""

from __future__ import annotations
