"""INFO persistence: log, checkpoints, rewrites, snapshots, scrubs and repairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from riverbed.store.databases import sampling

if TYPE_CHECKING:
    from riverbed.server.commands.request import Context, Request
    from riverbed.server.loading import Loading
    from riverbed.server.stats.repair_status import RepairStatus
    from riverbed.server.stats.scrub_status import ScrubStatus
    from riverbed.server.stats.stats import SnapshotStatus

Fields = Iterator[tuple[str, object]]


def persistence_fields(request: Request) -> Fields:
    """The fields that Redis has for RDB saves describe checkpoints."""
    context = request.context
    engine, log = context.engine, context.engine.log
    loading = context.loading
    yield "loading", int(loading is not None)
    yield "async_loading", int(context.replication.is_syncing)
    yield "current_fork_perc", "0.00"
    yield "rdb_changes_since_last_save", engine.changes_since_checkpoint
    yield "rdb_bgsave_in_progress", int(engine.checkpoints.is_syncing)
    yield "rdb_last_save_time", engine.checkpoints.last_ms // 1000
    yield "rdb_last_bgsave_status", "ok" if engine.checkpoints.last_ok else "err"
    yield "rdb_last_bgsave_time_sec", int(engine.checkpoints.last_s)
    yield "rdb_current_bgsave_time_sec", -1
    yield "rdb_saves", engine.checkpoints.count
    yield "aof_enabled", 1
    yield from _rewrites(context)
    is_written = engine.refusal is None and engine.refusals.is_log_written
    yield "aof_last_write_status", "ok" if is_written else "err"
    yield "aof_current_size", log.size_bytes
    yield "aof_base_size", log.base_bytes
    yield "aof_pending_rewrite", int(context.rewrite.scheduled)
    yield "aof_buffer_length", sum(map(len, request.txn.log))
    yield "aof_pending_bio_fsync", int(log.unsynced_bytes > 0)
    yield "aof_delayed_fsync", context.stats.waits_for_disk
    if loading is not None:
        yield from _loading(loading)
    yield from _snapshots(context.stats.snapshot)
    yield from _scrub(context.scrub)
    yield from _repair(context.repair)
    yield from _own_persistence(request)


def _loading(loading: Loading) -> Fields:
    yield "loading_start_time", loading.begun_s
    yield "loading_total_bytes", loading.total_bytes
    yield "loading_rdb_used_mem", 0
    yield "loading_loaded_bytes", loading.loaded_bytes
    yield "loading_loaded_perc", f"{loading.percent:.2f}"
    yield "loading_eta_seconds", loading.eta_s
    yield "riverbed_loading_step", loading.step


def _rewrites(context: Context) -> Fields:
    rewrite, now_s = context.rewrite, context.clock.monotonic()
    yield "aof_rewrite_in_progress", int(rewrite.in_progress)
    yield "aof_rewrite_scheduled", int(rewrite.scheduled)
    yield "aof_last_rewrite_time_sec", -1 if rewrite.last_seconds is None else int(rewrite.last_seconds)
    yield "aof_current_rewrite_time_sec", -1 if rewrite.begun_s is None else int(now_s - rewrite.begun_s)
    yield "aof_last_bgrewrite_status", "ok" if rewrite.last_ok else "err"
    yield "aof_rewrites", rewrite.started
    yield "aof_rewrites_consecutive_failures", rewrite.failures


def _progress(name: str, status: SnapshotStatus | RepairStatus) -> Fields:
    yield f"{name}_in_progress", int(status.in_progress)
    if status.in_progress:
        yield f"{name}_step", status.step
        yield f"{name}_done", status.done
        yield f"{name}_total", status.total


def _snapshots(snapshot: SnapshotStatus) -> Fields:
    yield from _progress("riverbed_snapshot", snapshot)
    yield "riverbed_snapshot_current_time_sec", snapshot.seconds
    yield "riverbed_snapshot_last_status", "ok" if snapshot.last_ok else "err"
    yield "riverbed_snapshot_last_name", snapshot.last_name
    yield "riverbed_snapshot_last_offset", snapshot.last_offset
    yield "riverbed_snapshot_last_time_sec", round(snapshot.last_seconds, 1)
    yield "riverbed_snapshots", snapshot.taken
    yield "riverbed_snapshot_columns", {None: "none", True: "ok", False: "err"}[snapshot.columns_ok]
    yield "riverbed_snapshot_columns_bytes", snapshot.columns_bytes


def _scrub(scrub: ScrubStatus) -> Fields:
    yield "riverbed_scrub_in_progress", int(scrub.in_progress)
    if scrub.in_progress:
        yield "riverbed_scrub_percent", f"{scrub.percent:.1f}"
    yield "riverbed_scrubs", scrub.passes
    yield "riverbed_scrub_last_time", scrub.last_end_s
    yield "riverbed_scrub_damaged_files", len(scrub.damage)
    yield "riverbed_scrub_damaged_rows", scrub.damaged_rows
    yield "riverbed_scrub_last_damage", next(reversed(scrub.damage.values()), "")


def _repair(repair: RepairStatus) -> Fields:
    yield from _progress("riverbed_repair", repair)
    yield "riverbed_repairs", repair.repairs
    yield "riverbed_repair_last_status", "ok" if repair.last_ok else "err"
    yield "riverbed_repair_last_error", repair.last_error
    yield "riverbed_repair_last_time_sec", round(repair.last_seconds, 1)


def _own_persistence(request: Request) -> Fields:
    """Fields that Redis does not have: offsets, checkpoints, tables, the running rewrite."""
    engine, stats, rewrite = request.context.engine, request.context.stats, request.context.rewrite
    log = engine.log
    yield "riverbed_log_offset", engine.offset
    yield "riverbed_log_synced_offset", log.synced_offset
    yield "riverbed_log_unsynced_bytes", log.unsynced_bytes
    yield "riverbed_log_files", log.incr_count
    yield "riverbed_checkpoints", engine.checkpoints.count
    yield "riverbed_checkpoint_lag_bytes", engine.dirty_bytes
    yield "riverbed_last_checkpoint_ms", f"{engine.checkpoints.last_s * 1000:.1f}"
    yield "riverbed_average_checkpoint_ms", f"{stats.checkpoint.average_s * 1000:.1f}"
    yield "riverbed_longest_checkpoint_ms", f"{stats.checkpoint.longest_s * 1000:.1f}"
    yield "riverbed_fsyncs", stats.fsync.count
    yield "riverbed_last_fsync_ms", f"{stats.fsync.last_s * 1000:.2f}"
    yield "riverbed_average_fsync_ms", f"{stats.fsync.average_s * 1000:.2f}"
    yield "riverbed_longest_fsync_ms", f"{stats.fsync.longest_s * 1000:.2f}"
    yield "riverbed_waits_for_clients", stats.waits_for_clients
    room = sampling.space(request.txn)
    yield "riverbed_lmdb_bytes", room.file_bytes
    yield "riverbed_lmdb_used_bytes", room.used_bytes
    yield "riverbed_lmdb_free_bytes", room.free_bytes
    yield "riverbed_lmdb_readers", room.readers
    yield "riverbed_lmdb_oldest_reader", room.oldest_reader
    yield "riverbed_lmdb_oldest_reader_pid", stats.oldest_reader_pid
    yield "riverbed_lmdb_oldest_reader_sec", int(stats.oldest_reader_s)
    views, waiting = request.context.control.views()
    yield "riverbed_long_replies", sum(session.long_reply is not None for session in request.context.sessions.values())
    yield "riverbed_long_replies_waiting", waiting
    yield "riverbed_views", views
    yield "riverbed_recovered_commands", engine.recovery.commands
    yield "riverbed_recovery_ms", f"{engine.recovery.seconds * 1000:.1f}"
    yield "riverbed_rewrite_entries", rewrite.entries
    yield "riverbed_rewrite_entries_total", rewrite.total
    yield "riverbed_rewrite_bytes", rewrite.size
    yield "riverbed_rewrite_percent", f"{rewrite.percent:.1f}"
    yield "riverbed_dead_row_notes", request.txn.dead_rows.notes
    yield "riverbed_writes_wait_for_disk", int(request.context.checkpoints.is_disk_behind)
    yield "riverbed_writes_refused", int(engine.refusal is not None)
    yield "riverbed_writes_refused_reason", "" if engine.refusal is None else engine.refusal.value
