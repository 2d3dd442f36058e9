"""The LMDB environment and plain access to its tables: read transactions, ranges of rows, dead rows and their deletion;
`writing/` has the write transaction that all requests share.  `data_file/` looks at LMDB's file without LMDB.

This package knows no stream and no group; the packages above it do.  Read `environment` first, then `writing`.
"""

from __future__ import annotations
