"""Work on a store that no server has open: compaction, retention, repair.

Read `compaction` first.
"""

from __future__ import annotations
