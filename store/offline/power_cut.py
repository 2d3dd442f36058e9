"""Ends what a power cut has left of a store, as a start of the server does; for tools, which have locked it."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import lmdb

from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import Files
from riverbed.store.disk.real_files import is_there, require_directory
from riverbed.store.errors import TABLE_DAMAGE, CorruptionError
from riverbed.store.log.append_log import Log
from riverbed.store.log.home import LogHome
from riverbed.store.offline.replaced import REPLACED_DIRECTORY, Action, cut_off
from riverbed.store.options import DEFAULT_MAP_BYTES
from riverbed.store.position import LogPosition
from riverbed.store.swap import Places, end_compaction
from riverbed.store.tables.data_file import power_loss
from riverbed.store.tables.data_file.soundness import refuse_broken_pages
from riverbed.store.tables.environment import Tables


class Settled(NamedTuple):
    """`compaction`: one that was killed has been ended.  `lost`: what was cut off the log."""

    compaction: bool
    lost: Action | None


def settle_after_power_cut(places: Places, files: Files, *, load_truncated: bool = True) -> Settled:
    """Resolve the doubt that a power cut has left in the tables, and end a killed compaction.

    Readers may have seen the commit that was lost: streams get other numbers, for which the next start finds no cause.

    What a log that is synced late has lost in its middle is cut off and kept, with all behind it.  Other damage stays,
    for the tool to find.  After a kill the log is synced: without the mark, which goes, a start would take what a power
    cut takes from it for damage.  The mark stays for a start that may cut off what is not to be cut off here, as it is
    not `load_truncated`, and where the tables cannot be opened for another reason than damage.

    The caller holds the directory's lock and has opened nothing in it.  Raises UnsafeFileError with nothing changed,
    StoreError, lmdb.Error, OSError.
    """
    places.require_plain()
    require_directory(places.state.parent / REPLACED_DIRECTORY)  # not a link, which may lead anywhere
    was_cut = power_loss.may_follow_power_cut(places.state)
    if power_loss.is_marked(places.state) and not was_cut:
        _sync_log(places, files)
    went_back = power_loss.resolve_doubt(places.state)
    power_loss.move_refused(places.state)
    has_settled = end_compaction(places, files)
    lost: Action | None = None
    executed = _renumbered(places) if was_cut or went_back is not None else None
    if was_cut:
        with contextlib.suppress(*((CorruptionError,) if load_truncated else ())):
            lost = _cut_lost_writes(places, files, load_truncated, executed)
    if power_loss.is_marked(places.state):  # last: where this is killed, the next start or tool does all of it again
        power_loss.end_use(places.state)
    return Settled(has_settled, lost)


def _sync_log(places: Places, files: Files) -> None:
    """Make all of the log durable, as far as the manifest names it.  Raises OSError."""
    with contextlib.suppress(CorruptionError):  # a manifest that cannot be read; the check finds it as well
        for part in LogHome.find(places.home, files).parts():
            fd = files.open_update(part.path)
            try:
                files.sync(fd)
            finally:
                files.close(fd)


class _Executed(NamedTuple):
    """Up to where the tables have executed the log, and up to where they know that it was durable; None: not at all."""

    position: LogPosition | None = None
    synced: LogPosition | None = None


def _renumbered(places: Places) -> _Executed | None:
    """Have the tables say that streams have other numbers, as a start that finds the mark does; -> what they executed.

    None where they are damaged and do not tell that: those that are made in their place have a numbering of their own.
    Raises StoreError, lmdb.Error, OSError.
    """
    if not is_there(places.data):
        return _Executed()
    try:
        refuse_broken_pages(places.data, DEFAULT_MAP_BYTES)
        with contextlib.closing(Tables(places.state.parent, DEFAULT_MAP_BYTES)) as tables:
            txn = WriteTxn(tables)
            try:
                executed = _Executed(txn.position, txn.synced)
                if executed.position is not None:  # else they have no numbering to change
                    txn.renumber()
                    txn.commit(executed.position, synced=executed.synced)
            finally:
                txn.abort()
            tables.make_durable()
            return executed
    except (CorruptionError, lmdb.InvalidError, lmdb.VersionMismatchError, *TABLE_DAMAGE):
        return None


def _cut_lost_writes(places: Places, files: Files, load_truncated: bool, executed: _Executed | None) -> Action | None:
    directory = places.state.parent
    with contextlib.closing(Log.find(directory, files, load_truncated=load_truncated)) as log:
        if executed is None or log.is_missing or not log.home.manifest.is_unsynced:
            return None
        log.follows_power_cut = True
        for _ in log.read(executed.position, durable=executed.synced):
            pass
        if not log.may_cut or log.torn_tail is None:
            return None
        done, kept = cut_off(log.torn_tail, directory, files)
        return Action(f"after a power cut: {done}", kept)
