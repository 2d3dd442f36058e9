"""What the server does between requests: maintenance, and work in processes of its own.

Read `checkpoints` and `maintenance` first.
"""

from __future__ import annotations
