"""The server's sockets.

    addresses     bound before the store is opened, so that a port in use is found before anything is written

Knows nothing of commands.
"""

from __future__ import annotations
