"""The settings: the one list of them, their kinds, and the places they come from.

Read `settings` first.
"""

from __future__ import annotations
