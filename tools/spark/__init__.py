"""Riverbed in Spark: a data source over snapshots, and jobs on top of it.

    source       what Spark calls; the package `pyspark_riverbed` is how Spark finds it by name
    reading/     options, snapshots by path, partitions, and the rows of tables as Arrow batches
    streaming/   what came since the last batch, and how far that is
    writing/     rows to entries, and these to a server or a new data directory
    jobs/        programs on top of the data source
    errors       what users are shown
    garbage      of processes that are kept

Nothing here talks to a server but the writer.
"""
