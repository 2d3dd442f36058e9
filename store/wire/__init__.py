"""Requests and runs of XADD, cut out of their own bytes; a run then becomes rows, log lines and replies.

    parse, parse_front    bytes -> requests: lists of words, and runs in the place of neighbouring XADDs, mixes in that
                          of XADDs and XACKs, claims in that of XCLAIMs, or ranges in that of XRANGEs
    join, split_bulks     XADDs of several clients -> a run; its replies -> one by one
    append, open_tail     a run of any keys, and what each stream takes -> rows, what the log is given, replies
    open_tail_by_row      the row of a stream -> what it takes, and then its row again
    unknown_keys          a run of any keys -> those of streams that have nothing to take them
    take_tails            what such streams were given -> rows, and the rows of the streams
    keys_in_order         such streams -> their keys, in the order of their rows
    open_stream           such a row -> its values
    pack_stream           the values -> a row
    load                  the same for a run out of a log -> rows
    expand_one            the same for a single entry
    load_xadds            a run out of a log -> rows
    log_entries           rows -> XADDs
    measure_entries       rows -> their sizes, and those that we would not have written
    measure_leaf          a page of the tables -> how many plain rows it has
    find_keys             the file of the tables, and keys -> which of them a table has
    find_deliveries       the same, and IDs of pending entries -> owner, time and count of each
    seal, unseal          rows of entries with their checksum behind them, and without
    packed_id             an ID as text -> its bytes in keys
    find_id               where an ID is among others
    find_values, gather   rows of entries -> where their values are; pieces of a buffer -> a column of Arrow
    show_pending          rows of pending entries -> what XPENDING answers
    open_run              such a row -> its owner, time, count and IDs
    find_delivery         such a row -> its owner, time and count, if it has an ID
    change_runs           rows of pending entries, and which entries change -> the rows in their place

They exist twice: `reference/` says in Python what each function does, `native.c` does the same fast.  The native
module is used where it was built from this source, and RIVERBED_NATIVE=0 in the environment asks for the reference.
Knows no node rule, no limit, no time, no file, and nothing of those who use it.  Read `reference/` first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from riverbed.store.wire.interface import APPENDED, INTERFACE, LOGGED, NO_RUNS, SEAL_BYTES, SEAL_MARK

__all__ = [
    "APPENDED",
    "IS_NATIVE",
    "LOGGED",
    "NO_RUNS",
    "SEAL_BYTES",
    "SEAL_MARK",
    "Claims",
    "LoggedRequest",
    "LoggedRequests",
    "Mix",
    "Neighbours",
    "Ranges",
    "Request",
    "Requests",
    "Run",
    "Tail",
    "append",
    "behind",
    "change_runs",
    "count_of",
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
    "words_of",
]


def _has_native() -> bool:
    if os.environ.get("RIVERBED_NATIVE") == "0":
        return False
    try:
        from riverbed.store.wire.native import INTERFACE as BUILT
    except ImportError:
        return False
    return BUILT == INTERFACE


IS_NATIVE: Final = _has_native()

if TYPE_CHECKING or IS_NATIVE:
    from riverbed.store.wire.native import (
        Claims,
        Mix,
        Ranges,
        Run,
        Tail,
        append,
        change_runs,
        expand_one,
        find_deliveries,
        find_delivery,
        find_id,
        find_keys,
        find_values,
        gather,
        join,
        keys_in_order,
        load,
        load_xadds,
        log_entries,
        measure_entries,
        measure_leaf,
        open_run,
        open_stream,
        open_tail,
        open_tail_by_row,
        pack_stream,
        packed_id,
        parse,
        parse_front,
        seal,
        show_pending,
        split_bulks,
        take_tails,
        unknown_keys,
        unseal,
        unseal_in,
        unseal_one,
        unseal_pairs,
    )
else:
    from riverbed.store.wire.reference import (
        Claims,
        Mix,
        Ranges,
        Run,
        Tail,
        append,
        change_runs,
        expand_one,
        find_deliveries,
        find_delivery,
        find_id,
        find_keys,
        find_values,
        gather,
        join,
        keys_in_order,
        load,
        load_xadds,
        log_entries,
        measure_entries,
        measure_leaf,
        open_run,
        open_stream,
        open_tail,
        open_tail_by_row,
        pack_stream,
        packed_id,
        parse,
        parse_front,
        seal,
        show_pending,
        split_bulks,
        take_tails,
        unknown_keys,
        unseal,
        unseal_in,
        unseal_one,
        unseal_pairs,
    )

LoggedRequest = list[bytes] | Run
LoggedRequests = list[LoggedRequest]
# Requests that are neighbours, and stand in the place of one.
Neighbours = Run | Mix | Claims | Ranges
Request = LoggedRequest | Mix | Claims | Ranges
Requests = list[Request]


def count_of(requests: Sequence[Request]) -> int:
    """How many requests these are, those of runs among them."""
    return sum([1 if isinstance(one, list) else len(one) for one in requests])


def behind(run: Neighbours, done: int) -> Requests:
    """The request behind the first `done` of neighbours, by itself, and what is left of them."""
    if isinstance(run, Mix):
        return [*run.requests(done)]
    left: Requests = [run.request(done)]
    if done + 1 < len(run):
        left.append(run.rest(done + 1))
    return left


def words_of(requests: Sequence[Request]) -> list[list[bytes]]:
    """The requests as lists of words, those of runs as well."""
    return [words for one in requests for words in ([one] if isinstance(one, list) else one.requests())]
