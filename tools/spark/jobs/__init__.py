"""Jobs over snapshots, each a program for `spark-submit` and a subcommand of `riverbed spark`.

    export          entries to Parquet, by key and date, what is new at each run      ledger, hadoopfiles
    audit           who is stuck, poisoned or orphaned, and what holds streams back   findings, pins, auditpage
    rates           entries and bytes a minute, and the time between them             ratespage
    replay_check    two snapshots side by side                                        compare

    command         what all of them have in common: options, snapshots, ends
    launch          Spark itself, or why there is none                                progress
    page            Markdown and HTML                                                 charts

A job runs in the driver and leaves the work to the data source.
"""
