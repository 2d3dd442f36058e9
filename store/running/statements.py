"""What the manifest states of the log, for the next start and for replicas.

replication ids    whose offsets the log continues; the tables have them as well
policy             whether a power cut may take writes that later ones follow
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import lmdb

from riverbed.store.errors import LogWriteError
from riverbed.store.options import Fsync
from riverbed.store.replication_id import ReplicationIds

if TYPE_CHECKING:
    from riverbed.store.databases.transaction import WriteTxn
    from riverbed.store.options import Options
    from riverbed.store.running.log_keeper import LogKeeper


class Statements:
    """The statements of one running store."""

    def __init__(self, keeper: LogKeeper, txn: WriteTxn, options: Options) -> None:
        self._keeper = keeper
        self._txn = txn
        self._options = options

    def begin_replids(self, checkpoint: Callable[[], None]) -> None:
        """Set the replication ids of this start.

        A crash may have lost the end of a log that replicas have received already (`appendfsync` other than always), or
        all of it, so a primary begins a new replication id here.  A replica writes nothing of its own and keeps its id.

        `checkpoint` has the tables hold the ids.  Raises LogWriteError when it does.
        """
        log, txn = self._keeper.log, self._txn
        replids = log.home.manifest.replids or txn.replids
        if replids is None:
            replids = ReplicationIds.new()
        else:
            replids = replids.with_store(txn.replids)
            if not (self._options.is_replica or log.is_new):
                replids = replids.branch(log.end.offset)
        if txn.position is not None and (txn.replids is None or not txn.replids.store_id):
            # The tables were made by a tool or an older version.  They must hold the ids before the manifest does: the
            # check relies on that.
            txn.replids = replids
            with contextlib.suppress(lmdb.Error):
                checkpoint()
        self.set_replids(replids)

    def set_replids(self, replids: ReplicationIds) -> None:
        """Continue with other replication ids from here on.

        A disk that cannot store them, as it is full, refuses the next writes.
        """
        log = self._keeper.log
        replids = replids.with_store()
        self._txn.replids = replids
        if replids != log.home.manifest.replids:
            with contextlib.suppress(LogWriteError):
                log.listing.set_replids(replids)

    def note_policy(self) -> None:
        """Have the manifest say whether a power cut may take writes that later ones follow.

        It may where replies do not wait for the disk, and on a replica, which writes several batches at a time.

        A disk that refuses it leaves what it said before, until the next checkpoint.  It says too much then for a log
        that is synced now, and too little for one that is not: the start after a power cut may refuse what it could
        have cut off.
        """
        log = self._keeper.log
        is_unsynced = self._options.fsync is not Fsync.ALWAYS or self._options.is_replica
        if is_unsynced != log.home.manifest.is_unsynced:
            with contextlib.suppress(LogWriteError):
                if not is_unsynced:
                    self._keeper.sync()
                log.listing.note_policy(is_unsynced=is_unsynced)
