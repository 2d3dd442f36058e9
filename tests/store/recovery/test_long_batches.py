"""A replica executes a long batch out of a file, and its log gets the same bytes; whatever fails, all is as before."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest

from riverbed.store.disk import spill
from riverbed.store.disk.spill import Spill
from riverbed.store.errors import LogWriteError, ReplayError
from riverbed.store.log.streamed import stream as log_stream
from riverbed.store.log.streamed.batch import StreamedBatch, data_of
from riverbed.store.log.streamed.stream import LogStream
from tests.store.recovery.test_applying import Replica, log_bytes, replicas

SHORT = [[b"SELECT", b"0"], [b"XADD", b"s", b"1-1", b"f", b"v"]]
CLAIM_END = [b"TIME", b"5", b"RETRYCOUNT", b"1", b"FORCE", b"JUSTID", b"LASTID", b"2-499"]
LONG = [
    [b"MULTI"],
    *[[b"XADD", b"s", b"2-%d" % number, b"f", b"v" * 50] for number in range(1, 900)],
    [b"XADD", b"t", b"1-1", b"f", b"x" * 60_000],
    [b"XGROUP", b"CREATE", b"s", b"g", b"0"],
    [b"XCLAIM", b"s", b"g", b"c", b"0", *[b"2-%d" % number for number in range(1, 500)], *CLAIM_END],
    [b"XDEL", b"s", b"2-7"],
    [b"EXEC"],
]
MORE = [[b"XADD", b"s", b"3-1", b"f", b"v"]]


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "_KEPT_BYTES", 10_000)
    monkeypatch.setattr(log_stream, "HELD_BYTES", 20_000)
    monkeypatch.setattr(log_stream, "PIECE_BYTES", 3000)
    monkeypatch.setattr(spill, "PIECE_BYTES", 3000)


def streamed(data: bytes, directory: Path | None) -> list[StreamedBatch]:
    """The batches in `data`; a long one is in a file when there is a `directory`."""

    def make_spill() -> Spill:
        assert directory is not None
        return Spill(directory, lambda path: 1 << 40, 0)

    stream = LogStream(0, 1 << 24, None if directory is None else make_spill)
    found: list[StreamedBatch] = []
    for at in range(0, len(data), 1000):
        stream.feed(data[at : at + 1000])
        while (batch := stream.next()) is not None or stream.is_unfinished:
            found += () if batch is None else (batch,)
    return found


def apply_all(replica: Replica, batches: list[StreamedBatch]) -> None:
    for batch in batches:
        replica.apply([batch])


@pytest.fixture
def pair(bounds: None) -> Iterator[tuple[Replica, Replica]]:
    with replicas(b"s") as both:
        yield both


def test_a_long_batch_is_applied_and_logged_as_if_it_was_in_memory(
    pair: tuple[Replica, Replica], tmp_path: Path
) -> None:
    data = log_bytes([SHORT, LONG, MORE])
    batches = streamed(data, tmp_path)
    assert [batch.spill is not None for batch in batches] == [False, True, False]
    sent: list[StreamedBatch] = []
    pair[0].store.engine.batches.on_written = sent.extend
    pair[0].apply(batches[:2])
    pair[0].apply(batches[2:])
    apply_all(pair[1], streamed(data, None))
    assert sent == batches
    assert pair[0].state() == pair[1].state()
    log = b"".join(part.path.read_bytes() for part in pair[0].store.engine.log.home.parts())
    assert log_bytes([LONG], batches[0].offset) in log
    assert pair[0].store.engine.changes_since_checkpoint == pair[1].store.engine.changes_since_checkpoint
    for batch in batches:
        batch.release()


def spoil(batch: StreamedBatch) -> None:
    assert batch.spill is not None
    os.pwrite(batch.spill._file.fileno(), b"?", batch.spill.size // 2)


@pytest.mark.parametrize("when", ["before it is executed", "before it is logged"])
def test_a_file_that_changes_leaves_everything_as_it_was(
    pair: tuple[Replica, Replica], tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = log_bytes([SHORT, LONG, MORE])
    short, long, more = streamed(data, tmp_path)
    pair[0].apply([short])
    before = (pair[0].store.dump(), *pair[0].state()[1:3])
    if when == "before it is executed":
        spoil(long)
    else:

        def spoiled_before(batches: Sequence[StreamedBatch]) -> Iterator[bytes]:
            spoil(long)
            return data_of(batches)

        monkeypatch.setattr("riverbed.store.engine.data_of", spoiled_before)
    with pytest.raises(LogWriteError, match="other bytes"):
        pair[0].apply([long])
    monkeypatch.undo()
    assert (pair[0].store.dump(), *pair[0].state()[1:3]) == before
    long.release()
    apply_all(pair[0], [*streamed(data, None)[1:2], more])
    apply_all(pair[1], streamed(data, None))
    assert pair[0].store.dump() == pair[1].store.dump()
    assert pair[0].state()[1:3] == pair[1].state()[1:3]


def test_memory_that_ends_while_it_is_logged_leaves_no_part_in_the_log(
    pair: tuple[Replica, Replica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = log_bytes([SHORT, LONG, MORE])
    short, long, more = streamed(data, tmp_path)
    pair[0].apply([short])

    def starved(batches: Sequence[StreamedBatch]) -> Iterator[bytes]:
        yield from islice(data_of(batches), 2)
        raise MemoryError

    monkeypatch.setattr("riverbed.store.engine.data_of", starved)
    with pytest.raises(LogWriteError):
        pair[0].apply([long])
    monkeypatch.undo()
    pair[0].apply([long])
    pair[0].apply([more])
    long.release()
    log = b"".join(part.path.read_bytes() for part in pair[0].store.engine.log.home.parts())
    assert log_bytes([SHORT, LONG]) in log


def test_a_command_that_does_not_fit_undoes_all_of_a_long_batch(pair: tuple[Replica, Replica], tmp_path: Path) -> None:
    data = log_bytes([SHORT, [*LONG[:-1], [b"XADD", b"s", b"1-1", b"f", b"v"], LONG[-1]]])
    short, long = streamed(data, tmp_path)
    pair[0].apply([short])
    before = (pair[0].store.dump(), *pair[0].state()[1:3])
    with pytest.raises(ReplayError):
        pair[0].apply([long])
    assert (pair[0].store.dump(), *pair[0].state()[1:3]) == before
    long.release()
