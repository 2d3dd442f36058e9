"""A stream is lent without a look at its nodes, unless the entry that it is lent for trims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.store.errors import DamagedRowError
from riverbed.store.streams.runs import lend, take_back
from riverbed.store.streams.stream import Stream
from riverbed.store.wire import APPENDED, append, parse
from tests.support.raw import encode
from tests.support.store.stores import Store

NOW_MS = 1_800_000_000_000
TRIMS = (("MAXLEN", "~", "49"), ("MINID", "~", "2-0"), ("MINID", "=", "1-0"))


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    """Of 50 entries in nodes of four."""
    store = Store(tmp_path / "store", node_max_entries=4)
    yield store.fill(b"s", 50)
    store.engine.abandon()


def count_taken(stream: Stream, trims: bool, *options: str) -> int:
    """How many entries with these options are appended natively."""
    run = (parse(APPENDED, encode(("XADD", "s", *options, "*", "f", "v"))) or [])[0]
    assert not isinstance(run, list)
    tail = lend(stream, 10, trims)
    count = append(run, 0, {b"s": tail}, {}, NOW_MS)[0]
    take_back(stream, tail)
    return count


def test_no_node_is_read_for_an_entry_that_does_not_trim(stream: Stream) -> None:
    stream.txn.delete_range(stream.prefix, stream.prefix + b"\xff" * 16)
    lend(stream, 10, False)
    with pytest.raises(DamagedRowError):
        lend(stream, 10, True)


@pytest.mark.parametrize("options", TRIMS)
def test_what_might_trim_is_left_to_a_tail_that_knows_the_first_node(stream: Stream, options: tuple[str, ...]) -> None:
    assert count_taken(stream, False, *options) == 0
    assert count_taken(stream, True, *options) == 1
    assert stream.length == 51


def test_a_trim_by_a_length_that_is_not_reached_is_taken(stream: Stream) -> None:
    assert count_taken(stream, False, "MAXLEN", "~", "1000") == 1
    assert count_taken(stream, False, "MAXLEN", "1000") == 1
