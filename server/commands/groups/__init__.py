"""Commands on consumer groups: XGROUP, XREADGROUP, XACK, XCLAIM, XPENDING and their kin."""

from __future__ import annotations
