"""Commands for operators: CONFIG, INFO, SLOWLOG, LATENCY, REPLICAOF, RIVERBED and their kin."""

from __future__ import annotations
