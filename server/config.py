"""The settings: one list of them, and the three places they come from.

    defaults  <  configuration file  <  flags        later ones win; CONFIG SET changes them while the server runs

Names, units and error texts are those of redis.conf where Redis has the setting.  Knows how settings are read, kept
and written back; what they do is up to those who read them, or who `observe` one to hear of its change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from server import configfile
from server.configfile import ConfigFileError, Directive
from server.glob import compile_glob
from server.settings import (
    LLONG_MAX,
    UINT_MAX,
    Addresses,
    AnySetting,
    BadValueError,
    Boolean,
    Choice,
    Directory,
    FileName,
    Fixed,
    Integer,
    Memory,
    Octal,
    OutputLimit,
    OutputLimits,
    Primary,
    Secret,
    Section,
    Setting,
    Text,
)
from store.engine import Options
from store.manifest import split_words

_MB: Final = 1 << 20
_REWRITE_MARK: Final = "# Written by CONFIG REWRITE"

# Lines of an ordinary redis.conf about things that do not exist here, and that nobody's data or safety hangs on: they
# are passed over, with a line in the server's log, so that such a file can be tried.  CONFIG GET does not know them.
_WITHOUT_MEANING: Final = frozenset(
    (
        *("acllog-max-len", "active-expire-effort", "activerehashing", "always-show-logo", "aof-timestamp-enabled"),
        *("aof-rewrite-incremental-fsync", "busy-reply-threshold", "crash-log-enabled", "crash-memcheck-enabled"),
        *("dbfilename", "disable-thp", "dynamic-hz", "hash-max-listpack-entries", "hash-max-listpack-value"),
        *("hash-max-ziplist-entries", "hash-max-ziplist-value", "hll-sparse-max-bytes", "jemalloc-bg-thread"),
        *("lazyfree-lazy-eviction", "lazyfree-lazy-expire", "lazyfree-lazy-server-del", "lazyfree-lazy-user-del"),
        *("lazyfree-lazy-user-flush", "lfu-decay-time", "lfu-log-factor", "list-compress-depth"),
        *("list-max-listpack-size", "list-max-ziplist-size", "lua-time-limit", "maxmemory-samples"),
        *("oom-score-adj", "oom-score-adj-values", "pidfile", "proc-title-template", "rdb-del-sync-files"),
        *("rdb-save-incremental-fsync", "rdbchecksum", "rdbcompression", "repl-disable-tcp-nodelay"),
        *("repl-backlog-size", "repl-backlog-ttl"),
        *("repl-diskless-load", "repl-diskless-sync", "repl-diskless-sync-delay", "repl-diskless-sync-max-replicas"),
        *("replica-lazy-flush", "set-max-intset-entries", "set-max-listpack-entries", "set-max-listpack-value"),
        *("set-proc-title", "stop-writes-on-bgsave-error", "supervised", "tracking-table-max-keys"),
        *("zset-max-listpack-entries", "zset-max-listpack-value", "zset-max-ziplist-entries"),
        *("zset-max-ziplist-value",),
    )
)

# What settings were called before Redis 5; files and tools still say so.
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


class ConfigError(Exception):
    """A setting cannot be what it was asked to be.  The text is complete; the parts are for CONFIG SET."""

    def __init__(self, setting: str, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {setting}: {reason}" if place else f"{setting}: {reason}")
        self.setting = setting
        self.reason = reason


class UnknownSettingError(ConfigError):
    """There is no such setting."""

    def __init__(self, setting: str, place: str = "") -> None:
        super().__init__(setting, "there is no such setting", place)


class Config:
    """The settings of one server, an attribute for each: `tcp_backlog` is tcp-backlog.

    The class body is the list: its order is that of `--help` and CONFIG GET.
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

    # -- clients -------------------------------------------------------------------------------------------------------

    requirepass = Secret(Section.CLIENTS, b"", "Password that clients must give with AUTH; empty for none.")
    protected_mode = Boolean(
        Section.CLIENTS, True, "Without a password, refuse clients that come from another machine."
    )
    maxclients = Integer(
        Section.CLIENTS, 10000, "Connections at the same time; one more is refused.", minimum=1, maximum=UINT_MAX
    )
    client_query_buffer_limit = Memory(
        Section.CLIENTS, 1 << 30, "Cut off a client whose unfinished request is larger.", minimum=_MB
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
    checkpoint_dirty_bytes = Memory(
        Section.DATA, 8 * _MB, "Do so earlier when this much was logged since the last time.", minimum=64 << 10
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
    appenddirname = FileName(Section.DATA, Options.log_directory, "Folder of the log files, inside dir.", at_start=True)
    appendfilename = FileName(
        Section.DATA, Options.log_filename, "What the log's file names begin with.", at_start=True
    )
    lmdb_map_size = Memory(
        Section.DATA,
        Options.map_bytes,
        "Most that the tables may grow to; takes address space only.",
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
    masteruser = Text(Section.REPLICATION, "", "User name to give with masterauth; empty for the default one.")
    replica_serve_stale_data = Boolean(
        Section.REPLICATION, True, "Answer reads while a replica has no link to its primary."
    )
    repl_timeout = Integer(
        Section.REPLICATION, 60, "A link on which nothing comes for so long is given up.", minimum=1, unit="seconds"
    )
    repl_ping_replica_period = Integer(
        Section.REPLICATION, 10, "How often a primary that writes nothing else pings.", minimum=1, unit="seconds"
    )
    replica_announce_ip = Text(
        Section.REPLICATION, "", "Address that a replica says it can be reached at; empty for the one it is seen at."
    )
    replica_announce_port = Integer(
        Section.REPLICATION, 0, "Port that a replica says it can be reached at; 0 for its own.", maximum=65535
    )
    replica_announced = Boolean(Section.REPLICATION, True, "Whether Sentinel tells its clients of this replica.")
    replica_priority = Integer(Section.REPLICATION, 100, "The lowest is promoted first by Sentinel, and 0 never.")
    min_replicas_to_write = Integer(
        Section.REPLICATION, 0, "Refuse writes while fewer replicas than this are well; 0 for never."
    )
    min_replicas_max_lag = Integer(
        Section.REPLICATION, 10, "A replica is well when it was heard of within this time; 0 for never.", unit="seconds"
    )

    # -- diagnostics ---------------------------------------------------------------------------------------------------

    loglevel = Choice(
        Section.DIAGNOSTICS, ("debug", "verbose", "notice", "warning"), "notice", "How much the server's log tells."
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

    metrics_port = Integer(
        Section.DIAGNOSTICS,
        0,
        "TCP port for Prometheus, which finds /metrics there, and /healthz; 0 for none.",
        maximum=65535,
        at_start=True,
    )
    metrics_bind = Addresses(
        Section.DIAGNOSTICS,
        ("127.0.0.1",),
        "Addresses that metrics-port listens on; nobody is asked for a password there.",
        at_start=True,
    )
    metrics_max_streams = Integer(
        Section.DIAGNOSTICS,
        100,
        "Streams with metrics of their own: those with consumer groups first, then the longest.",
        maximum=1000,
        at_start=True,
    )
    metrics_max_groups = Integer(
        Section.DIAGNOSTICS,
        200,
        "Consumer groups of them with metrics of their own: those with the most pending first.",
        maximum=1000,
        at_start=True,
    )

    # -- fixed ---------------------------------------------------------------------------------------------------------

    replica_read_only = Fixed("yes", "a replica's log is its primary's, byte for byte")
    databases = Integer(Section.FIXED, 16, "databases that SELECT chooses from", minimum=16, maximum=16, at_start=True)
    hz = Integer(Section.FIXED, 10, "background chores run ten times a second", minimum=10, maximum=10)
    appendonly = Fixed("yes", "the log is what the store is made of")
    save = Fixed("", "there are no RDB files; checkpoints happen by themselves")
    aof_use_rdb_preamble = Fixed("no", "the log is commands from its first byte")
    no_appendfsync_on_rewrite = Fixed("no", "a rewrite does not weaken durability")
    maxmemory = Fixed("0", "data lives on disk and nothing is evicted; set limits with MAXLEN or MINID")
    maxmemory_policy = Fixed("noeviction", "data lives on disk and nothing is evicted")
    maxmemory_clients = Fixed("0", "use client-output-buffer-limit and client-query-buffer-limit")
    notify_keyspace_events = Fixed("", "there are no keyspace notifications")
    io_threads = Fixed("1", "one thread serves all clients")
    activedefrag = Fixed("no", "there is no memory to defragment")
    cluster_enabled = Fixed("no", "there is no cluster mode")
    daemonize = Fixed("no", "run it under a service manager, or in the background with &")

    def __init__(self) -> None:
        """Everything at its default."""
        self.file: Path | None = None
        self.ignored: list[Directive] = []  # what the file says that has no meaning here
        self._observers: dict[str, list[Callable[[], None]]] = {}
        self.__dict__.update(_defaults())

    # -- reading -------------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, arguments: Sequence[str]) -> Config:
        """The settings that the words of a command line ask for: `[FILE] [--name value ...]`.

        Raises ConfigError or ConfigFileError, whose text says where and what.
        """
        config = cls()
        words = list(arguments)
        said: list[Directive] = []
        if words and not words[0].startswith("--"):
            config.file = Path(words.pop(0)).absolute()
            said += configfile.directives(configfile.read_lines(config.file), config.file)
        said += _flags(words)
        values, config.ignored = _fold(said)
        config.__dict__.update(values)
        return config

    def get(self, patterns: Iterable[bytes]) -> dict[str, str]:
        """Names and values of the settings that match any of `patterns`, in the order of the list."""
        matchers = [compile_glob(pattern, ignore_case=True) for pattern in patterns]
        names = SETTINGS | {old: SETTINGS[name] for old, name in OLD_NAMES.items()}
        return {
            name: setting.render(self.__dict__[setting.attribute])
            for name, setting in names.items()
            if any(matches(name.encode()) for matches in matchers)
        }

    # -- changing ------------------------------------------------------------------------------------------------------

    def set(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Change settings while the server runs, all of them or none.  Raises ConfigError."""
        asked: dict[str, tuple[AnySetting, str]] = {}
        for name, text in pairs:
            setting = find_setting(name)
            if setting is None:
                raise UnknownSettingError(name)
            if setting.at_start:
                raise ConfigError(setting.name, "can't set immutable config")
            if setting.name in asked:
                raise ConfigError(setting.name, "duplicate parameter")
            asked[setting.name] = setting, text
        values = {
            setting.attribute: _parse(setting, [text], self.__dict__[setting.attribute])
            for setting, text in asked.values()
        }
        before = {attribute: self.__dict__[attribute] for attribute in values}
        self.__dict__.update(values)
        changed = [setting for setting, _ in asked.values() if values[setting.attribute] != before[setting.attribute]]
        told: list[AnySetting] = []
        for setting in changed:
            told.append(setting)
            try:
                self._tell(setting)
            except BadValueError as error:
                self.__dict__.update(before)
                for one in told:
                    self._tell(one)
                raise ConfigError(setting.name, str(error)) from None

    def observe(self, name: str, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of setting `name`.

        It reads the new value from here.  It may raise BadValueError: then nothing changes, and it is called again.
        """
        assert name in SETTINGS, name
        self._observers.setdefault(name, []).append(callback)

    def _tell(self, setting: AnySetting) -> None:
        for callback in self._observers.get(setting.name, ()):
            callback()

    # -- writing back --------------------------------------------------------------------------------------------------

    def rewrite(self) -> None:
        """Make the file say what is in force, and change no more of it than that takes.

        Comments, order and lines that are right already stay.  A setting whose lines are not right gets one line, in
        the place of the first of them; one without a line, or overruled by an included file, gets it at the end.
        Raises ConfigFileError, OSError.
        """
        assert self.file is not None
        lines = configfile.read_lines(self.file)
        own = [_renamed(configfile.directive(line, f"{self.file}:{number}")) for number, line in enumerate(lines, 1)]
        named = [said for said in own if said is not None and said.name in SETTINGS]
        values, _ = _fold(named)
        wrong = {setting.name for setting in self._other_than(values)} & {said.name for said in named}
        written: set[str] = set()
        kept: list[str] = []
        for line, said in zip(lines, own, strict=True):
            if said is None or said.name not in wrong:
                kept.append(line)
            elif said.name not in written:
                written.add(said.name)
                if self._needs_no_line(SETTINGS[said.name]):
                    continue
                kept.append(self._line(SETTINGS[said.name]))
        values, _ = _fold(configfile.directives(kept, self.file))
        missing = [self._line(setting) for setting in self._other_than(values)]
        if missing:
            while kept and not kept[-1].strip():
                kept.pop()
            if _REWRITE_MARK not in kept:
                kept += ["", _REWRITE_MARK]
            kept += [*missing, ""]
        configfile.replace_file(self.file, kept)

    def _other_than(self, values: dict[str, Any]) -> Iterator[AnySetting]:
        for setting in SETTINGS.values():
            if values[setting.attribute] != self.__dict__[setting.attribute]:
                yield setting

    def _needs_no_line(self, setting: AnySetting) -> bool:
        return setting.is_absent_by_default and self.__dict__[setting.attribute] == setting.default

    def _line(self, setting: AnySetting) -> str:
        return configfile.render_line(setting.name, setting.file_words(self.__dict__[setting.attribute]))


SETTINGS: Final[dict[str, AnySetting]] = {
    value.name: value for value in vars(Config).values() if isinstance(value, Setting)
}


def find_setting(name: str) -> AnySetting | None:
    """The setting of that name, or of that former name."""
    lowered = name.lower()
    return SETTINGS.get(OLD_NAMES.get(lowered, lowered))


def _renamed(said: Directive | None) -> Directive | None:
    """A line of a file under the setting's present name."""
    return said and Directive(said.place, OLD_NAMES.get(said.name, said.name), said.words)


def _defaults() -> dict[str, Any]:
    values = {setting.attribute: setting.default for setting in SETTINGS.values()}
    values["dir"] = Path.cwd()
    return values


def _flags(words: list[str]) -> Iterator[Directive]:
    """Settings from a command line; values go on until the next `--name`."""
    position = 0
    while position < len(words):
        flag = words[position]
        if not flag.startswith("--"):
            raise ConfigError(flag, "expected --name value", "command line")
        name, equals, value = flag[2:].partition("=")
        values = [value] if equals else []
        position += 1
        while position < len(words) and not words[position].startswith("--"):
            values.append(words[position])
            position += 1
        yield Directive("command line", name.lower(), values)


def _fold(said: Iterable[Directive]) -> tuple[dict[str, Any], list[Directive]]:
    """The values after `said`, from defaults on, and what was passed over.  Raises ConfigError."""
    values = _defaults()
    passed_over = []
    for line in said:
        setting = find_setting(line.name)
        if setting is not None:
            values[setting.attribute] = _parse(setting, line.words, values[setting.attribute], line.place)
        elif line.name in _WITHOUT_MEANING:
            passed_over.append(line)
        else:
            raise UnknownSettingError(line.name, line.place)
    return values, passed_over


def _parse(setting: AnySetting, words: list[str], current: Any, place: str = "") -> Any:
    if setting.takes_list and len(words) == 1:
        # `CONFIG SET save "1 2"` and `--save "1 2"` have the list in one word
        try:
            words = split_words(words[0])
        except ValueError:
            raise ConfigError(setting.name, "unbalanced quotes", place) from None
    try:
        return setting.parse(words, current)
    except BadValueError as error:
        raise ConfigError(setting.name, str(error), place) from None


__all__ = ["SETTINGS", "Config", "ConfigError", "ConfigFileError", "UnknownSettingError"]
