"""Settings that other parts apply when they change: the store, the slow log's threshold, the connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from riverbed.server.stats import process
from riverbed.store.options import Fsync

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.execution.calls import Timing


def apply_settings(core: Core, timing: Timing) -> None:
    """Apply the settings of the store, the timing, the connections and the client limits, now and at each change."""
    config, engine = core.config, core.engine

    def apply() -> None:
        slower_than_us = config.slowlog_log_slower_than
        thresholds = [slower_than_us] if slower_than_us >= 0 else []
        if config.latency_monitor_threshold:
            thresholds.append(config.latency_monitor_threshold * 1000)
        timing.slow_ns = min(thresholds) * 1000 if thresholds else 1 << 62
        engine.set_fsync(Fsync(config.appendfsync))
        engine.txn.idmp_duration_s = config.stream_idmp_duration
        engine.txn.idmp_max_records = config.stream_idmp_maxsize

    apply()
    for name in (
        "slowlog-log-slower-than",
        "latency-monitor-threshold",
        "appendfsync",
        "stream-idmp-duration",
        "stream-idmp-maxsize",
    ):
        config.observe(name, apply)

    def configure_nodes() -> None:
        engine.txn.configure_nodes(config.stream_node_max_entries, config.stream_node_max_bytes)

    def prepare_nodes() -> Callable[[], None]:
        engine.txn.take_all_back()  # writes rows, for which there may be no room
        return configure_nodes

    configure_nodes()
    config.prepare(("stream-node-max-entries", "stream-node-max-bytes"), prepare_nodes)

    def limit_requests() -> None:
        for session in core.sessions.values():
            session.input.max_bulk_bytes = config.proto_max_bulk_len
            session.input.max_query_bytes = config.client_query_buffer_limit

    for name in ("proto-max-bulk-len", "client-query-buffer-limit"):
        config.observe(name, limit_requests)

    def limit_clients() -> None:
        limit = config.maxmemory_clients
        core.accounts.holders.set_limit(limit if limit >= 0 else process.system_memory() * -limit // 100)

    limit_clients()
    config.observe("maxmemory-clients", limit_clients)

    def change_password() -> None:
        core.users.require_password(config.requirepass)
        let_in()

    def let_in() -> None:
        """Without a password, authenticate all clients.  Redis does the same by checking at each command."""
        if core.users.default.lets_everybody_in:
            for session in core.sessions.values():
                if not session.authenticated:
                    session.authenticate(True)

    config.observe("requirepass", change_password)

    def give_channels() -> None:
        core.users.sees_all_channels = config.acl_pubsub_default == "allchannels"

    config.observe("acl-pubsub-default", give_channels)
