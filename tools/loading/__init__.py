"""Write entries and copied streams into a store or a server."""

from __future__ import annotations
