"""The clients that have sent something: whose turn it is, and what a tick waits for before it begins.

Read `request_queue` first.
"""

from __future__ import annotations
