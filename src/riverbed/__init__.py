"""Riverbed, a persistent, log-structured stream store that speaks the Redis protocol.

`store`, `server` and `tools` are links to the folders of these names at the top of the repository.
"""

from __future__ import annotations
