"""The settings: the one list of them, with default, unit, bounds and purpose.

Names and units are those of redis.conf where Redis has the setting.  `kinds.py` defines what a kind of setting accepts,
`config.py` where values come from and when they change; the parts that read a setting act on it.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

from riverbed.server.config.kinds import (
    LLONG_MAX,
    UINT_MAX,
    Addresses,
    AnySetting,
    Boolean,
    Choice,
    Directory,
    Empty,
    Fixed,
    Integer,
    Memory,
    MemoryOrPercent,
    Octal,
    OutputLimit,
    OutputLimits,
    Primary,
    ReadFile,
    Secret,
    Section,
    Setting,
    Text,
    UserName,
)
from riverbed.store.layout import LOG_DIRECTORY, LOG_FILE
from riverbed.store.options import Options

_MB: Final = 1 << 20
_LAYOUT: Final = "`riverbed replay DIR NEW` makes a data directory of a log with other names"

# Settings of an ordinary redis.conf for things that do not exist here and that affect neither data nor safety.  They
# are skipped, with a line in the server's log, so that such a file can be tried.  CONFIG GET does not know them.
_NAMES_WITHOUT_MEANING: Final = """
    active-defrag-cycle-max active-defrag-cycle-min active-defrag-ignore-bytes
    active-defrag-max-scan-fields active-defrag-threshold-lower active-defrag-threshold-upper active-expire-effort
    activerehashing always-show-logo aof-disable-auto-gc aof-rewrite-incremental-fsync aof-timestamp-enabled
    aof_rewrite_cpulist bgsave_cpulist bind-source-addr bio_cpulist busy-reply-threshold
    cluster-allow-pubsubshard-when-down cluster-allow-reads-when-down cluster-allow-replica-migration
    cluster-announce-bus-port cluster-announce-hostname cluster-announce-ip cluster-announce-port
    cluster-announce-tls-port cluster-config-file cluster-link-sendbuf-limit cluster-migration-barrier
    cluster-node-timeout cluster-port cluster-preferred-endpoint-type cluster-replica-no-failover
    cluster-replica-validity-factor cluster-require-full-coverage cluster-slave-no-failover
    cluster-slave-validity-factor crash-log-enabled crash-memcheck-enabled dbfilename disable-thp dynamic-hz
    enable-module-command hash-max-listpack-entries hash-max-listpack-value
    hash-max-ziplist-entries hash-max-ziplist-value hll-sparse-max-bytes ignore-warnings io-threads-do-reads
    jemalloc-bg-thread latency-tracking latency-tracking-info-percentiles lazyfree-lazy-eviction
    lazyfree-lazy-expire lazyfree-lazy-server-del lazyfree-lazy-user-del lazyfree-lazy-user-flush lfu-decay-time
    lfu-log-factor list-compress-depth list-max-listpack-size list-max-ziplist-size lua-time-limit
    maxmemory-eviction-tenacity maxmemory-samples oom-score-adj oom-score-adj-values pidfile proc-title-template
    propagation-error-behavior rdb-del-sync-files rdb-save-incremental-fsync rdbchecksum rdbcompression
    repl-backlog-ttl repl-disable-tcp-nodelay repl-diskless-load repl-diskless-sync
    repl-diskless-sync-delay repl-diskless-sync-max-replicas replica-full-sync-buffer-limit
    replica-ignore-disk-write-errors replica-ignore-maxmemory replica-lazy-flush sanitize-dump-payload
    server_cpulist set-max-intset-entries set-max-listpack-entries set-max-listpack-value set-proc-title
    shutdown-on-sigint shutdown-on-sigterm slave-ignore-maxmemory slave-lazy-flush socket-mark-id
    stop-writes-on-bgsave-error supervised syslog-enabled syslog-facility syslog-ident tracking-table-max-keys
    zset-max-listpack-entries zset-max-listpack-value zset-max-ziplist-entries zset-max-ziplist-value
