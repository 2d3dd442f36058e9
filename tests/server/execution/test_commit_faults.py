"""Whatever fails around a commit, replies are true: after an error nothing was applied, after any other all of it.

The rotation of the log is due behind the batch in all of these, so every file operation of a rotation is among those
that fail.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import lmdb
import pytest

from riverbed.store.errors import Refusal
from riverbed.store.log.streamed.batch import StreamedBatch
from riverbed.store.running.live_state import LiveState
from tests.support.store.faulty_files import FaultyFiles
from tests.support.ticks import Client, Files, Ticks, in_loop

SEGMENT = 1 << 16
# Together with what every store begins with, more than a file of the log takes.
LONG = b"x" * (SEGMENT + SEGMENT // 8)  # a file that is an eighth too long ends in the tick
NUMBERS = [errno.EIO, errno.ENOSPC, errno.EMFILE]


class Rotation:
    """A store whose next batch fills a file of the log, two clients that write in one tick, and a replica."""

    def __init__(self, directory: Path, policy: str, files: Files | None = None) -> None:
        self.ticks = Ticks(directory, files=files, appendfsync=policy, segment_bytes=SEGMENT)
        self.ticks.engine.batches.on_written = self._replicate
        self.replica = bytearray()

    def _replicate(self, batches: Sequence[StreamedBatch]) -> None:
        for batch in batches:
            self.replica += batch.data

    async def write(self) -> dict[bytes, bytes | None]:
        """Have three entries added in one tick; -> the reply to each, None when there was none."""
        clients = {b"1-1": self.ticks.connect(), b"2-1": self.ticks.connect(), b"3-1": self.ticks.connect()}
        for entry_id, client in clients.items():
            client.send_words("XADD", entry_id, entry_id, "f", LONG if entry_id == b"2-1" else b"v")
        await self.ticks.settle()
        return {entry_id: _only(client) for entry_id, client in clients.items()}

    async def held(self) -> set[bytes]:
        """The entries that another client finds."""
        client = self.ticks.connect()
        return {
            key
            for key in (b"1-1", b"2-1", b"3-1")
            if await self.ticks.ask(client, f"XLEN {key.decode()}") == [b":1\r\n"]
        }

    async def restarted(self, target: Path, files: FaultyFiles, policy: str) -> set[bytes]:
        """The entries that the next start finds in what `files` hold, with the tables of now."""
        shutil.copytree(self.ticks.directory / "state", target / "state")
        (target / "state" / "in-use").write_text("another boot")
        (target / "state" / "lock.mdb").unlink()
        again = Files()
        for path in files.paths():
            again.put(target / path.relative_to(self.ticks.directory), bytes(files.data(path)))
        other = Rotation(target, policy, again)
        try:
            return await other.held()
        finally:
            other.ticks.close()


def _only(client: Client) -> bytes | None:
    replies = client.replies()
    assert len(replies) == (0 if client.is_closed else 1), replies
    return replies[0] if replies else None


def operations_of_a_commit(directory: Path, policy: str) -> dict[str, int]:
    """How often each file operation is called by a tick behind which the log goes on in another file."""
    counts: Counter[str] = Counter()

    async def body() -> None:
        rotation = Rotation(directory, policy)
        files = rotation.ticks.files
        before = len(files.operations)
        await rotation.write()
        assert rotation.ticks.engine.log.end.file_seq == 2
        counts.update(files.operations[before:])
        rotation.ticks.close()

    in_loop(body())
    return counts


def assert_replies_are_true(replies: dict[bytes, bytes | None], found: set[bytes], what: str) -> None:
    for entry_id, reply in replies.items():
        if reply is None:
            continue  # cut off: it knows nothing
        is_refused = reply.startswith(b"-")
        assert is_refused or reply == b"$3\r\n%b\r\n" % entry_id
        assert (entry_id in found) is not is_refused, f"{what}: {reply[:60]!r} to {entry_id!r}, found {sorted(found)}"


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_every_reply_is_true_whichever_file_operation_of_a_commit_fails(
    tmp_path: Path, policy: str, number: int
) -> None:
    counts = operations_of_a_commit(tmp_path / "dry", policy)
    assert counts["rename"] and counts["create"] and counts["sync_directory"] == 2
    for operation, count in counts.items():
        for after in range(count):
            what = f"{operation} {after}"
            place = tmp_path / f"{operation}-{after}"

            async def body(
                operation: str = operation, after: int = after, what: str = what, place: Path = place
            ) -> None:
                rotation = Rotation(place / "live", policy)
                files = rotation.ticks.files
                files.fail(operation, number, after=after)
                replies = await rotation.write()
                refused = [reply for reply in replies.values() if reply is not None and reply.startswith(b"-")]
                assert rotation.ticks.executor.stats.error_replies == len(refused), what
                assert_replies_are_true(replies, await rotation.held(), f"live, {what}")
                sent = {key for key in replies if b"\r\n%b\r\n" % key in rotation.replica}
                assert_replies_are_true(replies, sent, f"replica, {what}")
                found = await rotation.restarted(place / "restarted", files, policy)
                assert_replies_are_true(replies, found, f"restarted, {what}")
                if policy == "always":
                    for kept, names in ((0, False), (0, True), (1 << 20, True)):
                        cut = files.crash(kept, names=names)
                        found = await rotation.restarted(place / f"cut-{kept}-{names}", cut, policy)
                        assert_replies_are_true(replies, found, f"cut {kept} {names}, {what}")
                rotation.ticks.server.maintenance.stop()
                rotation.ticks.server.checkpoints.stop()
                rotation.ticks.engine.abandon()

            in_loop(body())
            shutil.rmtree(place)


def test_each_reply_of_an_undone_tick_is_counted_as_one_error(tmp_path: Path) -> None:
    async def body() -> None:
        rotation = Rotation(tmp_path, "everysec")
        ticks = rotation.ticks
        writer, wrong = ticks.connect(), ticks.connect()
        await ticks.ask(writer, "XADD s 5-5 f v")
        ticks.files.fail("write", errno.EIO, after=0)
        writer.send("XADD s 6-6 f v", "XADD s 7-7 f v")
        wrong.send("XADD s 1-1 f v")
        await ticks.settle()
        replies = [*writer.replies(), *wrong.replies()]
        assert [reply.startswith(b"-") for reply in replies] == [True] * 3
        assert ticks.executor.stats.error_replies == 3
        assert min(ticks.executor.stats.errors.values()) > 0
        rotation.ticks.server.maintenance.stop()
        rotation.ticks.server.checkpoints.stop()
        rotation.ticks.engine.abandon()

    in_loop(body())


def test_a_batch_that_can_neither_be_synced_nor_taken_back_is_answered_by_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        rotation = Rotation(tmp_path / "live", "always")
        files = rotation.ticks.files
        files.fail("sync", errno.EIO)
        files.fail("truncate", errno.EIO)
        assert await rotation.write() == {b"1-1": None, b"2-1": None, b"3-1": None}
        assert await rotation.held() == set()
        rotation.ticks.server.maintenance.stop()
        rotation.ticks.server.checkpoints.stop()
        rotation.ticks.engine.abandon()

    in_loop(body())


def test_a_checkpoint_that_fails_in_a_tick_takes_back_no_reply_of_what_was_committed_before(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="everysec")
        writer, saver, late = ticks.connect(), ticks.connect(), ticks.connect()
        ticks.files.fail("sync", errno.EIO)
        writer.send("XADD s 1-1 f v")
        saver.send("SAVE")
        late.send("XADD s 2-1 f v")
        await ticks.settle()
        [first], [second] = writer.replies(), late.replies()
        assert first == b"$3\r\n1-1\r\n"
        assert second.startswith(b"-MISCONF ")
        assert saver.replies()[0].startswith(b"-")
        assert await ticks.ask(saver, "XRANGE s - +") == [b"*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"]
        ticks.server.maintenance.stop()
        ticks.server.checkpoints.stop()
        ticks.engine.abandon()

    in_loop(body())


def test_a_tick_that_fails_takes_back_no_reply_of_what_it_committed_on_the_way(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="everysec")
        writer, saver, late = ticks.connect(), ticks.connect(), ticks.connect()
        writer.send("XADD s 1-1 f v")
        saver.send("SAVE")
        late.send("XADD s 2-1 f v")
        ticks.files.fail("write", errno.ENOSPC, after=1)
        await ticks.settle()
        [first], [second] = writer.replies(), late.replies()
        assert first == b"$3\r\n1-1\r\n"
        assert second.startswith(b"-MISCONF ")
        assert await ticks.ask(writer, "XLEN s") == [b":1\r\n"]
        ticks.close()

    in_loop(body())


def test_replies_that_wait_for_their_tick_learn_of_a_commit_that_fails_before_it(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="everysec")
        client = ticks.connect()
        client.send("XADD s 1-1 f v")
        ticks.executor.fast_path.run(ticks.clock.time())
        ticks.files.fail("write", errno.ENOSPC)
        ticks.server.checkpoints._checkpoint()
        await ticks.settle()
        assert [reply[:9] for reply in client.replies()] == [b"-MISCONF "]
        assert await ticks.ask(client, "XLEN s") == [b":0\r\n"]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("read", ["XREAD BLOCK 0 STREAMS s $", "XREADGROUP GROUP g c BLOCK 0 STREAMS s >"])
def test_a_reader_that_is_woken_before_a_commit_on_the_way_learns_how_that_has_ended(
    tmp_path: Path, read: str, fails: bool
) -> None:
    """It was sent the entry that was undone, as only clients that had asked for something in the tick were told."""

    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="always")
        reader, writer = ticks.connect(), ticks.connect()
        await ticks.ask(writer, "XGROUP CREATE s g $ MKSTREAM")
        assert await ticks.ask(reader, read) == []
        ticks.files.fail("write", errno.ENOSPC, after=0 if fails else 1)
        replies = await ticks.ask(writer, "XADD s 1-1 f v", "SAVE", "XADD s 2-1 f v")
        if fails:
            assert replies[0].startswith(b"-MISCONF ")
            assert [reply[:9] for reply in reader.replies()] == [b"-MISCONF "]
        else:  # the commit at the end of the tick fails
            assert replies[0] == b"$3\r\n1-1\r\n"
            assert replies[2].startswith(b"-MISCONF ")
            [reply] = reader.replies()
            assert b"1-1" in reply
        ticks.close()

    in_loop(body())


def test_a_replica_that_cannot_be_sent_a_batch_costs_its_connection_and_not_the_tick(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, replica = ticks.connect(), ticks.connect()
        await ticks.ask(replica, "REPLCONF capa psync2", "PSYNC ? -1")
        (sender,) = ticks.server.replication.primary.senders.values()

        def fail(batches: Sequence[StreamedBatch]) -> None:
            raise RuntimeError("unable to perform operation on <TCPTransport closed>; the handler is closed")

        sender.batches = fail
        assert await ticks.ask(writer, "XADD s 1-1 f v") == [b"$3\r\n1-1\r\n"]
        assert replica.is_closed
        ticks.close()

    in_loop(body())


def test_a_map_that_is_full_as_rows_leave_the_memory_refuses_writes_and_answers_all_before(tmp_path: Path) -> None:
    """A reader keeps the pages of old commits from being used again."""

    async def body() -> None:
        ticks = Ticks(tmp_path, map_bytes=4 << 20)
        ticks.keep_transaction()
        client, keys = ticks.connect(), range(6000)
        for start in keys[::1000]:
            await ticks.ask(client, *(f"XADD key{number} 1-1 f v" for number in keys[start : start + 1000]))
            ticks.engine.checkpoint()
        reader = ticks.engine.tables.env.begin()
        chance = random.Random(1)
        for round_no in range(200):
            replies = await ticks.ask(
                client, *(f"XSETID key{chance.choice(keys)} {round_no + 2}-1" for _ in range(500))
            )
            assert len(replies) == 500
            if ticks.engine.refusal is not None:
                break
            if round_no % 6 == 5:
                with contextlib.suppress(lmdb.MapFullError):
                    ticks.engine.checkpoint()
        assert ticks.engine.refusal is Refusal.MAP_FULL
        assert not ticks.executor.gave_up
        with patch.object(LiveState, "restore", autospec=True, side_effect=LiveState.restore) as restore:
            for _ in range(5):
                assert await ticks.ask(client, "XLEN key0") == [b":1\r\n"]
            restore.assert_not_called()
        reader.abort()
        ticks.close(save=False)

    in_loop(body())
