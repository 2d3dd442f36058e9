"""The LMDB environment and plain access to its tables: the write transaction that all requests share, transactions for
reading, ranges of rows, dead rows and their deletion, state after a power cut.

Knows no stream and no group: what is made of the rows stands above.  Read `environment` first, then `transaction`.
"""

from __future__ import annotations
