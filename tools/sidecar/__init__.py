"""Parquet files beside the tables of a snapshot, for every reader of Parquet.

    segments    those of one stream, most of them from the snapshot before
    sidecar     all of them, and the manifest that lists them
    worker      the process that writes them for the server

Needs pyarrow and numpy, which the server does not.
"""
