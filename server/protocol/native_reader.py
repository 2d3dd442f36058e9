"""Reads whole requests with the native module of `store/wire`; neighbouring XADDs of one stream become runs.

Unlike hiredis, the module allocates nothing for bytes that have not arrived, says how much it took, and takes nothing
but arrays of bulk strings.  So it may be given any bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.store.wire import APPENDED, parse, parse_front

if TYPE_CHECKING:
    from riverbed.store.wire import Requests

# Given a type: of a log, they return no mixes.
_parse: Callable[[int, bytes], Requests | None] = parse
_parse_front: Callable[[int, bytes, Requests], int] = parse_front


class NativeReader:
    """Takes requests that are arrays of bulk strings and stand whole in their chunk; knows no limits.

    `take_chunk(data)`: the requests of a chunk that is nothing but whole plain requests, None for any other chunk.
    `take_front(data, requests)`: append the requests at the front of `data`; return how many bytes they are.
    Both are C functions, called without a Python function in between.
    """

    __slots__ = ()

    makes_runs: Final = True
    take_chunk: Final = staticmethod(partial(_parse, APPENDED))
    take_front: Final = staticmethod(partial(_parse_front, APPENDED))
