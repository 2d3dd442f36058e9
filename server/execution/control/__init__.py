"""What commands ask of the executor: transactions, pauses, monitors, ends of waits and of connections.

Read `control` first.
"""

from __future__ import annotations
