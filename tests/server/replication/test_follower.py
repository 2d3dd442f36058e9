"""What a replica applies in one turn is bounded by commands, of which a run is one, as well as by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.replication import follower
from riverbed.server.replication.follower import SLICE_BYTES, SLICE_COMMANDS, Follower
from riverbed.store.format.log_lines import encode_annotation, encode_command
from riverbed.store.log.stream_reader import LogStream, StreamedBatch
from tests.support.ticks import Ticks, in_loop


class Link:
    """One whose primary is done."""

    def set_reading(self, on: bool) -> None: ...

    def send(self, data: bytes) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error


def batch(offset: int, first: int, count: int, value: bytes = b"v") -> bytes:
    """A batch of `count` entries."""
    ids = [b"%d-1" % number for number in range(first, first + count)]
    commands = encode_command([b"SELECT", b"0"])
    commands += b"".join([encode_command([b"XADD", b"s", entry_id, b"f", value]) for entry_id in ids])
    return commands + encode_annotation(commands, offset + len(commands), 1)


def log_of(counts: Sequence[int], value: bytes = b"v") -> tuple[bytes, int]:
    """Batches of so many entries -> (their bytes, how many entries)."""
    data = b""
    offset, first = 0, 1
    for count in counts:
        piece = batch(offset, first, count, value)
        data += piece
        offset += piece.rindex(b"#CK")
        first += count
    return data, first - 1


@pytest.mark.parametrize(
    ("counts", "value"),
    [
        ([1] * 3000, b"v"),
        ([400] * 100, b"v"),
        ([5, 9000, 5, 9000, 1], b"v"),
        ([2] * 50, b"x" * 20_000),
    ],
)
def test_a_turn_applies_a_slice_or_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int], value: bytes
) -> None:
    monkeypatch.setattr(follower, "SLICE_S", -1.0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        engine = ticks.engine
        applied: list[list[StreamedBatch]] = []
        apply = engine.apply

        def note(batches: Sequence[StreamedBatch]) -> None:
            applied.append(list(batches))
            apply(batches)

        engine.apply = note  # type: ignore[method-assign]
        following: Any = Follower(ticks.server.replication.needs, ticks.server.replication.primary, "127.0.0.1", 1)
        data, entries = log_of(counts, value)
        following._link, following._stream = Link(), LogStream(0, 1 << 30)
        following._stream.feed(data)
        following._work_soon()
        for _ in range(len(counts)):
            await ticks.settle()
        client = ticks.connect()
        assert await ticks.ask(client, "XLEN s") == [b":%d\r\n" % entries]
        assert len(applied) > 1
        for batches in applied:
            before_last = batches[:-1]
            assert sum(len(batch.requests) for batch in before_last) < SLICE_COMMANDS
            assert sum(len(batch.data) for batch in before_last) < SLICE_BYTES
        ticks.close()

    in_loop(body())
