"""Ends what a power cut has left of a store, as a start of the server does; for tools, which have locked it."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import lmdb

from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import Files
from riverbed.store.disk.real_files import require_directory
from riverbed.store.errors import TABLE_DAMAGE, CorruptionError
from riverbed.store.log.append_log import Log
from riverbed.store.log.home import LogHome
from riverbed.store.offline.replaced import REPLACED_DIRECTORY, Action, cut_off
from riverbed.store.options import DEFAULT_MAP_BYTES
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
    power_loss.resolve_doubt(places.state)
    power_loss.move_refused(places.state)
    has_settled = end_compaction(places, files)
    lost: Action | None = None
    if was_cut:
        with contextlib.suppress(*((CorruptionError,) if load_truncated else ())):
            lost = _cut_lost_writes(places, files, load_truncated)
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


def _cut_lost_writes(places: Places, files: Files, load_truncated: bool) -> Action | None:
    directory = places.state.parent
    with contextlib.closing(Log.find(directory, files, load_truncated=load_truncated)) as log:
        if log.is_missing or not log.home.manifest.is_unsynced:
            return None
        try:
            refuse_broken_pages(places.data, DEFAULT_MAP_BYTES)
            with contextlib.closing(Tables(directory, DEFAULT_MAP_BYTES)) as tables:
                txn = WriteTxn(tables)
                start, synced = txn.position, txn.synced
                txn.abort()
        except (CorruptionError, lmdb.InvalidError, *TABLE_DAMAGE):
            return None  # they tell no more what of the log was durable
        log.follows_power_cut = True
        for _ in log.read(start, durable=synced):
            pass
        if not log.may_cut or log.torn_tail is None:
            return None
        done, kept = cut_off(log.torn_tail, directory, files)
        return Action(f"after a power cut: {done}", kept)
