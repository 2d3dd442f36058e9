"""`riverbed export`: entries as Parquet files, each once, over any number of runs.

Read `export` first, then `ledger`.
"""

from __future__ import annotations
