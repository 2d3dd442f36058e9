"""The modules that the server starts as processes of their own, by name: it imports nothing that only they need."""

from __future__ import annotations

from typing import Final

REPAIR: Final = "riverbed.server.background.integrity.repair_worker"
REWRITE: Final = "riverbed.server.background.rewrite_worker"
SCRUB: Final = "riverbed.server.background.integrity.scrub_worker"
SNAPSHOT: Final = "riverbed.server.background.snapshot_worker"
# Of the tools, which stand above the server, with libraries that the server does without.
COLUMNS: Final = "riverbed.tools.sidecar.worker"
