"""The LMDB environment and plain access to its tables: the write transaction that all requests share, read
transactions, ranges of rows, dead rows and their deletion.  `data_file/` looks at LMDB's file without LMDB.

This package knows no stream and no group; the packages above it do.  Read `environment` first, then `transaction`.
"""

from __future__ import annotations
