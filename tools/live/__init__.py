"""A running server, asked over its protocol."""

from __future__ import annotations
