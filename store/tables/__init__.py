"""The LMDB environment and plain access to its tables: transactions for reading, ranges of rows, state after a power
cut.

Knows rows by table and key alone, not what they mean.  Read `environment` first.
"""

from __future__ import annotations
