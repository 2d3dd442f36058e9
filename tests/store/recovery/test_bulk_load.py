"""Commands that are entered by the dozen leave the same rows, to the byte, as those that are executed one by one."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.server.commands.replay import Replayer
from riverbed.server.errors import CommandError
from riverbed.store.databases.database import Database
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import OsFiles
from riverbed.store.engine import Engine
from riverbed.store.format.log_lines import encode_command
from riverbed.store.format.pending import Run
from riverbed.store.ids import ID_BYTES, make_id
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST
from riverbed.store.log import manifest as manifests
from riverbed.store.log.commands import Piece
from riverbed.store.log.files.batch import Batch
from riverbed.store.options import Fsync, Options
from riverbed.store.position import LogPosition
from riverbed.store.recovery import replay as replay_module
from riverbed.store.recovery.bulk_load import load_run
from riverbed.store.recovery.replay import RecoveryReport, replay
from riverbed.store.rewrite.log_from_tables import write_log
from riverbed.store.tables.environment import TABLES
from riverbed.store.wire import LOGGED, LoggedRequests, parse_front
from tests.support.in_process import HandClock
from tests.support.scripts.random_commands import run_at_random
from tests.support.store.mutations import CASES, Case
from tests.support.store.stores import Store, rewrite

pytestmark = pytest.mark.usefixtures("log_parser")

Words = list[bytes]
Rows = dict[str, list[tuple[bytes, bytes]]]

MS = 1_700_000_000_000
# Rows of `meta` that differ between two stores of one log.
_OF_ONE_STORE = (b"replication", b"position", b"numbering", b"store")


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    with patch.object(replay_module, "load_run", lambda txn, commands, at: at):
        yield


def rows_of(store: Store) -> Rows:
    """All that is in the tables; of pending entries each, because runs are the longer the more came together."""
    store.txn.commit(LogPosition(1, 0, 0))
    assert store.violations() == []  # the indexes of pending entries fit them
    with store.engine.tables.env.begin() as txn:
        found: Rows = {
            name: [item for item in txn.cursor(store.txn.handles[name]) if item[0] not in _OF_ONE_STORE]
            for name in TABLES
            if name not in ("pel_by_consumer", "pel_by_time")
        }
    found["pel"] = [
        (key[:-ID_BYTES], repr(row).encode()) for key, packed in found["pel"] for row in Run.unpack(key, packed).rows()
    ]
    return found


def rebuilt(store: Store) -> tuple[Rows, list[bytes]]:
    """The rows of a store that is made of its log, and the log lines of a client that goes on with it."""
    store.rebuild()
    assert store.engine.recovery.refused == 0
    found = rows_of(store)
    for key in (b"a", b"b", b"s"):
        with contextlib.suppress(CommandError):
            store.run("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 1, "STREAMS", key, ">")
    logged = list(store.txn.log)
    store.txn.log.clear()
    return found, logged


def assert_the_same(store: Store) -> None:
    store.commit()
    copy = shutil.copytree(store.directory, store.directory.with_name("one by one"))
    found = rebuilt(store)
    with one_by_one():
        other = Store(copy, **vars(store.options))
        other.clock.now_ms = store.clock.now_ms
        expected = rebuilt(other)
        other.engine.close()
    assert found == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_log_of_a_mutator(tmp_path: Path, case: Case) -> None:
    store = Store(tmp_path / "data", node_max_entries=4)
    case(store)
    assert_the_same(store)
    store.engine.close()


@given(st.integers(0, 2**32), st.lists(st.integers(1, 40), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_the_log_of_random_commands(seed: int, lengths: list[int]) -> None:
    with tempfile.TemporaryDirectory(prefix="riverbed-bulk-") as home:
        store = Store(Path(home) / "data", node_max_entries=4)
        for _ in run_at_random(store, seed, lengths):
            pass
        assert_the_same(store)
        store.engine.close()


def copied(state: list[Piece], directory: Path) -> Path:
    """A data directory with a log that holds a rewritten state, and no tables."""
    home = directory / LOG_DIRECTORY
    home.mkdir(parents=True)
    manifest, _ = write_log(home, state, OsFiles(), offset=1, seq=1, preface=b"", now_ms=1)
    manifests.replace(home / LOG_MANIFEST, manifest, OsFiles())
    return directory


@given(st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_a_rewritten_log(seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="riverbed-bulk-") as home:
        store = Store(Path(home) / "source")
        for _ in run_at_random(store, seed, [1] * 120):
            pass
        state = rewrite(store)
        store.engine.close()
        loaded = Store(copied(state, Path(home) / "data"), node_max_entries=4)
        assert_the_same(loaded)
        loaded.engine.close()


# -- what the log of another server, or none, might hold ---------------------------------------------------------------


def folded(directory: Path, commands: list[Words], split: Callable[[list[Words]], list[LoggedRequests]]) -> object:
    """What executing `commands` on an empty store leaves, or the error."""
    store = Store(directory, node_max_entries=3)
    report = RecoveryReport()
    batches = [Batch(part, LogPosition(1, 9, 9), None, "a log", 0) for part in split(commands)]
    replay(batches, store.txn, Replayer(MS).execute, report)
    found = rows_of(store), report.commands, report.refused, store.dump()
    store.engine.close()
    return found


def in_runs(commands: list[Words]) -> list[LoggedRequests]:
    """The commands as one batch, with runs of XADD as a reader of the log finds them."""
    requests: LoggedRequests = []
    data = b"".join(map(encode_command, commands))
    assert parse_front(LOGGED, data, requests) == len(data)
    return [requests]


def assert_folds_the_same(commands: list[Words]) -> None:
    with tempfile.TemporaryDirectory(prefix="riverbed-bulk-") as home:
        found = folded(Path(home) / "1", commands, lambda commands: [[*commands]])
        assert found == folded(Path(home) / "2", commands, lambda commands: [[words] for words in commands])
        assert found == folded(Path(home) / "3", commands, in_runs)
        with one_by_one():
            assert found == folded(Path(home) / "4", commands, lambda commands: [[*commands]])


KEYS = st.sampled_from([b"s", b"t"])
IDS = st.sampled_from(
    [b"%d-%d" % (ms, seq) for ms in (1, 2, 3) for seq in (0, 1, 2, 1000, 2**64 - 1)]
    + [b"0-0", b"01-1", b"1-01", b"4", b"5-*", b"*", b"-", b"6-", b"", b"+7-1", b"7- 1", b"7_0-1", b"%d-1" % 10**19]
    + [b"%d-%d" % (2**64 - 1, seq) for seq in (0, 2**64 - 1, 2**64)]
)
FIELDS = st.lists(st.sampled_from([b"", b"f", b"\r\n", b"x" * 1023, b"x" * 1024]), min_size=0, max_size=7)
TIMES = st.sampled_from([b"0", b"7", b"%d" % MS, b"-1", b"x", b"", b"07"])
COUNTS = st.sampled_from([b"1", b"2", b"0", b"-1", b"x"])


@st.composite
def claims(draw: st.DrawFn) -> Words:
    how = [b"TIME", draw(TIMES), b"RETRYCOUNT", draw(COUNTS)]
    ends = [[b"JUSTID", b"FORCE"], [b"FORCE", b"JUSTID", b"LASTID", draw(IDS)], [b"FORCE"], [b"JUSTID"], []]
    ids = draw(st.lists(IDS, max_size=6))
    if draw(st.booleans()):
        ids = sorted(set(ids))
    consumer, idle = draw(st.sampled_from([b"Alice", b"Bob"])), draw(st.sampled_from([b"0", b"0", b"5"]))
    return [b"XCLAIM", draw(KEYS), b"g", consumer, idle, *ids, *how, *draw(st.sampled_from(ends))]


APPENDS = st.builds(lambda key, entry_id, fields: [b"XADD", key, entry_id, *fields], KEYS, IDS, FIELDS)
SOUND = st.builds(
    lambda key, begin, count: [[b"XADD", key, b"%d-0" % number, b"f", b"v"] for number in range(begin, begin + count)],
    KEYS,
    st.integers(10, 20),
    st.integers(1, 12),
)
TRIMMING = st.builds(
    lambda key, begin, lengths: [
        [b"XADD", key, *([b"MAXLEN", b"=", length] if length else []), b"%d-0" % number, b"f", b"v"]
        for number, length in enumerate(lengths, begin)
    ],
    KEYS,
    st.integers(10, 20),
    st.lists(st.sampled_from([b"", b"", b"", b"0", b"1", b"2", b"5", b"5", b"8", b"05", b"-1"]), max_size=20),
)
OTHERS = st.sampled_from(
    [
        [b"XGROUP", b"CREATE", b"s", b"g", b"0"],
        [b"XGROUP", b"CREATE", b"t", b"g", b"0", b"MKSTREAM"],
        [b"XDEL", b"s", b"12-0"],
        [b"XTRIM", b"s", b"MAXLEN", b"=", b"2"],
        [b"XSETID", b"s", b"30-0"],
        [b"XACK", b"s", b"g", b"11-0", b"13-0"],
        [b"DEL", b"t"],
        [b"PEXPIREAT", b"s", b"1"],
        [b"SELECT", b"1"],
        [b"SELECT", b"0"],
        [b"XADD", b"s", b"MAXLEN", b"=", b"5", b"40-1", b"f", b"v"],
        [b"xadd", b"s", b"41-1", b"f", b"v"],
        [b"PING"],
    ]
)


@given(st.lists(SOUND | TRIMMING | (APPENDS | claims() | OTHERS).map(lambda words: [words]), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_log_that_anybody_may_have_written(groups: list[list[Words]]) -> None:
    assert_folds_the_same([words for group in groups for words in group])


def executed(directory: Path) -> set[bytes]:
    """The commands of a log that are left to their handlers."""
    names = set()
    replayer = Replayer()

    def execute(txn: WriteTxn, db: Database, words: Words) -> None:
        names.add(words[0])
        replayer.execute(txn, db, words)

    options = Options(fsync=Fsync.NO, map_bytes=1 << 28, reserve_bytes=0)
    Engine.open(directory, execute=execute, clock=HandClock(), options=options).close()
    return names


def test_what_appends_reads_and_rewrites_log_is_not_left_to_the_handlers(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    store.fill(b"s", 300)
    store.deliver(b"s", 250)
    store.commit()
    state = rewrite(store)
    store.kill()
    shutil.rmtree(store.directory / "state")
    assert executed(store.directory) == {b"XGROUP"}
    copy = copied(state, tmp_path / "copy")
    assert executed(copy) == {b"XGROUP", b"XSETID", b"XSEEN"}


def test_commands_before_any_select_are_of_the_first_database(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    commands = [[b"XADD", b"s", b"%d-0" % number, b"f", b"v"] for number in (1, 2, 3)]
    assert load_run(store.txn, commands, 0) == 0, "left to the handler, which sees to that"
    store.txn.log_db = 0
    assert load_run(store.txn, commands, 0) == 3
    assert not store.txn.log
    assert store.stream().length == 3
    store.engine.close()


def test_trims_in_a_run_are_left_to_the_handlers_only_where_they_remove_hundreds(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    store.txn.log_db = 0
    left: list[Words] = []
    replayer = Replayer()

    def execute(txn: WriteTxn, db: Database, words: Words) -> None:
        left.append(words)
        replayer.execute(txn, db, words)

    lengths = [0] * 900 + [900] * 300 + [0, 750, 751, 0, 200, 0]
    trims = [[b"MAXLEN", b"=", b"%d" % length] if length else [] for length in lengths]
    commands = [[b"XADD", b"s", *trim, b"%d-0" % number, b"f", b"v"] for number, trim in enumerate(trims, 1)]
    replay_module.execute_requests(store.txn, execute, in_runs(commands)[0])
    assert left == [commands[-2]]
    assert (store.stream().length, store.stream().first_id) == (201, make_id(len(commands) - 200, 0))
    store.engine.close()
