"""Riverbed in Spark: a data source over snapshots, and jobs on top of it.

    options      what a user may ask for, checked
    locations    paths, globs, folders and URIs to snapshots; a live store to a frozen copy
    cache        files on this machine's disk, fetched or frozen once
    plan         partitions, cut where the snapshot's manifest says
    columns      a schema to what must be read, and back to Arrow
    fetch        rows of entries, by thousands         pages                LMDB's pages, read without LMDB
    entries      rows of entries to batches            pending, groups      the other tables
    decode       RESP rows to Arrow                    convert              text to numbers, times and the rest
    streaming    what came since the last batch        offsets              how far that is
    source       what Spark calls                      lookup/              how Spark finds it by name
    garbage      of processes that are kept

    writer       what Spark calls to write             writeoptions         what a user may ask of it
    writerows    rows to entries                       writeidentity        their names, the same in every attempt
    writeserver  entries to a server                   writejournal         whether an attempt may still send
    writeload    entries to a new data directory

Nothing here talks to a server but the writer.
"""
