from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import StoreError
from riverbed.store.offline import power_cut
from riverbed.store.offline.repair import mend_tables
from riverbed.store.swap import Places
from riverbed.store.tables.data_file.power_loss import is_marked
from tests.support.store.planting import damage, do
from tests.support.store.stores import Store


def cut(directory: Path) -> Path:
    """A store as a power cut leaves it that takes a write of the log and leaves later ones."""
    store = Store(directory.with_name("store"))
    store.add(b"s", "1-0")
    store.checkpoint()
    store.checkpoint()
    ends = []
    for number in range(2, 8):
        store.add(b"s", f"{number}-0", words=(b"f", b"v" * 100))
        store.commit()
        ends.append(store.engine.log.end.position)
    shutil.copytree(store.directory, directory)
    store.kill()
    with (directory / "appendonlydir" / "appendonly.aof.1.incr.aof").open("r+b") as file:
        file.seek(ends[2] + 20)
        file.write(bytes(120))
    (directory / "state" / "in-use").write_text("another boot")
    return directory


def test_a_tool_that_is_killed_while_it_cuts_what_a_power_cut_has_left_is_followed_by_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = cut(tmp_path / "cut")

    def killed(directory: Path, files: OsFiles, load_truncated: bool) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(power_cut, "_cut_lost_writes", killed)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                power_cut.settle_after_power_cut(Places(directory), OsFiles())
    store = Store(directory)
    assert store.engine.recovery.torn_tail is not None
    assert store.stream().length == 4
    assert store.violations() == []
    store.kill()


def test_the_mark_of_the_power_cut_goes_with_what_it_has_left(tmp_path: Path) -> None:
    directory = cut(tmp_path / "cut")
    power_cut.settle_after_power_cut(Places(directory), OsFiles())
    assert not is_marked(directory / "state")
    store = Store(directory)
    assert store.engine.recovery.torn_tail is None
    assert store.stream().length == 4
    store.kill()


@pytest.mark.parametrize("lost", ["a hole", "a torn tail"])
def test_a_start_that_may_cut_nothing_leaves_log_and_mark_as_they_are(tmp_path: Path, lost: str) -> None:
    directory = cut(tmp_path / "cut")
    log = directory / "appendonlydir" / "appendonly.aof.1.incr.aof"
    if lost == "a torn tail":
        whole, _, _ = log.read_bytes().partition(bytes(120))
        log.write_bytes(whole)
    damage(directory, do.empty("groups"))
    before = log.read_bytes()
    with pytest.raises(StoreError, match=r"appendonly\.aof\.1\.incr\.aof"):
        mend_tables(directory, Replayer().execute, now_ms=1, load_truncated=False)
    assert log.read_bytes() == before
    assert is_marked(directory / "state")
    assert not (directory / "replaced").exists()
    mend_tables(directory, Replayer().execute, now_ms=1, load_truncated=True)
    store = Store(directory)
    assert store.stream().length == 4
    assert store.violations() == []
    store.kill()
