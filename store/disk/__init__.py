"""Files and directories as the operating system has them: durable writes, locks, places to work in.

Knows nothing of tables, logs or streams.  Read `files` first.
"""

from __future__ import annotations
