"""Compares Riverbed with redis-server: one question a module, results in README.md.  `python -m benchmarks --help`."""

from __future__ import annotations
