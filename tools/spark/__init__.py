"""Riverbed in Spark: a data source over snapshots, and jobs on top of it.

    source       what Spark calls; the package `pyspark_riverbed` is how Spark finds it by name
    reading/     the batch reader: options, snapshots by path, partitions, and the rows of tables as Arrow batches
    streaming/   entries added since the last batch, and the offsets of batches
    writing/     rows to entries, and entries to a server or a new data directory
    jobs/        programs on top of the data source
    columns      a stream over the Parquet files of a snapshot
    errors       errors that Spark shows to users
    garbage      fewer walks of Python's garbage collector

Only the writer talks to a server.
"""
