"""How Spark finds the data source: it looks for top-level modules called pyspark_* with a DefaultSource.

Installed at the top of site-packages (see pyproject.toml).  For a source tree, put the folder `tools/spark/lookup` on
the path, or call `spark.dataSource.register(tools.spark.source.RiverbedSource)`.
"""

from __future__ import annotations

from riverbed.tools.spark.source import RiverbedSource


class DefaultSource(RiverbedSource):
    """`spark.read.format("riverbed")`, without a registration."""
