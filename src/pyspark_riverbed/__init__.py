"""How Spark finds the data source: it looks for top-level modules called pyspark_* with a DefaultSource.

It is at the top of site-packages (see pyproject.toml).  For a source tree that is not installed, put the folder
`src` on the path, or call `spark.dataSource.register(riverbed.tools.spark.source.RiverbedSource)`.
"""

from __future__ import annotations

from riverbed.tools.spark.source import RiverbedSource


class DefaultSource(RiverbedSource):
    """`spark.read.format("riverbed")`, without a registration."""
