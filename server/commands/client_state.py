"""What a client has set up on its connection: its names, the transaction it is in, and what it listens to.

The server keeps it until the client ends it, and counts its memory in the client's account.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from riverbed.server.limits.accounts import Account
    from riverbed.store.tables.writing.namespace import Namespace
    from riverbed.store.wire import Mix, Request, Requests, Run

# Memory of a word besides its bytes: the object and its place in a list; and memory of the list.
_WORD_BYTES: Final = 48
_LIST_BYTES: Final = 80
# Memory of an entry of a run, besides the bytes of its request.
_RUN_ENTRY_BYTES: Final = 112
# Memory of a run and of its chunk besides those.
_RUN_BYTES: Final = 240
# A queued run keeps its chunk in memory.  It must be at least one part in so many of that, or a transaction might take
# up thousands of times the memory of its commands.
_CHUNK_PARTS = 4


def request_bytes(argv: list[bytes]) -> int:
    """About how much memory a kept request takes."""
    return sum(map(len, argv)) + _WORD_BYTES * len(argv) + _LIST_BYTES


def batch_bytes(requests: Requests) -> int:
    """About how much memory several requests take; in C, as there may be a hundred, and more than once a tick."""
    if not requests:
        return 0
    runs = [one for one in requests if not isinstance(one, list)]
    words = list(chain.from_iterable([one for one in requests if isinstance(one, list)]))
    in_runs = sum([run.size + _RUN_ENTRY_BYTES * len(run) for run in runs])
    return sum(map(len, words)) + _WORD_BYTES * len(words) + _LIST_BYTES * len(requests) + in_runs


class Names:
    """The names of the connection and of the client's library; b"" is no name."""

    __slots__ = ("_account", "client", "library", "library_version")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.client = b""
        self.library = b""
        self.library_version = b""

    def set_client(self, name: bytes) -> None:
        """CLIENT SETNAME."""
        self._account.keep(len(name) - len(self.client))
        self.client = name

    def set_library(self, name: bytes) -> None:
        self._account.keep(len(name) - len(self.library))
        self.library = name

    def set_library_version(self, version: bytes) -> None:
        self._account.keep(len(version) - len(self.library_version))
        self.library_version = version

    def forget(self) -> None:
        """Drop the names: the client has gone, but its session may be garbage for a while."""
        size = len(self.client) + len(self.library) + len(self.library_version)
        if size:
            self.client = self.library = self.library_version = b""
            self._account.keep(-size)


class Watched:
    """The keys that a client watches, up to its next EXEC, DISCARD or UNWATCH, or up to a change of one of them."""

    __slots__ = ("before", "keys", "session")

    def __init__(self, session: object) -> None:
        self.session: object | None = session  # None when these watches have ended, and are being forgotten
        self.before: Watched | None = None  # others of the client that were being forgotten when these ended
        # whether each key had expired, and was only hidden; no entry for a database without a watched key
        self.keys: dict[Namespace, dict[bytes, bool]] = {}


class Transaction:
    """The commands that the client has queued since MULTI, and the keys that it watches.

    The executor's `Watches` keeps which client watches which key.
    """

    __slots__ = (
        "_account",
        "_chunk",
        "has_failed",
        "only_reads",
        "queued",
        "queued_bytes",
        "queued_count",
        "samples",
        "unwatched",
        "watch_broken",
        "watch_until_ms",
        "watched",
    )

    def __init__(self, account: Account) -> None:
        self._account = account
        self.queued: Requests | None = None  # None outside of MULTI
        self.queued_count = 0  # of commands, those of runs among them
        self.queued_bytes = 0
        self._chunk = b""  # of the last run
        # a request of each command that is queued, the first one, by its name and by whether it only reads
        self.samples: dict[tuple[bytes, bool], list[bytes]] = {}
        self.has_failed = False  # a command was refused, so EXEC will be refused
        self.only_reads = True  # all queued commands do
        self.watched: Watched | None = None  # None without a watched key
        self.unwatched: Watched | None = None  # those that ended last, if they may be being forgotten
        self.watch_broken = False
        self.watch_until_ms = 0  # when the first of those keys expires, 0 for never

    @property
    def watched_keys(self) -> int:
        """How many keys the client watches."""
        return 0 if self.watched is None else sum(map(len, self.watched.keys.values()))

    def begin(self) -> None:
        """MULTI."""
        self.queued = []
        self.has_failed = False
        self.only_reads = True

    def begin_with(self, requests: Requests, count: int, *, only_reads: bool) -> None:
        """MULTI, with plain commands to be executed at once; `count` with those that have run before them.

        Writes are not counted as memory of the client: EXEC takes them over before its first turn ends.  Reads stay for
        as long as EXEC may wait for a view.
        """
        self.begin()
        if self._is_in_vain:
            return
        self.queued, self.queued_count, self.only_reads = requests, count, only_reads
        if only_reads:
            for request in requests:
                assert isinstance(request, list), "a run of reads is queued one by one"
                self.samples.setdefault((request[0].lower(), True), request)
            self.queued_bytes = batch_bytes(requests)
            self._account.grow(self.queued_bytes)

    def queue(self, argv: list[bytes], name: bytes, *, only_reads: bool) -> None:
        """Keep a request for EXEC, unless EXEC will not run it: of the command `name`; whether it only reads."""
        if self._is_in_vain:
            return
        self.samples.setdefault((name, only_reads), argv)
        self.only_reads = self.only_reads and only_reads
        self._add(argv, 1, request_bytes(argv))

    def queue_run(self, run: Run | Mix, names: list[bytes]) -> bool:
        """Keep a run of XADDs, or a mix with XACKs, for EXEC, unless that would keep a chunk of much else in memory.

        `names` are those of XADD, of XACK or both.  -> whether it is kept, or need not be.
        """
        if self._is_in_vain:
            return True
        count, chunk = len(run), run.chunk
        size = _RUN_BYTES + _RUN_ENTRY_BYTES * count
        if chunk is not self._chunk:
            if _CHUNK_PARTS * run.size < len(chunk):
                return False
            self._chunk = chunk
            size += len(chunk)
        for name in names:
            self.samples.setdefault((name, False), [name])
        self.only_reads = False
        self._add(run, count, size)
        return True

    @property
    def _is_in_vain(self) -> bool:
        """Whether EXEC will be refused, or answer null."""
        return self.has_failed or self.watch_broken

    def _add(self, request: Request, count: int, size: int) -> None:
        assert self.queued is not None
        self.queued.append(request)
        self.queued_count += count
        self.queued_bytes += size
        self._account.grow(size)

    def end(self) -> None:
        """Forget what was kept for EXEC."""
        self.queued = None
        self.queued_count = 0
        self.samples.clear()
        self._chunk = b""
        self.has_failed = False
        if self.queued_bytes:
            self._account.grow(-self.queued_bytes)
            self.queued_bytes = 0


class Subscriptions:
    """What the client listens to, oldest first; false when that is nothing.  `channels.py` keeps and counts them."""

    __slots__ = ("channels", "patterns", "shard_channels")

    def __init__(self) -> None:
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        self.shard_channels: dict[bytes, None] = {}

    def __bool__(self) -> bool:
        return bool(self.channels or self.patterns or self.shard_channels)
