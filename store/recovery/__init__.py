"""Makes tables from a log: from the log's tail after a checkpoint, or from all of it.

The caller passes the function that executes a command; only `bulk_load` knows commands.  Read `replay` first.
"""

from __future__ import annotations
