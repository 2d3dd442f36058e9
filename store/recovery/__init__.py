"""From a log to tables: the log's tail after a checkpoint, or all of it.

Is handed the function that executes one command; knows none.  Read `replay` first.
"""

from __future__ import annotations
