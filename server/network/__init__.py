"""Sockets and signals: bind, accept, one connection for each client, stop in order.

Read `listener` first.
"""

from __future__ import annotations
