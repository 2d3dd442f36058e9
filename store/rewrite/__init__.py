"""From tables to a log: the state as the shortest list of canonical commands.

Read `state` first; `log_from_tables` makes a log of tables that have none.
"""

from __future__ import annotations
