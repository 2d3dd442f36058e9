"""The LMDB environment: one named database per kind of row, and how it is opened.

    keys      keyspace_no, key            -> the stream's row
    names     keyspace_no, stream_no      -> the key; the order of SCAN
    entries   stream_no, id               -> id and fields, as the RESP a reader is sent
    nodes     stream_no, first id         -> live, total, bytes, last id of about a hundred entries
    expiry    deadline_ms, stream_no      -> keyspace_no
    idmp, idmp_ids, idmp_times            -> idempotence records: by producer, by id, by age
    groups                                -> consumer groups, and their consumers below them
    pel, pel_by_consumer, pel_by_time     -> runs of pending entries: by ID, by owner, by age
    consumer_ttls  look_ms, group         -> the group's name: when to look for consumers that have stayed away
    trash     trash_no                    -> rows that no reader sees any more and that wait to be deleted
    meta      name                        -> format version, log position, counters

Knows nothing of streams or commands.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
from lmdb import verify

from riverbed.store.disk.real_files import open_file, require_file, require_plain
from riverbed.store.disk.serving import hold_instead_of_registering
from riverbed.store.errors import CorruptionError, StoreError, VersionError
from riverbed.store.format.meta import META_VERSION, pack_version, read_version
from riverbed.store.format.rows import FORMAT_VERSION
from riverbed.store.layout import DATA_NAME, LOCK_NAME, STATE_DIRECTORY
from riverbed.store.tables import power_loss as powercut

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
# Slots for read transactions, of all processes together: long replies, rewrites, snapshots, full syncs, tools.  The
# first process to open a store sets the number, so every `lmdb.open` of a store names this one.
MAX_READERS: Final = 1024
LOCK_HEAD_BYTES: Final = 128
READER_BYTES: Final = 64
_LOCK_FILE_BYTES: Final = LOCK_HEAD_BYTES + READER_BYTES * MAX_READERS


class Reader(NamedTuple):
    """An open read transaction: its process, its thread as LMDB writes it, and what it sees."""

    pid: int
    thread: str
    transaction_no: int


class Tables:
    """An open environment and the handles of its tables.

    `writemap` is off: a full disk would kill the process.  `metasync=False` may lose the last transaction of a power
    cut, never damage; the log has that transaction.
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
    ) -> None:
        """Open or create `directory`/state.  Raises StoreError, lmdb.Error, OSError.

        `frozen` is for a snapshot: the tables are in `directory` itself, and are never written, so that there is
        no lock file either.  With `syncs_later` a commit does not wait for the disk: the next one may come only when
        `sync` has, see `power_loss.py`.  With `commits_later` what is missing is made in the transaction that `begin`
        gives first, and handles are good for as long as that one is not aborted.
        """
        path = directory if frozen else directory / STATE_DIRECTORY
        readonly = readonly or frozen
        # LMDB follows links, and writes its lock file even for readers
        if frozen:
            require_file(path / DATA_NAME, may_be_link=True)
        else:
            require_plain(path)
        if not readonly:
            path.mkdir(parents=True, exist_ok=True)
        self.path = path
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise StoreError(f"the name of {path} is not UTF-8, and LMDB wants that") from None
        was_made = False
        may_be_marked = syncs_later
        self.is_new: bool
        self.failure: str | None = None  # why the last commit may not be on the disk, and there must be no other
        self._lacks_mark = False
        if syncs_later:
            was_made, syncs_later = _make_durably(directory, map_bytes)
            syncs_later = syncs_later and powercut.prepare_use(path)
        self._syncs_later = syncs_later
        self._unserved: int | None = None  # held by a reader that LMDB does not know of
        self._lock_file: int | None = None
        if readonly and not frozen:
            powercut.refuse_doubt(path)
            self._unserved = hold_instead_of_registering(directory, path)
        try:
            is_locked = not frozen and self._unserved is None
            self.env = _open(path, map_bytes, readonly=readonly, is_locked=is_locked, syncs_later=syncs_later)
        except BaseException:
            self._let_servers_start()
            raise
        try:
            self._require_whole()
            self._first = self.env.begin(write=True) if commits_later else None
            is_new = self._check_version(readonly, frozen)
            self.is_new = is_new or was_made
            may_create = not (readonly or syncs_later)
            self.handles = {
                name: self.env.open_db(name.encode(), txn=self._first, create=may_create) for name in TABLES
            }
            if syncs_later:
                powercut.begin_use(path)
            elif may_be_marked:
                powercut.end_use(path)  # an older mark: from now on every commit is durable
        except BaseException:
            self.env.close()
            self._let_servers_start()
            raise

    def begin(self) -> lmdb.Transaction[bytes]:
        """A new write transaction.  Raises lmdb.Error."""
        first, self._first = self._first, None
        return first or self.env.begin(write=True)

    def lock_file(self) -> int:
        """A descriptor of LMDB's lock file, for as long as the tables are open.  Raises OSError.

        To close any descriptor of that file before takes LMDB's locks away from the process: POSIX has it so.
        """
        if self._lock_file is None:
            self._lock_file = open_file(self.path / LOCK_NAME, os.O_RDWR)
        return self._lock_file

    def _let_servers_start(self) -> None:
        if self._unserved is not None:
            os.close(self._unserved)
            self._unserved = None

    def _require_whole(self) -> None:
        """Raise CorruptionError when pages are beyond the end of the file: to read one of those kills the process.

        Only the walk over all pages can tell that they are in use, and not merely were not needed in the end; it takes
        a second for a million entries, so it is left out as long as the file has room for every page.
        """
        data = self.path / DATA_NAME
        needed = (self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"]
        size = data.stat().st_size
        if size >= needed:
            return
        try:
            damage = next(iter(verify.verify(str(data))), None)
        except (verify.VerifyError, RecursionError) as error:
            damage = error
        if damage is not None:
            raise CorruptionError(str(data), size, f"the file is cut off; it was {needed} bytes long ({damage})")

    def _check_version(self, readonly: bool, frozen: bool) -> bool:
        """True when the environment was just created (or never reached its first checkpoint)."""
        meta = self.env.open_db(b"meta", txn=self._first, create=not readonly)
        with contextlib.nullcontext(self._first) if self._first else self.env.begin() as txn:
            version = read_version(lambda name: txn.get(name, db=meta))
        if version is None:
            if not readonly:
                with contextlib.nullcontext(self._first) if self._first else self.env.begin(write=True) as txn:
                    txn.put(META_VERSION, pack_version(), db=meta)
            return True
        if version != FORMAT_VERSION:
            text = f"{self.path} has format version {version}; this program reads {FORMAT_VERSION}"
            if not frozen and isinstance(version, int) and version < FORMAT_VERSION:
                text += ". Move it away, and the next start makes it again from the log"
            raise VersionError(text)
        return False

    def _commit_again(self) -> None:
        """Have the last commit but one hold what the last one holds, durably.

        A power cut may make that one count, and a tool may have left it half done, or without the files it needs.
        """
        with self.env.begin(write=True, db=self.handles["meta"]) as txn:
            txn.put(META_VERSION, pack_version())
        self.env.sync(True)

    def used_bytes(self, txn: lmdb.Transaction[bytes]) -> int:
        """Bytes of pages that hold rows.  Those that were freed are used again before the file grows."""
        used = 0
        for handle in self.handles.values():
            counts = txn.stat(handle)
            used += counts["psize"] * (counts["branch_pages"] + counts["leaf_pages"] + counts["overflow_pages"])
        return used

    def sync(self) -> None:
        """Make the last commit durable, where it has not been from the first; in any thread.

        Raises lmdb.Error; there must be no other commit then, and the next start goes back to the one before.
        """
        if self._syncs_later:
            try:
                self.env.sync(True)
            except lmdb.Error as error:
                self.distrust(f"the tables could not be made durable: {error}")
                raise

    def distrust(self, reason: str) -> None:
        """Let there be no other commit; the next start goes back to the last but one.

        A disk that takes no mark either is asked again by `retry_mark`.
        """
        self.failure = reason
        self._lacks_mark = True
        self.retry_mark()

    def retry_mark(self) -> None:
        """Leave the mark that `distrust` could not."""
        if self._lacks_mark:
            with contextlib.suppress(OSError):
                powercut.distrust(self.path)
                self._lacks_mark = False

    def readers(self) -> list[Reader]:
        """The open read transactions of all processes, those of processes that were killed among them."""
        lines = [line.split() for line in self.env.readers().splitlines()[1:]]  # behind a line of headings
        return [Reader(int(pid), thread, int(number)) for pid, thread, number in lines if number.isdigit()]

    def close(self) -> None:
        self.retry_mark()
        if self._syncs_later and self.failure is None:
            with contextlib.suppress(lmdb.Error, OSError):  # the mark stays, and the next start sees to it
                self.env.sync(True)
                powercut.end_use(self.path)
        self.env.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        self._let_servers_start()


def _open(path: Path, map_bytes: int, *, readonly: bool, is_locked: bool, syncs_later: bool) -> lmdb.Environment:
    if is_locked and not readonly:
        _allocate(path / LOCK_NAME)
    return lmdb.open(
        str(path),
        map_size=map_bytes,
        max_dbs=len(TABLES) + 3,
        max_readers=MAX_READERS,
        metasync=False,
        sync=not syncs_later,
        readonly=readonly,
        create=not readonly,
        lock=is_locked,
        meminit=False,
    )


def _allocate(lock_file: Path) -> None:
    """Have the disk hold all of LMDB's lock file, as far as the system can be asked for that.  Raises OSError.

    LMDB maps it into memory: to write where the file has a hole kills the process when the disk is full.
    """
    if sys.platform != "linux":
        return
    is_new = not lock_file.exists()
    fd = open_file(lock_file, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(fd).st_blocks * 512 < _LOCK_FILE_BYTES:
            os.posix_fallocate(fd, 0, _LOCK_FILE_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            if is_new:
                lock_file.unlink()
            raise
    finally:
        os.close(fd)


def _make_durably(directory: Path, map_bytes: int) -> tuple[bool, bool]:
    """Make what is missing, which comes in several commits; -> (whether the tables are new, whether one more fitted).

    When it does not fit, as when the mark does not, every commit has to wait for the disk.
    """
    tables = Tables(directory, map_bytes)
    try:
        tables._commit_again()
    except lmdb.Error:
        return tables.is_new, False
    finally:
        tables.close()
    return tables.is_new, True
