"""Logs, tables and entries as text for people and programs."""

from __future__ import annotations
