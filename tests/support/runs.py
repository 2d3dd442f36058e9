"""Runs of requests beside the same requests one by one: what a scenario with clients leaves behind either way."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

from riverbed.server.protocol import request_reader
from riverbed.server.protocol.fast_reader import PlainReader
from riverbed.server.protocol.native_reader import NativeReader
from riverbed.store.format import pending
from riverbed.store.tables.environment import TABLES
from tests.support.ticks import Ticks, in_loop
from tests.support.turns import turns_of_any_length

# Lines of every kind that may be in or around a run; {now} is for the milliseconds of the clock.
LINES = [
    *["XADD a * f v", "XADD a * f v", "XADD b * f v", "xadd a * f v", "XADD a * f v g w"] * 3,
    "XADD c * f " + "x" * 90,
    *["XADD a MAXLEN ~ 60 * f v", "xadd b maxlen ~ 10 * f v g w", "XADD d MAXLEN ~ 100 * f v"] * 2,
    *("XADD d MAXLEN = 100 * f v", "XADD b MAXLEN 20 * f v", "XADD a MINID ~ {now}-2 * f v"),
    *("XADD b MINID {now} * f v", "XADD a NOMKSTREAM * f v", "XADD f 1-1 f v", "XADD e MINID ~ 1 5-5 f v"),
    *["XADD a {now} f v", "XADD a {now}-5 f v", "XADD e {now}-* f v", "XADD e NOMKSTREAM MAXLEN ~ 5 * f v"],
    *("XADD a MAXLEN ~ 0 * f v", "XADD a MAXLEN ~ x * f v", "XADD d MAXLEN ~ 999999999 * f v"),
    *("XADD a MAXLEN ~ 3 * f v", "XADD a MAXLEN 4 * f v", "XADD a 5 f v", "XADD a NOMKSTREAM * f v", "XADD a * f"),
    *("XLEN a", "PING", "XDEL a {now}-1", "DEL a", "DEL b", "XTRIM a MAXLEN 2", "RENAME a b"),
    *("EXPIRE a 1", "PERSIST a", "XRANGE a - + COUNT 1", "XRANGE b - + COUNT 1", "xrange a {now}-2 {now} count 1"),
    *("XRANGE a {now} + COUNT 1", "XRANGE e 5-5 5-5 COUNT 1", "XRANGE none - + COUNT 1", "XRANGE a 9-9 1 COUNT 1"),
    *("SELECT 1", "SELECT 0", "MULTI", "EXEC", "DISCARD", "WATCH a", "WATCH b", "UNWATCH", "SET a 1", "NO a"),
    *("XREAD BLOCK 0 STREAMS a b $ $", "XREAD BLOCK 0 COUNT 1 STREAMS a $", "XGROUP CREATE a g 0 MKSTREAM"),
    "XREADGROUP GROUP g c BLOCK 0 COUNT 2 STREAMS a >",
    *("XREADGROUP GROUP g d COUNT 1 STREAMS a >", "XREADGROUP GROUP g d COUNT 40 STREAMS a >", "XGROUP SETID a g 0"),
    *("CLIENT REPLY SKIP", "CLIENT REPLY OFF", "CLIENT REPLY ON", "CLIENT UNBLOCK 1", "HELLO 3", "FLUSHDB"),
    "MONITOR",
    *("XSETID a {now}-18446744073709551600", "XSETID a 18446744073709551615-18446744073709551600", "RESET"),
    "XINFO STREAM a",
    *[f"XACK a g {{now}}-{seq}" for seq in (0, 1, 2, 3, 5, 8)],
    *("XACK a g {now}", "xack a g {now}-4", "XACK b g {now}-1", "XACK a h {now}-1", "XACK a g {now}-1 {now}-2"),
    *[f"XCLAIM a g d 0 {{now}}-{seq} JUSTID" for seq in (0, 1, 2, 3, 5, 8)],
    *[f"XCLAIM a g d 1 {{now}}-{seq} JUSTID" for seq in (0, 4, 5)],
    *("XCLAIM a h d 0 {now}-1 JUSTID", "XCLAIM a g d x {now}-1 JUSTID", "xclaim a g c 0 {now}-1 justid"),
    *("XNACK a g FAIL IDS 1 {now}-3", "XCLAIM a g d 0 {now}-5 RETRYCOUNT 3 JUSTID"),
]  # fmt: skip
APPENDS = [line for line in LINES if line.lower().startswith("xadd")]
ACKS = [line for line in LINES if line.lower().startswith("xack")]
CLAIMS = [line for line in LINES if line.lower().startswith("xclaim")]
RANGES = [line for line in LINES if line.lower().startswith("xrange")]

Scenario = Callable[[Ticks], Coroutine[Any, Any, Any]]


def bulks(*texts: str) -> list[bytes]:
    return [b"$%d\r\n%b\r\n" % (len(text), text.encode()) for text in texts]


def rows_of(ticks: Ticks) -> dict[str, list[tuple[bytes, bytes]]]:
    txn = ticks.engine.txn
    while ticks.engine.purge(0.0):
        pass
    txn.write_back()
    rows = {name: list(txn.lmdb.cursor(txn.handles[name])) for name in TABLES if name != "meta"}
    rows["pel"] = list(pending_entries(rows.pop("pel"), rows.pop("pel_by_consumer"), rows.pop("pel_by_time")))
    return rows


def pending_entries(
    pel: list[tuple[bytes, bytes]], by_consumer: list[tuple[bytes, bytes]], by_time: list[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """(key, delivery) of each pending entry: how entries are put together to runs depends on when they are written."""
    runs = [pending.Run.under(key, row) for key, row in pel]
    group_nos = [int.from_bytes(key[:8], "big") for key, _ in pel]
    pairs = list(zip(group_nos, runs, strict=True))
    owners = [pending.owner_prefix(group_no, run.consumer_no) + run.last for group_no, run in pairs]
    assert [key for key, _ in by_consumer] == sorted(owners)
    assert [key for key, _ in by_time] == sorted(map(pending.time_key, group_nos, runs))
    for group_no, run in pairs:
        yield from ((pending.group_prefix(group_no) + packed, repr(run.delivery).encode()) for packed in run.ids())


def outcome(directory: Path, parser: type[NativeReader | PlainReader], scenario: Scenario, **settings: object) -> Any:
    """What a scenario returns, and all that it leaves behind, when requests are read by `parser`.

    With `PlainReader` each transaction is queued, however it comes.
    """
    found: list[Any] = []

    async def body() -> None:
        ticks = Ticks(directory, **settings)
        if parser is PlainReader:
            ticks.executor.fast_path.longest_whole = -1
        found.append(await scenario(ticks))
        await ticks.settle()
        stats = ticks.executor.stats
        calls = {name: (one.calls, one.failed, one.rejected) for name, one in stats.seen_commands()}
        changes = ticks.engine.txn.changes
        found.extend([calls, stats.commands_processed, ticks.batches(), rows_of(ticks), changes])
        ticks.close()

    with patch.object(request_reader, "new_plain_reader", parser), turns_of_any_length():
        in_loop(body())
    return found


def same(tmp_path: Path, scenario: Scenario, **settings: object) -> Any:
    """What the scenario returns; fails when it makes a difference that there are runs."""
    one_by_one = outcome(tmp_path / "words", PlainReader, scenario, **settings)
    in_runs = outcome(tmp_path / "runs", NativeReader, scenario, **settings)
    for side in (one_by_one, in_runs):
        side[3] = [in_order(batch) for batch in side[3]]
    for found, expected in zip(in_runs, one_by_one, strict=True):
        assert found == expected
    return in_runs[0]


def in_order(batch: list[bytes]) -> list[bytes]:
    """A batch with XADDs in front of neighbouring XACKs, and one XACK or XCLAIM for each entry.

    The log has mixes and claims otherwise.  A claim says of its consumer what lines before it say.
    """
    ordered: list[bytes] = []
    for is_of_mix, lines in groupby(without_said(batch), lambda line: line.startswith((b"XADD ", b"XACK "))):
        if not is_of_mix:
            ordered += [single for line in lines for single in single_claims(line)]
            continue
        neighbours = list(lines)
        ordered += [line for line in neighbours if line.startswith(b"XADD ")]
        for line in neighbours:
            name, key, group, *ids = line.split(b" ")
            if name == b"XACK":
                ordered += [b" ".join([name, key, group, one]) for one in ids]
    return ordered


def without_said(batch: list[bytes]) -> list[bytes]:
    """The lines but those in front of an XCLAIM that tell what it tells as well: that its consumer exists, and when."""
    kept: list[bytes] = []
    for line in reversed(batch):
        words = line.removeprefix(b"XGROUP ").split(b" ")
        claim = b" ".join([b"XCLAIM", *words[1:4], b""])
        if words[0] in (b"CREATECONSUMER", b"XSEEN") and kept and kept[-1].startswith(claim):
            continue
        kept.append(line)
    return kept[::-1]


def single_claims(line: bytes) -> list[bytes]:
    words = line.split(b" ")
    if words[0] != b"XCLAIM":
        return [line]
    ids, how = words[5:-8], words[-8:]
    return [b" ".join([*words[:5], one, *how]) for one in ids]


def asked(*lines: str) -> Scenario:
    async def scenario(ticks: Ticks) -> list[bytes]:
        return await ticks.ask(ticks.connect(), *lines)

    return scenario
