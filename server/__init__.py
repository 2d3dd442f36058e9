"""The server: sockets, the executor, and the commands over the store."""

from __future__ import annotations
