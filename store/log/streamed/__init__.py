"""Batches of the log that come over a replication link, in any pieces, from a peer that is not trusted.

Knows no socket and no file of the log.  Read `batch` first, then `stream`.
"""
