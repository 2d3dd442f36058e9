"""INFO: the server's figures, as `field:value` lines under section headings.

A field has Redis's name if Redis has such a field, because clients, exporters and Sentinel read it; other names begin
with `riverbed_`.  A field that can only have one value here is still sent when a client reads it.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.access.interface import Reason
from riverbed.server.commands.admin.info_persistence import Fields, persistence_fields
from riverbed.server.commands.table import Flag, command
from riverbed.server.protocol.replies import Verbatim
from riverbed.server.stats import process
from riverbed.server.version import IS_COMPILED, PYTHON_VERSION, REDIS_VERSION, VERSION
from riverbed.store import wire
from riverbed.store.format.text import key_text

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session

DAY_SECONDS: Final = 86_400
LRU_CLOCK_MASK: Final = (1 << 24) - 1
_UNITS: Final = "KMGTPE"
PERCENTILES: Final = (50.0, 99.0, 99.9)


def _human(size: int) -> str:
    """Bytes as a number with one letter, as Redis shortens them."""
    if size < 1024:
        return f"{size}B"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / (1 << 10 * power):.2f}{_UNITS[power - 1]}"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


# -- sections ----------------------------------------------------------------------------------------------------------


def _server(request: Request) -> Fields:
    context = request.context
    config = context.config
    uptime = max(request.now_ms - context.started_ms, 0) // 1000
    system = os.uname()
    yield "redis_version", REDIS_VERSION
    yield "riverbed_version", VERSION
    yield "redis_git_sha1", "00000000"
    yield "redis_build_id", "0"
    yield "redis_mode", "standalone"
    yield "os", f"{system.sysname} {system.release} {system.machine}"
    yield "arch_bits", 64 if sys.maxsize >> 32 else 32
    yield "monotonic_clock", "POSIX clock_gettime"
    yield "multiplexing_api", "epoll" if sys.platform == "linux" else "kqueue"
    yield "riverbed_python_version", PYTHON_VERSION
    yield "riverbed_native", int(wire.IS_NATIVE)
    yield "riverbed_compiled", int(IS_COMPILED)
    yield "process_id", os.getpid()
    yield "process_supervised", "no"
    yield "run_id", context.run_id
    yield "tcp_port", config.port or config.tls_port
    yield "server_time_usec", int(context.clock.time() * 1_000_000)
    yield "uptime_in_seconds", uptime
    yield "uptime_in_days", uptime // DAY_SECONDS
    yield "hz", config.hz
    yield "configured_hz", config.hz
    yield "lru_clock", request.now_ms // 1000 & LRU_CLOCK_MASK
    yield "executable", sys.executable
    yield "config_file", config.file or ""
    remaining_ms = context.stopping.remaining_ms()
    if remaining_ms is not None:
        yield "shutdown_in_milliseconds", remaining_ms


def _clients(request: Request) -> Fields:
    context = request.context
    sessions = context.sessions.values()
    yield "connected_clients", sum(not session.is_replica for session in sessions)
    yield "maxclients", context.config.maxclients
    yield "client_recent_max_input_buffer", max(map(_input_bytes, sessions), default=0)
    yield "client_recent_max_output_buffer", max(map(_output_bytes, sessions), default=0)
    yield "blocked_clients", context.control.blocked_clients()
    yield "pubsub_clients", sum(bool(session.subscriptions) for session in sessions)
    yield "watching_clients", sum(bool(session.transaction.watched) for session in sessions)
    yield "clients_in_timeout_table", _waiting_with_deadline(sessions)
    yield "total_watched_keys", context.control.watched_keys()
    yield "total_blocking_keys", context.control.awaited_keys()
    yield "total_blocking_keys_on_nokey", context.control.needed_keys()
    yield "riverbed_monitors", len(context.monitors)
    yield "riverbed_tls_handshakes", context.tls_handshakes()


def _output_bytes(session: Session) -> int:
    return session.output_bytes


def _input_bytes(session: Session) -> int:
    return session.input.unread_bytes + session.input.pending_bytes


def _waiting_with_deadline(sessions: Iterable[Session]) -> int:
    return sum(session.blocked is not None and session.blocked.deadline_ms is not None for session in sessions)


def _memory(request: Request) -> Fields:
    """`used_memory` is what is private to the process: streams are file pages, which the system takes back at will."""
    context = request.context
    use = process.memory_use()
    context.stats.note_memory(use.private)
    peak = context.stats.peak_memory
    total = process.system_memory()
    yield "used_memory", use.private
    yield "used_memory_human", _human(use.private)
    yield "used_memory_rss", use.resident
    yield "used_memory_rss_human", _human(use.resident)
    yield "used_memory_peak", peak
    yield "used_memory_peak_human", _human(peak)
    yield "used_memory_peak_perc", f"{100 * _ratio(use.private, peak):.2f}%"
    yield "used_memory_overhead", use.private
    yield "used_memory_dataset_perc", "0.00%"
    yield "total_system_memory", total
    yield "total_system_memory_human", _human(total)
    yield "used_memory_lua_human", _human(0)
    yield "used_memory_scripts_human", _human(0)
    yield "maxmemory_human", _human(0)
    yield "maxmemory_policy", "noeviction"
    yield "allocator_allocated", use.private
    yield "allocator_active", use.private
    yield "allocator_resident", use.resident
    yield "allocator_frag_ratio", "1.00"
    yield "mem_fragmentation_ratio", f"{_ratio(use.resident, use.private):.2f}"
    yield "mem_fragmentation_bytes", use.resident - use.private
    yield "mem_clients_slaves", context.accounts.replicas_total
    yield "mem_clients_normal", context.accounts.total
    yield "mem_aof_buffer", sum(map(len, request.txn.log))
    yield "mem_allocator", "libc"
    yield "lazyfree_pending_objects", request.txn.dead_rows.notes
    yield "lazyfreed_objects", request.txn.dead_rows.rows_purged
    limit_bytes = context.accounts.holders.limit_bytes
    yield "riverbed_maxmemory_clients", 0 if limit_bytes == sys.maxsize else limit_bytes
    yield "riverbed_rss_anon", use.private
    yield "riverbed_rss_file", use.mapped
    yield "riverbed_rss_peak", use.peak_resident


def _stats(request: Request) -> Fields:
    stats = request.context.stats
    yield "total_connections_received", stats.connections_received
    yield "total_commands_processed", stats.commands_processed
    yield "instantaneous_ops_per_sec", round(stats.operations.per_second)
    yield "total_net_input_bytes", stats.bytes_in
    yield "total_net_output_bytes", stats.bytes_out
    yield "total_net_repl_input_bytes", stats.replication_bytes_in
    yield "total_net_repl_output_bytes", stats.replication_bytes_out
    yield "instantaneous_input_kbps", f"{stats.input_bytes.per_second / 1024:.2f}"
    yield "instantaneous_output_kbps", f"{stats.output_bytes.per_second / 1024:.2f}"
    yield "instantaneous_input_repl_kbps", "0.00"
    yield "instantaneous_output_repl_kbps", "0.00"
    yield "rejected_connections", stats.connections_rejected
    yield from request.context.replication.counters()
    yield "expired_keys", stats.expired_keys + request.txn.expired_keys
    yield "expired_stale_perc", "0.00"
    yield "evicted_clients", stats.evicted_clients
    yield "keyspace_hits", stats.keyspace_hits
    yield "keyspace_misses", stats.keyspace_misses
    yield "pubsub_channels", len(request.context.pubsub.channels)
    yield "pubsub_patterns", len(request.context.pubsub.patterns)
    yield "pubsubshard_channels", len(request.context.pubsub.shard_channels)
    yield "total_error_replies", stats.error_replies
    yield "total_reads_processed", stats.reads_processed
    yield "total_writes_processed", stats.writes_processed
    yield "client_query_buffer_limit_disconnections", stats.query_limit_disconnections
    yield "client_output_buffer_limit_disconnections", stats.output_limit_disconnections
    denied = request.context.denials.totals
    yield "acl_access_denied_auth", denied[Reason.AUTH]
    yield "acl_access_denied_cmd", denied[Reason.COMMAND]
    yield "acl_access_denied_key", denied[Reason.KEY]
    yield "acl_access_denied_channel", denied[Reason.CHANNEL]
    yield "riverbed_background_tasks", stats.background.running
    yield "riverbed_background_failures", stats.background.failures
    yield "riverbed_background_last_failure", stats.background.last_failure
    yield "riverbed_ticks", stats.tick.count
    yield "riverbed_longest_tick_ms", f"{stats.tick.longest_s * 1000:.1f}"


def _replication(request: Request) -> Fields:
    yield from request.context.replication.fields()


def _cpu(request: Request) -> Fields:
    system, user = process.cpu_seconds()
    children_system, children_user = process.cpu_seconds(resource.RUSAGE_CHILDREN)
    yield "used_cpu_sys", f"{system:.6f}"
    yield "used_cpu_user", f"{user:.6f}"
    yield "used_cpu_sys_children", f"{children_system:.6f}"
    yield "used_cpu_user_children", f"{children_user:.6f}"
    if sys.platform == "linux":
        thread_system, thread_user = process.cpu_seconds(resource.RUSAGE_THREAD)
        yield "used_cpu_sys_main_thread", f"{thread_system:.6f}"
        yield "used_cpu_user_main_thread", f"{thread_user:.6f}"


def _no_fields(request: Request) -> Fields:
    yield from ()


def _commandstats(request: Request) -> Fields:
    for name, row in request.context.stats.seen_commands():
        per_call = row.nanoseconds / 1000 / row.calls if row.calls else 0.0
        ran = f"calls={row.calls},usec={row.usec},usec_per_call={per_call:.2f}"
        yield f"cmdstat_{name.decode()}", f"{ran},rejected_calls={row.rejected},failed_calls={row.failed}"


def _errorstats(request: Request) -> Fields:
    for code, count in sorted(request.context.stats.errors.items()):
        yield f"errorstat_{code.decode('latin-1')}", f"count={count}"


def _latencystats(request: Request) -> Fields:
    for name, row in request.context.stats.seen_commands():
        if row.calls:
            values = ",".join(f"p{percent:g}={row.percentile_usec(percent):.3f}" for percent in PERCENTILES)
            yield f"latency_percentiles_usec_{name.decode()}", values


def _keyspace(request: Request) -> Fields:
    """avg_ttl is 0, as in a Redis before its first expiry cycle: nothing here samples deadlines."""
    for database in request.txn.databases:
        if database.size:
            yield f"db{database.number}", f"keys={database.size},expires={database.expiring},avg_ttl=0"


_SECTIONS: Final[dict[str, Callable[[Request], Fields]]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "persistence": persistence_fields,
    "stats": _stats,
    "replication": _replication,
    "cpu": _cpu,
    "modules": _no_fields,
    "commandstats": _commandstats,
    "errorstats": _errorstats,
    "latencystats": _latencystats,
    "cluster": _no_fields,
    "keyspace": _keyspace,
}
# Of what Redis has in a section, and there is none of here.
_ALWAYS_ZERO: Final = {
    "server": "redis_git_dirty io_threads_active",
    "clients": "cluster_connections tracking_clients",
    "memory": (
        "used_memory_startup used_memory_dataset used_memory_lua used_memory_scripts maxmemory allocator_frag_bytes "
        "mem_not_counted_for_evict mem_replication_backlog mem_total_replication_buffers mem_cluster_links "
        "active_defrag_running"
    ),
    "persistence": (
        "current_cow_peak current_cow_size current_cow_size_age current_save_keys_processed current_save_keys_total "
        "rdb_last_cow_size rdb_last_load_keys_expired rdb_last_load_keys_loaded aof_last_cow_size "
        "module_fork_in_progress module_fork_last_cow_size"
    ),
    "stats": (
        "expired_time_cap_reached_count evicted_keys latest_fork_usec total_forks migrate_cached_sockets "
        "slave_expires_tracked_keys active_defrag_hits active_defrag_misses active_defrag_key_hits "
        "active_defrag_key_misses tracking_total_keys tracking_total_items tracking_total_prefixes "
        "unexpected_error_replies io_threaded_reads_processed io_threaded_writes_processed"
    ),
    "cluster": "cluster_enabled",
}
_HEADINGS: Final = {"cpu": "CPU"}
_NOT_BY_DEFAULT: Final = frozenset(("commandstats", "latencystats"))


# -- the command -------------------------------------------------------------------------------------------------------


def _line(text: str) -> str:
    """One printable line, whatever a primary, a client or the name of a directory has put into it."""
    return f"{text if text.isprintable() else key_text(os.fsencode(text))}\r\n"


def _wanted(names: set[str]) -> set[str]:
    """The sections that the words of an INFO name.  Unknown words name none."""
    wanted: set[str] = set()
    for name in names or {"default"}:
        if name in ("all", "everything"):
            wanted.update(_SECTIONS)
        elif name == "default":
            wanted.update(_SECTIONS.keys() - _NOT_BY_DEFAULT)
        else:
            wanted.add(name)
    return wanted


@command(
    "INFO [section [section ...]]",
    Flag.LOADING | Flag.STALE | Flag.SHOWS_TABLES,
    summary="Returns the server's state, figures and statistics.",
    categories=("dangerous",),
    tips=("nondeterministic_output", "request_policy:all_shards", "response_policy:special"),
)
def info(request: Request) -> Verbatim:
    """INFO [section ...] -> text.  Sections come in a fixed order, each once, with an empty line between them."""
    wanted = _wanted({word.lower().decode("latin-1") for word in set(request.argv[1:])})
    sections = []
    for name, fields in _SECTIONS.items():
        if name in wanted:
            lines = [f"# {_HEADINGS.get(name, name.capitalize())}\r\n"]
            lines += [_line(f"{field}:{value}") for field, value in fields(request)]
            lines += [f"{field}:0\r\n" for field in _ALWAYS_ZERO.get(name, "").split()]
            sections.append("".join(lines))
    return Verbatim("\r\n".join(sections).encode())
