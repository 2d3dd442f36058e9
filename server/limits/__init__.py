"""What clients hold and how much of it they may: bytes read and not answered, and views of the tables.

Knows no command and no socket.  Read `accounts` first.
"""

from __future__ import annotations
