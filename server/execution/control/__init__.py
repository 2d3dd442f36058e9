"""What commands ask of the executor: transactions and watches, pauses, monitors, ends of waits and of connections.

Read `control` first.
"""

from __future__ import annotations
