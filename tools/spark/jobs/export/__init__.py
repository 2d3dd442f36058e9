"""`riverbed spark export`: writes entries to Parquet files, each entry once, over any number of runs.

Read `export` first, then `ledger`.
"""

from __future__ import annotations
