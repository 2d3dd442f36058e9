"""One file of the log, read from any batch on.

Knows no other file and no manifest's order.  Read `part_reader` first; `reader` chooses between the two kinds of files.
"""

from __future__ import annotations
