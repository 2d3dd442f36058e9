"""Repair what can be repaired without losing data that is still there; everything that is replaced is kept.

    found                                   done                                   kept in DIR/replaced/
    a torn tail of the log                  cut off, as the next start would       FILE.from-BYTE
    broken tables, a sound log              tables made again from all of the log  state
    no log at all, sound tables             a new log from the tables              nothing to keep
    a broken backlog, a sound log           replicas are not sent it               the file, until the next start

Anything else is refused, with advice for the user.  If the log is damaged in its middle, or ends before the position
that the tables cover, either the log or the tables must be given up, and a program must not make this choice.

    DIR/repair/state   1  made, synced, and checked like any tables     a kill here leaves a directory to delete
    DIR/state          2  moved to DIR/replaced/                        after a kill here a start makes new tables
    DIR/state          3  the new tables moved in

A tail is copied and synced before it is cut.  So a kill at any moment leaves a store that is no worse, and another run
completes the repair.  The directory stays locked meanwhile.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from riverbed.store.check import Check, Violation
from riverbed.store.check.deep import EXECUTING, ReplayPlan, SpaceError
from riverbed.store.check.findings import Contents
from riverbed.store.check.log import BACKLOG
from riverbed.store.check.state import check_state
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.disk.locks.lock import lock_directory
from riverbed.store.disk.ownership import give
from riverbed.store.disk.real_files import require_directory, require_only
from riverbed.store.disk.removal import remove_tree
from riverbed.store.errors import CorruptionError, StoreError
from riverbed.store.layout import REPAIR_DIRECTORY, REPAIR_NAMES, STATE_DIRECTORY
from riverbed.store.log import manifest as manifests
from riverbed.store.log.home import LogHome
from riverbed.store.log.reader import LogReader, list_parts
from riverbed.store.log.takeover import require_ours
from riverbed.store.offline.advice import advice
from riverbed.store.offline.power_cut import settle_after_power_cut
from riverbed.store.offline.replaced import REPLACED_DIRECTORY, Action, cut_off, unused_path
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress, counter, ignore
from riverbed.store.recovery.replay import Execute
from riverbed.store.recovery.tables_from_log import TablesFromLog, room_for_tables
from riverbed.store.rewrite.log_from_tables import rebuild_log
from riverbed.store.swap import Places

# Violations that are looked at to decide what can be repaired.
_KEPT: Final = 100


class RepairError(StoreError):
    """The store cannot be repaired without a loss; the text says what the user can do."""


def _unannounced(plan: ReplayPlan) -> None:
    """Announce nothing."""


def mend_tables(
    directory: Path, execute: Execute, *, now_ms: int, load_truncated: bool, acted: Callable[[Action], None] = ignore
) -> bool:
    """Make the tables of a stopped store again, if they are broken and the log is whole; -> whether it was so.

    A torn tail is cut off if `load_truncated`; else a log that has one is not whole.  `acted` is called after each
    change, also where the next one fails.

    Raises what `Repair` and `Repair.mend` raise.
    """
    with Repair(directory, execute, now_ms=now_ms, load_truncated=load_truncated) as repair:
        if repair.lost is not None:
            acted(repair.lost)
        check = Check(directory, is_held=True)
        first: dict[bool, list[Violation]] = {True: [], False: []}
        for violation in check.violations():
            found = first[violation.table == "log"]
            if len(found) < _KEPT:
                found.append(violation)
        if check.log.is_missing or first[True] or all(violation.table == BACKLOG for violation in first[False]):
            return False
        if check.torn_tail is not None and not load_truncated:
            return False
        repair.mend(check, first[False], acted)
        return True


class Repair:
    """Repairs one store.  A context manager: it holds the lock of the directory.  Raises LockedError, OSError."""

    def __init__(
        self,
        directory: Path,
        execute: Execute,
        *,
        now_ms: int,
        load_truncated: bool = True,
        files: Files | None = None,
        steps: Progress = ignore,
        announce: Callable[[ReplayPlan], None] = _unannounced,
    ) -> None:
        """`execute` runs one command of the log; `announce` is called with the space needed before it is taken."""
        self._directory = directory
        self._execute = execute
        self._now_ms = now_ms
        self._load_truncated = load_truncated
        self._places = Places(directory)
        self._files = files or OsFiles()
        self._steps = steps
        self._announce = announce
        self._held = contextlib.ExitStack()
        self.lost: Action | None = None  # what a power cut had left of the log was cut off, before any check

    def __enter__(self) -> Repair:
        with contextlib.ExitStack() as held:
            held.enter_context(lock_directory(self._directory))
            self._require_ours()
            self._clear()
            self._held = held.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def _require_ours(self) -> None:
        places = self._places
        places.require_plain()
        require_only(self._work, REPAIR_NAMES)
        require_directory(self._directory / REPLACED_DIRECTORY)
        with contextlib.suppress(CorruptionError):  # the check finds it as well
            require_ours(self._directory, self._files)

    @property
    def _work(self) -> Path:
        return self._directory / REPAIR_DIRECTORY

    def mend(self, check: Check, found: list[Violation], acted: Callable[[Action], None] = ignore) -> None:
        """Repair what can be repaired of `found`, all that `check` has just found.

        `acted` is called after each change.  Raises RepairError, CorruptionError, lmdb.Error, OSError, with nothing
        changed beside those; SpaceError with nothing changed.
        """
        if (refused := advice(check, found)) is not None:
            raise RepairError(str(refused))
        if check.log.is_missing and check.meta is not None:
            acted(self._make_log())
            return
        broken_tables = [violation for violation in found if violation.table not in ("log", BACKLOG)]
        if broken_tables:
            self._require_space(check)
        if any(violation.table == BACKLOG for violation in found):
            acted(self._end_backlog())
        if check.torn_tail is not None:
            acted(cut_off(check.torn_tail, self._directory, self._files))
        if broken_tables:
            acted(self._make_tables())

    def _clear(self) -> None:
        """Clean up after a killed repair, and after a killed compaction as every start does."""
        if self._files.exists(self._work):
            remove_tree(self._work)  # in which the process of a server that was killed may be about to end
            if self._files.exists(self._work):
                shutil.rmtree(self._work)  # raises the reason
            self._files.sync_directory(self._directory)
        # a manifest that cannot be read; the check finds it as well
        with contextlib.suppress(*((CorruptionError,) if self._load_truncated else ())):
            settled = settle_after_power_cut(self._places, self._files, load_truncated=self._load_truncated)
            self.lost = settled.lost

    def _require_space(self, check: Check) -> None:
        needed = room_for_tables(check.log.size_bytes)
        free = self._files.free_bytes(self._directory)
        self._announce(ReplayPlan(self._work, check.log.size_bytes, needed, free))
        if free < needed:
            raise SpaceError(f"{self._directory} has {free:,} bytes free, and executing the log may take {needed:,}")

    # -- the backlog ---------------------------------------------------------------------------------------------------

    def _end_backlog(self) -> Action:
        home = LogHome.find(self._places.home, self._files)
        names = [file.name for file in home.manifest.backlog]
        home.put_manifest(home.manifest.without_backlog(names))
        done = "a replica that lacks more than the log has takes a full sync; the next start deletes the files"
        return Action(f"took {', '.join(names)} out of the backlog: {done}", None)

    # -- the tables ----------------------------------------------------------------------------------------------------

    def _make_tables(self) -> Action:
        files, places = self._files, self._places
        try:
            commands, end = self._replay()
            for violation in check_state(self._work, lambda: True, Contents(), self._steps):
                if isinstance(violation, Violation):
                    raise RepairError(f"the tables that the log makes are broken as well ({violation})")
            give(self._work / STATE_DIRECTORY, self._directory.stat())
            kept = unused_path(self._directory, STATE_DIRECTORY, self._files)
            files.rename(places.state, kept)
            files.sync_directory(kept.parent)
            files.sync_directory(self._directory)
            files.rename(self._work / STATE_DIRECTORY, places.state)
            files.sync_directory(self._directory)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        return Action(f"made the tables again: {commands:,} commands, up to replication offset {end.offset}", kept)

    def _replay(self) -> tuple[int, LogPosition]:
        """Execute all of the log into new tables and make them durable; -> (commands, the end of the log)"""
        files, places = self._files, self._places
        manifest = manifests.load(places.manifest, files)
        assert manifest is not None, "the check has read it"
        parts = list_parts(places.home, manifest, files)
        executed = counter(self._steps, EXECUTING, sum(part.size for part in parts))
        reader = LogReader(parts, files)
        files.make_directory(self._work)
        with TablesFromLog(self._work, self._execute, files) as made:
            made.txn.replids = manifest.replids
            made.try_replay(reader.batches(None, None), executed)
            end = reader.end
            assert end is not None, "the log was read to its end"
            made.commit(end)
            return made.commands, end

    # -- the log -------------------------------------------------------------------------------------------------------

    def _make_log(self) -> Action:
        self._held.close()  # `rebuild_log` locks the directory itself
        made = rebuild_log(
            self._directory,
            now_ms=self._now_ms,
            files=self._files,
        )
        done = f"made a new log out of the tables: {made.base.entries:,} entries, replication offset {made.offset}"
        return Action(done, None)
