"""Which process works where: locks on directories, and leases that show whether another process has a file open."""

from __future__ import annotations
