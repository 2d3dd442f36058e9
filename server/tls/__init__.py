"""TLS between a socket and the protocol that reads it, for clients, replicas, primaries and the metrics page.

`contexts.py` makes OpenSSL's contexts of the settings, `transport.py` is one connection, `handshakes.py` bounds those
that have not begun yet.  It knows no command, no client and no replica.  Read `transport.py` first.
"""

from __future__ import annotations
