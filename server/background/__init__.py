"""What the server does between requests: maintenance, and work in processes of its own.

Read `maintenance` first.
"""

from __future__ import annotations
