"""Jobs over snapshots, each a program for `spark-submit` and a subcommand of `riverbed spark`.

    export          entries to Parquet, by key and date, what is new at each run
    audit           who is stuck, poisoned or orphaned, and what holds streams back   pins
    rates           entries and bytes a minute, and the time between them

    command         what all of them have in common: options, snapshots, ends
    launch          Spark itself, or why there is none                                progress
    page            a report as HTML                                                  outdir

A job runs in the driver and leaves the work to the data source.
"""
