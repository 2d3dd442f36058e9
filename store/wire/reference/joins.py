"""XADDs of several clients as one run, and each client's reply."""

from __future__ import annotations

from typing import Final

from riverbed.store.wire.interface import APPENDED
from riverbed.store.wire.reference.requests import parse
from riverbed.store.wire.reference.runs import Run
from riverbed.store.wire.reference.words import take_word

_MOST_CHUNKS: Final = 256


def join(chunks: list[bytes]) -> Run | None:
    """The XADDs that the chunks at the front are, one each; None when these are fewer than two."""
    count = 0
    for chunk in chunks[:_MOST_CHUNKS]:
        match parse(APPENDED, chunk):
            case [Run() as run] if len(run) == 1:
                count += 1
            case _:
                break
    if count < 2:
        return None
    match parse(APPENDED, b"".join(chunks[:count])):
        case [Run() as run]:
            return run
    raise AssertionError("so many whole XADDs are a run")


def split_bulks(bulks: bytes) -> list[bytes]:
    """Bulk strings, one behind the other, one by one.  ValueError when they are anything else."""
    split: list[bytes] = []
    at = 0
    while at < len(bulks):
        found = take_word(bulks, at, len(bulks))
        if found is None or bulks[found[1] - 2 : found[1]] != b"\r\n":
            raise ValueError("these are no bulk strings")
        split.append(bulks[at : found[1]])
        at = found[1]
    return split
