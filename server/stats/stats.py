"""Counters: what INFO, SLOWLOG and LATENCY report.

The hot path touches only plain attributes and slots, so that the caller adds in place; the methods are for rare events.
Nothing here decides anything, reads a setting or knows a client's connection.

How the executor uses it, once for each command that ran:

    counters = stats.counters(command.full_name)       # the same object for ever: look it up once
    counters.record(elapsed_ns)                        # or record_run(calls, elapsed_ns) for a run of equal commands
    counters.failed += 1; stats.count_error(text)      # when it answered an error
    counters.rejected += 1; stats.count_error(text)    # when it was refused before it ran
    stats.slowlog.add(...)                             # when it took longer than the setting allows
    stats.latency.add(b"command", ...)                 # likewise, for the latency monitor
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from riverbed.server.stats import process

RATE_SAMPLES: Final = 16  # Redis averages its rates over as many
MEMORY_EVERY: Final = 10  # samples between two looks at the process's memory: once a second
SLOWLOG_WORDS: Final = 32
SLOWLOG_WORD_BYTES: Final = 128
LATENCY_SAMPLES: Final = 160
ERROR_CODES: Final = 128
OTHER_ERRORS: Final = b"OTHER"


class SnapshotStatus:
    """The snapshot under way, and the one before it.  `done` of `total` are bytes, or streams, as `step` says."""

    def __init__(self) -> None:
        self.in_progress = False
        self.step = ""
        self.done = 0
        self.total = 0
        self.taken = 0
        self.last_ok = True
        self.last_name = ""
        self.last_offset = -1
        self.last_seconds = -1.0
        self.columns_ok: bool | None = None  # None: the last one has none, and was to have none
        self.columns_bytes = 0
        self._begun_s = 0.0

    def begin(self) -> None:
        self.in_progress = True
        self.step, self.done, self.total = "starting", 0, 0
        self._begun_s = time.monotonic()

    def end(self, name: str | None, offset: int) -> None:
        """Note the end: the snapshot has this name and offset; without a name it failed."""
        self.in_progress = False
        self.last_ok = name is not None
        if name is not None:
            self.taken += 1
            self.last_name, self.last_offset = name, offset
            self.last_seconds = time.monotonic() - self._begun_s

    @property
    def seconds(self) -> int:
        """How long the snapshot under way has taken; -1 when there is none."""
        return int(time.monotonic() - self._begun_s) if self.in_progress else -1


class BackgroundStatus:
    """Background tasks: how many run, how many ended by a defect, and the last of these defects."""

    def __init__(self) -> None:
        self.running = 0
        self.failures = 0
        self.last_failure = ""

    def note_failure(self, text: str) -> None:
        self.failures += 1
        self.last_failure = " ".join(text.split())  # INFO has a line for it


class CommandCounters:
    """One command's history.

    `buckets[n]` counts the calls that took less than 2**n microseconds and at least half of that.
    """

    __slots__ = ("buckets", "calls", "failed", "nanoseconds", "rejected")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.calls = 0
        self.nanoseconds = 0
        self.rejected = 0
        self.failed = 0
        self.buckets = [0] * 64

    @property
    def usec(self) -> int:
        return self.nanoseconds // 1000

    def record(self, nanoseconds: int) -> None:
        self.calls += 1
        self.nanoseconds += nanoseconds
        self.buckets[(nanoseconds // 1000).bit_length()] += 1

    def record_run(self, calls: int, nanoseconds: int) -> None:
        """`calls` calls that were timed together; each is taken to have lasted as long as the others."""
        self.calls += calls
        self.nanoseconds += nanoseconds
        self.buckets[(nanoseconds // calls // 1000).bit_length()] += calls

    def histogram(self) -> Iterator[tuple[int, int]]:
        """(upper bound in microseconds, calls at or below it), rising; bounds that add no call are left out."""
        total = 0
        for exponent, count in enumerate(self.buckets):
            if count:
                total += count
                yield 1 << exponent, total

    def percentile_usec(self, percent: float) -> float:
        """An upper bound of the time that `percent` of the calls stayed within; 0 without calls."""
        timed = sum(self.buckets)
        for bound, total in self.histogram():
            if total * 100 >= timed * percent:
                return float(bound)
        return 0.0


class MixCounters(CommandCounters):
    """Counts calls of two commands that were timed together: of `others` of them, which it is told first, elsewhere."""

    __slots__ = ("_first", "_second", "others")

    def __init__(self, first: CommandCounters, second: CommandCounters) -> None:
        super().__init__()
        self._first = first
        self._second = second
        self.others = 0

    def record_run(self, calls: int, nanoseconds: int) -> None:
        others, self.others = self.others, 0
        share = nanoseconds * others // calls
        if others:
            self._second.record_run(others, share)
        if others < calls:
            self._first.record_run(calls - others, nanoseconds - share)


class Durations:
    """How long one operation of the server took, each time it ran.  Buckets are those of `CommandCounters`."""

    __slots__ = ("buckets", "count", "last_s", "longest_s", "seconds")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.last_s = 0.0
        self.longest_s = 0.0
        self.buckets = [0] * 64

    def record(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.last_s = seconds
        if seconds > self.longest_s:
            self.longest_s = seconds
        # the clock may have been set back
        self.buckets[int(seconds * 1e6).bit_length() if seconds > 0 else 0] += 1

    @property
    def average_s(self) -> float:
        return self.seconds / self.count if self.count else 0.0


# -- the slow log ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlowCall:
    """One line of SLOWLOG GET."""

    id: int
    unix_seconds: int
    usec: int
    words: list[bytes]
    address: bytes
    client_name: bytes


def shortened(argv: list[bytes]) -> list[bytes]:
    """The words as the slow log keeps them: few, short, and with a note of how much is missing."""
    words = argv
    if len(argv) > SLOWLOG_WORDS:
        missing = len(argv) - SLOWLOG_WORDS + 1
        words = argv[: SLOWLOG_WORDS - 1]
    kept = [
        word
        if len(word) <= SLOWLOG_WORD_BYTES
        else b"%b... (%d more bytes)" % (word[:SLOWLOG_WORD_BYTES], len(word) - SLOWLOG_WORD_BYTES)
        for word in words
    ]
    if len(argv) > SLOWLOG_WORDS:
        kept.append(b"... (%d more arguments)" % missing)
    return kept


class Slowlog:
    """The latest slow calls, newest first.  IDs go on rising after a reset, as clients poll for what is new."""

    def __init__(self) -> None:
        self.calls: deque[SlowCall] = deque()
        self.next_id = 0

    def add(
        self, words: list[bytes], usec: int, unix_seconds: int, address: bytes, client_name: bytes, max_length: int
    ) -> None:
        """`words` are `shortened`.

        `max_length` is slowlog-max-len; a lower one takes effect here, with the next slow call, as in Redis.
        """
        call = SlowCall(self.next_id, unix_seconds, usec, words, address, client_name)
        self.calls.appendleft(call)
        self.next_id += 1
        while len(self.calls) > max_length:
            self.calls.pop()


# -- the latency monitor -----------------------------------------------------------------------------------------------


class LatencyEvent:
    """The latest spikes of one kind, at most one a second, and the highest ever."""

    __slots__ = ("max_ms", "samples")

    def __init__(self) -> None:
        self.samples: deque[tuple[int, int]] = deque(maxlen=LATENCY_SAMPLES)  # (unix seconds, ms)
        self.max_ms = 0

    def add(self, unix_seconds: int, ms: int) -> None:
        self.max_ms = max(self.max_ms, ms)
        if self.samples and self.samples[-1][0] == unix_seconds:
            self.samples[-1] = (unix_seconds, max(ms, self.samples[-1][1]))
        else:
            self.samples.append((unix_seconds, ms))


class LatencyMonitor:
    """Spikes by event: `command` and `fast-command`."""

    def __init__(self) -> None:
        self.events: dict[bytes, LatencyEvent] = {}

    def add(self, event: bytes, unix_seconds: int, ms: int, threshold_ms: int) -> None:
        """Note a duration when it reaches `threshold_ms` (latency-monitor-threshold; 0 is off)."""
        if threshold_ms and ms >= threshold_ms:
            self.events.setdefault(event, LatencyEvent()).add(unix_seconds, ms)

    def reset(self, names: list[bytes]) -> int:
        """Forget the named events, or all without names; -> how many there were."""
        return sum(self.events.pop(name, None) is not None for name in names or list(self.events))


# -- rates -------------------------------------------------------------------------------------------------------------


class Rate:
    """How fast a counter rises, a second, averaged over the latest samples."""

    __slots__ = ("_samples", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._samples: deque[float] = deque(maxlen=RATE_SAMPLES)

    def sample(self, total: int, elapsed: float) -> None:
        self._samples.append((total - self._total) / elapsed)
        self._total = total

    @property
    def per_second(self) -> float:
        return sum(self._samples) / len(self._samples) if self._samples else 0.0


# -- all of it ---------------------------------------------------------------------------------------------------------


class Stats:
    """Every counter of one server.  `reset()` is CONFIG RESETSTAT."""

    def __init__(self) -> None:
        self.slowlog = Slowlog()
        self.latency = LatencyMonitor()
        self.snapshot = SnapshotStatus()
        self.background = BackgroundStatus()
        self.oldest_reader_pid = 0  # of LMDB, 0 without one
        self.oldest_reader_s = 0.0
        self.peak_memory = 0
        self.tick = Durations()
        self.fsync = Durations()  # of the log
        self.checkpoint = Durations()
        self._commands: dict[bytes, CommandCounters] = {}
        self._samples_to_memory = 0
        self.reset()

    def reset(self) -> None:
        self.connections_received = 0
        self.connections_rejected = 0
        self.commands_processed = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.reads_processed = 0  # times bytes were taken from a socket
        self.writes_processed = 0  # times bytes were given to one
        self.keyspace_hits = 0
        self.keyspace_misses = 0
        self.expired_keys = 0
        self.output_limit_disconnections = 0
        self.query_limit_disconnections = 0
        self.evicted_clients = 0
        self.waits_for_disk = 0  # times writes had to wait because the disk was slow
        self.waits_for_clients = 0  # ticks that have waited for clients, to share a slow sync with them
        self.error_replies = 0
        self.errors: dict[bytes, int] = {}
        self.syncs_full = 0  # of replicas: everything was sent, or only what they lacked, or the latter was refused
        self.syncs_partial = 0
        self.syncs_refused = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.operations = Rate()
        self.input_bytes = Rate()
        self.output_bytes = Rate()
        self._sampled_at: float | None = None
        # In place: the executor and the engine keep references to these.
        for durations in (self.tick, self.fsync, self.checkpoint):
            durations.clear()
        for counters in self._commands.values():
            counters.clear()

    # -- commands

    def counters(self, full_name: bytes) -> CommandCounters:
        """The counters of a command (`xadd`, `xgroup|create`), made at its first call and never replaced."""
        found = self._commands.get(full_name)
        if found is None:
            found = self._commands[full_name] = CommandCounters()
        return found

    def seen_commands(self) -> list[tuple[bytes, CommandCounters]]:
        """The commands that were called or rejected since the last reset, by name."""
        return sorted((name, row) for name, row in self._commands.items() if row.calls or row.rejected)

    def count_error(self, text: bytes, times: int = 1) -> None:
        """Count an error reply by its code, the first word.  Codes beyond the first 128 share one line."""
        code = text.partition(b" ")[0]
        if code not in self.errors and len(self.errors) >= ERROR_CODES:
            code = OTHER_ERRORS
        self.errors[code] = self.errors.get(code, 0) + times
        self.error_replies += times

    def count_lookup(self, found: bool, times: int = 1) -> None:
        """Count a read command's lookup of a key."""
        if found:
            self.keyspace_hits += times
        else:
            self.keyspace_misses += times

    # -- rates

    def sample(self, now: float) -> None:
        """Call every 100 ms with a monotonic time in seconds; turns counters into rates."""
        before, self._sampled_at = self._sampled_at, now
        elapsed = 0.0 if before is None else now - before
        if elapsed > 0:
            self.operations.sample(self.commands_processed, elapsed)
            self.input_bytes.sample(self.bytes_in, elapsed)
            self.output_bytes.sample(self.bytes_out, elapsed)
        if self._samples_to_memory == 0:
            self._samples_to_memory = MEMORY_EVERY
            self.note_memory(process.memory_use().private)
        self._samples_to_memory -= 1

    def note_memory(self, private_bytes: int) -> None:
        self.peak_memory = max(self.peak_memory, private_bytes)
