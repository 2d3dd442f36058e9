"""The rig of all questions: the two servers in turn, data sets too large to load twice, and progress lines.

Machines are noisy, and get slower and faster for minutes.  So `turns` alternates: Riverbed, Redis, Riverbed, Redis,
with one server running at a time, and the report takes medians.
"""

from __future__ import annotations

import enum
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.background import rewrite_log
from benchmarks.load.pauses import longest_pause_ms
from benchmarks.load.traffic import load, read_for
from benchmarks.report import Measurement
from tests.support.servers import RedisServer, RiverbedServer, Server

# A rewrite that one server begins in the middle of a round is not part of any question here.
_COMMON = {"auto-aof-rewrite-percentage": 0}
_REDIS = {"save": '""', "appendonly": "yes", "aof-use-rdb-preamble": "yes"}
LOAD_TIMEOUT_S = 600.0
_PAUSES_S = 2.0  # before each round; where there are pauses, there is one in each second or two


class Contender(enum.Enum):
    """The server that is measured."""

    RIVERBED = "Riverbed"
    REDIS = "Redis"


@dataclass(frozen=True)
class Sizes:
    """The sizes of the data sets and loads."""

    rounds: int
    append_requests: dict[int, int]  # by pipeline depth
    read_entries: int
    read_requests: int
    client_entries: int  # by redis-py
    entries: int  # of the large data set
    window_s: float  # over which stalls are looked for
    group_entries: int  # of the stream that consumers work off
    pending: int
    pending_requests: int
    unread: int  # entries that one XREADGROUP without COUNT takes
    hostile_entries: int  # of 100 kB, in a stream that many clients ask for and do not read
    attackers: float  # part of the connections that an attack has
    connections: int  # one after the other
    latency_entries: int  # in the streams of a server whose latency is measured
    growth_entries: tuple[int, ...]  # the sizes at which growth is measured, the smallest first
    growth_streams: tuple[int, ...]
    growth_groups: tuple[int, ...]
    growth_connections: tuple[int, ...]
    growth_bytes: tuple[int, ...]  # of an entry


FULL = Sizes(
    3,
    {1: 300_000, 16: 1_500_000, 64: 1_500_000},
    1_000_000,
    50_000,
    300_000,
    5_000_000,
    15.0,
    group_entries=400_000,
    pending=1_000_000,
    pending_requests=20_000,
    unread=100_000,
    hostile_entries=5_000,
    attackers=1.0,
    connections=5_000,
    latency_entries=2_000_000,
    growth_entries=(100_000, 1_000_000, 10_000_000),
    growth_streams=(1, 10, 100, 1_000, 10_000, 100_000),
    growth_groups=(1, 10, 100, 1_000),
    growth_connections=(1, 10, 100, 1_000, 9_000),
    growth_bytes=(10, 100, 1_000, 10_000, 100_000, 1_000_000),
)
QUICK = Sizes(
    1,
    {1: 50_000, 16: 200_000, 64: 200_000},
    100_000,
    10_000,
    50_000,
    200_000,
    3.0,
    group_entries=40_000,
    pending=100_000,
    pending_requests=2_000,
    unread=20_000,
    hostile_entries=500,
    attackers=0.1,
    connections=1_000,
    latency_entries=200_000,
    growth_entries=(20_000, 200_000),
    growth_streams=(1, 100, 10_000),
    growth_groups=(1, 100),
    growth_connections=(1, 1_000),
    growth_bytes=(10, 1_000, 100_000),
)


@dataclass(frozen=True)
class Dataset:
    """A directory left behind by a server that was killed, holding one stream of `entries` entries."""

    directory: Path
    entries: int
    loaded_private_bytes: int  # RssAnon right after loading, before the kill


