"""RESP in both directions: bytes to requests, replies to bytes.  Knows no socket, no clock and no command.

Read `request_reader` first, then `encode`.
"""

from __future__ import annotations
