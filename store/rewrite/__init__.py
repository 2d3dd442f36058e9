"""Writes the state in the tables as the shortest list of canonical commands.

Read `state` first; `log_from_tables` makes a log for tables that have none.
"""

from __future__ import annotations
