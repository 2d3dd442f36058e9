"""Closes the environments of LMDB that a test leaves open, in the thread that opened them.

The C library lists the locks of write transactions by the thread that took them.  The garbage collector runs in any
thread: when it frees an open store elsewhere, the lock stays in the list, although its memory is unmapped, and the next
write transaction that begins or ends is a segmentation fault.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Final

import lmdb

_opened: Final[list[tuple[int, weakref.ref[lmdb.Environment]]]] = []
_open: Final = lmdb.open


def _noted(*args: Any, **options: Any) -> lmdb.Environment:
    env = _open(*args, **options)
    if not options.get("readonly"):  # those that only read lock nothing, and some stay open on purpose
        _opened.append((threading.get_ident(), weakref.ref(env)))
    return env


def watch() -> None:
    """Note from now on what `lmdb.open` opens."""
    lmdb.open = _noted  # type: ignore[assignment]


@contextlib.contextmanager
def closed_at_the_end() -> Iterator[None]:
    """Close what this thread has opened since and has not closed."""
    before = len(_opened)
    try:
        yield
    finally:
        since = _opened[before:]
        del _opened[before:]
        for thread, reference in since:
            env = reference()
            if env is not None and thread == threading.get_ident():
                env.close()
