"""How Spark finds the data source: it looks for top-level modules called pyspark_* with a DefaultSource.

Installed at the top of site-packages (see pyproject.toml); for a source tree, put this file's folder's parent on the
path, or call `tools.spark.register(spark)`.
"""

from __future__ import annotations

from tools.spark.source import RiverbedSource


class DefaultSource(RiverbedSource):
    """`spark.read.format("riverbed")`, without a registration."""
