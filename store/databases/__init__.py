"""The sixteen databases and the write transaction that all requests share; dead rows, sampling, consumers' time to
live.

Read `transaction` first, then `database`.
"""

from __future__ import annotations
