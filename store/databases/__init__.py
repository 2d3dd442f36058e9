"""The sixteen databases, with their cached streams and groups; sampling; the consumers' time to live.

Read `cache` first, which keeps the streams in memory, then `database` and `transaction`.
"""

from __future__ import annotations
