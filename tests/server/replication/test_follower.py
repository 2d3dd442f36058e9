"""What a replica applies in one turn is bounded by commands, of which a run is one, as well as by bytes.

It applies nothing while it puts rows into the tables for a checkpoint.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import lmdb
import pytest

from riverbed.server.replication import applier, link
from riverbed.server.replication.applier import LACKS_CHECKPOINT, LACKS_MEMORY, SLICE_BYTES, SLICE_COMMANDS
from riverbed.server.replication.failover import LACKS_LOG, NO_REPLICA_TO_TAKE_OVER
from riverbed.server.replication.follower import Follower, State
from riverbed.server.replication.fullsync import SyncError
from riverbed.server.replication.link import FullSyncHead, Introduction, LinkError
from riverbed.server.replication.needs import Needs
from riverbed.store.databases.lent import BATCH
from riverbed.store.engine import Engine
from riverbed.store.errors import Refusal
from riverbed.store.format.log_lines import FrameError, encode_annotation, encode_command
from riverbed.store.log.streamed.batch import StreamedBatch
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.running.checkpoint import Durability
from riverbed.store.running.space import MAX_UNCOMMITTED_BYTES
from riverbed.store.tables.writing.transaction import PART
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until_true


class Link:
    """One whose primary is done."""

    is_reading = True

    def __init__(self, heard_s: float) -> None:
        self.heard_s = heard_s

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


def follow(ticks: Ticks, needs: Needs, data: bytes) -> Follower:
    """Have a replica apply what a primary has sent; -> the follower."""
    following: Any = Follower(needs, ticks.server.replication.primary, "127.0.0.1", 1)
    following._link = Link(ticks.clock.monotonic())
    following._apply(LogStream(0, 1 << 30))
    following.link_received(data)
    return cast("Follower", following)


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
    monkeypatch.setattr(applier, "SLICE_S", -1.0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        engine = ticks.engine
        applied: list[list[StreamedBatch]] = []
        apply = engine.apply

        def note(batches: Sequence[StreamedBatch]) -> None:
            applied.append(list(batches))
            apply(batches)

        monkeypatch.setattr(engine, "apply", note)
        data, entries = log_of(counts, value)
        follow(ticks, ticks.server.replication.needs, data)
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


@pytest.mark.parametrize("reason", ["is_writing_ahead", "is_disk_behind"])
def test_nothing_is_applied_while_a_checkpoint_has_to_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(applier, "SLICE_S", -1.0)
    monkeypatch.setattr(applier, "DISK_AGAIN_S", 0.0001)
    has_to_wait = True

    async def body() -> None:
        nonlocal has_to_wait
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        needs = dataclasses.replace(ticks.server.replication.needs, **{reason: lambda: has_to_wait})
        data, entries = log_of([SLICE_COMMANDS] * 3)
        follow(ticks, needs, data)
        for _ in range(5):
            assert await ticks.ask(client, "XLEN s") == [b":0\r\n"]
        has_to_wait = False
        await asyncio.sleep(0.01)
        for _ in range(5):
            await ticks.settle()
        assert await ticks.ask(client, "XLEN s") == [b":%d\r\n" % entries]
        ticks.close()

    in_loop(body())


def test_nothing_is_applied_any_more_once_it_is_stopped(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        following: Any = follow(ticks, ticks.server.replication.needs, log_of([1] * 3)[0])
        following._link.fail = lambda error: None  # the loop says later that the connection is lost
        following.stop()
        for _ in range(5):
            await ticks.settle()
        assert await ticks.ask(ticks.connect(), "XLEN s") == [b":0\r\n"]
        ticks.close()

    in_loop(body())


def test_a_link_is_not_silent_while_what_it_has_sent_waits_for_the_disk(tmp_path: Path) -> None:
    is_disk_behind = True

    async def body() -> None:
        nonlocal is_disk_behind
        ticks = Ticks(tmp_path)
        needs = dataclasses.replace(ticks.server.replication.needs, is_disk_behind=lambda: is_disk_behind)
        following = follow(ticks, needs, log_of([1])[0])
        timeout_ms = ticks.server.context.config.repl_timeout * 1000
        for _ in range(3):
            ticks.clock.now_ms += timeout_ms
            await asyncio.sleep(2 * applier.DISK_AGAIN_S)
            await ticks.settle()
            following.cycle()
        is_disk_behind = False
        await asyncio.sleep(2 * applier.DISK_AGAIN_S)
        await ticks.settle()
        assert await ticks.ask(ticks.connect(), "XLEN s") == [b":1\r\n"]
        ticks.clock.now_ms += timeout_ms
        following.cycle()
        ticks.clock.now_ms += timeout_ms
        with pytest.raises(LinkError, match="no byte came"):
            following.cycle()
        ticks.close()

    in_loop(body())


def test_a_checkpoint_finds_few_rows_to_write_although_all_streams_go_on_changing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"k%d" % number for number in range(40 * BATCH)]
    rounds = 40
    found: list[int] = []  # changed streams, where a checkpoint begins
    begin_checkpoint = Engine.begin_checkpoint

    def begin(engine: Engine) -> Durability:
        found.append(engine.txn.changed_streams)
        return begin_checkpoint(engine)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        ticks.engine.set_role(is_replica=True)
        ticks.engine.checkpoint()  # it is a replica from here on
        monkeypatch.setattr(Engine, "begin_checkpoint", begin)
        data, offset = b"", 0
        for number in range(1, rounds + 1):
            words = [[b"SELECT", b"0"], *([b"XADD", key, b"%d-1" % number, b"f", b"x" * 400] for key in keys)]
            commands = b"".join(map(encode_command, words))
            offset += len(commands)
            data += commands + encode_annotation(commands, offset, 1)
        follow(ticks, ticks.server.replication.needs, data)
        while ticks.engine.log.end.offset < offset:
            await ticks.settle()
        client = ticks.connect()
        assert await ticks.ask(client, *(f"XLEN {key.decode()}" for key in keys)) == [b":%d\r\n" % rounds] * len(keys)
        ticks.close()

    in_loop(body())
    assert len(found) > 1  # one of them while more was to be applied
    assert max(found[:-1]) < BATCH + PART


class Ending(Link):
    """One that ends when it is given up."""

    def __init__(self, following: Follower) -> None:
        super().__init__(0.0)
        self._following = following

    def fail(self, error: Exception) -> None:
        assert isinstance(error, LinkError)
        self._following.link_lost(error)


def test_a_link_that_is_lost_as_soon_as_it_is_made_is_tried_again_after_a_moment(tmp_path: Path) -> None:
    """A primary that cannot read a file of its log says that it goes on, and ends the link then."""
    attempts = 0

    async def body() -> None:
        nonlocal attempts
        ticks = Ticks(tmp_path)
        following: Any = Follower(ticks.server.replication.needs, ticks.server.replication.primary, "127.0.0.1", 1)

        def connect() -> None:
            nonlocal attempts
            attempts += 1
            following._link = Ending(following)
            following.link_made()
            following.link_continues("a" * 40, "")
            asyncio.get_running_loop().call_soon(following.link_lost, LinkError("the primary closed the link"))

        following._connect = connect
        following.start()
        for _ in range(100):
            await asyncio.sleep(0)
        assert attempts == 1
        for _ in range(20):
            ticks.clock.now_ms += 500
            following.cycle()
            for _ in range(20):
                await asyncio.sleep(0)
        assert 10 <= attempts <= 21
        following.stop()
        ticks.close()

    in_loop(body())


def test_a_full_sync_whose_log_cannot_be_taken_waits_longer_each_time(tmp_path: Path) -> None:
    """A batch that is too long for this replica comes with each of them."""

    class TooLong:
        pending_bytes = total_bytes = read_bytes = 0
        is_behind = False

        def take_slice(self, most_bytes: int, most_commands: int) -> bool:
            raise FrameError("a batch of 536870913 bytes")

        def cancel(self) -> None: ...

    async def body() -> None:
        ticks = Ticks(tmp_path)
        following: Any = Follower(ticks.server.replication.needs, ticks.server.replication.primary, "127.0.0.1", 1)
        waits = []
        for _ in range(6):
            following._link = Ending(following)
            following.state = State.SYNC
            following._full_sync = TooLong()
            following._take()
            waits.append(following._attempts._next_s - ticks.clock.monotonic())
        assert waits == pytest.approx([1, 2, 4, 8, 10, 10])
        found = dict(following.fields())
        assert found["riverbed_full_sync_failures"] == 6
        assert found["riverbed_full_sync_last_failure"] == "a batch of 536870913 bytes"
        ticks.close()

    in_loop(body())


def test_a_full_sync_without_room_is_not_received_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would take the link, and what room there is."""
    begin = MagicMock()
    monkeypatch.setattr("riverbed.server.replication.follower.FullSync", begin)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        ticks.files.free = 8 << 20
        following: Any = Follower(ticks.server.replication.needs, ticks.server.replication.primary, "127.0.0.1", 1)
        large, small = (FullSyncHead("a" * 40, 0, 100, size << 20, 500) for size in (16, 1))
        following.link_begins_anew(large)  # a file system may make files smaller
        following._attempts.sync_failed(SyncError("the disk is nearly full"))
        with pytest.raises(LinkError, match="the disk is nearly full: 16,777,316 bytes come") as refused:
            following.link_begins_anew(large)
        assert refused.value.is_lasting
        assert dict(following.fields())["riverbed_full_sync_failures"] == 2
        assert begin.call_count == 1
        following.link_begins_anew(small)
        assert begin.call_count == 2
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("hands_over", [True, False])
def test_a_server_without_room_hands_over_all_the_same_and_follows_nobody_else(
    tmp_path: Path, hands_over: bool
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        replication = ticks.server.replication
        ticks.engine.refusals.reason = Refusal.DISK_NEARLY_FULL
        failover = replication.failover if hands_over else None
        following: Any = Follower(replication.needs, replication.primary, "127.0.0.1", 1, failover)
        attempts = []
        following._connect = lambda: attempts.append(None)
        following.cycle()
        assert len(attempts) == hands_over
        following.stop()
        ticks.engine.refusals.reason = None
        ticks.close()

    in_loop(body())


def test_a_replica_that_lacks_something_has_not_taken_over_however_often_it_was_asked() -> None:
    """The link has broken behind the first request, so that any other refusal may be of a primary by now."""
    follower = Follower.__new__(Follower)
    follower._may_have_taken_over = follower._seems_primary = False
    follower._latest = cast("Any", SimpleNamespace(has_asked_to_take_over=True))
    assert not follower._is_refused(LinkError("closed"))
    assert not follower._is_refused(refused("ERR max number of clients reached"))
    assert follower._is_refused(refused(LACKS_LOG))


@pytest.mark.parametrize("password", ["log", "master", "ERR"])
def test_a_password_that_is_a_word_of_an_answer_hides_it_from_people_alone(password: str) -> None:
    follower = Follower.__new__(Follower)
    follower._may_have_taken_over = True
    follower._latest = None
    assert not follower._is_refused(refused(NO_REPLICA_TO_TAKE_OVER, password))
    assert follower._seems_primary
    error = refused(LACKS_LOG, password)
    assert follower._is_refused(error)
    assert password not in str(error)


def refused(answer: str, password: str = "") -> LinkError:
    """What becomes of a link on which PSYNC is answered so."""
    introduction = Introduction(6379, "", "", password.encode(), "a" * 40, 0, takes_over=True)
    refusing = link.Link(cast("Any", None), introduction, time.monotonic)
    refusing._step("")
    refusing.data_received(b"+PONG\r\n" + b"+OK\r\n" * (4 if password else 3) + b"-%b\r\n" % answer.encode())
    assert refusing._reason is not None
    return refusing._reason


class Listening(Link):
    """One that notes why it is given up."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.reasons: list[str] = []

    def fail(self, error: Exception) -> None:
        self.reasons.append(str(error))


def test_a_replica_takes_no_more_of_the_log_than_its_tables_may_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try of a checkpoint that fails executes all of that again, and so does the next start."""

    def refuse(engine: Engine, *, divides_log: bool = False) -> Durability:
        raise engine.checkpoints.refused(lmdb.DiskError("refused"))

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=10)
        engine = ticks.engine
        engine.set_role(is_replica=True)
        value = b"x" * (1 << 20)
        data, _ = log_of([1] * (2 * MAX_UNCOMMITTED_BYTES // len(value)), value)
        link = Listening()
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "begin_checkpoint", refuse)
            following: Any = follow(ticks, ticks.server.replication.needs, data)
            following._link = link
            await until_true(lambda: bool(link.reasons))
            assert link.reasons == [LACKS_CHECKPOINT]
            assert MAX_UNCOMMITTED_BYTES <= engine.log.end.offset < MAX_UNCOMMITTED_BYTES + 2 * len(value)

            attempts: list[None] = []
            following._connect = lambda: attempts.append(None)
            following.link_lost(LinkError(LACKS_CHECKPOINT, is_lasting=True))
            for wants_all in (False, True):  # a full sync brings other tables
                following._wants_all = wants_all
                ticks.clock.now_ms += 10_000
                following.cycle()
                assert len(attempts) == wants_all
        await until_true(lambda: engine.checkpoints.last_ok)
        following._wants_all = False
        ticks.clock.now_ms += 10_000
        following.cycle()
        assert len(attempts) == 2
        following.stop()
        ticks.close()

    in_loop(body())


def test_a_replica_whose_memory_is_short_does_not_ask_for_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        link = Listening()
        following: Any = follow(ticks, ticks.server.replication.needs, log_of([1])[0])
        following._link = link
        with monkeypatch.context() as patch:
            patch.setattr("riverbed.store.engine.replay.execute_requests", MagicMock(side_effect=MemoryError))
            await ticks.settle()
        assert link.reasons == [LACKS_MEMORY]
        assert not following._wants_all
        assert ticks.executor.stats.background.failures == 0
        assert await ticks.ask(ticks.connect(), "XLEN s") == [b":0\r\n"]
        following._apply(LogStream(0, 1 << 30))
        following.link_received(log_of([1])[0])
        await ticks.settle()
        assert await ticks.ask(ticks.connect(), "XLEN s") == [b":1\r\n"]
        ticks.close()

    in_loop(body())
