"""The append-only log: written one group commit at a time, read back in verified batches, followed as it grows.

Knows no table and no stream: a command is bytes.  Read `append_log` first, then `reader`.
"""

from __future__ import annotations
