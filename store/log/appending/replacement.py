"""One replacement of the manifest, which a thread may make durable while the log is appended to.

It takes three syncs, and those of the files that are listed, for which clients of a slow disk would wait a second.
`listing.py` puts the outcome into effect, in the thread of the log.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from riverbed.store.disk.files import Files
from riverbed.store.errors import LogWriteError, text_of
from riverbed.store.log import manifest as manifests
from riverbed.store.log.appending.condition import Condition, caused
from riverbed.store.log.manifest import Manifest, ReplacedError


class Replacement:
    """Replaces the manifest at `path` by `manifest`, once what it lists is durable: the open files `unsynced`."""

    def __init__(
        self, path: Path, manifest: Manifest, files: Files, condition: Condition, unsynced: Sequence[int] = ()
    ) -> None:
        self.manifest = manifest
        self._path = path
        self._files = files
        self._condition = condition
        self._unsynced = unsynced
        self._once = threading.Lock()
        self._is_synced = False
        self._is_over = False
        self.sync_error: OSError | None = None  # why not all of `unsynced` is durable, when `run` has ended
        self.failure: LogWriteError | None = None  # why the old manifest is in place, when the list is settled
        self._error: OSError | None = None

    def sync(self) -> None:
        """Make `unsynced` durable, in any thread; `run` does so as well.  `sync_error` says how it has ended."""
        with self._once:
            self._sync()

    def run(self) -> None:
        """Do it, in any thread.  A second caller waits for the first one; `outcome` says how it has ended."""
        with self._once:
            self._sync()
            if not self._is_over:
                self._is_over = True
                self._replace()

    def _sync(self) -> None:
        if self._is_synced:
            return
        self._is_synced = True
        try:
            for fd in self._unsynced:
                self._require_sound()
                self._files.sync_apart(fd)
        except OSError as error:
            self.sync_error = error
        except Exception as error:  # memory may be short; a second call must not take it for done
            self.sync_error = OSError(text_of(error))

    def _require_sound(self) -> None:
        """Raise OSError if a sync of the log has failed: the next one may report success for what is lost."""
        if self._condition.broken:
            raise OSError(self._condition.refusal)

    def _replace(self) -> None:
        if self.sync_error is not None:
            return
        try:
            if self._unsynced:
                self._require_sound()
            manifests.replace(self._path, self.manifest, self._files)
        except OSError as error:
            self._error = error
        except Exception as error:  # at any step
            self._error = ReplacedError(f"whether the manifest was replaced is not known: {text_of(error)}")

    def outcome(self) -> LogWriteError | None:
        """Why the old manifest is in place, when `run` has ended.  Breaks the log if that is not certain."""
        condition, error = self._condition, self._error
        if self.sync_error is not None:
            reason = condition.refusal if condition.broken else f"syncing the log failed: {self.sync_error}"
            return condition.break_log(str(reason))
        if isinstance(error, ReplacedError):
            return condition.break_log(str(error))
        if error is not None:
            return caused(LogWriteError(f"the manifest could not be written: {error}"), error)
        return None
