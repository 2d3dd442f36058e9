"""The figures of the metrics page, and where each comes from: counters that exist anyway, read on request.

Names are `riverbed_*` in base units, seconds and bytes; those of counters end in `_total`.  This module counts and
scans nothing: a `Sample` has chosen the streams and groups.  `page.py` makes text of the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from riverbed.server.stats import process
from riverbed.server.version import PYTHON_VERSION, REDIS_VERSION, VERSION
from riverbed.store.databases import sampling
from riverbed.store.format.text import key_text

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Control
    from riverbed.server.replication.role import Replication
    from riverbed.store.databases.sampling import GroupFigures, Sample, StreamFigures

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, float]]

# Every second one of the doubling buckets: from 4 us to 17 s, each four times the one before.
_EXPONENTS: Final = tuple(range(2, 25, 2))
# Of a longer key or name only the beginning is shown, followed by the number of the stream or group.
LABEL_BYTES: Final = 200
# How many replicas have figures of their own.
MAX_REPLICAS: Final = 100


class Figure(NamedTuple):
    """One metric: `family` has its name, type and help; `add_metric` is called with each of `values`."""

    family: GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
    values: Iterable[tuple[Any, ...]]


def figures(core: Core, control: Control, replication: Replication, watched: Sample) -> Iterator[Figure]:
    """All figures; each is read when the iterator reaches it.  During a load only those of the load."""
    yield from _loading(core)
    if core.loading is not None:
        return
    yield from _server(core)
    yield from _clients(core, control, len(replication.primary.senders))
    yield from _commands(core)
    yield from _durations(core)
    yield from _log(core)
    yield from _tables(core)
    yield from _maintenance(core)
    yield from _replication(core, replication)
    yield from _streams(watched)
    yield from _groups(watched)


def _loading(core: Core) -> Iterator[Figure]:
    loading = core.loading
    yield _gauge(
        "loading", "1 while a start loads the log, and only the figures of the load are shown.", loading is not None
    )
    if loading is not None:
        yield _gauge("loading_loaded_bytes", "Bytes of the log that the start has loaded.", loading.loaded_bytes)
        yield _gauge("loading_total_bytes", "Bytes of the log that the start has to load in all.", loading.total_bytes)


# -- kinds of metrics --------------------------------------------------------------------------------------------------


def _gauges(name: str, text: str, labels: Labels, values: Values) -> Figure:
    return Figure(GaugeMetricFamily(f"riverbed_{name}", text, labels=labels), values)


def _counters(name: str, text: str, labels: Labels, values: Values) -> Figure:
    return Figure(CounterMetricFamily(f"riverbed_{name}", text, labels=labels), values)


def _gauge(name: str, text: str, value: float) -> Figure:
    return _gauges(name, text, (), [((), value)])


def _counter(name: str, text: str, value: float) -> Figure:
    return _counters(name, text, (), [((), value)])


def _histogram(name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, list[int], float]]) -> Figure:
    """A histogram: `values` have labels, counts in the buckets of `server.stats.stats`, and seconds in all."""
    family = HistogramMetricFamily(f"riverbed_{name}", text, labels=labels)
    return Figure(family, ((own, _cumulated(counts), seconds) for own, counts, seconds in values))


def _cumulated(counts: list[int]) -> list[tuple[str, float]]:
    """(bound in seconds, how many durations were no longer)."""
    buckets: list[tuple[str, float]] = [(str(2**n / 1e6), sum(counts[: n + 1])) for n in _EXPONENTS]
    return [*buckets, ("+Inf", sum(counts))]


def label(data: bytes, number: int) -> str:
    """A key or a name as a label; the `number` makes one that had to be cut differ from all others."""
    if len(data) <= LABEL_BYTES:
        return key_text(data)
    return f"{key_text(data[:LABEL_BYTES])}...#{number}"


# -- the server --------------------------------------------------------------------------------------------------------


def _server(core: Core) -> Iterator[Figure]:
    versions = (VERSION, REDIS_VERSION, PYTHON_VERSION)
    yield _gauges(
        "build_info",
        "Versions of the server, of Redis's commands and of Python, as labels; the value is 1.",
        ("version", "redis_version", "python"),
        [(versions, 1)],
    )
    started_s = core.started_ms / 1000
    yield _gauge("start_time_seconds", "Unix time in seconds at which the server started.", started_s)
    system, user = process.cpu_seconds()
    seconds = [(("system",), system), (("user",), user)]
    yield _counters("cpu_seconds", "Seconds of processor time that the server has used, by mode.", ("mode",), seconds)
    use = process.memory_use()
    core.stats.note_memory(use.private)
    yield _gauge("memory_private_bytes", "Bytes of private memory of the server.", use.private)
    yield _gauge(
        "memory_mapped_bytes",
        "Bytes of file pages in memory, mostly LMDB's, that the system takes back at will.",
        use.mapped,
    )
    yield _gauge(
        "memory_private_peak_bytes",
        "Bytes of private memory of the server, the most seen so far.",
        core.stats.peak_memory,
    )


def _clients(core: Core, control: Control, replicas: int) -> Iterator[Figure]:
    stats, sessions = core.stats, core.sessions
    yield _gauge("clients_connected", "Connections of clients that are open.", len(sessions) - replicas)
    yield _gauge("clients_max", "Connections of clients that may be open at a time.", core.config.maxclients)
    yield _gauge("clients_blocked", "Clients that wait in a blocking command.", control.blocked_clients())
    yield _counter("connections_accepted", "Connections of clients that were accepted.", stats.connections_received)
    yield _counter(
        "connections_rejected",
        "Connections refused because as many as maxclients allows were open.",
        stats.connections_rejected,
    )
    yield _counter(
        "clients_evicted",
        "Connections closed because the server kept too much memory for their clients.",
        stats.evicted_clients,
    )
    yield _counter("network_received_bytes", "Bytes that came from clients.", stats.bytes_in)
    yield _counter("network_sent_bytes", "Bytes that went to clients.", stats.bytes_out)


def _commands(core: Core) -> Iterator[Figure]:
    stats = core.stats
    seen = [((name.decode(),), row) for name, row in stats.seen_commands()]
    yield _counter("commands_processed", "Commands that were run, those in transactions too.", stats.commands_processed)
    yield _counters("commands", "Calls of a command that ran.", ("command",), ((own, row.calls) for own, row in seen))
    yield _counters(
        "commands_failed",
        "Calls of a command that answered an error.",
        ("command",),
        ((own, row.failed) for own, row in seen),
    )
    yield _counters(
        "commands_rejected",
        "Calls of a command that were refused before they ran.",
        ("command",),
        ((own, row.rejected) for own, row in seen),
    )
    yield _histogram(
        "command_duration_seconds",
        "Seconds that calls of a command ran, without waiting and without the commit.",
        ("command",),
        ((own, row.buckets, row.nanoseconds / 1e9) for own, row in seen),
    )
    errors = sorted((key_text(code), count) for code, count in stats.errors.items())
    yield _counters(
        "error_replies", "Errors answered to clients, by code.", ("code",), (((code,), n) for code, n in errors)
    )
    yield _counter("keyspace_hits", "Keys looked for and found by commands that read.", stats.keyspace_hits)
    yield _counter("keyspace_misses", "Keys looked for in vain by commands that read.", stats.keyspace_misses)
    yield _counter(
        "expired_keys", "Keys deleted because their deadline had passed.", stats.expired_keys + core.txn.expired_keys
    )


def _durations(core: Core) -> Iterator[Figure]:
    stats = core.stats
    for name, text, durations in (
        ("tick_duration_seconds", "Seconds that requests which arrived together took, with their commit.", stats.tick),
        ("fsync_duration_seconds", "Seconds that it took to make the log durable.", stats.fsync),
        ("checkpoint_duration_seconds", "Seconds that checkpoints of the tables took.", stats.checkpoint),
    ):
        yield _histogram(name, text, (), [((), durations.buckets, durations.seconds)])


# -- the store ---------------------------------------------------------------------------------------------------------


def _log(core: Core) -> Iterator[Figure]:
    engine = core.engine
    log = engine.log
    yield _gauge("log_bytes", "Bytes of the log's files.", log.size_bytes)
    yield _gauge("log_base_bytes", "Bytes of the log's files that the last rewrite has written.", log.base_bytes)
    yield _gauge("log_files", "Files of the log that were written since the last rewrite.", log.incr_count)
    yield _gauge("log_unsynced_bytes", "Bytes of the log that a power cut would lose now.", log.unsynced_bytes)
    yield _gauge("checkpoint_lag_bytes", "Bytes logged since the last checkpoint.", engine.dirty_bytes)
    yield _gauge(
        "disk_free_bytes",
        "Bytes that are free on the disk of the data directory.",
        engine.files.free_bytes(engine.directory),
    )
    yield _gauge(
        "writes_refused", "1 while writes are refused, for want of space or a log.", engine.refusal is not None
    )
    yield _counter("disk_waits", "Times writes had to wait because the disk was slow.", core.stats.waits_for_disk)


def _tables(core: Core) -> Iterator[Figure]:
    room = sampling.space(core.txn)
    options = core.engine.options
    yield _gauge("lmdb_map_bytes", "Bytes that the tables' file may grow to.", options.map_bytes)
    yield _gauge("lmdb_quota_bytes", "Bytes that pages with rows may take (lmdb-map-size).", options.quota_bytes)
    yield _gauge("lmdb_file_bytes", "Bytes of the tables' file.", room.file_bytes)
    yield _gauge("lmdb_used_bytes", "Bytes of the tables' file that hold rows.", room.used_bytes)
    yield _gauge(
        "lmdb_free_bytes",
        "Bytes of the tables' file that are free, and are used before the file grows.",
        room.free_bytes,
    )
    yield _gauge("lmdb_readers", "Readers that hold an old state of the tables.", room.readers)
    yield _gauge(
        "lmdb_oldest_reader_transactions",
        "Checkpoints since the oldest reader of the tables began; pages freed since cannot be used again.",
        room.oldest_reader,
    )
    yield _gauge(
        "lmdb_oldest_reader_seconds",
        "Seconds since the oldest reader of the tables, in any process, began.",
        core.stats.oldest_reader_s,
    )
    sizes = sorted(room.tables.items())
    yield _gauges(
        "table_rows", "Rows in a table of the store.", ("table",), (((name,), rows) for name, (rows, _) in sizes)
    )
    yield _gauges(
        "table_bytes",
        "Bytes of the pages of a table of the store.",
        ("table",),
        (((name,), size) for name, (_, size) in sizes),
    )
    databases = [((str(db.number),), db) for db in core.txn.databases if db.size]
    yield _gauges("keys", "Streams in a database.", ("db",), ((own, db.size) for own, db in databases))
    yield _gauges(
        "keys_expiring",
        "Streams in a database that have a deadline.",
        ("db",),
        ((own, db.expiring) for own, db in databases),
    )
    dead_rows = core.txn.dead_rows
    yield _gauge(
        "dead_row_notes",
        "Streams, groups and ranges that are deleted and whose rows wait for the purge.",
        dead_rows.notes,
    )


def _maintenance(core: Core) -> Iterator[Figure]:
    rewrite, snapshot = core.rewrite, core.stats.snapshot
    yield _gauge("rewrite_in_progress", "1 while the log is being rewritten.", rewrite.in_progress)
    yield _gauge(
        "rewrite_progress_ratio",
        "Part of the running rewrite of the log that is done, from 0 to 1.",
        rewrite.percent / 100,
    )
    yield _gauge("rewrite_last_ok", "1 unless the last rewrite of the log failed.", rewrite.last_ok)
    yield _counter("rewrites", "Rewrites of the log that were begun.", rewrite.started)
    yield _gauge("snapshot_in_progress", "1 while a snapshot is being taken.", snapshot.in_progress)
    yield _gauge("snapshot_last_ok", "1 unless the last snapshot failed.", snapshot.last_ok)
    yield _counter("snapshots", "Snapshots that were taken.", snapshot.taken)
    has_lost = snapshot.columns_ok is False
    yield _gauge("snapshot_columns_failed", "1 when the last snapshot was to have columns and has none.", has_lost)
    scrub = core.scrub
    yield _counter(
        "scrubs", "Scrubs, comparisons of log and tables with their checksums, that were completed.", scrub.passes
    )
    yield _gauge(
        "scrub_end_seconds", "Unix time in seconds at which a scrub last ended; 0 without one.", scrub.last_end_s
    )
    yield _gauge("scrub_damaged_files", "Files that a scrub has found damaged.", len(scrub.damage))
    yield _gauge("scrub_damaged_rows", "Rows of the tables that the last scrub found damaged.", scrub.damaged_rows)
    repair = core.repair
    yield _gauge("repair_in_progress", "1 while the tables are being made again from the log.", repair.in_progress)
    yield _gauge("repair_last_ok", "1 unless the last repair of the tables failed.", repair.last_ok)
    yield _counter("repairs", "Repairs of the tables that succeeded.", repair.repairs)


def _replication(core: Core, replication: Replication) -> Iterator[Figure]:
    stats = core.stats
    offset = core.engine.log.end.offset
    follower, senders = replication.follower, replication.primary.senders
    yield _gauge(
        "replication_offset_bytes",
        "Bytes of commands logged under the present replication id, the replication offset.",
        offset,
    )
    yield _gauge(
        "replication_is_replica", "1 while the server follows another one as its replica.", follower is not None
    )
    if follower is not None:
        yield _gauge("replication_link_up", "1 while a replica has a link to its primary.", follower.is_connected)
    yield _gauge("replicas_connected", "Replicas that follow this server.", len(senders))
    now_s = core.clock.monotonic()
    lags = {
        (f"{sender.address}:{sender.introduction.port}",): (offset - sender.acked_offset, now_s - sender.heard_s)
        for sender in islice(senders.values(), MAX_REPLICAS)
        if sender.acked_offset >= 0
    }
    yield _gauges(
        "replica_lag_bytes",
        "Bytes of the log that a replica has not confirmed yet.",
        ("replica",),
        ((own, max(lag, 0)) for own, (lag, _) in lags.items()),
    )
    yield _gauges(
        "replica_heard_seconds",
        "Seconds since the last message of a replica.",
        ("replica",),
        ((own, age) for own, (_, age) in lags.items()),
    )
    syncs = [(("full",), stats.syncs_full), (("partial",), stats.syncs_partial), (("refused",), stats.syncs_refused)]
    yield _counters("replica_syncs", "Synchronisations of replicas, by kind.", ("kind",), syncs)


# -- streams and groups ------------------------------------------------------------------------------------------------


def _streams(watched: Sample) -> Iterator[Figure]:
    names = ("db", "stream")
    streams = {_stream_labels(stream): stream for stream in watched.streams}.items()
    yield _gauges("stream_entries", "Entries in a stream.", names, ((own, each.length) for own, each in streams))
    yield _counters(
        "stream_added_entries", "Entries ever added to a stream.", names, ((own, s.entries_added) for own, s in streams)
    )
    yield _gauges(
        "stream_bytes", "Bytes of the entries in a stream, about.", names, ((own, s.byte_count) for own, s in streams)
    )
    yield _gauges(
        "stream_groups", "Groups of consumers that a stream has.", names, ((own, s.group_count) for own, s in streams)
    )
    yield _gauge("streams_omitted", "Streams that have no figures of their own on this page.", watched.streams_omitted)


def _groups(watched: Sample) -> Iterator[Figure]:
    names = ("db", "stream", "group")
    groups = {_group_labels(group): group for group in watched.groups}.items()
    yield _gauges("group_consumers", "Consumers in a group.", names, ((own, each.consumers) for own, each in groups))
    yield _gauges(
        "group_pending_entries",
        "Entries delivered to a group and not acknowledged.",
        names,
        ((own, each.pending) for own, each in groups),
    )
    yield _gauges(
        "group_lag_entries",
        "Entries not yet delivered to a group; absent when unknown.",
        names,
        ((own, each.lag) for own, each in groups if each.lag is not None),
    )
    now_ms = watched.looked_ms
    yield _gauges(
        "group_oldest_pending_seconds",
        "Seconds since the delivery of a group's pending entry that waits longest; absent when none has an owner.",
        names,
        ((own, max(now_ms - each.oldest_ms, 0) / 1000) for own, each in groups if each.oldest_ms is not None),
    )
    yield _gauge("groups_omitted", "Groups that have no figures of their own on this page.", watched.groups_omitted)


def _stream_labels(stream: StreamFigures) -> Labels:
    return str(stream.db), label(stream.key, stream.stream_no)


def _group_labels(group: GroupFigures) -> Labels:
    return (*_stream_labels(group.stream), label(group.name, group.group_no))
