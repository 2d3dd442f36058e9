"""Whatever fails in a command in slices, its reply tells what of it was done: all, nothing, or how much.

Every file operation of every slice fails in turn, and the log goes on in another file behind each batch, so that those
of a rotation are among them.  What the client is told equals what the server has, what a replica makes of what it was
sent, and what the next start finds, also when the machine stops.
"""

from __future__ import annotations

import asyncio
import errno
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.request import Request
from riverbed.server.commands.slices import SlicedCommand, Work
from riverbed.server.commands.table import COMMANDS as ROWS
from riverbed.server.execution import sliced_commands
from riverbed.server.protocol.replies import Reply
from riverbed.store.log.streamed.stream import LogStream
from tests.server.execution.test_sliced_commands import SIZES
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.stores import dump_database
from tests.support.ticks import Client, Files, Ticks, in_loop

ENTRIES = 30
ALL = " ".join(f"{number}-0" for number in range(1, ENTRIES + 1))
COMMANDS = {
    "XACK": f"XACK s g {ALL}",
    "XDEL": f"XDEL s {ALL}",
    "XDELEX": f"XDELEX s DELREF IDS {ENTRIES} {ALL}",
    "XCLAIM": f"XCLAIM s g Bob 0 {ALL}",
    "XAUTOCLAIM": "XAUTOCLAIM s g Bob 0 - COUNT 1000",
    "XREADGROUP": "XREADGROUP GROUP fresh Bob STREAMS s >",
    "XREADGROUP NOACK": "XREADGROUP GROUP fresh Bob NOACK STREAMS s >",
    "XADD": "XADD s MAXLEN 5 DELREF 9999-1 f v",
    "XTRIM": "XTRIM s MAXLEN 3 DELREF",
    "DEL": "DEL s " + " ".join(f"k{number}" for number in range(1, ENTRIES)),
}
# What can be said of each behind its first two slices.
PARTS = {
    "XACK": ["the first 10 of 30 IDs", "the first 20 of 30 IDs"],
    "XDEL": ["the first 10 of 30 IDs", "the first 20 of 30 IDs"],
    "XDELEX": ["the first 10 of 30 IDs", "the first 20 of 30 IDs"],
    "XCLAIM": ["the first 10 of 30 IDs", "the first 20 of 30 IDs"],
    "XAUTOCLAIM": [f"{n} entries claimed; a call that goes on begins at {n + 1}-0" for n in (10, 20)],
    "XREADGROUP": ["10 entries delivered to the consumer", "20 entries delivered to the consumer"],
    "XREADGROUP NOACK": ["10 entries delivered to the consumer", "20 entries delivered to the consumer"],
    "XADD": ["the entry added, 10 entries removed", "the entry added, 20 entries removed"],
    "XTRIM": ["10 entries removed", "20 entries removed"],
    "DEL": ["the first 10 of 30 keys", "the first 20 of 30 keys"],
}
_PARTIAL = re.compile(rb"-(PARTIAL .* The rest was not done: )(?:MISCONF|ERR) ")
# By what the client would be told was kept, nothing before the first commit.
States = dict[bytes, dict[bytes, Any]]


class Case:
    """A server about to be sent a command in slices, and what a replica has been sent."""

    def __init__(self, directory: Path, *, segment_bytes: int = 64) -> None:
        self.ticks = Ticks(directory, appendfsync="always", segment_bytes=segment_bytes)
        # without a checkpoint a full file of the log ends in the tick, so that what that needs may fail there
        self.ticks.executor.events.committed.remove(self.ticks.server.checkpoints.committed)
        self.sent = bytearray()
        self.ticks.engine.batches.on_written = lambda batches: self.sent.extend(
            b"".join(batch.data for batch in batches)
        )
        self.client = self.ticks.connect()
        self._found: dict[tuple[tuple[Path, bytes], ...], dict[bytes, Any]] = {}  # by what the disk holds

    async def fill(self) -> None:
        await self.ticks.ask(self.client, *(f"XADD s {number}-0 f v" for number in range(1, ENTRIES + 1)))
        await self.ticks.ask(self.client, *(f"XADD k{number} 1-0 f v" for number in range(1, ENTRIES)))
        await self.ticks.ask(self.client, "XGROUP CREATE s g 0", "XGROUP CREATE s fresh 0")
        await self.ticks.ask(self.client, "XREADGROUP GROUP g Alice STREAMS s >")

    def contents(self) -> dict[bytes, Any]:
        return dump_database(self.ticks.engine.txn.databases[0])

    def replica(self, directory: Path) -> dict[bytes, Any]:
        """What a replica has that executes what it was sent."""
        other = Ticks(directory)
        stream = LogStream(0, 1 << 20)
        stream.feed(bytes(self.sent))
        while (batch := stream.next()) is not None:
            other.engine.apply([batch])
        assert not stream.pending_bytes
        return _end(other)

    def restarted(self, directory: Path, files: FaultyFiles) -> dict[bytes, Any]:
        """What the next start finds in what `files` hold, without the tables: one start for each such content."""
        paths = sorted(files.paths())
        held = tuple((path.relative_to(self.ticks.directory), bytes(files.data(path))) for path in paths)
        if held not in self._found:
            again = Files()
            for path, data in held:
                again.put(directory / path, data)
            self._found[held] = _end(Ticks(directory, files=again))
        return self._found[held]


def _end(ticks: Ticks) -> dict[bytes, Any]:
    held = dump_database(ticks.engine.txn.databases[0])
    ticks.server.maintenance.stop()
    ticks.server.checkpoints.stop()
    ticks.engine.abandon()
    return held


