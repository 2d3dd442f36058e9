"""Work that waits for the disk, done in a thread beside what the caller computes meanwhile.

A tool that writes gigabytes waits for the disk a third of its time, if it waits after each piece.  Reads, writes and
syncs need none of Python's lock, so that the two go on together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class WorkBeside:
    """Pieces of work, one at a time, each in a thread.  A context manager, which waits for the last one.

    Only one thread may use it.
    """

    def __init__(self, name: str) -> None:
        """`name` is what the thread is called."""
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Have `work` done, after the piece before, for which this waits.  Raises as `wait` does."""
        self.wait()

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._error = error

        # noted before it is started, as Ctrl-C may come in `start`: `end` has to wait for it all the same
        self._thread = threading.Thread(target=run, name=self._name)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread for us
            self._thread = None
            run()

    def wait(self) -> None:
        """Wait until all of the work is done.  Raises what a piece of it has raised, now and ever after."""
        self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Wait for the thread, whether its work fails or not."""
        if self._thread is not None:
            if self._thread.ident is not None:  # it was started
                self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