"""
WITHOUT_MEANING: Final = frozenset(_NAMES_WITHOUT_MEANING.split())

# Settings of Redis that keep a server closed, and what to do without them.  A file that has one is refused, for it
# expects that protection.
GUARDS: Final = MappingProxyType(
    {
        "enable-protected-configs": "Riverbed does not have it, and would be more open without it than this line says",
        "rename-command": "Riverbed does not rename commands; take them from users instead, as in:"
        " user default on nopass ~* &* +@all -flushall -config",
    }
)

USER_LINE: Final = "user"  # a line that makes a user, not a setting

# Names of settings before Redis 5; files and tools still use them.
OLD_NAMES: Final = MappingProxyType(
    {
        "slaveof": "replicaof",
        "slave-announce-ip": "replica-announce-ip",
        "slave-announce-port": "replica-announce-port",
        "slave-priority": "replica-priority",
        "slave-read-only": "replica-read-only",
        "slave-serve-stale-data": "replica-serve-stale-data",
        "repl-ping-slave-period": "repl-ping-replica-period",
        "min-slaves-to-write": "min-replicas-to-write",
        "min-slaves-max-lag": "min-replicas-max-lag",
    }
)


class Settings:
    """An attribute for each setting: `tcp_backlog` is tcp-backlog.

    The order here is that of `--help` and CONFIG GET.
    """

    # -- network -------------------------------------------------------------------------------------------------------

    bind = Addresses(
        Section.NETWORK,
        ("127.0.0.1", "-::1"),
        "Addresses to listen on; * is all of IPv4, ::* all of IPv6, and one behind a - may be missing.",
        at_start=True,
    )
    port = Integer(Section.NETWORK, 6379, "TCP port to listen on; 0 for none.", maximum=65535, at_start=True)
    tcp_backlog = Integer(Section.NETWORK, 511, "Connections that may wait to be accepted.", at_start=True)
    unixsocket = Text(Section.NETWORK, "", "Path of a Unix socket to listen on as well; empty for none.", at_start=True)
    unixsocketperm = Octal(
        Section.NETWORK,
        0,
        "Permissions of the Unix socket, in octal; 0 leaves them to the umask.",
        maximum=0o777,
        at_start=True,
    )
    tcp_keepalive = Integer(
        Section.NETWORK, 300, "Probe connections that were silent for so long; 0 for never.", unit="seconds"
    )
    timeout = Integer(
        Section.NETWORK, 0, "Close the connection of a client that was idle for so long; 0 for never.", unit="seconds"
    )

    # -- TLS -----------------------------------------------------------------------------------------------------------

    tls_port = Integer(
        Section.TLS, 0, "TCP port to listen on with TLS, as well as on port; 0 for none.", maximum=65535, at_start=True
    )
    tls_cert_file = ReadFile(Section.TLS, "", "The server's certificate and those that lead to its authority, as PEM.")
    tls_key_file = ReadFile(Section.TLS, "", "The private key of the certificate, as PEM.")
    tls_key_file_pass = Secret(Section.TLS, b"", "Password of the key's file; empty for none.")
    tls_client_cert_file = ReadFile(
        Section.TLS, "", "Certificate that a replica shows to its primary; empty for that of the server."
    )
    tls_client_key_file = ReadFile(Section.TLS, "", "The private key of that certificate.")
    tls_client_key_file_pass = Secret(Section.TLS, b"", "Password of that key's file; empty for none.")
    tls_dh_params_file = ReadFile(Section.TLS, "", "Parameters for the ciphers DHE of TLS 1.2; empty for none of them.")
    tls_ca_cert_file = ReadFile(Section.TLS, "", "Certificates of the authorities that peers are believed for, as PEM.")
    tls_ca_cert_dir = ReadFile(Section.TLS, "", "Folder of such certificates, named as `openssl rehash` does.")
    tls_auth_clients = Choice(
        Section.TLS,
        ("no", "yes", "optional"),
        "yes",
        "Whether clients must show a certificate of these authorities; optional: it must be good if there is one.",
    )
    tls_replication = Boolean(Section.TLS, False, "Speak TLS to the primary.")
    tls_protocols = Text(
        Section.TLS, "", "Versions to speak, of TLSv1.2 and TLSv1.3, with a blank in between; empty for both."
    )
    tls_ciphers = Text(Section.TLS, "", "Ciphers for TLS 1.2, as OpenSSL names them; empty for its default.")
    tls_ciphersuites = Empty(
        Section.TLS,
        "",
        "Python cannot choose the ciphers of TLS 1.3, all of which are good; leave it empty, or speak TLSv1.2 alone.",
    )
    tls_prefer_server_ciphers = Boolean(Section.TLS, False, "Choose the first cipher of ours, not of the client.")
    tls_session_caching = Boolean(Section.TLS, True, "Let clients that come again take up their former session.")

    # -- clients -------------------------------------------------------------------------------------------------------

    requirepass = Secret(Section.CLIENTS, b"", "Password that clients must give with AUTH; empty for none.")
    aclfile = Text(Section.CLIENTS, "", "File with the users and what each may do; empty for none.", at_start=True)
    acl_pubsub_default = Choice(
        Section.CLIENTS, ("resetchannels", "allchannels"), "resetchannels", "The channels of a new user: none, or all."
    )
    acllog_max_len = Integer(Section.CLIENTS, 128, "Refusals that ACL LOG keeps.")
    protected_mode = Boolean(
        Section.CLIENTS, True, "Without a password, refuse clients that come from another machine."
    )
    maxclients = Integer(
        Section.CLIENTS, 10000, "Connections at the same time; one more is refused.", minimum=1, maximum=UINT_MAX
    )
    client_query_buffer_limit = Memory(
        Section.CLIENTS, 1 << 30, "Cut off a client whose unfinished request is larger.", minimum=_MB
    )
    maxmemory_clients = MemoryOrPercent(
        Section.CLIENTS,
        256 * _MB,
        "Evict the clients that hold most when all together have more than this kept for them: unfinished requests,"
        " transactions, unread replies, watched keys, subscriptions. In bytes, or in percent of the machine's memory;"
        " 0 for no limit, which is the default of Redis.",
    )
    proto_max_bulk_len = Memory(Section.CLIENTS, 512 * _MB, "Largest single argument of a request.", minimum=_MB)
    client_output_buffer_limit = OutputLimits(
        Section.CLIENTS,
        MappingProxyType(
            {
                "normal": OutputLimit(0, 0, 0),
                "replica": OutputLimit(256 * _MB, 64 * _MB, 60),
                "pubsub": OutputLimit(32 * _MB, 8 * _MB, 60),
            }
        ),
        "Cut off a client that leaves more replies unread: for each class (normal, replica, pubsub) a hard limit,"
        " a soft limit and the seconds it may be exceeded; 0 for no limit.",
        unit="bytes, bytes, seconds",
    )

    # -- data ----------------------------------------------------------------------------------------------------------

    dir = Directory(
        Section.DATA, Path(), "Folder of the data; created if need be, and locked by the server.", at_start=True
    )
    appendfsync = Choice(
        Section.DATA,
        ("everysec", "always", "no"),
        "always",
        "When writes are made durable: always before they are acknowledged, once a second, or when the system pleases.",
    )
    checkpoint_interval_ms = Integer(
        Section.DATA,
        200,
        "Bring the tables up to the log this often while there are writes.",
        minimum=1,
        maximum=3_600_000,
        unit="milliseconds",
    )
    snapshot_columns = Boolean(
        Section.DATA,
        False,
        "Write the entries of each snapshot as Parquet too; needs pyarrow: pip install 'riverbed[sql]'.",
    )
    log_segment_bytes = Memory(
        Section.DATA,
        Options.segment_bytes,
        "Go on in a new log file when the current one is this long.",
        minimum=64 << 10,
        at_start=True,
    )
    auto_aof_rewrite_percentage = Integer(
        Section.DATA, 100, "Rewrite the log when it grew by this much since the last rewrite; 0 for never.", unit="%"
    )
    auto_aof_rewrite_min_size = Memory(Section.DATA, 64 * _MB, "But not while the log is smaller than this.")
    aof_load_truncated = Boolean(
        Section.DATA, True, "Start although the log's last write was cut short, dropping that write and saying so."
    )
    lmdb_map_size = Memory(
        Section.DATA,
        Options.quota_bytes,
        "Most that the rows may take; the tables' file may be larger, see docs/operations.md.",
        minimum=16 * _MB,
        maximum=1 << 46,
        at_start=True,
    )
    disk_reserve_bytes = Memory(
        Section.DATA,
        Options.reserve_bytes,
        "Refuse writes while less is free on the disk, so that deleting and trimming still can; on a small disk an"
        " eighth of it.",
        at_start=True,
    )

    scrub_interval = Integer(
        Section.DATA,
        86_400,
        "Compare the files of the log with their checksums this often, in the background; 0 for never.",
        minimum=0,
        unit="seconds",
    )
    auto_repair = Boolean(
        Section.DATA,
        True,
        "Make damaged tables again of the log, or a damaged log again of the tables, when a command or a scrub meets"
        " it. On a replica, make tables again that could not be synced.",
    )

    # -- streams -------------------------------------------------------------------------------------------------------

    stream_node_max_entries = Integer(
        Section.STREAMS,
        Options.node_max_entries,
        "Entries in one node, the unit of approximate trimming; 0 for no limit.",
        maximum=LLONG_MAX,
    )
    stream_node_max_bytes = Memory(Section.STREAMS, Options.node_max_bytes, "Bytes in one node; 0 for no limit.")
    stream_idmp_duration = Integer(
        Section.STREAMS,
        100,
        "How long XADD IDMP knows an entry again, in streams to come.",
        minimum=1,
        maximum=86400,
        unit="seconds",
    )
    stream_idmp_maxsize = Integer(
        Section.STREAMS,
        100,
        "How many entries of each producer XADD IDMP knows again, in streams to come.",
        minimum=1,
        maximum=10000,
    )

    # -- replication ---------------------------------------------------------------------------------------------------

    replicaof = Primary(
        Section.REPLICATION, None, "Follow the server at this host and port; no one for none.", at_start=True
    )
    masterauth = Secret(Section.REPLICATION, b"", "Password for the primary; empty for none.")
    masteruser = UserName(Section.REPLICATION, "", "User name to give with masterauth; empty for the default one.")
    replica_serve_stale_data = Boolean(
        Section.REPLICATION, True, "Answer reads while a replica has no link to its primary."
    )
    repl_timeout = Integer(
        Section.REPLICATION,
        60,
        "A link is closed when no byte has come on it for so long. A replica's must be longer than its primary's"
        " repl-ping-replica-period.",
        minimum=1,
        unit="seconds",
    )
    repl_ping_replica_period = Integer(
        Section.REPLICATION,
        10,
        "How often an idle primary sends a ping: after half of its repl-timeout at the latest.",
        minimum=1,
        unit="seconds",
    )
    repl_backlog_size = Memory(
        Section.REPLICATION,
        64 * _MB,
        "When the log is rewritten, keep so much of its former end for replicas that are away, in whole files, until as"
        " much was written since; 0 for nothing. Without it they are sent everything.",
    )
    repl_max_batch_bytes = Memory(
        Section.REPLICATION,
        512 * _MB,
        "A replica takes no batch of the log that is longer. It holds 16 MB of one in memory, and the rest in a file"
        " without a name in its data directory. A batch holds the writes that all clients of the primary sent at once:"
        " this is twice what maxmemory-clients lets them send, so raise both together.",
        minimum=_MB,
    )
    replica_announce_ip = Text(
        Section.REPLICATION, "", "Address that a replica says it can be reached at; empty for the one it is seen at."
    )
    replica_announce_port = Integer(
        Section.REPLICATION, 0, "Port that a replica says it can be reached at; 0 for its own.", maximum=65535
    )
    replica_announced = Boolean(Section.REPLICATION, True, "Whether Sentinel shows this replica to its clients.")
    replica_priority = Integer(Section.REPLICATION, 100, "The lowest is promoted first by Sentinel, and 0 never.")
    min_replicas_to_write = Integer(
        Section.REPLICATION, 0, "Refuse writes while fewer replicas than this are well; 0 for never."
    )
    min_replicas_max_lag = Integer(
        Section.REPLICATION, 10, "A replica is well when it was heard of within this time; 0 for never.", unit="seconds"
    )

    shutdown_timeout = Integer(
        Section.REPLICATION,
        10,
        "How long a server that stops waits for replicas to have everything; 0 for not at all.",
        unit="seconds",
    )

    # -- diagnostics ---------------------------------------------------------------------------------------------------

    loglevel = Choice(
        Section.DIAGNOSTICS,
        ("debug", "verbose", "notice", "warning"),
        "notice",
        "The lowest level of the lines in the server's log.",
    )
    logfile = Text(
        Section.DIAGNOSTICS, "", "File that the server's log is appended to; empty for standard output.", at_start=True
    )
    slowlog_log_slower_than = Integer(
        Section.DIAGNOSTICS,
        10000,
        "Commands that take longer go to SLOWLOG; 0 for all, -1 for none.",
        minimum=-1,
        maximum=LLONG_MAX,
        unit="microseconds",
    )
    slowlog_max_len = Integer(Section.DIAGNOSTICS, 128, "Entries that SLOWLOG keeps.", maximum=LLONG_MAX)
    latency_monitor_threshold = Integer(
        Section.DIAGNOSTICS,
        0,
        "Events that take longer go to LATENCY; 0 for none.",
        maximum=LLONG_MAX,
        unit="milliseconds",
    )
    enable_debug_command = Choice(
        Section.DIAGNOSTICS,
        ("no", "yes", "local"),
        "no",
        "Clients that may call DEBUG, which can stall the server: none, all, or those on this machine.",
        at_start=True,
    )
    metrics_port = Integer(
        Section.DIAGNOSTICS,
        0,
        "TCP port for Prometheus, which finds /metrics there, and /healthz; 0 for none.",
        maximum=65535,
        at_start=True,
    )
    metrics_tls = Boolean(
        Section.DIAGNOSTICS, False, "Speak TLS on metrics-port, with tls-auth-clients as for clients.", at_start=True
    )
    metrics_bind = Addresses(
        Section.DIAGNOSTICS,
        ("127.0.0.1",),
        "Addresses that metrics-port listens on; no password is asked for there.",
        at_start=True,
    )

    # -- fixed ---------------------------------------------------------------------------------------------------------

    replica_read_only = Fixed("yes", "a replica's log is its primary's, byte for byte")
    databases = Integer(Section.FIXED, 16, "databases that SELECT chooses from", minimum=16, maximum=16, at_start=True)
    hz = Integer(Section.FIXED, 10, "background work runs ten times a second", minimum=10, maximum=10)
    appendonly = Fixed("yes", "the store is made from the log")
    appenddirname = Fixed(LOG_DIRECTORY, _LAYOUT, at_start=True)
    appendfilename = Fixed(LOG_FILE, _LAYOUT, at_start=True)
    save = Fixed("", "there are no RDB files; checkpoints happen by themselves")
    aof_use_rdb_preamble = Fixed("no", "the log is commands from its first byte")
    no_appendfsync_on_rewrite = Fixed("no", "a rewrite does not weaken durability")
    maxmemory = Fixed("0", "data lives on disk and nothing is evicted; set limits with MAXLEN or MINID")
    maxmemory_policy = Fixed("noeviction", "data lives on disk and nothing is evicted")
    notify_keyspace_events = Fixed("", "there are no keyspace notifications")
    io_threads = Fixed("1", "one thread serves all clients")
    activedefrag = Fixed("no", "there is no memory to defragment")
    cluster_enabled = Fixed("no", "there is no cluster mode")
    tls_cluster = Fixed("no", "there is no cluster mode")
    tls_session_cache_size = Fixed("20480", "Python's OpenSSL keeps so many")
    tls_session_cache_timeout = Fixed("300", "Python's OpenSSL keeps them for so long")
    daemonize = Fixed("no", "run it under a service manager, or in the background with &")


SETTINGS: Final[dict[str, AnySetting]] = {
    value.name: value for value in vars(Settings).values() if isinstance(value, Setting)
}


def find_setting(name: str) -> AnySetting | None:
    """The setting with this name, or with this former name."""
    lowered = name.lower()
    return SETTINGS.get(OLD_NAMES.get(lowered, lowered))
