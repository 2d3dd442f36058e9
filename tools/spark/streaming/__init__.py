"""`readStream`: what is new since the last batch."""

from __future__ import annotations