class Rig:
    """One run of the benchmarks.  A context manager: it owns a temporary directory."""

    def __init__(
        self, sizes: Sizes, parent: Path | None, say: Callable[[str], None], *, is_recorded: bool = False
    ) -> None:
        """`is_recorded`: the answers are kept, so that files which belong to them are written."""
        self.sizes = sizes
        self.is_recorded = is_recorded
        self.say = say
        self.directory = Path(tempfile.mkdtemp(prefix="riverbed-bench-", dir=parent))
        self.pauses_ms: list[float] = []  # the longest of the machine itself, before each recorded round
        self._datasets: dict[tuple[Contender, int], Dataset] = {}
        self._with_pending: dict[Contender, Dataset] = {}
        self._rewritten: Dataset | None = None
        self._directories = 0

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def turns(self, what: str) -> Iterator[Contender]:
        """Riverbed, Redis, Riverbed, Redis, as often as there are rounds."""
        for number in range(1, self.sizes.rounds + 1):
            if self.is_recorded:
                self.pauses_ms.append(longest_pause_ms(_PAUSES_S))
            for contender in Contender:
                self.say(f"{what}, round {number} of {self.sizes.rounds}: {contender.value}")
                yield contender

    def server(self, contender: Contender, fsync: str, directory: Path | None = None) -> Server:
        """A server that is not running yet, on a directory of its own unless one is given."""
        options: dict[str, object] = {"appendfsync": fsync, **_COMMON}
        if directory is None:
            directory = self.new_directory()
        logs = self.directory / "logs"
        if contender is Contender.RIVERBED:
            return RiverbedServer(directory, logs, options)
        return RedisServer(directory, logs, options | _REDIS)

    def new_directory(self) -> Path:
        self._directories += 1
        directory = self.directory / f"data-{self._directories}"
        directory.mkdir()
        return directory

    def dataset(self, contender: Contender, entries: int) -> Dataset:
        """`entries` entries in stream `events`, loaded once and shared: copy it before you spoil it."""
        known = self._datasets.get((contender, entries))
        if known is not None:
            return known
        server = self.server(contender, "everysec")
        with server:
            self.say(f"loading {entries:,} entries: {contender.value}")
            load(server.port, "events", entries)
            dataset = Dataset(server.directory, entries, server.private_bytes())
        self._datasets[contender, entries] = dataset
        return dataset

    def with_pending(self, contender: Contender) -> Dataset:
        """The large data set, and a group whose consumers have read some of it and acknowledged nothing."""
        if contender not in self._with_pending:
            dataset = self.dataset(contender, self.sizes.entries)
            pending = min(self.sizes.pending, dataset.entries)
            with self.opened(contender, self.copy(dataset)) as server:
                self.say(f"reading {pending:,} entries for a group: {contender.value}")
                read_for(server.port, "events", "workers", pending)
                self._with_pending[contender] = Dataset(server.directory, dataset.entries, server.private_bytes())
        return self._with_pending[contender]

    def rewritten(self, entries: int) -> Dataset:
        """Redis's data set after BGREWRITEAOF: an RDB file instead of the log as it was written."""
        if self._rewritten is None:
            dataset = self.dataset(Contender.REDIS, entries)
            with self.opened(Contender.REDIS, self.copy(dataset)) as server:
                self.say(f"rewriting {entries:,} entries: Redis")
                rewrite_log(server)
                self._rewritten = Dataset(server.directory, entries, dataset.loaded_private_bytes)
        return self._rewritten

    def opened(self, contender: Contender, directory: Path) -> Server:
        """A running server on `directory`, which may take it long to load.  One that does not come up is killed."""
        return self.server(contender, "everysec", directory).start(LOAD_TIMEOUT_S)

    def copy(self, dataset: Dataset) -> Path:
        self.say(f"copying {dataset.entries:,} entries")
        directory = self.new_directory()
        shutil.copytree(dataset.directory, directory, dirs_exist_ok=True)
        # the first checkpoint would wait for gigabytes that are not its own: a PING of 80 ms instead of 5
        os.sync()
        return directory


def samples_of(measurement: Measurement, contender: Contender) -> list[float]:
    return measurement.riverbed if contender is Contender.RIVERBED else measurement.redis
