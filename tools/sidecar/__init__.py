"""Parquet files beside the tables of a snapshot, for every reader of Parquet.

    segments    those of one stream, most of them from the snapshot before
    sidecar     all of them, and the manifest that lists them
    worker      the process that writes them for the server
    beside      the process that writes them while `riverbed snapshot` compares the rows of the snapshot

Needs pyarrow and numpy, which the server does not.
"""
