"""Which Riverbed this is, and which Redis it behaves like."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"  # pyproject.toml reads it from here
REDIS_VERSION: Final = "8.8.0"  # reported to clients, so that they use the stream commands of this version
