"""What the functions of `native.c` do, in Python: the two are compared with each other, byte for byte.

A request is plain when it is an array of bulk strings with canonical lengths of at most nine digits, and whole.  The
two bytes behind a word may be any, as in Redis; in a log they are CR LF.  What is anything else, also an empty array,
is left to another reader.

Neighbours may become a `Run`, with which nothing is done but to copy pieces of the chunk: XADDs with every word closed
by CR LF, all numbers canonical and of 64 bits, lengths of nine digits at most

    XADD key [NOMKSTREAM] [MAXLEN | MINID [= | ~] threshold] * | ms-seq | ms field value ...
                                            with APPENDED, of any keys, as clients send it, also in lower case
    XADD key [MAXLEN = threshold] ms-seq field value ...
                                            with LOGGED, of any keys, as the log has them

If XACKs of one entry of one group of one stream are among the former, they become a `Mix`, and so do two such XACKs.
Clients' XCLAIMs of one entry with JUSTID that differ in their IDs alone become `Claims`, and their XRANGEs of one
entry, of any keys, `Ranges`:

    XRANGE key - | ms-seq | ms  + | ms-seq | ms  COUNT 1

    *7\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nv\r\n ...
    ^ start                        ^ id      ^ fields                ^ end

    words, ids          what all of them read and write
    runs, mixes, claims, ranges
                        requests that are neighbours
    requests, joins     bytes to requests; XADDs of several clients to one run
    tails               runs to rows, lines of the log and replies
    rows, values        rows of entries
    streams             rows of streams
    pending, pages      rows of pending entries, pages of the tables
"""

from __future__ import annotations

from riverbed.store.wire.reference.claims import Claims
from riverbed.store.wire.reference.ids import find_id, packed_id
from riverbed.store.wire.reference.joins import join, split_bulks
from riverbed.store.wire.reference.mixes import Mix
from riverbed.store.wire.reference.pages import find_deliveries, find_keys, measure_leaf
from riverbed.store.wire.reference.pending import change_runs, find_delivery, open_run, show_pending
from riverbed.store.wire.reference.ranges import Ranges
from riverbed.store.wire.reference.requests import parse, parse_front
from riverbed.store.wire.reference.rows import (
    log_entries,
    measure_entries,
    seal,
    unseal,
    unseal_in,
    unseal_one,
    unseal_pairs,
)
from riverbed.store.wire.reference.runs import Run
from riverbed.store.wire.reference.streams import open_stream, pack_stream
from riverbed.store.wire.reference.tails import (
    Tail,
    append,
    expand_one,
    keys_in_order,
    load,
    load_xadds,
    open_tail,
    open_tail_by_row,
    take_tails,
    unknown_keys,
)
from riverbed.store.wire.reference.values import find_values, gather

__all__ = [
    "Claims",
    "Mix",
    "Ranges",
    "Run",
    "Tail",
    "append",
    "change_runs",
    "expand_one",
    "find_deliveries",
    "find_delivery",
    "find_id",
    "find_keys",
    "find_values",
    "gather",
    "join",
    "keys_in_order",
    "load",
    "load_xadds",
    "log_entries",
    "measure_entries",
    "measure_leaf",
    "open_run",
    "open_stream",
    "open_tail",
    "open_tail_by_row",
    "pack_stream",
    "packed_id",
    "parse",
    "parse_front",
    "seal",
    "show_pending",
    "split_bulks",
    "take_tails",
    "unknown_keys",
    "unseal",
    "unseal_in",
    "unseal_one",
    "unseal_pairs",
]
