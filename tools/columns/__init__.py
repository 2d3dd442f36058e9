"""The entries of a store on disk as Arrow columns, for Spark and for readers without it.

    lengths, decode   rows of table `entries` to columns, many rows at once
    pages             leaf pages of a snapshot's file
    streams, fetch    ranges of streams, and their rows by the thousand
    convert           the bytes of fields to the types of a schema
    metadata          the columns of IDs and the map of fields
    groups            rows of streams, groups, consumers and pending entries
    projection        which columns a read has, and what type each field gets

Needs pyarrow and numpy, which the server does not: nothing that starts with `riverbed` imports it.
"""
