from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.store.errors import StateLostError
from riverbed.store.running import live_state
from tests.support.store.planting import flip_row
from tests.support.store.stores import Store, sid


def damaged_below_the_tail(directory: Path) -> Store:
    """An open store whose last checkpoint has been damaged since; the log's tail changes the damaged row."""
    store = Store(directory)
    store.fill(b"s", 20)
    store.run("XGROUP", "CREATE", "s", "g", "0")
    store.run("XREADGROUP", "GROUP", "g", "Alice", "COUNT", "5", "STREAMS", "s", ">")
    store.checkpoint()
    store.run("XACK", "s", "g", "1-0")
    store.commit()
    flip_row(directory, *next(store.engine.tables.env.begin().cursor(store.txn.handles["pel"]).iternext()))
    return store


def test_a_tick_is_undone_although_the_tail_of_the_log_meets_damage(tmp_path: Path) -> None:
    store = damaged_below_the_tail(tmp_path / "store")
    told: list[Exception] = []
    store.engine.state.on_remade = told.append
    store.run("XADD", "s", "21-0", "f", "v")
    store.engine.rollback(store.clock.now_ms)
    assert len(told) == 1 and "damaged" in str(told[0])
    assert store.stream().length == 20
    group = store.groups().get(b"g")
    assert group is not None
    assert [entry.entry_id for entry in group.pending()] == [sid(f"{number}-0") for number in range(2, 6)]
    store.checkpoint()
    store.kill()


def test_a_long_log_is_left_to_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_state, "MAX_REMADE", 10)
    store = damaged_below_the_tail(tmp_path / "store")
    store.run("XADD", "s", "21-0", "f", "v")
    with pytest.raises(StateLostError, match=r"could not be rebuilt: .*damaged"):
        store.engine.rollback(store.clock.now_ms)
    store.kill()


@pytest.mark.parametrize("place", ["in the middle", "in the last batch"])
@pytest.mark.parametrize("follows_power_cut", [True, False])
def test_a_log_that_was_damaged_since_it_was_written_is_not_taken_for_a_shorter_one(
    tmp_path: Path, place: str, follows_power_cut: bool
) -> None:
    """Its end is known: what lacks there is neither a torn tail nor what a power cut before the start has taken."""
    store = Store(tmp_path / "store")
    store.add(b"s", "1-0")
    store.checkpoint()
    if follows_power_cut:
        store.kill()
        (store.directory / "state" / "in-use").write_text("another boot")
        store.open()
    ends = [store.engine.log.end.position]
    for number in range(2, 12):
        store.add(b"s", f"{number}-0", words=(b"f", b"v" * 100))
        store.commit()
        ends.append(store.engine.log.end.position)
    with store.engine.log.home.parts()[-1].path.open("r+b") as file:
        file.seek(ends[3] + 20 if place == "in the middle" else ends[-2] + 20)
        file.write(bytes(60))
    store.add(b"s", "99-0")
    with pytest.raises(StateLostError, match=r"could not be rebuilt: .*appendonly"):
        store.engine.rollback(store.clock.now_ms)
    with pytest.raises(StateLostError):
        store.engine.checkpoint()
    store.kill()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a bug")])
def test_a_replay_that_ends_early_is_never_committed_as_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store = Store(tmp_path / "store")
    store.add(b"s", "1-0")
    store.checkpoint()
    for number in range(2, 5):
        store.add(b"s", f"{number}-0")
        store.commit()

    def ends_early(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(live_state, "recover", ends_early)
    with pytest.raises(StateLostError, match=r"could not be rebuilt: (MemoryError|a bug)"):
        store.engine.rollback(store.clock.now_ms)
    monkeypatch.undo()
    with pytest.raises(StateLostError):
        store.engine.checkpoint()
    store.kill()
    store.open()
    assert store.stream().length == 4
    store.kill()