async def finish(client: Client) -> bytes | None:
    """The reply; None when the client was cut off."""
    for _ in range(10_000):
        await asyncio.sleep(0)
        replies = client.replies()
        if replies or client.is_closed:
            assert len(replies) == (0 if client.is_closed else 1), replies
            return replies[0] if replies else None
    raise AssertionError("no reply")


def dry_run(directory: Path, command: str) -> tuple[States, dict[str, int], bytes]:
    """-> (the state after each commit, how often each file operation is called, the reply)."""
    states: States = {}
    counts: Counter[str] = Counter()
    reply = b""

    async def body() -> None:
        nonlocal reply
        case = Case(directory)
        await case.fill()
        states[b""] = case.contents()
        before = len(case.ticks.files.operations)
        case.client.send(command)
        while not (replies := case.client.replies()):
            await asyncio.sleep(0)
            slices = case.ticks.executor.sliced_commands.of(case.client.session)
            if slices is not None:
                states[slices.kept] = case.contents()
        [reply] = replies
        states[reply] = case.contents()
        counts.update(case.ticks.files.operations[before:])
        case.ticks.close()

    in_loop(body())
    return states, counts, reply


def told(reply: bytes) -> bytes:
    """Which of the states a reply speaks of."""
    found = _PARTIAL.match(reply)
    if found is not None:
        return found[1].removeprefix(b"PARTIAL ").removesuffix(b" The rest was not done: ")
    return b"" if reply.startswith(b"-MISCONF ") else reply


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a tick."""
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)
    for size in (*SIZES, "riverbed.server.commands.keys.keys._KEYS_A_SLICE"):
        monkeypatch.setattr(size, 10)
    monkeypatch.setattr("riverbed.store.groups.pending_reads._SHOW_COST", 10)
    monkeypatch.setattr("riverbed.store.groups.pending_reads._SHOW_ROWS", 3)
    monkeypatch.setattr("riverbed.store.groups.sliced_trim._SLICE", 10)


@pytest.mark.parametrize("name", COMMANDS)
def test_how_much_was_done_is_told_in_what_the_command_counts(tmp_path: Path, name: str) -> None:
    states, _, _ = dry_run(tmp_path, COMMANDS[name])
    verb = name.split()[0].encode()
    kept = [b"%b was done in part, which stays: %b." % (verb, part.encode()) for part in PARTS[name]]
    assert list(states)[1:3] == kept


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_reply_tells_what_was_done_whichever_file_operation_of_a_slice_fails(
    tmp_path: Path, name: str, number: int
) -> None:
    states, counts, answer = dry_run(tmp_path / "dry", COMMANDS[name])
    assert len(states) >= 4
    assert counts["rename"] and counts["create"] and counts["write"] >= 3
    seen: set[bytes] = set()
    for operation, count in counts.items():
        for after in range(count):
            what = f"{operation} {after}"
            place = tmp_path / f"{operation}-{after}"

            async def body(
                operation: str = operation, after: int = after, what: str = what, place: Path = place
            ) -> None:
                case = Case(place / "live")
                await case.fill()
                files = case.ticks.files
                files.fail(operation, number, after=after)
                case.client.send(COMMANDS[name])
                reply = await finish(case.client)
                if reply is not None:
                    assert case.ticks.executor.stats.error_replies == reply.startswith(b"-"), what
                    kept = told(reply)
                    assert kept in states, f"{what}: {reply!r}"
                    seen.add(kept)
                    assert case.contents() == states[kept], f"live, {what}: {reply!r}"
                    assert case.replica(place / "replica") == states[kept], f"replica, {what}: {reply!r}"
                    disks = {"restarted": files, "cut": files.crash(), "cut, with names": files.crash(names=True)}
                    for target, found in disks.items():
                        held = case.restarted(place / target, found)
                        assert held == states[kept], f"{target}, {what}: {reply!r}"
                _end(case.ticks)

            in_loop(body())
            shutil.rmtree(place)
    assert seen >= {b"", answer}
    assert len(seen) >= 4


def _one_more(work: Work) -> Work:
    """Another slice of the work, and a bug."""
    yield next(work)
    raise RuntimeError("a bug")


@pytest.mark.parametrize("is_full", [False, True])
def test_a_bug_in_a_later_slice_is_answered_once_and_with_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """Undone with the whole tick, when what came before in the tick cannot be logged."""
    monkeypatch.setattr(sliced_commands, "SLICES_S", 60.0)
    load_commands()
    xack = ROWS[b"XACK"].handler

    def fails_in_the_third_slice(request: Request) -> Reply:
        reply = xack(request)
        if isinstance(reply, SlicedCommand):  # else it comes from the log
            reply.work = _one_more(reply.work)
        return reply

    async def body() -> None:
        monkeypatch.setattr(ROWS[b"XACK"], "handler", fails_in_the_third_slice)
        case = Case(tmp_path, segment_bytes=1 << 30)
        await case.fill()
        if is_full:
            case.ticks.files.fail("write", errno.ENOSPC, after=1)
        [reply, behind] = await case.ticks.ask(case.client, COMMANDS["XACK"], "XPENDING s g")
        assert behind.startswith(b"*4\r\n:%d\r\n" % (20 if is_full else 10))
        if is_full:
            assert reply.startswith(b"-PARTIAL XACK was done in part, which stays: the first 10 of 30 IDs. ")
            assert b" not done: MISCONF " in reply
        else:
            assert reply.startswith(b"-PARTIAL XACK was done in part, which stays: the first 20 of 30 IDs. ")
            assert b" not done: ERR internal error: xack was undone (RuntimeError)" in reply
        _end(case.ticks)

    in_loop(body())
