"""A power cut takes writes that were not synced in any order: a start cuts off what it can, and refuses all else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.errors import CorruptionError, StoreError
from riverbed.store.layout import LOG_DIRECTORY, STATE_DIRECTORY, incr_name
from riverbed.store.offline.compaction import Compaction
from riverbed.store.offline.repair import Repair
from riverbed.store.options import Fsync
from riverbed.store.tables.data_file import power_loss
from riverbed.store.tables.data_file.power_loss import MARK_NAME
from tests.support.read_log import manifest_of
from tests.support.store.stores import Store, checkpoint_twice

NOW_MS = 1_700_000_000_000
ENTRIES = 8


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


def stopped_by_a_power_cut(place: Path, fsync: Fsync = Fsync.EVERYSEC, *, covered: int = 2) -> list[int]:
    """A store of entries 1-0 to 8-0, a batch each, the first of which the tables cover; -> where the batches end."""
    store = Store(place, fsync=fsync)
    ends = []
    for number in range(1, ENTRIES + 1):
        store.add(b"s", f"{number}-0", words=(b"f", b"v" * 200))
        store.commit()
        ends.append(store.engine.log.end.position)
        if number == covered:
            checkpoint_twice(store.engine)
    store.kill()
    (place / STATE_DIRECTORY / MARK_NAME).write_text("another boot")
    return ends


def log_file(place: Path) -> Path:
    return place / LOG_DIRECTORY / incr_name(1)


def wipe(place: Path, start: int, end: int) -> None:
    """As a file system that has the length of the file, and not all of its pages."""
    with log_file(place).open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def lost_after(place: Path) -> int:
    """How many entries a start finds; they are the first ones."""
    store = Store(place, fsync=Fsync.EVERYSEC)
    stream = store.stream()
    found = stream.length
    assert stream.last_id >> 64 == found
    store.kill()
    return found


@pytest.mark.parametrize("tool", ["repair", "trial", None])
def test_where_boots_cannot_be_told_apart_lost_writes_are_cut_off_as_well(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str | None
) -> None:
    monkeypatch.setattr(power_loss, "_BOOT_ID", tmp_path / "missing")
    ends = stopped_by_a_power_cut(place)
    (place / STATE_DIRECTORY / MARK_NAME).write_text("unknown")
    wipe(place, ends[4] + 10, ends[5] - 10)
    before = log_file(place).read_bytes()
    if tool == "trial":
        trial = Compaction(place, Replayer().execute, now_ms=NOW_MS, is_trial=True)
        with pytest.raises(StoreError, match="power cut"), trial:
            pass
        assert log_file(place).read_bytes() == before
    if tool == "repair":
        with Repair(place, Replayer().execute, now_ms=NOW_MS) as repair:
            assert repair.lost is not None
    assert lost_after(place) == 5


@pytest.mark.parametrize("batch", range(3, ENTRIES))
def test_what_follows_lost_writes_is_cut_off(place: Path, batch: int) -> None:
    ends = stopped_by_a_power_cut(place)
    wipe(place, ends[batch - 2] + 10, ends[batch - 1] - 10)
    store = Store(place, fsync=Fsync.EVERYSEC)
    torn = store.engine.recovery.torn_tail
    assert torn is not None
    assert torn.position == ends[batch - 2]
    assert "a power cut has stopped a server that did not sync each write" in torn.reason
    assert store.stream().length == batch - 1
    store.run("XADD", "s", "100-0", "f", "v")
    store.crash()
    assert store.stream().length == batch
    assert store.violations() == []
    store.kill()


def test_the_same_is_refused_when_the_machine_did_not_stop(place: Path) -> None:
    ends = stopped_by_a_power_cut(place)
    wipe(place, ends[4] + 10, ends[4] + 50)
    mark = place / STATE_DIRECTORY / MARK_NAME
    mark.write_text(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    before = log_file(place).read_bytes()
    with pytest.raises(CorruptionError, match="is sound again"):
        Store(place)
    assert log_file(place).read_bytes() == before
    mark.unlink()  # a clean stop
    with pytest.raises(CorruptionError, match="is sound again"):
        Store(place)


def test_the_same_is_refused_in_a_log_that_was_synced_before_each_reply(place: Path) -> None:
    ends = stopped_by_a_power_cut(place, Fsync.ALWAYS)
    wipe(place, ends[4] + 10, ends[4] + 50)
    with pytest.raises(CorruptionError, match="is sound again"):
        Store(place)


def test_what_a_checkpoint_covers_is_not_cut_off(place: Path) -> None:
    ends = stopped_by_a_power_cut(place, covered=6)
    wipe(place, ends[5] - 50, ends[5])  # the batch that the last checkpoint ends with
    with pytest.raises(CorruptionError, match="no batch ends where reading is to begin"):
        Store(place)
    shutil.rmtree(place / STATE_DIRECTORY)
    with pytest.raises(CorruptionError, match="is sound again"):
        Store(place)


def test_a_flipped_bit_is_told_from_lost_writes(place: Path) -> None:
    ends = stopped_by_a_power_cut(place)
    data = bytearray(log_file(place).read_bytes())
    data[ends[4] + 30] ^= 4
    log_file(place).write_bytes(data)
    with pytest.raises(CorruptionError, match=f"a bit is flipped in byte {ends[4] + 30}"):
        Store(place)
    assert log_file(place).read_bytes() == data


def test_a_start_has_another_replication_id_although_nothing_is_left(place: Path) -> None:
    stopped_by_a_power_cut(place)
    before = manifest_of(place).replids
    assert before is not None
    shutil.rmtree(place / STATE_DIRECTORY)
    log_file(place).write_bytes(b"")
    store = Store(place)
    assert store.engine.log.end.offset == 0
    assert store.engine.log.replids.replication_id != before.replication_id
    assert store.engine.log.replids.holds(before.replication_id, 0)
    assert not store.engine.log.replids.holds(before.replication_id, 1)
    store.kill()


def test_tools_cut_the_same_before_they_forget_the_power_cut(place: Path) -> None:
    ends = stopped_by_a_power_cut(place)
    wipe(place, ends[3], ends[4])
    shutil.copytree(place, place.with_name("other"))
    with Compaction(place, Replayer().execute, now_ms=NOW_MS) as compaction:
        compaction.run()
    with Repair(place.with_name("other"), Replayer().execute, now_ms=NOW_MS):
        pass
    assert [lost_after(place), lost_after(place.with_name("other"))] == [4, 4]
