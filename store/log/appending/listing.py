"""The manifest of a log that is appended to: it is replaced when a file begins, and when ids, policy or base change.

A manifest that cannot be written is an error, and the log continues with the old one.  When a crash may bring back the
old one in the place of the new, the log is broken: it would append to a file that the next start may not read.

    put          replaces it now
    begin        has a thread replace it; until `settle` the list in memory is the old one

One replacement is under way at a time: whatever else changes the list settles it first, and then waits for the disk.

`home.py` knows the files and names; this module knows how much of the log they are, and what a failure means for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from riverbed.store.disk.files import Files
from riverbed.store.errors import LogWriteError, text_of
from riverbed.store.layout import LOG_MANIFEST
from riverbed.store.log.appending.condition import Condition
from riverbed.store.log.appending.replacement import Replacement
from riverbed.store.log.home import Base, LogHome
from riverbed.store.log.manifest import LogFile, Manifest
from riverbed.store.progress import ignore
from riverbed.store.replication_id import ReplicationIds

# Called with why the old manifest is in place, None when the new one is.
Then = Callable[[LogWriteError | None], None]


class Listing:
    """The files in `home` as the manifest lists them."""

    def __init__(self, home: LogHome, condition: Condition, files: Files) -> None:
        self.base_bytes = 0
        self.closed_bytes = 0  # of all files but the one that is appended to
        self.lacks_replids = False  # the manifest on the disk has other replication ids
        self._home = home
        self._condition = condition
        self._files = files
        self._under_way: tuple[Replacement, Then, Callable[[], None]] | None = None

    def measure(self) -> None:
        """Find the bytes of the base, and of all files.  Raises CorruptionError when one is not as listed, OSError."""
        sizes = {part.file: part.size for part in self._home.parts()}
        base = self._home.manifest.base
        self.closed_bytes = sum(sizes.values())
        self.base_bytes = sizes[base] if base is not None else 0

    def measure_closed(self) -> None:
        """Find the bytes of all files but the last one.  Raises as `measure` does."""
        self.closed_bytes = sum(part.size for part in self._home.parts()[:-1])

    @property
    def base(self) -> Base | None:
        """The base that the first incr continues, None when there is none."""
        return self._home.base(self.base_bytes)

    # -- replacing the manifest ----------------------------------------------------------------------------------------

    @property
    def is_replacing(self) -> bool:
        """Whether a replacement was begun and is not settled."""
        return self._under_way is not None

    def begin(
        self,
        manifest: Manifest,
        then: Then = ignore,
        unsynced: Sequence[int] = (),
        before: Callable[[], None] = ignore,
    ) -> Replacement:
        """Have a thread `run` the replacement that is returned, behind a sync of the open files `unsynced`.

        `manifest` is made of the present one, with no other under way.  `settle` sets `failure`, and calls `then`;
        before the list in memory is the new one it calls `before`.
        """
        assert self._under_way is None, "this manifest would undo the one under way"
        replacement = Replacement(self._home.path / LOG_MANIFEST, manifest, self._files, self._condition, unsynced)
        self._under_way = replacement, then, before
        return replacement

    def settle(self) -> None:
        """Put the outcome of the replacement under way, if there is one, into effect; waits until it has ended."""
        if self._under_way is None:
            return
        (replacement, then, before), self._under_way = self._under_way, None
        replacement.run()
        replacement.failure = replacement.outcome()
        try:
            if replacement.failure is None:
                before()
                self._home.manifest = replacement.manifest
                self.lacks_replids = False
            then(replacement.failure)
        except Exception as error:  # memory is short: what is in it, and the file that is appended to, are of two lists
            reason = f"a new manifest could not be put into effect: {text_of(error)}"
            raise self._condition.break_log(reason, error) from error

    def put(self, manifest: Manifest) -> None:
        """Replace the manifest, durably, with no replacement under way.

        Raises LogWriteError with the old one in place, or the log broken.
        """
        self.complete(self.begin(manifest))

    def complete(self, replacement: Replacement) -> None:
        """Settle a replacement that was begun.  Raises its failure."""
        if self._under_way is not None and self._under_way[0] is replacement:
            self.settle()
        if replacement.failure is not None:
            raise replacement.failure

    def write(self) -> None:
        """Write the manifest again, in the place of what the disk has.  Raises LogWriteError as `put` does."""
        self.settle()
        self.put(self._home.manifest)

    def set_replids(self, replids: ReplicationIds) -> None:
        """Use other replication ids from here on.

        Raises LogWriteError when they could not be made durable; they apply all the same, and the next append tries
        again before it writes.
        """
        self.settle()
        self._home.manifest = replace(self._home.manifest, replids=replids)
        self.lacks_replids = True
        self.write()

    def note_policy(self, *, is_unsynced: bool) -> None:
        """Note whether a power cut may take writes that later ones follow, before the first such write.

        Raises LogWriteError as `put` does.
        """
        self.settle()
        self.put(replace(self._home.manifest, is_unsynced=is_unsynced))

    def begin_file(self, offset: int, last_size: int, first_seq: int) -> tuple[LogFile, int]:
        """Create and list the next incr, as `LogHome.begin_file` does; the file before it is closed from now on."""
        self.settle()
        file, fd = self._home.begin_file(offset, last_size, first_seq)
        self.closed_bytes += last_size
        return file, fd
