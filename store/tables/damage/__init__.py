"""Looks for damage in the tables: around a place, and through all of them."""

from __future__ import annotations
