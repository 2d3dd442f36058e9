"""Whatever fails, and whenever the process or the machine stops: what was answered is what the next start finds.

A store on a file system that fails on request commits, rotates, checkpoints and rewrites its log under random faults
(errors, short writes, a full disk, syncs that fail), and is stopped, killed, or loses its power at any moment.  After
each start its entries are those of the batches in order: all that were durable, none that was answered with an error,
and after a kill all that were answered.  A start that is bound to fail is tried now and then, and changes nothing.

`RIVERBED_SEED=n` or `RIVERBED_SEED=random` runs other rounds than CI does.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from riverbed.store.errors import LogWriteError, StateLostError, StoreError, UnknownOutcomeError
from riverbed.store.ids import MAX_ID, MIN_ID
from riverbed.store.log.base_file import write_base
from riverbed.store.options import Fsync
from riverbed.store.rewrite.state import pieces
from tests.conftest import base_seed
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import adopt_base
from tests.support.store.stores import Store, checkpoint_twice, text_of
from tests.support.trees import tree

pytestmark = pytest.mark.slow

ROUNDS = 24
STARTS_A_ROUND = 7
STEPS_A_LIFE = 14
_PAGE = 4096
_NUMBERS = (errno.EIO, errno.ENOSPC, errno.EMFILE)
# Syncs are where most can go wrong.
_OPERATIONS = (
    *("write", "rename", "create", "truncate", "close", "open", "unlink", "read_at"),
    *("sync", "sync", "sync", "sync_directory", "sync_directory"),
)
_AT_A_START = ("write", "sync", "sync_directory", "open", "read_at", "create", "rename", "write")

Batch = tuple[str, ...]


class Round:
    """One store, and what is known of it from outside."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.what = f"seed {seed}"
        self.files = FaultyFiles()
        self.next_id = 1
        # Batches that were answered, each with the offset behind it, and those whose outcome nobody was told: the log
        # may hold one of them.
        self.answered: list[tuple[Batch, int]] = []
        self.unknown: list[Batch] = []
        self.faults = 0
        self.store = Store(
            directory,
            files=self.files,
            fsync=self.chance.choice(list(Fsync)),
            segment_bytes=self.chance.choice([300, 1500, 6000]),
        )
        self._watch_tables()

    @property
    def _data(self) -> Path:
        return self.store.directory / "state" / "data.mdb"

    def _watch_tables(self) -> None:
        """Keep what is durable of the tables: all of it after a start, and when a checkpoint has become so."""
        self._note_durable_tables()
        self.store.engine.checkpoints.on_end = lambda seconds: self._note_durable_tables()

    def _note_durable_tables(self) -> None:
        self._tables = self._data.read_bytes()

    # -- a life --------------------------------------------------------------------------------------------------------

    def live(self) -> bool:
        """Some steps; -> whether the process goes on: one that has lost its state says nothing and writes nothing."""
        fault_share = self.chance.choice([0.0, 0.2, 0.6])
        for _ in range(self.chance.randrange(1, STEPS_A_LIFE)):
            if self.chance.random() < fault_share:
                self._arm(_OPERATIONS, 4)
            step = self.chance.choices(
                [
                    *(self._write, self._checkpoint, self._begin_checkpoint, self._rewrite),
                    *(self._fill_disk, self._undo, self._fail_sync),
                ],
                [12, 3, 3, 1, 1, 1, 1],
            )[0]
            try:
                step()
            except StateLostError:
                return False
            finally:
                self.files.free = None
        return True

    def _arm(self, operations: tuple[str, ...], within: int) -> None:
        self.faults += 1
        for _ in range(self.chance.choice([1, 1, 1, 3])):
            operation, number = self.chance.choice(operations), self.chance.choice(_NUMBERS)
            self.files.fail(operation, number, after=self.chance.randrange(within))
        self.files.write_limit = self.chance.choice([None, None, None, 7])

    def _write(self) -> None:
        batch = tuple(f"{self.next_id + number}-0" for number in range(self.chance.randrange(1, 4)))
        self.next_id += len(batch)
        for text in batch:
            self.store.add(b"s", text, words=(b"f", b"x" * self.chance.choice([1, 30, 400])))
        try:
            self.store.commit()
        except UnknownOutcomeError:
            self.unknown.append(batch)
        except LogWriteError:
            self._assert_state("after an error", self.ids())
        except StateLostError:
            self.unknown.append(batch)  # its client is cut off
            raise
        else:
            self.answered.append((batch, self.store.engine.log.end.offset))
            self._assert_state("after an answer", self.ids())

    def _checkpoint(self) -> None:
        with contextlib.suppress(LogWriteError, lmdb.Error):
            self.store.engine.checkpoint()

    def _begin_checkpoint(self) -> None:
        """What follows comes while the disk is busy."""
        with contextlib.suppress(LogWriteError, lmdb.Error):
            self.store.engine.begin_checkpoint()

    def _rewrite(self) -> None:
        """What BGREWRITEAOF does, in this process."""
        engine = self.store.engine
        path = engine.log.home.path / "temp-rewrite-1.aof"
        with contextlib.suppress(LogWriteError, lmdb.Error, OSError):
            end = engine.divide_log()
            with engine.tables.env.begin() as txn:
                size = write_base(path, pieces(engine.tables, txn), self.files, offset=end.offset, now_ms=1)
            checkpoint_twice(engine)
            adopt_base(engine.log, path, size.size, size.command_bytes, end.file_seq)
            for leftover in engine.log.home.leftovers():
                self.files.unlink(leftover)
            engine.log.history.forget_deleted()

    def _fill_disk(self) -> None:
        self.files.free = self.chance.randrange(900)
        for _ in range(3):
            self._write()

    def _fail_sync(self) -> None:
        self._write()
        self.files.fail("sync", errno.EIO)
        self._checkpoint()

    def _undo(self) -> None:
        """A command that fails half way."""
        self.store.add(b"s", f"{self.next_id}-0")
        self.next_id += 1
        self.store.engine.rollback(self.store.clock.now_ms)

    # -- an end, and the next start ------------------------------------------------------------------------------------

    def end_and_start(self, *, goes_on: bool) -> None:
        least = len(self.answered)
        # a disk that has failed is most dangerous when the process is started again before the machine is
        has_failed = self.store.engine.log.broken
        weights = [1, 5, 1] if has_failed else [1, 1, 3]
        how = self.chance.choices(["stop", "kill", "power"], weights if goes_on else [0, 2, 1])[0]
        if how == "stop":
            self.files.forgive()
            self.store.txn.log.clear()
            with contextlib.suppress(LogWriteError, StateLostError, lmdb.Error):
                self.store.engine.close()
        else:
            if how == "power":
                synced = self.store.engine.log.synced_offset
                least = sum(offset <= synced for _, offset in self.answered)
            self._die(how)
        if self.chance.random() < 0.3:
            self._start_in_vain()
        if self.chance.random() < 0.3:
            self._start_with_faults()
        self._start(least, how)

    def _die(self, how: str) -> None:
        """Without a word to the disk."""
        state, aside = self.store.directory / "state", self.store.directory / "aside"
        files = self.files.kill()
        if how == "power":
            files = files.crash(self.chance.choice([0, 10, 200, 1 << 20]), names=self.chance.random() < 0.5)
        shutil.copytree(state, aside)
        self.store.txn.log.clear()
        self.store.engine.abandon()
        shutil.rmtree(state)
        aside.rename(state)
        (state / "lock.mdb").unlink()
        if how == "power":
            self._cut_tables(state)
        self.files = self.store.files = files

    def _cut_tables(self, state: Path) -> None:
        """Of what was not durable the disk has some pages."""
        now = self._data.read_bytes()
        share = self.chance.choice([0.0, 0.5, 1.0])
        found = bytearray()
        for at in range(0, len(now), _PAGE):
            durable = self._tables[at : at + _PAGE].ljust(_PAGE, b"\0")
            found += now[at : at + _PAGE] if self.chance.random() < share else durable
        if (state / "in-use").exists():  # else every commit waits for the disk
            self._data.write_bytes(found)
            if (state / "in-use").read_text() != "failed":
                (state / "in-use").write_text("another boot")

    def _start_in_vain(self) -> None:
        """With the log away, or a part of it."""
        home = self.store.directory / "appendonlydir"
        whole = self.files.kill()
        paths = [path for path in self.files.paths() if path.parent == home]
        manifest = home / "appendonly.aof.manifest"
        is_all = self.chance.random() < 0.5
        for path in paths if is_all else [manifest]:
            self.files.remove(path)
        if not is_all and not any(self.files.data(path) for path in self.files.paths() if path.suffix == ".aof"):
            self.files = self.store.files = whole  # nothing is in it: a start may make another
            return
        if not self.answered or not (self.store.directory / "state").exists():
            self.files = self.store.files = whole
            return
        before, contents = self._tree(), self._contents()
        with pytest.raises(StoreError):
            self.store.open()
        assert self._tree() == before, self.what
        assert self._contents() == contents, self.what
        self.files = self.store.files = whole

    def _start_with_faults(self) -> None:
        """One that fails, or does not; the next one must."""
        self._arm(_AT_A_START, 6)
        with contextlib.suppress(OSError, StoreError, lmdb.Error):
            self.store.open()
            self._watch_tables()
            self._die("kill")
        self.files.forgive()
        self.files.write_limit = None

    def _start(self, least: int, how: str) -> None:
        self.store.open()
        self._watch_tables()
        found = self.ids()
        batches = [batch for batch, _ in self.answered]
        expected = [_flat(batches[:count]) for count in range(least, len(batches) + 1)]
        expected += [[*_flat(batches), *batch] for batch in self.unknown]
        assert found in expected, f"{self.what}: after {how} {found[-8:]}, expected one of {[e[-8:] for e in expected]}"
        assert how == "power" or set(_flat(batches)) <= set(found), f"{self.what}: lost by a {how}"
        # what a start has shown stays
        self.answered = [(tuple(found), self.store.engine.log.end.offset)] if found else []
        self.unknown.clear()

    # -- looking -------------------------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        stream = self.store.db.stream(b"s", 0)
        return [] if stream is None else [text_of(key) for key, _ in stream.rows(MIN_ID, MAX_ID)]

    def _assert_state(self, when: str, found: list[str]) -> None:
        assert found == _flat([batch for batch, _ in self.answered]), f"{self.what}: {when}"

    def _tree(self) -> dict[str, str]:
        """But for LMDB's lock, which is no data."""
        return {name: node[1] for name, node in tree(self.store.directory).items() if not name.endswith("lock.mdb")}

    def _contents(self) -> dict[Path, bytes]:
        return {path: bytes(self.files.data(path)) for path in self.files.paths()}

    def close(self) -> None:
        assert self.store.violations() == [], self.what
        self.store.engine.close()


def _flat(batches: list[Batch]) -> list[str]:
    return [text for batch in batches for text in batch]


def rounds(first: int) -> Iterator[int]:
    return iter(range(base_seed() * 1000 + first, base_seed() * 1000 + first + ROUNDS // 4))


@pytest.mark.parametrize("quarter", range(4))
def test_what_was_answered_is_found_whatever_fails(tmp_path: Path, quarter: int) -> None:
    faults = 0
    for seed in rounds(quarter * ROUNDS // 4):
        one = Round(tmp_path / str(seed), seed)
        for _ in range(STARTS_A_ROUND):
            one.end_and_start(goes_on=one.live())
        one.files.forgive()
        one.files.free = one.files.write_limit = None
        faults += one.faults
        one.close()
        shutil.rmtree(tmp_path / str(seed))
    assert faults > 10
