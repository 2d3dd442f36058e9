"""Check that the data keeps every promise of the store.  Reads tables and log, and yields each violation.

    state.py      pages of LMDB, meta, trash      keys.py, streams.py, groups.py, records.py    the rows
    log.py        manifest, checksums, framing    deep.py, comparison.py                        the log replayed into
    snapshots.py  the same for a snapshot                                                       tables, and compared

The check reads the last checkpoint and writes nothing.  The store may be stopped, or its server may be running.  Steps
are generators that yield after every few rows: violations are reported at once, and memory stays bounded.

Tables and log are each checked on their own and against each other: the position in the tables must exist in the log.
The deep check also executes the log up to that position, and compares everything that clients can see.

This package repairs nothing; `store.offline.repair` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from riverbed.store.check.deep import DeepCheck
from riverbed.store.check.findings import Contents, Meta, Violation
from riverbed.store.check.log import LogCheck
from riverbed.store.check.state import check_state
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.disk.locks.serving import is_served
from riverbed.store.disk.real_files import is_there
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, STATE_DIRECTORY
from riverbed.store.log.reader import TornTail
from riverbed.store.progress import Progress, ignore

__all__ = ["Check", "DeepCheck", "Violation", "check"]


def check(
    directory: Path,
    *,
    files: Files | None = None,
    deep_check: DeepCheck | None = None,
) -> Iterator[Violation]:
    """Yield every violation in the data of `directory`; nothing when the data is sound.

    Raises VersionError, and OSError when the directory cannot be read at all.
    """
    yield from Check(directory, files=files, deep_check=deep_check).violations()


class Check:
    """One check of a data directory.  `contents`, `meta` and `log` are valid once `violations` is exhausted."""

    def __init__(
        self,
        directory: Path,
        *,
        files: Files | None = None,
        steps: Progress = ignore,
        deep_check: DeepCheck | None = None,
        is_held: bool = False,
    ) -> None:
        """`is_held`: the caller has locked the directory, so no other process uses it."""
        self.directory = directory
        self.contents = Contents()
        self.meta: Meta | None = None
        self.log = LogCheck(directory / LOG_DIRECTORY, files or OsFiles(), lambda: not self.is_in_use(), steps)
        self.was_in_use = False  # a server was running at a moment when the check asked
        self._steps = steps
        self._deep_check = deep_check
        self._is_held = is_held

    @property
    def torn_tail(self) -> TornTail | None:
        """The bytes that a crash left after the last whole batch.  They are no violation: the next start cuts them."""
        return self.log.torn_tail

    @property
    def has_tables(self) -> bool:
        return is_there(self.directory / STATE_DIRECTORY / DATA_NAME)

    def is_in_use(self) -> bool:
        """Whether a server is running on the directory now."""
        if self._is_held:
            return False
        if not is_served(self.directory):
            return False
        self.was_in_use = True
        return True

    def violations(self) -> Iterator[Violation]:
        """Yield every violation as it is found.  Raises VersionError, OSError; SpaceError before executing the log."""
        if self.has_tables:
            for item in check_state(self.directory, lambda: not self.is_in_use(), self.contents, self._steps):
                if isinstance(item, Violation):
                    yield item
                else:
                    self.meta = item
        yield from self.log.violations(self.meta)
        if self._deep_check is not None:
            yield from self._deep_check.violations(self.directory, self.log, self.meta, self._steps)
