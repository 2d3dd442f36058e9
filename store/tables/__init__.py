"""The LMDB environment and plain access to its tables: the write transaction that all requests share, read
transactions, ranges of rows, dead rows and their deletion, the state after a power cut.

This package knows no stream and no group; the packages above it do.  Read `environment` first, then `transaction`.
"""

from __future__ import annotations
