"""What a start changes beside the log before it has succeeded, and takes back when it fails.

A start that fails is tried again, or followed by a repair, and either is judged by what is there: an empty log beside
tables that hold something would be a log to believe, and tables that were begun in a directory that is refused would
be a store.  So a start looks before it writes, and what it has to write to be able to look is kept here:

    state/            made, with LMDB's files, where there was none
    state/data.mdb    the older of the two meta pages in the place of the newer, see `powercut.py`

The mark of a machine that stopped stays until the store is in service.  Where LMDB has committed something of what the
log holds, that stays: the tables are then further than they were, and as whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from store import powercut
from store.powercut import WentBack

# What is made in the folder of the tables by opening them.
_NAMES: Final = ("data.mdb", "lock.mdb", "in-use", "in-use.new")


class StartChanges:
    """A context manager around a start of the store whose tables are in `state`.

    A signal that ends the process while it starts is like a kill: nothing is taken back.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._had_state = state.exists()
        self._had = {name for name in _NAMES if (state / name).exists()}
        self._went_back: WentBack | None = None

    def resolve_doubt(self) -> None:
        """Let the tables be what can be trusted of them.  Raises OSError."""
        self._went_back = powercut.resolve_doubt(self._state)

    def __enter__(self) -> StartChanges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._take_back()

    def _take_back(self) -> None:
        """The error that counts is the one that the start failed with."""
        with contextlib.suppress(OSError):
            if self._went_back is not None:
                self._went_back.undo()
            for name in _NAMES:
                if name not in self._had:
                    (self._state / name).unlink(missing_ok=True)
            if not self._had_state and self._state.exists():
                self._state.rmdir()


@contextlib.contextmanager
def made_directory(directory: Path) -> Iterator[None]:
    """`directory` and what is missing above it, made; away again, as far as they are empty, when the body fails.

    Raises OSError.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except Exception:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()
        raise
