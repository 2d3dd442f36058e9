"""Jobs over snapshots, each a program for `spark-submit` and a subcommand of `riverbed spark`.

    export          writes entries to Parquet, by key and date; each run adds the new entries
    audit           reports stuck, poison and orphaned entries, and what holds streams back   pins
    rates           counts entries and bytes a minute, and the time between entries

    command         what all jobs share: options, snapshots, errors
    launch          starts Spark, or says why it cannot                                       progress
    page            a report as HTML                                                          outdir

A job runs in the driver and leaves the work to the data source.
"""
