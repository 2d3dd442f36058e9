"""Read a running server over its protocol."""

from __future__ import annotations
