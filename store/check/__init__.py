"""Does the data keep every promise of the store?  Goes through tables and log, and yields what is broken.

    state.py      pages of LMDB, meta, trash      keys.py, streams.py, groups.py, records.py    the rows
    log.py        manifest, checksums, framing    deep.py, comparison.py                        the log made into tables
    snapshots.py  the same of a frozen copy                                                     again, and compared

What is checked is the last checkpoint, read only: of a store at rest, or beside its running server.  Steps are
generators that yield after every few rows, so that what they found goes out at once and memory stays bounded.

Each half is checked on its own, and each against the other: the position in the tables is a place in the log, and, if
asked for, the log is executed up to there and everything that clients can see is compared.

Knows no way to mend anything; `store.offline.repair` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from riverbed.store.check.deep import Refolding
from riverbed.store.check.findings import Contents, Meta, Violation
from riverbed.store.check.log import LogCheck
from riverbed.store.check.state import check_state
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.disk.serving import is_served
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, STATE_DIRECTORY
from riverbed.store.log.reader import TornTail
from riverbed.store.progress import Progress, ignore

__all__ = ["Check", "Refolding", "Violation", "check"]


def check(
    directory: Path,
    *,
    files: Files | None = None,
    refolding: Refolding | None = None,
) -> Iterator[Violation]:
    """Yield every promise that the data in `directory` breaks; nothing when it is sound.

    Raises VersionError, and OSError when it cannot be read at all.
    """
    yield from Check(directory, files=files, refolding=refolding).violations()


class Check:
    """One look at a data directory.  What is known once `violations` is exhausted: `contents`, `meta`, `log`."""

    def __init__(
        self,
        directory: Path,
        *,
        files: Files | None = None,
        steps: Progress = ignore,
        refolding: Refolding | None = None,
        is_held: bool = False,
    ) -> None:
        """`is_held`: the caller holds the directory, so that no other process uses it."""
        self.directory = directory
        self.contents = Contents()
        self.meta: Meta | None = None
        self.log = LogCheck(directory / LOG_DIRECTORY, files or OsFiles(), lambda: not self.is_in_use(), steps)
        self.was_in_use = False  # a server was running at some moment when that mattered
        self._steps = steps
        self._refolding = refolding
        self._is_held = is_held

    @property
    def torn_tail(self) -> TornTail | None:
        """What a crash has left behind the last whole batch; nothing that is broken, and the next start cuts it off."""
        return self.log.torn_tail

    @property
    def has_tables(self) -> bool:
        return (self.directory / STATE_DIRECTORY / DATA_NAME).exists()

    def is_in_use(self) -> bool:
        """Whether a server is running on the directory at this moment."""
        if self._is_held:
            return False
        if not is_served(self.directory):
            return False
        self.was_in_use = True
        return True

    def violations(self) -> Iterator[Violation]:
        """Everything that is broken, as it is found.  Raises VersionError, OSError; SpaceError before a fold."""
        if self.has_tables:
            for item in check_state(self.directory, lambda: not self.is_in_use(), self.contents, self._steps):
                if isinstance(item, Violation):
                    yield item
                else:
                    self.meta = item
        yield from self.log.violations(self.meta)
        if self._refolding is not None:
            yield from self._refolding.violations(self.directory, self.log, self.meta, self._steps)
