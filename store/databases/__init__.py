"""The sixteen databases, with their cached streams and groups; sampling; the consumers' time to live.

Read `database` first, then `transaction`.
"""

from __future__ import annotations
