"""A new base takes the place of what lies before it, which is history until its files are deleted.

    | base 1 | incr 1 | incr 2 | incr 3              before
    '---- history ----------'  | base 2 | incr 3     after

Some readers follow the log as it grows (`tail.py`) and may be within a file that becomes history.  They open what they
still have to read before it is renamed or deleted.  Some history is kept for replicas that were away: the backlog.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Protocol

from riverbed.store.disk.files import Files
from riverbed.store.disk.shared_files import SharedFiles
from riverbed.store.errors import LogWriteError
from riverbed.store.log.appending.condition import Condition
from riverbed.store.log.appending.listing import Listing
from riverbed.store.log.appending.replacement import Replacement
from riverbed.store.log.home import LogHome
from riverbed.store.log.manifest import LogFile


class Follower(Protocol):
    """A reader that follows the log as it grows (`tail.py`)."""

    def hold(self) -> None:
        """Open the files that are still to be read; raises OSError."""

    def moved(self, closed: LogFile, current: LogFile, shift: int) -> None:
        """Note that `closed` ends with its size: what it had behind that is in `current` as well, `shift` bytes on."""


class History:
    """The files that a rewrite makes superfluous, and who reads them still."""

    def __init__(self, home: LogHome, listing: Listing, condition: Condition, files: Files) -> None:
        # The readers that follow the log, and the files that they have open.
        self.tails: set[Follower] = set()
        self.open_files = SharedFiles(files)
        self._home = home
        self._listing = listing
        self._condition = condition
        self._files = files

    def begin_adoption(self, temporary: Path, size: int, command_bytes: int, from_seq: int) -> Replacement:
        """Make the state in `temporary` the base of the log, which incr `from_seq` continues.

        A thread has to run what is returned, before `listing.complete`.  The file is in our directory, whole and
        durable; a checkpoint in `from_seq` or later is durable too.  The file is renamed, and one replacement of the
        manifest makes everything before it history: a crash leaves the log as it was, or as it will be.  Raises
        LogWriteError with the log as it was, and `complete` does, unless the log is broken.
        """
        self._listing.settle()
        if not self._home.has_incr(from_seq):
            raise LogWriteError(f"file {from_seq} of the log, which the base leads to, could not be begun")
        base = self._home.manifest.next_base(size, command_bytes)
        manifest = self._home.manifest.begun_with(base, from_seq)
        path = self._home.path / base.name
        try:
            self.hold_tails()
            self._files.rename(temporary, path)
        except OSError as error:
            raise LogWriteError(f"the rewritten log could not be put in place: {error}") from error
        then = partial(self._base_is_listed, path, size)
        return self._listing.begin(manifest, then, before=self._hold_later_tails)

    def _hold_later_tails(self) -> None:
        """Have tails that were made since the replacement began read on in the files that the old manifest lists.

        One that cannot open them reads a gap, which its replica notices by the offset.
        """
        with contextlib.suppress(OSError):
            self.hold_tails()

    def _base_is_listed(self, path: Path, size: int, failure: LogWriteError | None) -> None:
        """Count the base in `path`, or remove it, when it could not be listed."""
        if failure is None:
            self._home.cut_copies(self._home.manifest.backlog)
            self._listing.base_bytes = size
            self._listing.closed_bytes = size + sum(file.size or 0 for file in self._home.manifest.incrs[:-1])
        elif not self._condition.broken:  # the manifest of a broken log may list the file
            with contextlib.suppress(OSError):
                self._files.unlink(path)

    def begin_removal(self, kept_from: int) -> list[Path]:
        """-> the files to delete: what the log does without, but not what lies behind offset `kept_from`.

        Readers that are within one of them keep it open; no other reader begins there.  Raises OSError.
        """
        self._listing.settle()
        paths = self._home.leftovers(kept_from)
        if paths:
            self.hold_tails()
            self._home.end_backlog([path.name for path in paths])
        return paths

    def end_backlog(self) -> None:
        """Send replicas nothing more of what lies before the log: it cannot be read."""
        self._listing.settle()
        self._home.end_backlog([file.name for file in self._home.manifest.history])

    def forget_deleted(self) -> None:
        """Remove the files that are deleted from the manifest.  Raises LogWriteError, OSError."""
        replacement = self.begin_to_forget_deleted()
        if replacement is not None:
            self._listing.complete(replacement)

    def begin_to_forget_deleted(self) -> Replacement | None:
        """As `forget_deleted`, but a thread has to run what is returned, before `listing.complete`.

        None when there is nothing to be removed.  Raises OSError.
        """
        self._listing.settle()
        manifest = self._home.without_deleted()
        return None if manifest == self._home.manifest else self._listing.begin(manifest)

    def moved(self, closed: LogFile, current: LogFile, shift: int) -> None:
        """Have every tail read on where what it still has to read lies now, see `Follower.moved`."""
        for tail in self.tails:
            tail.moved(closed, current, shift)

    def hold_tails(self) -> None:
        """Have every tail open the files that it still has to read: some are about to be deleted."""
        for tail in list(self.tails):
            tail.hold()
