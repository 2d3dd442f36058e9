"""Reads snapshots with Spark: options, places, partitions, and rows as Arrow columns."""

from __future__ import annotations
