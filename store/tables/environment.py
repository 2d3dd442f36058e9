"""The LMDB environment, with one named database for each kind of row, and how it is opened.

    keys      keyspace_no, key            -> the stream's row
    names     keyspace_no, stream_no      -> the key; the order of SCAN
    entries   stream_no, id               -> id and fields, as the RESP that a client receives
    nodes     stream_no, first id         -> live, total, bytes, last id of about a hundred entries
    expiry    deadline_ms, stream_no      -> keyspace_no
    idmp, idmp_ids, idmp_times            -> idempotence records: by producer, by id, by age
    groups                                -> consumer groups, and their consumers below them
    pel, pel_by_consumer, pel_by_time     -> runs of pending entries: by ID, by owner, by age
    consumer_ttls  look_ms, group         -> the group's name: when to look for inactive consumers
    trash     trash_no                    -> dead rows, which wait for the purge
    meta      name                        -> format version, log position, counters

This module knows no streams and no commands.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from riverbed.store.disk.locks.serving import hold_instead_of_registering
from riverbed.store.disk.real_files import (
    make_directory,
    open_file,
    require_file,
    require_plain,
)
from riverbed.store.errors import TABLE_DAMAGE, CorruptionError, StoreError, VersionError
from riverbed.store.format.meta import (
    META_OF_CHECKPOINT,
    META_POSITION,
    META_READERS,
    META_VERSION,
    pack_version,
    read_version,
)
from riverbed.store.format.rows import FORMAT_VERSION, OLDEST_VERSION
from riverbed.store.layout import DATA_NAME, LOCK_NAME, STATE_DIRECTORY
from riverbed.store.options import map_for_file
from riverbed.store.tables.data_file import power_loss
from riverbed.store.tables.data_file.mapped import MappedFile
from riverbed.store.tables.data_file.opening import open_environment
from riverbed.store.tables.data_file.soundness import (
    has_ended_a_server,
    refuse_broken_pages,
    refuse_broken_pages_in_use,
    require_whole,
)
from riverbed.store.tables.upgrade import upgrade

TABLES: Final = (
    "keys",
    "names",
    "entries",
    "nodes",
    "expiry",
    "idmp",
    "idmp_ids",
    "idmp_times",
    "groups",
    "pel",
    "pel_by_consumer",
    "pel_by_time",
    "consumer_ttls",
    "trash",
    "meta",
)
# A larger file is walked at the start after a fatal error alone: 5 us a page would be 2.5 s for ten million entries.
_WALKED_AT_START_BYTES: Final = 4 << 20


class Reader(NamedTuple):
    """An open read transaction: its process, its thread as LMDB writes it, and the transaction that it reads."""

    pid: int
    thread: str
    transaction_no: int


class Tables:
    """An open environment and the handles of its tables.

    `writemap` is off: with it, a full disk would kill the process.  With `metasync=False` a power cut may lose the last
    transaction, which is in the log, but never damages the tables.
    """

    def __init__(
        self,
        directory: Path,
        map_bytes: int,
        *,
        readonly: bool = False,
        frozen: bool = False,
        syncs_later: bool = False,
        commits_later: bool = False,
        is_draft: bool = False,
        checks_pages: bool = False,
    ) -> None:
        """Open or create `directory`/state.  Raises StoreError, lmdb.Error, OSError.

        `frozen` is for a snapshot: the tables are in `directory` itself and are never written, so that there is no
        lock file.  With `syncs_later` a commit does not wait for the disk, and `sync` must come before the next commit,
        see `power_loss.py`.  With `commits_later` missing tables are created in the transaction that the first call of
        `begin` returns, and the handles are valid until that transaction is aborted.  With `is_draft` no commit waits
        for the disk, and a power cut may leave anything.  With `checks_pages` broken pages of a small file are refused:
        those of a large one may kill the process.
        """
        path = directory if frozen else directory / STATE_DIRECTORY
        readonly = readonly or frozen
        # LMDB follows links, and writes to its lock file even for readers
        if frozen:
            require_file(path / DATA_NAME)
        else:
            require_plain(path)
        if not readonly:
            make_directory(path)
        self.path = path
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise StoreError(f"the name of {path} is not UTF-8, and LMDB wants that") from None
        was_made = False
        self._wants_mark = syncs_later
        self.is_new: bool
        self.rewinds = 0  # how often the last ID of a stream was set back: since then IDs may be given once more
        self.failure: str | None = None  # why the last commit may not be on the disk; then no other may follow
        self._lacks_mark = False
        if commits_later:  # the start of a server, before LMDB reads what a disk may have damaged
            refuse_broken_pages(
                path / DATA_NAME, sys.maxsize if has_ended_a_server(directory) else _WALKED_AT_START_BYTES
            )
        if syncs_later:
            was_made, syncs_later = _make_durably(directory, map_bytes)
            syncs_later = syncs_later and power_loss.prepare_use(path)
        self.syncs_later = syncs_later  # else a commit is durable at once
        self._is_marked = False
        self._commits = 0  # without a mark
        self._reader_lock: int | None = None  # a lock that is held instead of registering as a reader of LMDB
        self._lock_file: int | None = None
        if readonly and not frozen:
            power_loss.refuse_doubt(path)
            self._reader_lock = hold_instead_of_registering(directory, path)
        with contextlib.ExitStack() as undo:
            undo.callback(self._release_reader_lock)
            is_locked = not frozen and self._reader_lock is None
            syncs = not (syncs_later or is_draft)
            self.env = open_environment(
                path, map_bytes, len(TABLES), readonly=readonly, is_locked=is_locked, syncs=syncs
            )
            undo.callback(self.env.close)
            self._mapped = MappedFile(path / DATA_NAME)
            undo.callback(self._mapped.close)
            require_whole(self.env, path / DATA_NAME)
            if checks_pages:
                refuse_broken_pages_in_use(self.env, path / DATA_NAME, _WALKED_AT_START_BYTES)
            self._first = self.env.begin(write=True) if commits_later else None
            is_new = self._check_version(readonly, frozen)
            self.is_new = is_new or was_made
            self.handles = self._open_tables(readonly=readonly, may_create=not (readonly or syncs_later))
            if not readonly:
                self._require_names()
            if syncs_later:
                self._set_mark()
            elif self._wants_mark:
                power_loss.end_use(path)  # removes an older mark: from now on every commit is durable
            undo.pop_all()

    def begin(self) -> lmdb.Transaction[bytes]:
        """A new write transaction.  Raises lmdb.Error."""
        first, self._first = self._first, None
        return first or self.env.begin(write=True)

    def committed_pages(self, commit_no: int) -> mmap.mmap | bytes:
        """The file, with the tables as the last commit has left them, for `find_keys` and `find_deliveries`.

        The transaction that `begin` has returned reads what the commit `commit_no`, one less than its own number, has
        left.  These look into the file without it: keys from all over a large table take 0.2 us each in place of 0.8,
        as their waits for memory overlap.  What such a transaction has changed since is not seen.
        """
        return self._mapped.pages(commit_no)

    def lock_file(self) -> int:
        """A descriptor of LMDB's lock file, which stays open as long as the tables.  Raises OSError.

        Closing any descriptor of that file earlier would release LMDB's locks of the process: a rule of POSIX.
        """
        if self._lock_file is None:
            self._lock_file = open_file(self.path / LOCK_NAME, os.O_RDWR)
        return self._lock_file

    def _release_reader_lock(self) -> None:
        if self._reader_lock is not None:
            os.close(self._reader_lock)
            self._reader_lock = None

    def _check_version(self, readonly: bool, frozen: bool) -> bool:
        """Check the format version; -> whether the tables are new, or never reached a first checkpoint."""
        meta = self.env.open_db(b"meta", txn=self._first, create=not readonly)
        with contextlib.nullcontext(self._first) if self._first else self.env.begin() as txn:
            version = read_version(lambda name: txn.get(name, db=meta))
        if version is None:
            if not readonly:
                with contextlib.nullcontext(self._first) if self._first else self.env.begin(write=True) as txn:
                    txn.put(META_VERSION, pack_version(), db=meta)
            return True
        if version in range(OLDEST_VERSION, FORMAT_VERSION) and not readonly:
            self._upgrade(version, meta)
        elif version not in range(OLDEST_VERSION, FORMAT_VERSION + 1):
            text = f"{self.path} has format version {version}; this program reads {FORMAT_VERSION}"
            if not frozen and isinstance(version, int):
                if version < OLDEST_VERSION:
                    text += ". Move it away, and the next start makes it again from the log"
                elif (version ^ FORMAT_VERSION).bit_count() == 1:  # the one row without a checksum
                    text += (
                        ". If no later program has written it, a bit of that number is damaged: move it away, and the "
                        "next start makes it again from the log"
                    )
            raise VersionError(text)
        return False

    def _upgrade(self, version: int, meta: Any) -> None:
        """Make these the tables of this version: what is written from now on, programs of `version` do not read."""
        try:
            groups = self.env.open_db(b"groups", txn=self._first, create=False)
            with contextlib.nullcontext(self._first) if self._first else self.env.begin(write=True) as txn:
                upgrade(txn, groups, version, str(self.path / DATA_NAME))
                txn.put(META_VERSION, pack_version(), db=meta)
        except lmdb.NotFoundError:
            return  # a missing table is an error of its own
        except TABLE_DAMAGE:
            raise
        except lmdb.MapFullError:
            raise self._lacks_room(version, "lmdb-map-size is too small") from None
        except lmdb.Error as error:
            raise self._lacks_room(version, f"LMDB says {error}; is the disk full?") from error

    def _lacks_room(self, version: int, reason: str) -> StoreError:
        text = f"{self.path} has format version {version}, and the rows that this program adds to it cannot be written"
        return StoreError(f"{text}: {reason}")

    def _open_tables(self, *, readonly: bool, may_create: bool) -> dict[str, Any]:
        """The handles of all tables.  Those that are missing are created before the first checkpoint, and never later.

        A flipped bit in a table's name would leave the store without the rows of that table, and nothing would show it.
        """
        handles: dict[str, Any] = {}
        missing = []
        for name in TABLES:
            try:
                handles[name] = self.env.open_db(name.encode(), txn=self._first, create=False)
            except lmdb.NotFoundError:
                missing.append(name)
                if readonly:
                    raise
        lost = [*missing, *(["meta"] if self.is_new else [])]
        if not readonly and lost and self._holds_rows(handles):
            raise self._missing(lost[0])
        for name in missing:
            handles[name] = self.env.open_db(name.encode(), txn=self._first, create=may_create)
        return handles

    def _holds_rows(self, handles: dict[str, Any]) -> bool:
        """Whether there was a checkpoint, or a table but `meta` has rows."""
        with contextlib.nullcontext(self._first) if self._first else self.env.begin() as txn:
            has_position = txn.get(META_POSITION, db=handles["meta"]) is not None
            return has_position or any(
                txn.stat(handle)["entries"] for name, handle in handles.items() if name != "meta"
            )

    def _require_names(self) -> None:
        """Raise CorruptionError when a row of `meta` has another name than is written, or lacks what it comes with."""
        meta = self.handles["meta"]
        with contextlib.nullcontext(self._first) if self._first else self.env.begin() as txn:
            names = set(txn.cursor(meta).iternext(values=False))
        unknown = names - META_READERS.keys()
        of_checkpoint = names & META_OF_CHECKPOINT
        if unknown or of_checkpoint not in (set(), META_OF_CHECKPOINT):
            named = ", ".join(sorted(name.decode(errors="backslashreplace") for name in unknown or of_checkpoint))
            reason = f"rows of meta are damaged: there {'should be no' if unknown else 'is only'} {named}"
            raise CorruptionError(str(self.path / DATA_NAME), None, reason)

    def _missing(self, name: str) -> CorruptionError:
        reason = f"table {name} is missing, or empty; `riverbed check --repair` makes the tables again of the log"
        return CorruptionError(str(self.path / DATA_NAME), None, reason)

    def _commit_again(self) -> None:
        """Commit once more, durably, so that the last commit but one has the same content as the last one.

        After a power cut the last commit but one may count.  A tool may have left it incomplete, or without its files.
        """
        with self.env.begin(write=True, db=self.handles["meta"]) as txn:
            txn.put(META_VERSION, pack_version())
        self.env.sync(True)

    def used_bytes(self, txn: lmdb.Transaction[bytes]) -> int:
        """The bytes of pages that hold rows.  Freed pages are used again before the file grows."""
        used = 0
        for handle in self.handles.values():
            counts = txn.stat(handle)
            used += counts["psize"] * (counts["branch_pages"] + counts["leaf_pages"] + counts["overflow_pages"])
        return used

    def make_room(self) -> int:
        """Map more, if a commit of every page might not fit; -> the bytes that are mapped.  No transaction may be open.

        Not while a reader of this process is open: it would end.
        """
        info = self.env.info()
        wanted = map_for_file((info["last_pgno"] + 1) * self.env.stat()["psize"])
        if info["map_size"] >= wanted or any(reader.pid == os.getpid() for reader in self.readers()):
            return info["map_size"]
        self.env.set_mapsize(wanted)
        return wanted

    def make_durable(self) -> None:
        """Have the disk hold all commits, the number of the last one as well.  Raises lmdb.Error."""
        self.env.sync(True)

    def sync(self) -> None:
        """Make the last commit durable, if commits do not wait for the disk, or not for its number; in any thread.

        Raises lmdb.Error; then no other commit may follow, and the next start goes back to the commit before.
        """
        if self.syncs_later or self._is_marked:
            try:
                self.env.sync(True)
            except lmdb.Error as error:
                self.distrust(f"the tables could not be made durable: {error}")
                raise

    def distrust(self, reason: str) -> None:
        """Allow no other commit; the next start goes back to the last commit but one.

        If the mark cannot be written to the disk either, `retry_mark` tries again.
        """
        self.failure = reason
        self._lacks_mark = True
        self.retry_mark()

    def retry_mark(self) -> None:
        """Write the mark that `distrust` could not write; where our file is no more, it would be another's."""
        if self._lacks_mark and self._mapped.is_at_its_path:
            with contextlib.suppress(OSError):
                power_loss.distrust(self.path)
                self._lacks_mark = False

    @property
    def commit_no(self) -> int:
        """The number of the last commit."""
        return self.env.info()["last_txnid"]

    def committed(self) -> None:
        """Called behind a commit.  Sets the mark that there was no room for at the start, if there is now.

        Without it a start after a power cut takes missing writes of the log for damage.  With it that start goes back
        to the last commit but one: this has to be one that we have made.
        """
        if not self._wants_mark:
            return
        self._commits += 1
        if self._commits > 1 and self._mapped.is_at_its_path:
            with contextlib.suppress(OSError):
                if power_loss.prepare_use(self.path):
                    self._is_marked = True  # from here on a commit needs `sync`: this one, or its number may be lost
                    self.sync()
                    self._set_mark()

    def _set_mark(self) -> None:
        power_loss.begin_use(self.path)
        self._wants_mark, self._is_marked = False, True

    def readers(self) -> list[Reader]:
        """The open read transactions of all processes, including those of killed processes."""
        lines = [line.split() for line in self.env.readers().splitlines()[1:]]  # the first line has headings
        return [Reader(int(pid), thread, int(number)) for pid, thread, number in lines if number.isdigit()]

    def close(self, *, is_log_durable: bool = True) -> None:
        """Close the tables.  The mark that they are in use stays when a power cut may still take writes of the log."""
        self.retry_mark()
        if self._is_marked and self.failure is None:
            with contextlib.suppress(lmdb.Error, OSError):  # the mark stays, and the next start resolves it
                self.env.sync(True)
                if is_log_durable and self._mapped.is_at_its_path:
                    power_loss.end_use(self.path)
        self.env.close()
        self._mapped.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        self._release_reader_lock()


def _make_durably(directory: Path, map_bytes: int) -> tuple[bool, bool]:
    """Create missing tables, in several commits; -> (whether the tables are new, whether one more commit fitted).

    If the last commit does not fit, or the mark does not, every later commit has to wait for the disk.
    """
    tables = Tables(directory, map_bytes)
    try:
        tables._commit_again()
    except lmdb.Error:
        return tables.is_new, False
    finally:
        tables.close()
    return tables.is_new, True
