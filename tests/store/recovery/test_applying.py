"""A replica that applies batches in the form of the log comes to what one comes to that executes word by word.

To the byte: tables, log, offsets, what it tells those who wait for keys, and the bound of its rows.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest

from riverbed.store.errors import ReplayError
from riverbed.store.format.log_lines import encode_annotation, encode_command
from riverbed.store.log.padding import MIN_BYTES
from riverbed.store.log.streamed.batch import StreamedBatch
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.model import Change
from riverbed.store.options import Fsync
from riverbed.store.recovery import replay
from riverbed.store.tables.writing.namespace import Namespace
from tests.store.recovery.test_bulk_load import Rows, one_by_one, rows_of
from tests.support.scripts.random_commands import run_at_random
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.stores import Store

pytestmark = pytest.mark.usefixtures("log_parser")

Words = list[bytes]

KEYS = (b"a", b"b", b"s", b"long" * 30)
SIZES = (0, 1, 9, 10, 99, 100, 400, 1023, 1024, 5000)
SEED = (
    int(seed)
    if (seed := os.environ.get("RIVERBED_SEED", "1")) != "random"
    else random.SystemRandom().randrange(1 << 32)
)


class Replica:
    """A store that follows, whose clients wait for some keys."""

    def __init__(self, directory: Path, *, by_words: bool, waited: tuple[bytes, ...] = (b"a", b"s")) -> None:
        self._by_words = by_words
        self.store = Store(directory, is_replica=True, node_max_entries=5, segment_bytes=20_000)
        self.store.txn.follows = True
        self.told: dict[tuple[Change, int, bytes], None] = {}
        for db in self.store.txn.databases:
            db.interest.update(dict.fromkeys(waited, 1))
        self.store.txn.notify = self._note

    def _note(self, change: Change, namespace: Namespace, key: bytes) -> None:
        self.told[change, namespace.number, key] = None

    def apply(self, batches: list[StreamedBatch]) -> None:
        with one_by_one() if self._by_words else nullcontext():
            self.store.engine.apply(batches)

    def state(self) -> tuple[Rows, bytes, int, list[object], int]:
        """Tables, the bytes of the log, its offset, what was told in order, whether rows have a bound."""
        store = self.store
        bound = store.txn.largest_row
        log = b"".join(part.path.read_bytes() for part in store.engine.log.home.parts())
        return rows_of(store), log, store.engine.log.end.offset, list(self.told), bound


@contextmanager
def replicas(*waited: bytes) -> Iterator[tuple[Replica, Replica]]:
    with tempfile.TemporaryDirectory(prefix="riverbed-apply-") as home:
        pair = (
            Replica(Path(home) / "raw", by_words=False, waited=waited),
            Replica(Path(home) / "words", by_words=True, waited=waited),
        )
        yield pair
        for replica in pair:
            replica.store.engine.abandon()


def random_batch(chance: random.Random, last: dict[tuple[int, bytes], int], db: list[int]) -> list[Words]:
    """Commands of one batch, as a primary logs them.  `last` has the last ID of each key."""
    commands: list[Words] = []

    def add(key: bytes, *options: bytes) -> None:
        place = db[0], key
        last[place] = number = last.get(place, 0) + chance.choice((1, 1, 1, 7))
        words = [b"f", b"v" * chance.choice(SIZES)] * chance.choice((1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 60))
        commands.append([b"XADD", key, *options, b"%d-%d" % (number // 3, number), *words])

    for _ in range(chance.randint(1, 5)):
        key = chance.choice(KEYS)
        kind = chance.randrange(8)
        if kind < 3:
            for _ in range(chance.randint(1, 30)):
                add(key)
        elif kind == 3:
            for _ in range(chance.randint(1, 30)):
                add(chance.choice(KEYS))
        elif kind == 4:
            for _ in range(chance.randint(1, 12)):
                add(key)
                add(key, b"MAXLEN", b"=", b"%d" % chance.randint(0, 20))
        elif kind == 5:
            db[0] = chance.randrange(3)
            commands.append([b"SELECT", b"%d" % db[0]])
        elif kind == 6 and (db[0], key) in last:
            commands.append([b"XTRIM", key, b"MAXLEN", b"=", b"%d" % chance.randint(0, 9)])
        else:
            commands.append(chance.choice(([b"PING"], [b"MULTI"], [b"EXEC"], [b"REPLCONF", b"GETACK", b"*"])))
    return commands


def log_bytes(batches: list[list[Words]], offset: int = 0) -> bytes:
    data = b""
    for commands in batches:
        covered = b"".join(map(encode_command, commands))
        offset += len(covered)
        data += covered + encode_annotation(covered, offset, 1_700_000_000_000)
    return data


def send(data: bytes, sizes: Iterator[int], *to: Replica) -> None:
    """Have each replica receive `data` in pieces of `sizes`, and apply what is whole after each piece."""
    streams = [LogStream(0, 1 << 26) for _ in to]
    at = 0
    while at < len(data):
        size = next(sizes)
        for stream, replica in zip(streams, to, strict=True):
            stream.feed(data[at : at + size])
            if batches := list(iter(stream.next, None)):
                replica.apply(batches)
        at += size


@pytest.mark.parametrize("round_", range(12))
def test_random_batches_in_random_pieces(round_: int) -> None:
    chance = random.Random(f"{SEED} {round_}")
    last: dict[tuple[int, bytes], int] = {}
    db = [0]
    batches = [[[b"SELECT", b"0"]]]
    batches += [random_batch(chance, last, db) for _ in range(40)]
    sizes = iter(lambda: chance.choice((1, 30, 700, 20_000, 70_000, 300_000)), None)
    waited = ((), (b"a", b"s"), (b"b",))[round_ % 3]
    with replicas(*waited) as (raw, words):
        send(log_bytes(batches), sizes, raw, words)
        assert raw.state() == words.state()
        assert {key for _, _, key in raw.told} == set(waited)


def test_entries_of_many_streams_and_clients_that_expire_them() -> None:
    chance = random.Random(SEED)
    keys = [b"%d" % number for number in range(40)]
    batches: list[list[Words]] = [[[b"SELECT", b"0"]]]
    for number in range(1, 3000):
        key = chance.choice(keys)
        if chance.random() < 0.01:
            batches.append([[chance.choice((b"DEL", b"PERSIST")), key]])
        elif chance.random() < 0.01:
            batches.append([[b"PEXPIREAT", key, b"%d" % (4 << 40)]])
        entry = [b"XADD", key, b"%d-0" % number, b"f", b"v" * chance.choice((1, 1, 1, 2000, 5000))]
        if chance.random() < 0.01:
            batches.append([])
        batches[-1].append(entry)
    batches = [batch for batch in batches if batch]
    with replicas(b"7") as (raw, words):
        send(log_bytes(batches), iter(lambda: chance.choice((100, 10_000, 200_000)), None), raw, words)
        assert raw.state() == words.state()


def test_one_long_batch() -> None:
    """One that is parsed while it arrives."""
    chance = random.Random(SEED)
    last: dict[tuple[int, bytes], int] = {}
    db = [0]
    commands = [[b"SELECT", b"0"]]
    while len(commands) < 1500:
        commands += random_batch(chance, last, db)
    with replicas(b"s") as (raw, words):
        send(log_bytes([commands]), iter(lambda: 50_000, None), raw, words)
        assert raw.state() == words.state()


@pytest.mark.parametrize("round_", range(4))
def test_the_log_of_random_commands_of_clients(round_: int, tmp_path: Path) -> None:
    primary = Store(tmp_path / "primary", node_max_entries=5)
    for _ in run_at_random(primary, SEED + round_, [30, 20, 40, 10]):
        primary.commit()
    primary.commit()
    data = b"".join(part.path.read_bytes() for part in primary.engine.log.home.parts())
    chance = random.Random(round_)
    with replicas() as (raw, words):
        send(data, iter(lambda: chance.choice((1, 50, 5000)), None), raw, words)
        assert raw.state() == words.state()
        assert raw.store.dump() == primary.dump()
    primary.engine.close()


def test_a_link_that_is_cut_at_any_byte_loses_nothing_and_applies_nothing_twice(tmp_path: Path) -> None:
    entries = [[b"XADD", b"s", b"%d-0" % number, b"f", b"v"] for number in range(1, 10)]
    data = log_bytes([[[b"SELECT", b"0"], *entries[:4]], entries[4:7], entries[7:]])
    with replicas() as (_, words):
        send(data, iter(lambda: len(data), None), words)
        expected = words.state()[1]
    home = tmp_path / "cut"
    for cut in range(len(data)):
        replica = Replica(home, by_words=False)
        send(data[:cut], iter(lambda: 1 << 20, None), replica)
        engine = replica.store.engine
        offset = engine.log.end.offset
        again = LogStream(offset, 1 << 20)
        mark = b";off=%d;" % offset
        again.feed(data[data.index(b"\n", data.index(mark)) + 1 :] if offset else data)
        if batches := list(iter(again.next, None)):
            replica.apply(batches)
        assert replica.store.stream().length == len(entries)
        assert b"".join(part.path.read_bytes() for part in engine.log.home.parts()) == expected
        engine.abandon()
        shutil.rmtree(home)


@pytest.mark.parametrize(
    "bad",
    [
        [b"XADD", b"s", b"3-0", b"f", b"v"],  # once more
        [b"XADD", b"s", b"0-0", b"f", b"v"],
        [b"XADD", b"s", b"9-0", b"f"],
        [b"XADD", b"s", b"*", b"f", b"v", b"g"],
        [b"SELECT", b"99"],
        [b"FLUSHEVERYTHING"],
    ],
    ids=lambda words: b" ".join(words).decode(),
)
@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_batch_that_does_not_fit_changes_nothing(bad: Words, at: int) -> None:
    first = [[b"SELECT", b"0"], *([b"XADD", b"s", b"%d-0" % number, b"f", b"v"] for number in range(1, 4))]
    second = [[b"XADD", b"s", b"%d-0" % number, b"f", b"v"] for number in range(4, 9)]
    second.insert(at, bad)
    with replicas() as (raw, words):
        for replica in (raw, words):
            send(log_bytes([first]), iter(lambda: 1 << 20, None), replica)
            before = replica.store.dump(), replica.store.engine.log.end
            stream = LogStream(before[1].offset, 1 << 20)
            stream.feed(log_bytes([second], before[1].offset))
            batch = stream.next()
            assert batch is not None
            with pytest.raises(ReplayError):
                replica.apply([batch])
            assert (replica.store.dump(), replica.store.engine.log.end) == before
        assert raw.state() == words.state()


def test_commands_before_any_select_are_not_taken() -> None:
    """`check` refuses a log that has them."""
    add = [b"XADD", b"s", b"1-1", b"f", b"v"]
    with replicas() as (raw, words):
        for replica in (raw, words):
            for batch in ([add], [[b"MULTI"], [b"SWAPDB", b"0", b"1"], add, [b"EXEC"]]):
                before = replica.store.dump(), replica.store.engine.log.end
                stream = LogStream(0, 1 << 20)
                stream.feed(log_bytes([batch]))
                found = stream.next()
                assert found is not None
                with pytest.raises(ReplayError, match="no SELECT came before"):
                    replica.apply([found])
                assert (replica.store.dump(), replica.store.engine.log.end) == before
            send(log_bytes([[[b"PING"], [b"SELECT", b"0"], add]]), iter(lambda: 1 << 20, None), replica)
            assert replica.store.dump() != before[0]


def test_a_command_that_is_left_out_is_noticed() -> None:
    """The comparison of this file finds what it is there for."""

    entries = [[b"XADD", b"s", b"%d-0" % number, b"f", b"v"] for number in (1, 2)]
    data = log_bytes([[[b"SELECT", b"0"], *entries]])
    with replicas() as (raw, words):
        send(data, iter(lambda: 1 << 20, None), words)
        with patch.object(replay, "load_run", lambda txn, commands, at: at + 1 if at else at):
            stream = LogStream(0, 1 << 20)
            stream.feed(data)
            raw.store.engine.apply(list(iter(stream.next, None)))
        assert raw.state() != words.state()


def test_a_replica_that_syncs_each_write_pads_its_log_once(tmp_path: Path) -> None:
    files = FaultyFiles()
    replica = Store(tmp_path, is_replica=True, fsync=Fsync.ALWAYS, files=files)
    replica.txn.follows = True
    stream = LogStream(0, 1 << 26)
    stream.feed(log_bytes([[[b"SELECT", b"0"]], *([[b"XADD", b"s", b"%d-1" % i, b"f", b"v"]] for i in range(1, 20))]))
    (path,) = (part.path for part in replica.engine.log.home.parts())
    sizes = []
    for batch in iter(stream.next, None):
        replica.engine.apply([batch])
        sizes.append(len(files.data(path)))
    assert len(sizes) == 20
    assert min(sizes) == max(sizes) >= MIN_BYTES
    assert replica.engine.log.size_bytes < 5000
    replica.engine.close()
