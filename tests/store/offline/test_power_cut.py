from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import StoreError, VersionError
from riverbed.store.offline import power_cut, replaced
from riverbed.store.offline.repair import mend_tables
from riverbed.store.offline.replaced import Action
from riverbed.store.swap import Places
from riverbed.store.tables.data_file.power_loss import is_marked
from riverbed.store.tables.environment import Tables
from tests.support.program import run
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

    def killed(*_: object) -> None:
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
    log = directory / "appendonlydir" / "appendonly.aof.1.incr.aof"
    before = log.read_bytes()
    lost = power_cut.settle_after_power_cut(Places(directory), OsFiles()).lost
    assert lost is not None and lost.kept is not None
    assert log.read_bytes() + lost.kept.read_bytes() == before
    assert not is_marked(directory / "state")
    store = Store(directory)
    assert store.engine.recovery.torn_tail is None
    assert store.stream().length == 4
    store.kill()


@pytest.mark.parametrize("error", [lmdb.MemoryError("no room for the map"), VersionError("of a later version")])
@pytest.mark.parametrize("tool", [["compact"], ["check", "--repair"]])
def test_tables_that_are_not_damaged_and_cannot_be_opened_leave_all_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, tool: list[str]
) -> None:
    directory = cut(tmp_path / "cut")
    log = directory / "appendonlydir" / "appendonly.aof.1.incr.aof"
    before = log.read_bytes()

    def refused(*_: object) -> Tables:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(power_cut, "Tables", refused)
        result = run(*tool, directory)
    assert result.exit_code == 2
    assert str(error) in result.stderr
    assert log.read_bytes() == before
    store = Store(directory)
    assert store.stream().length == 4
    store.kill()


def test_a_full_disk_keeps_no_part_of_what_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = cut(tmp_path / "cut")

    def full(source: Path, target: Path, *_: object) -> None:
        target.write_bytes(b"the beginning")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(replaced, "copy_stretch", full)
        result = run("compact", directory)
    assert result.exit_code == 2
    assert list((directory / "replaced").iterdir()) == []
    assert is_marked(directory / "state")


def test_a_trial_cuts_nothing_and_a_compaction_tells_and_keeps_what_it_cuts(tmp_path: Path) -> None:
    directory = cut(tmp_path / "cut")
    log = directory / "appendonlydir" / "appendonly.aof.1.incr.aof"
    before = log.read_bytes()
    trial = run("compact", directory, "--dry-run")
    assert trial.exit_code == 2
    assert "a power cut has ended the use of" in trial.stderr
    assert log.read_bytes() == before and is_marked(directory / "state")
    done = run("compact", directory, "--json")
    assert done.exit_code == 0
    assert "after a power cut: cut " in done.stderr
    (kept,) = (directory / "replaced").iterdir()
    assert kept.name in done.stderr and before.endswith(kept.read_bytes())


@pytest.mark.parametrize("tool", [["compact"], ["check", "--repair"]])
def test_nothing_that_is_kept_goes_where_a_link_leads(tmp_path: Path, tool: list[str]) -> None:
    directory = cut(tmp_path / "cut")
    log = directory / "appendonlydir" / "appendonly.aof.1.incr.aof"
    before = log.read_bytes()
    (tmp_path / "elsewhere").mkdir()
    (directory / "replaced").symlink_to(tmp_path / "elsewhere")
    assert run(*tool, directory).exit_code == 2
    assert log.read_bytes() == before and is_marked(directory / "state")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_repair_tells_and_keeps_what_it_cuts_of_a_store_that_is_sound_then(tmp_path: Path) -> None:
    directory = cut(tmp_path / "cut")
    result = run("check", directory, "--repair")
    assert result.exit_code == 0
    assert "repaired: after a power cut: cut " in result.stderr
    assert len(list((directory / "replaced").iterdir())) == 1


def test_what_a_repair_cuts_stands_in_its_report_beside_what_it_mends(tmp_path: Path) -> None:
    directory = cut(tmp_path / "cut")
    for _ in range(2):  # the newest state of the tables is not believed after a power cut
        damage(directory, do.stream(length=9))
    result = run("check", directory, "--repair", "--json")
    report = json.loads(result.stdout)
    first, second = report["repaired"]
    assert first["done"].startswith("after a power cut: cut ") and Path(first["kept"]).exists()
    assert second["done"].startswith("made the tables again") and Path(second["kept"]).exists()
    assert report["mended"] and report["sound"]


def test_broken_pages_do_not_kill_a_tool_that_ends_a_power_cut(tmp_path: Path) -> None:
    directory = cut(tmp_path / "cut")
    log = directory / "appendonlydir" / "appendonly.aof.1.incr.aof"
    log.write_bytes(log.read_bytes().partition(bytes(120))[0])
    data = directory / "state" / "data.mdb"
    pages = bytearray(data.read_bytes())
    for at in range(2 * 4096, len(pages), 4096):  # behind the meta pages
        if pages[at + 10] == 2:  # a leaf, whose rows are beyond its end then
            pages[at + 16 : at + 4096] = b"\xff\xef" * 2040
    data.write_bytes(pages)
    tool = [sys.executable, "-m", "riverbed.tools.cli", "check", str(directory), "--repair"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    store = Store(directory)
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
    told: list[Action] = []
    mend_tables(directory, Replayer().execute, now_ms=1, load_truncated=True, acted=told.append)
    assert [str(action).startswith("after a power cut: cut ") for action in told] == [True]
    store = Store(directory)
    assert store.stream().length == 4
    assert store.violations() == []
    store.kill()
