"""`readStream`: the entries that were added since the last batch."""

from __future__ import annotations
