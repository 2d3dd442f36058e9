"""Logs, tables and entries as text for users and programs."""

from __future__ import annotations
